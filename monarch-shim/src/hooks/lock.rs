//! Locks and leases: taken on the PFS's file, also by a descriptor that was a copy (see
//! [`crate::pfs_fd`]).

use super::hook;
use crate::pfs_fd::{Owner, before_lock};
use core::ffi::c_int;
use libc::off_t;

const F_OFD_GETLK: c_int = 36;
const F_OFD_SETLKW: c_int = 38;
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;

/// What must happen before a command of fcntl.
#[inline]
pub(super) fn before_fcntl(fd: c_int, what: c_int, arg: usize) {
    match what {
        // Reads past the page cache have the rules of the PFS's file system.
        libc::F_SETFL if arg & libc::O_DIRECT as usize != 0 => crate::pfs_fd::before_direct(fd, arg),
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => before_lock(fd, Owner::Process),
        // The signal for a lease that breaks belongs to the open file, as the lease does.
        F_OFD_GETLK..=F_OFD_SETLKW | libc::F_SETLEASE | libc::F_SETOWN | F_SETSIG | F_SETOWN_EX => {
            before_lock(fd, Owner::OpenFile);
        }
        _ => {}
    }
}

/// flock, by `call`.
pub(super) fn flock_any(fd: c_int, how: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if how & libc::LOCK_UN == 0 {
        before_lock(fd, Owner::OpenFile);
    }
    call()
}

hook! { next;
    fn flock(fd: c_int, how: c_int) -> c_int { flock_any(fd, how, || next(fd, how)) }
    fn lockf(fd: c_int, what: c_int, len: off_t) -> c_int { before_lock(fd, Owner::Process); next(fd, what, len) }
    fn lockf64(fd: c_int, what: c_int, len: off_t) -> c_int { before_lock(fd, Owner::Process); next(fd, what, len) }
}
