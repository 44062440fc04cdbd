//! The stamp of a copy: the modification time that says which copy it is.

use monarch_abi::hash::Stamp;
use rustix::fd::AsFd;
use rustix::fs::{Timespec, Timestamps};

/// Sets the modification time that says which copy this is.
pub(super) fn set_stamp(fd: impl AsFd, stamp: Stamp) -> rustix::io::Result<()> {
    let (tv_sec, tv_nsec) = stamp.to_time();
    let t = Timespec { tv_sec, tv_nsec: tv_nsec as _ };
    let atime = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW as _ };
    rustix::fs::futimens(fd, &Timestamps { last_access: atime, last_modification: t })
}
