//! Where we are: working directory, mounts, memory that goes away.

use super::hook;
use crate::{ctx, cwd, user};
use core::ffi::{c_char, c_int, c_void};
use libc::size_t;

fn moved(result: c_int) -> c_int {
    if result == 0 {
        cwd::invalidate();
    }
    result
}

fn remounted(result: c_int) -> c_int {
    if result == 0 {
        ctx::mounts_changed();
    }
    result
}

hook! { next;
    fn chdir(path: *const c_char) -> c_int { moved(next(path)) }
    fn fchdir(fd: c_int) -> c_int { moved(next(fd)) }
    fn chroot(path: *const c_char) -> c_int { remounted(next(path)) }
    fn setns(fd: c_int, kind: c_int) -> c_int { remounted(next(fd, kind)) }
    fn unshare(flags: c_int) -> c_int { remounted(next(flags)) }
    fn munmap(address: *mut c_void, len: size_t) -> c_int {
        user::forget_pages();
        next(address, len)
    }
    fn mprotect(address: *mut c_void, len: size_t, prot: c_int) -> c_int {
        user::forget_pages();
        next(address, len, prot)
    }
}
