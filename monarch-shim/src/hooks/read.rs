//! Reads: the kernel's, untouched. Only when the device under a copy fails (EIO) is the descriptor moved to the PFS, at the same
//! offset, and the read repeated: the job must not get an error that it would not have had without us.

use super::hook;
use crate::changes::{bypass, pfs_path};
use crate::ctx;
use crate::identity::{copy_of_fd, is_version_of};
use crate::user;
use core::ffi::{c_int, c_void};
use libc::{iovec, off_t, size_t, ssize_t};

#[inline]
fn retry(fd: c_int, result: ssize_t, again: impl FnOnce() -> ssize_t) -> ssize_t {
    if result < 0 && user::errno() == libc::EIO && move_to_pfs(fd).is_some() { again() } else { result }
}

/// Puts a descriptor of the PFS file in the place of a failing copy's.
#[cold]
#[inline(never)]
fn move_to_pfs(fd: c_int) -> Option<()> {
    let ctx = ctx::mapped()?;
    let f = copy_of_fd(&ctx, fd)?;
    bypass(&ctx, &f);
    let mut path = pfs_path(&ctx, &f)?;
    // SAFETY: plain descriptor calls on a descriptor that the application holds and one of ours.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        let cloexec = libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        let at = libc::lseek(fd, 0, libc::SEEK_CUR);
        let new = crate::sys::open(path.c_str()?, (flags & libc::O_NONBLOCK) | libc::O_RDONLY | libc::O_CLOEXEC)?;
        // Another version would be mixed with what was read so far.
        if !crate::sys::fstat(new).is_some_and(|st| is_version_of(&ctx, &f, &st)) {
            crate::sys::close(new);
            return None;
        }
        let _ = libc::lseek(new, at.max(0), libc::SEEK_SET);
        let done = libc::syscall(libc::SYS_dup3, new, fd, if cloexec { libc::O_CLOEXEC } else { 0 });
        crate::sys::close(new);
        (done >= 0).then_some(())
    }
}

hook! { next;
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t { retry(fd, next(fd, buf, n), || next(fd, buf, n)) }
    fn pread(fd: c_int, buf: *mut c_void, n: size_t, off: off_t) -> ssize_t {
        retry(fd, next(fd, buf, n, off), || next(fd, buf, n, off))
    }
    fn pread64(fd: c_int, buf: *mut c_void, n: size_t, off: off_t) -> ssize_t {
        retry(fd, next(fd, buf, n, off), || next(fd, buf, n, off))
    }
    fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t { retry(fd, next(fd, iov, n), || next(fd, iov, n)) }
    fn preadv(fd: c_int, iov: *const iovec, n: c_int, off: off_t) -> ssize_t {
        retry(fd, next(fd, iov, n, off), || next(fd, iov, n, off))
    }
    fn preadv64(fd: c_int, iov: *const iovec, n: c_int, off: off_t) -> ssize_t {
        retry(fd, next(fd, iov, n, off), || next(fd, iov, n, off))
    }
    fn preadv2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t {
        retry(fd, next(fd, iov, n, off, flags), || next(fd, iov, n, off, flags))
    }
    fn preadv64v2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t {
        retry(fd, next(fd, iov, n, off, flags), || next(fd, iov, n, off, flags))
    }
    fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, size: size_t) -> ssize_t {
        retry(fd, next(fd, buf, n, size), || next(fd, buf, n, size))
    }
    fn __pread_chk(fd: c_int, buf: *mut c_void, n: size_t, off: off_t, size: size_t) -> ssize_t {
        retry(fd, next(fd, buf, n, off, size), || next(fd, buf, n, off, size))
    }
    fn __pread64_chk(fd: c_int, buf: *mut c_void, n: size_t, off: off_t, size: size_t) -> ssize_t {
        retry(fd, next(fd, buf, n, off, size), || next(fd, buf, n, off, size))
    }
}
