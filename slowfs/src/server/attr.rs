//! Attributes: from what the backing file system says to what the kernel wants.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use rustix::fs::{Stat, Timespec, UTIME_NOW, UTIME_OMIT};

/// The kernel's view of a backing inode under the given number.
pub(super) fn attributes(stat: &Stat, number: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: stat.st_size.cast_unsigned(),
        blocks: stat.st_blocks.cast_unsigned(),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: SystemTime::UNIX_EPOCH,
        kind: kind(stat.st_mode),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: device(stat.st_rdev),
        blksize: u32::try_from(stat.st_blksize).unwrap_or(4096),
        flags: 0,
    }
}

fn time(seconds: i64, nanos: impl TryInto<u32>) -> SystemTime {
    let nanos = Duration::from_nanos(nanos.try_into().unwrap_or(0).into());
    let seconds_abs = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(seconds_abs)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(seconds_abs)
    };
    base.and_then(|base| base.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The file type bits of a mode.
pub(super) fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// A device number in the 32-bit encoding of the FUSE protocol (`new_encode_dev`).
fn device(rdev: u64) -> u32 {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The inverse of [`device`].
pub(super) fn device_number(encoded: u32) -> u64 {
    libc::makedev((encoded & 0xfff00) >> 8, (encoded & 0xff) | ((encoded >> 12) & 0xfff00))
}

/// A time for `utimensat`; absent leaves it as it is.
pub(super) fn timespec(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => specific(time),
    }
}

fn specific(time: SystemTime) -> Timespec {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => Timespec { tv_sec: after.as_secs().cast_signed(), tv_nsec: after.subsec_nanos().into() },
        Err(error) => {
            let before = error.duration();
            let borrow = i64::from(before.subsec_nanos() > 0);
            let tv_nsec = (1_000_000_000 * borrow) - i64::from(before.subsec_nanos());
            Timespec { tv_sec: -before.as_secs().cast_signed() - borrow, tv_nsec }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_survive() {
        for (seconds, nanos) in [(0, 0), (5, 7), (-5, 0), (-5, 999_999_999), (-1, 1)] {
            let spec = specific(time(seconds, nanos));
            assert_eq!((spec.tv_sec, spec.tv_nsec), (seconds, nanos));
        }
    }

    #[test]
    fn device_numbers_round_trip() {
        for rdev in [libc::makedev(1, 3), libc::makedev(259, 70_000)] {
            assert_eq!(device_number(device(rdev)), rdev);
        }
    }
}
