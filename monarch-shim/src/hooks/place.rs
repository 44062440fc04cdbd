//! Who and where we are: user, working directory, mounts, memory that goes away.

use super::hook;
use crate::{ctx, cwd, user};
use core::ffi::{c_char, c_int, c_ulong, c_void};
use libc::{size_t, uid_t};

fn moved(result: c_int) -> c_int {
    if result == 0 {
        cwd::invalidate();
    }
    result
}

fn remounted(result: c_int) -> c_int {
    if result == 0 {
        ctx::place_changed();
    }
    result
}

/// Something else appears at a path: for us as if it were removed, for everybody in this mount namespace.
unsafe fn covered(path: *const c_char) {
    // SAFETY: passed on.
    unsafe { super::before_change(path, crate::changes::covered) }
}

fn mounted(result: c_int) -> c_int {
    if result == 0 {
        ctx::mounts_changed();
    }
    result
}

fn became(result: c_int) -> c_int {
    ctx::user_changed();
    result
}

hook! { next;
    fn setuid(user: uid_t) -> c_int { became(next(user)) }
    fn seteuid(user: uid_t) -> c_int { became(next(user)) }
    fn setreuid(real: uid_t, effective: uid_t) -> c_int { became(next(real, effective)) }
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int { became(next(real, effective, saved)) }
    fn setfsuid(user: uid_t) -> c_int { became(next(user)) }
    fn chdir(path: *const c_char) -> c_int { moved(next(path)) }
    fn fchdir(fd: c_int) -> c_int { moved(next(fd)) }
    fn chroot(path: *const c_char) -> c_int { remounted(next(path)) }
    fn setns(fd: c_int, kind: c_int) -> c_int { remounted(next(fd, kind)) }
    fn unshare(flags: c_int) -> c_int { remounted(next(flags)) }
    fn mount(from: *const c_char, to: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void) -> c_int {
        covered(to);
        mounted(next(from, to, kind, flags, data))
    }
    fn umount(path: *const c_char) -> c_int { covered(path); mounted(next(path)) }
    fn umount2(path: *const c_char, flags: c_int) -> c_int { covered(path); mounted(next(path, flags)) }
    fn munmap(address: *mut c_void, len: size_t) -> c_int {
        user::forget_pages();
        next(address, len)
    }
    fn mprotect(address: *mut c_void, len: size_t, prot: c_int) -> c_int {
        user::forget_pages();
        next(address, len, prot)
    }
}
