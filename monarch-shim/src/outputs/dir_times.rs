//! Times of directories below an output root: when the job has last changed names there.
//!
//! The PFS hears of a change when it is published. Until then the directory of the overlay knows:
//! the kernel notes there when a link was made, moved or removed. What changes the overlay without
//! a change of the job keeps that time. Epoch means that the job has changed nothing since.

use super::kernel::{self, Errno};
use super::place::{Place, split};
use super::roots::{self, Root};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use monarch_guest::ctx;
use monarch_guest::errno;

/// Seconds and nanoseconds since 1970.
pub type Time = (i64, i64);

const EPOCH: Time = (0, 0);

/// When names in a directory were last changed that are not all published, by the overlay. What it
/// says of the time before something was pending is of no interest: the PFS knows.
pub fn last_change(root: &Root, rel: &[u8]) -> Option<Time> {
    let state = root.state();
    if state.pending.load(Ordering::Acquire) == 0 {
        return None;
    }
    let since_ns = state.pending_since_ns.load(Ordering::Acquire);
    let ns = |time: Time| (time.0.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(time.1.max(0) as u64);
    of(root, rel).filter(|time| *time != EPOCH && ns(*time) >= since_ns)
}

fn of(root: &Root, rel: &[u8]) -> Option<Time> {
    let st = kernel::lstat(root.in_tree(rel)?.c_str()?).ok()?;
    (st.st_mode & libc::S_IFMT == libc::S_IFDIR).then_some((st.st_mtime, st.st_mtime_nsec))
}

fn set(root: &Root, rel: &[u8], time: Option<Time>) {
    if let Some(mut path) = root.in_tree(rel)
        && let Some(path) = path.c_str()
    {
        let _ = kernel::set_modified(path, time);
    }
}

/// The job has changed names in a directory just now, by a change of the overlay elsewhere.
pub fn changed(root: &Root, rel: &[u8]) {
    set(root, rel, None);
}

/// From now on the PFS knows the times of a directory best: the job sets them. With the lock of the
/// journal held, as all that changes the overlay.
pub fn forget(root: &Root, rel: &[u8]) {
    set(root, rel, Some(EPOCH));
}

/// Whether the overlay has a directory with a time.
pub fn is_known(root: &Root, rel: &[u8]) -> bool {
    of(root, rel).is_some_and(|time| time != EPOCH)
}

/// Makes a change of the overlay's directory that is none of the job's.
pub fn kept<T>(root: &Root, rel: &[u8], change: impl FnOnce() -> T) -> T {
    let before = of(root, rel);
    let done = change();
    if before.is_some() {
        set(root, rel, before);
    }
    done
}

/// Makes a directory of the overlay, whose parent is there.
pub fn make(root: &Root, rel: &[u8]) -> Result<(), Errno> {
    let made = kept(root, split(rel).0, || {
        let mut path = root.in_tree(rel).ok_or(libc::ENAMETOOLONG)?;
        kernel::mkdir(path.c_str().ok_or(libc::ENAMETOOLONG)?)
    });
    match made {
        Ok(()) => {
            set(root, rel, Some(EPOCH));
            Ok(())
        }
        Err(libc::EEXIST) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Adds to the attributes of a directory what is not published. (Something else may have got its
/// name on the PFS.)
pub fn raise(st: &mut libc::stat64, time: Time) {
    if st.st_mode & libc::S_IFMT == libc::S_IFDIR && time > (st.st_mtime, st.st_mtime_nsec) {
        (st.st_mtime, st.st_mtime_nsec) = time;
        (st.st_ctime, st.st_ctime_nsec) = time.max((st.st_ctime, st.st_ctime_nsec));
    }
}

/// [`raise`] for statx.
pub fn raise_x(st: &mut libc::statx, time: Time) {
    if u32::from(st.stx_mode) & libc::S_IFMT != libc::S_IFDIR {
        return;
    }
    for t in [&mut st.stx_mtime, &mut st.stx_ctime] {
        if time > (t.tv_sec, i64::from(t.tv_nsec)) {
            (t.tv_sec, t.tv_nsec) = (time.0, time.1 as u32);
        }
    }
}

/// [`last_change`] of an open directory on a device.
#[cold]
#[inline(never)]
pub fn of_open(fd: c_int, dev: u64) -> Option<Time> {
    let saved = errno::errno();
    let time = ctx::for_outputs()
        .filter(|ctx| roots::on_device(ctx, dev) && roots::any_pending(ctx))
        .and_then(|ctx| Place::find(&ctx, fd, b"."))
        .and_then(|place| last_change(&place.root, place.rel()));
    errno::set_errno(saved);
    time
}
