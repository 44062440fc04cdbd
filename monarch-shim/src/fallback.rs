//! What an older C library lacks: the bare system call under the same name.
//!
//! The shim exports `stat` and others that became symbols only later. A program that looks for one
//! by name and would have taken another way must not get a function from the shim that only says
//! `ENOSYS`.

use crate::symbols::Sym;
use core::ffi::{c_char, c_int, c_uint};
use libc::{iovec, off_t, ssize_t, stat64};
use monarch_abi::sys::call;
use monarch_guest::errno::set_errno;

/// The result of a system call as C functions give it.
fn result(r: isize) -> isize {
    if r < 0 {
        set_errno(-r as c_int);
        return -1;
    }
    r
}

unsafe extern "C" fn fstatat(fd: c_int, path: *const c_char, buf: *mut stat64, flags: c_int) -> c_int {
    let args = [fd as isize as usize, path as usize, buf as usize, flags as usize, 0, 0];
    // SAFETY: the contract of fstatat(2).
    unsafe { result(call(libc::SYS_newfstatat, args)) as c_int }
}
unsafe extern "C" fn stat(path: *const c_char, buf: *mut stat64) -> c_int {
    // SAFETY: passed on.
    unsafe { fstatat(libc::AT_FDCWD, path, buf, 0) }
}
unsafe extern "C" fn lstat(path: *const c_char, buf: *mut stat64) -> c_int {
    // SAFETY: passed on.
    unsafe { fstatat(libc::AT_FDCWD, path, buf, libc::AT_SYMLINK_NOFOLLOW) }
}
unsafe extern "C" fn fstat(fd: c_int, buf: *mut stat64) -> c_int {
    // SAFETY: the contract of fstat(2).
    unsafe { result(call(libc::SYS_fstat, [fd as isize as usize, buf as usize, 0, 0, 0, 0])) as c_int }
}
unsafe extern "C" fn statx(fd: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut libc::statx) -> c_int {
    let args = [fd as isize as usize, path as usize, flags as usize, mask as usize, buf as usize, 0];
    // SAFETY: the contract of statx(2).
    unsafe { result(call(libc::SYS_statx, args)) as c_int }
}
unsafe extern "C" fn preadv2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t {
    let args = [fd as isize as usize, iov as usize, n as isize as usize, off as usize, 0, flags as usize];
    // SAFETY: the contract of preadv2(2); the upper half of the offset is for 32-bit machines.
    unsafe { result(call(libc::SYS_preadv2, args)) }
}
unsafe extern "C" fn renameat2(a: c_int, from: *const c_char, b: c_int, to: *const c_char, flags: c_uint) -> c_int {
    let args = [a as isize as usize, from as usize, b as isize as usize, to as usize, flags as usize, 0];
    // SAFETY: the contract of renameat2(2).
    unsafe { result(call(libc::SYS_renameat2, args)) as c_int }
}
unsafe extern "C" fn move_mount(a: c_int, from: *const c_char, b: c_int, to: *const c_char, flags: c_uint) -> c_int {
    let args = [a as isize as usize, from as usize, b as isize as usize, to as usize, flags as usize, 0];
    // SAFETY: the contract of move_mount(2).
    unsafe { result(call(libc::SYS_move_mount, args)) as c_int }
}

/// Addresses for the symbols that an older C library may lack.
pub fn all() -> [(Sym, usize); 13] {
    let (stat, lstat, fstat) = (stat as *const () as usize, lstat as *const () as usize, fstat as *const () as usize);
    let (fstatat, preadv2) = (fstatat as *const () as usize, preadv2 as *const () as usize);
    [
        (Sym::stat, stat),
        (Sym::stat64, stat),
        (Sym::lstat, lstat),
        (Sym::lstat64, lstat),
        (Sym::fstat, fstat),
        (Sym::fstat64, fstat),
        (Sym::fstatat, fstatat),
        (Sym::fstatat64, fstatat),
        (Sym::statx, statx as *const () as usize),
        (Sym::preadv2, preadv2),
        (Sym::preadv64v2, preadv2),
        (Sym::renameat2, renameat2 as *const () as usize),
        (Sym::move_mount, move_mount as *const () as usize),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_the_c_library_has() {
        let mut ours = core::mem::MaybeUninit::<stat64>::zeroed();
        let mut theirs = core::mem::MaybeUninit::<stat64>::zeroed();
        let path = c"/etc/passwd".as_ptr();
        // SAFETY: a C string and buffers of the right type, which both calls fill.
        unsafe {
            assert_eq!((stat(path, ours.as_mut_ptr()), libc::stat64(path, theirs.as_mut_ptr())), (0, 0));
            assert_eq!(ours.assume_init_ref().st_ino, theirs.assume_init_ref().st_ino);
            assert_eq!(lstat(path, ours.as_mut_ptr()), 0);
            assert_eq!(fstat(-1, ours.as_mut_ptr()), -1);
            assert_eq!(*libc::__errno_location(), libc::EBADF);
            let mut x = core::mem::MaybeUninit::<libc::statx>::zeroed();
            assert_eq!(statx(libc::AT_FDCWD, path, 0, libc::STATX_INO, x.as_mut_ptr()), 0);
            assert_eq!(x.assume_init_ref().stx_ino, theirs.assume_init_ref().st_ino);
            let fd = libc::open(path, libc::O_RDONLY);
            let mut bytes = [0u8; 4];
            let iov = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 4 };
            assert_eq!(preadv2(fd, &raw const iov, 1, 1, 0), 4);
            assert_eq!(libc::close(fd), 0);
            assert_eq!(renameat2(libc::AT_FDCWD, c"/no/such".as_ptr(), libc::AT_FDCWD, path, 0), -1);
            assert_eq!(move_mount(-1, path, -1, path, 0), -1);
        }
    }
}
