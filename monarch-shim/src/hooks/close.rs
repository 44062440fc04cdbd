//! Closing descriptors and ending the process: the agent learns when a staged file may be complete.

use super::hook;
use crate::outputs;
use crate::outputs::descriptors::{self, closing};
use core::ffi::{c_int, c_long, c_uint, c_void};
use libc::FILE;

/// A descriptor that may be replaced by another one is closed by that.
fn replaced<T>(old: c_int, new: c_int, call: impl FnOnce() -> T) -> T {
    if old == new { call() } else { descriptors::close(new, call) }
}

/// dup2 and dup3; `call` duplicates.
#[inline]
pub(super) fn duplicated_to(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let made = replaced(old, new, call);
    descriptors::duplicated(old, made);
    made
}

/// fsync and fdatasync, by their result.
#[inline]
pub(super) fn synced(fd: c_int, result: c_int) -> c_int {
    if result == 0 { outputs::synced(fd) } else { result }
}

/// Closes a range of descriptors, by `call`.
fn close_range_any(first: c_uint, last: c_uint, flags: c_int, call: impl FnOnce() -> c_int) -> c_int {
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    if flags & CLOSE_RANGE_CLOEXEC == 0 {
        let number = |n: c_uint| c_int::try_from(n).unwrap_or(c_int::MAX);
        descriptors::each_marked(number(first), number(last), |fd| {
            descriptors::close(fd, || monarch_guest::sys::close(fd));
        });
    }
    call()
}

/// Calls by number.
#[inline(never)]
pub(super) unsafe fn by_number(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let (fd, to) = (a[0] as c_int, a[1] as c_int);
    if matches!(n, libc::SYS_fsync | libc::SYS_fdatasync) {
        return Some(synced(fd, raw(a)));
    }
    if !descriptors::any() {
        return None;
    }
    Some(match n {
        libc::SYS_close => descriptors::close(fd, || raw(a)),
        libc::SYS_dup => {
            let made = raw(a);
            descriptors::duplicated(fd, made);
            made
        }
        _ => duplicated_to(fd, to, || raw(a)),
    })
}

hook! { next;
    fn close(fd: c_int) -> c_int { descriptors::close(fd, || next(fd)) }
    fn fclose(stream: *mut FILE) -> c_int {
        if !descriptors::any() || stream.is_null() {
            return next(stream);
        }
        let fd = libc::fileno(stream);
        let closing = if descriptors::may_be_staged(fd) { closing(fd) } else { None };
        let result = next(stream);
        if let Some(closing) = closing { closing.done(); }
        result
    }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        close_range_any(first, last, flags, || next(first, last, flags))
    }
    fn closefrom(first: c_int) {
        close_range_any(first.max(0) as c_uint, c_uint::MAX, 0, || 0);
        next(first);
    }
    fn msync(start: *mut c_void, len: usize, flags: c_int) -> c_int {
        let result = next(start, len, flags);
        if result == 0 && flags & libc::MS_SYNC != 0 { outputs::synced_memory() } else { result }
    }
    fn quick_exit(status: c_int) { descriptors::ending(); next(status) }
    fn _exit(status: c_int) { descriptors::ending(); next(status) }
    fn _Exit(status: c_int) { descriptors::ending(); next(status) }
}

/// At the end of the process by `exit`: streams may be flushed after this, which the kernel's
/// answer about writers takes into account.
pub(crate) extern "C" fn ending() {
    descriptors::ending();
}
