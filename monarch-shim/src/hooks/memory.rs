//! Memory that goes away or becomes unreadable, so that what was found out about its pages is
//! forgotten; and the mode in which a thread may only read and write.

use super::hook;
use crate::{mapped, own_maps};
use core::ffi::{c_int, c_ulong, c_void};
use libc::size_t;
use monarch_guest::{ctx, user};

/// Puts a guard in place of pages.
const MADV_GUARD_INSTALL: c_int = 102;
const SECCOMP_MODE_STRICT: usize = 1;

/// prctl, by `call`: a thread that may only read and write from here on is left alone.
pub(super) fn prctl_any(what: c_int, a: usize, call: impl FnOnce() -> c_int) -> c_int {
    if what == libc::PR_SET_SECCOMP {
        own_maps::forbid();
    }
    let done = call();
    if what == libc::PR_SET_SECCOMP && a == SECCOMP_MODE_STRICT && done == 0 {
        ctx::leave_alone();
    }
    done
}

hook! { next;
    fn mremap(old: *mut c_void, old_len: size_t, len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void {
        user::forget_pages(old as usize, old_len);
        if flags & libc::MREMAP_FIXED != 0 {
            user::forget_pages(new as usize, len);
            own_maps::covered(new as usize, len);
        }
        next(old, old_len, len, flags, new)
    }
    fn madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int {
        match advice {
            MADV_GUARD_INSTALL => user::forget_pages(at as usize, len),
            libc::MADV_WILLNEED | libc::MADV_SEQUENTIAL | libc::MADV_POPULATE_READ if mapped::any() => {
                mapped::will_read(at as usize, len);
            }
            _ => {}
        }
        next(at, len, advice)
    }
    fn posix_madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int {
        if matches!(advice, libc::POSIX_MADV_WILLNEED | libc::POSIX_MADV_SEQUENTIAL) && mapped::any() {
            mapped::will_read(at as usize, len);
        }
        next(at, len, advice)
    }
    fn pkey_mprotect(at: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int {
        user::forget_pages(at as usize, len);
        next(at, len, prot, key)
    }
    fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
        if flags & libc::SHM_REMAP != 0 {
            user::forget_all();
            // (Its length is not known.)
            own_maps::covered(at as usize, usize::MAX);
        }
        next(id, at, flags)
    }
    fn shmdt(at: *const c_void) -> c_int {
        user::forget_all();
        next(at)
    }
    fn brk(end: *mut c_void) -> c_int {
        user::forget_all();
        next(end)
    }
    fn sbrk(by: isize) -> *mut c_void {
        if by < 0 { user::forget_all(); }
        next(by)
    }
    fn prctl(what: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        prctl_any(what, a as usize, || next(what, a, b, c, d))
    }
}
