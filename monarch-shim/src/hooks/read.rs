//! Reads: the kernel's, untouched, unless the descriptor is that of a large file whose copy is
//! being made (see [`crate::chunks`]). When the device under a copy fails (EIO), the descriptor is
//! moved to the PFS, at the same offset, and the read repeated: the job must not get an error that
//! it would not have had without the shim.

use super::close::duplicated_to;
use super::hook;
use crate::changes::bypass;
use crate::identity::copy_of_fd;
use crate::pfs_fd::{self, Version, open_pfs};
use crate::{chunks, large, own_maps, whole};
use core::ffi::{c_int, c_void};
use libc::{iovec, off_t, size_t, ssize_t};
use monarch_guest::ctx;
use monarch_guest::errno;
use monarch_guest::user;

/// Reads by `read`; where that fails because of the copy, once more from the PFS.
///
/// What a second try needs is handed on by its address, so that it waits in memory during the
/// first one, and not in registers, which this function would have to save for its caller.
#[inline]
fn retry(fd: c_int, read: impl Fn() -> ssize_t) -> ssize_t {
    let again = (fd, read);
    let result = again.1();
    if result < 0 { read_again(&again, result) } else { result }
}

#[cold]
#[inline(never)]
fn read_again((fd, read): &(c_int, impl Fn() -> ssize_t), result: ssize_t) -> ssize_t {
    let failed = matches!(errno::errno(), libc::EIO | libc::EINVAL);
    if failed && move_failing(*fd).is_some() { read() } else { result }
}

/// Moves a descriptor to the PFS whose copy cannot be read: the disk fails, or the file system of
/// the tier has other rules for reads past the page cache.
#[cold]
#[inline(never)]
fn move_failing(fd: c_int) -> Option<()> {
    let saved = errno::errno();
    let moved = if saved == libc::EIO {
        move_to_pfs(fd)
    } else if crate::direct::is_direct(fd) {
        let ctx = ctx::mapped()?;
        let f = copy_of_fd(&ctx, fd)?;
        pfs_fd::move_to_pfs(&ctx, fd, &f, Version::Same)
    } else {
        None
    };
    errno::set_errno(saved);
    moved
}

/// Puts a descriptor of the PFS file in the place of a failing copy's.
#[cold]
#[inline(never)]
fn move_to_pfs(fd: c_int) -> Option<()> {
    let ctx = ctx::mapped()?;
    let f = copy_of_fd(&ctx, fd)?;
    bypass(&ctx, &f);
    // Another version would be mixed with what was read so far.
    pfs_fd::move_to_pfs(&ctx, fd, &f, Version::Same)
}

/// An offset, if it is not the descriptor's own that is meant.
const fn at(off: off_t) -> Option<off_t> {
    if off == -1 { None } else { Some(off) }
}

/// A read of a descriptor that may be a large file's is tried from its chunks first.
macro_rules! chunks_or {
    ($fd:ident, $chunks:expr, $next:expr) => {{
        if large::may_be($fd) {
            // A read is a cancellation point also where no call of the kernel is made for it.
            crate::next::test_cancel();
            if let Some(done) = $chunks {
                return done;
            }
        }
        retry($fd, move || $next)
    }};
}

hook! { next;
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
        chunks_or!(fd, chunks::read(fd, buf.cast(), n), next(fd, buf, n))
    }
    fn pread(fd: c_int, buf: *mut c_void, n: size_t, off: off_t) -> ssize_t {
        chunks_or!(fd, chunks::pread(fd, buf.cast(), n, off), next(fd, buf, n, off))
    }
    fn pread64(fd: c_int, buf: *mut c_void, n: size_t, off: off_t) -> ssize_t {
        chunks_or!(fd, chunks::pread(fd, buf.cast(), n, off), next(fd, buf, n, off))
    }
    fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        chunks_or!(fd, chunks::readv(fd, iov, n, None), next(fd, iov, n))
    }
    fn preadv(fd: c_int, iov: *const iovec, n: c_int, off: off_t) -> ssize_t {
        chunks_or!(fd, chunks::readv(fd, iov, n, Some(off)), next(fd, iov, n, off))
    }
    fn preadv64(fd: c_int, iov: *const iovec, n: c_int, off: off_t) -> ssize_t {
        chunks_or!(fd, chunks::readv(fd, iov, n, Some(off)), next(fd, iov, n, off))
    }
    fn preadv2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t {
        if flags == 0 {
            return chunks_or!(fd, chunks::readv(fd, iov, n, at(off)), next(fd, iov, n, off, flags));
        }
        retry(fd, move || next(fd, iov, n, off, flags))
    }
    fn preadv64v2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t {
        if flags == 0 {
            return chunks_or!(fd, chunks::readv(fd, iov, n, at(off)), next(fd, iov, n, off, flags));
        }
        retry(fd, move || next(fd, iov, n, off, flags))
    }
    fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, size: size_t) -> ssize_t {
        // The check that the buffer is large enough is the next one's.
        if n > size {
            return next(fd, buf, n, size);
        }
        chunks_or!(fd, chunks::read(fd, buf.cast(), n), next(fd, buf, n, size))
    }
    fn __pread_chk(fd: c_int, buf: *mut c_void, n: size_t, off: off_t, size: size_t) -> ssize_t {
        if n > size {
            return next(fd, buf, n, off, size);
        }
        chunks_or!(fd, chunks::pread(fd, buf.cast(), n, off), next(fd, buf, n, off, size))
    }
    fn __pread64_chk(fd: c_int, buf: *mut c_void, n: size_t, off: off_t, size: size_t) -> ssize_t {
        if n > size {
            return next(fd, buf, n, off, size);
        }
        chunks_or!(fd, chunks::pread(fd, buf.cast(), n, off), next(fd, buf, n, off, size))
    }
    fn dup(fd: c_int) -> c_int { duplicated(fd, next(fd)) }
    fn dup2(fd: c_int, to: c_int) -> c_int { duplicated(fd, duplicated_to(fd, to, || next(fd, to))) }
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int { duplicated(fd, duplicated_to(fd, to, || next(fd, to, flags))) }
    fn fcntl(fd: c_int, what: c_int, arg: usize) -> c_int { fcntl_any(fd, what, arg, || next(fd, what, arg)) }
    fn fcntl64(fd: c_int, what: c_int, arg: usize) -> c_int { fcntl_any(fd, what, arg, || next(fd, what, arg)) }
    fn sendfile(to: c_int, from: c_int, off: *mut off_t, n: size_t) -> ssize_t {
        send_any(from, off, n, |from, off| next(to, from, off, n))
    }
    fn sendfile64(to: c_int, from: c_int, off: *mut off_t, n: size_t) -> ssize_t {
        send_any(from, off, n, |from, off| next(to, from, off, n))
    }
    fn mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, off: off_t) -> *mut c_void {
        covers(addr, len, flags);
        map_any((prot, flags), fd, (len, off), |fd| next(addr, len, prot, flags, fd, off))
    }
    fn mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, off: off_t) -> *mut c_void {
        covers(addr, len, flags);
        map_any((prot, flags), fd, (len, off), |fd| next(addr, len, prot, flags, fd, off))
    }
    fn posix_fadvise(fd: c_int, off: off_t, len: off_t, advice: c_int) -> c_int {
        if takes_advice(fd, off, len, advice) { 0 } else { next(fd, off, len, advice) }
    }
    fn posix_fadvise64(fd: c_int, off: off_t, len: off_t, advice: c_int) -> c_int {
        if takes_advice(fd, off, len, advice) { 0 } else { next(fd, off, len, advice) }
    }
    fn readahead(fd: c_int, off: off_t, n: size_t) -> ssize_t {
        if takes_advice(fd, off, n as off_t, libc::POSIX_FADV_WILLNEED) { 0 } else { next(fd, off, n) }
    }
}

/// A mapping for reading gets the complete copy of a large file, if there is one or will be soon.
#[inline]
unsafe fn map_any(
    (prot, flags): (c_int, c_int),
    fd: c_int,
    (len, off): (usize, off_t),
    map: impl Fn(c_int) -> *mut c_void,
) -> *mut c_void {
    let reads = prot & libc::PROT_WRITE == 0 || flags & libc::MAP_PRIVATE != 0;
    if flags & libc::MAP_ANONYMOUS == 0 && reads && large::could_be(fd) {
        // It may fail for its own reasons; then the descriptor itself is mapped.
        let saved = errno::errno();
        let populates = flags & libc::MAP_POPULATE != 0;
        let range = whole::Range { len, off: u64::try_from(off).unwrap_or(0), populates };
        if let Some(p) = whole::mmap(fd, range, &map) {
            return p;
        }
        errno::set_errno(saved);
    }
    let at = map(fd);
    if at == libc::MAP_FAILED && prot & libc::PROT_EXEC != 0 && flags & libc::MAP_ANONYMOUS == 0 {
        return map_executable(fd, at, map);
    }
    at
}

/// The tier may be mounted `noexec` where the PFS is not.
#[cold]
#[inline(never)]
fn map_executable(fd: c_int, failed: *mut c_void, map: impl Fn(c_int) -> *mut c_void) -> *mut c_void {
    let saved = errno::errno();
    let of_pfs = || {
        let ctx = ctx::mapped()?;
        let f = copy_of_fd(&ctx, fd)?;
        open_pfs(&ctx, &f, 0).filter(|(_, same)| *same)
    };
    let file = if saved == libc::EPERM { of_pfs() } else { None };
    errno::set_errno(saved);
    file.map_or(failed, |(file, _)| map(file.0))
}

/// Other pages take the place of those that were tested, or of a mapping of the shim.
#[inline]
fn covers(addr: *mut c_void, len: size_t, flags: c_int) {
    if flags & libc::MAP_FIXED != 0 {
        user::forget_pages(addr as usize, len);
        own_maps::covered(addr as usize, len);
    }
}

#[inline]
fn duplicated(fd: c_int, new: c_int) -> c_int {
    if new >= 0 {
        large::duplicated(fd, new);
        crate::shell::duplicated(fd, new);
        crate::outputs::descriptors::duplicated(fd, new);
    }
    new
}

#[inline]
pub(super) fn fcntl_any(fd: c_int, what: c_int, arg: usize, next: impl FnOnce() -> c_int) -> c_int {
    match what {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, next()),
        _ => {
            super::lock::before_fcntl(fd, what, arg);
            next()
        }
    }
}

/// sendfile: from the complete copy of a large file, if there is one or will be soon.
unsafe fn send_any(from: c_int, off: *mut off_t, n: size_t, send: impl Fn(c_int, *mut off_t) -> ssize_t) -> ssize_t {
    if large::could_be(from)
        && let Some(done) = whole::sendfile(from, off, n, &send)
    {
        return done;
    }
    let done = send(from, off);
    if done > 0 && large::could_be(from) {
        whole::count_sent(from, done as u64);
    }
    // SAFETY: the kernel has just read the offset.
    let at = || if off.is_null() { monarch_guest::sys::seek(from, 0) } else { u64::try_from(unsafe { *off }).ok() };
    if done >= 0 || errno::errno() != libc::EIO || !at().is_some_and(|at| is_unreadable(from, at)) {
        return done;
    }
    if move_failing(from).is_some() { send(from, off) } else { done }
}

/// Whether a byte of a file cannot be read; the error may be that of what was written to.
fn is_unreadable(from: c_int, at: u64) -> bool {
    let mut byte = 0u8;
    // SAFETY: one byte of the shim.
    unsafe { monarch_guest::sys::pread(from, &raw mut byte, 1, at) == -(libc::EIO as isize) }
}

fn takes_advice(fd: c_int, off: off_t, len: off_t, advice: c_int) -> bool {
    advice == libc::POSIX_FADV_WILLNEED && len >= 0 && large::could_be(fd) && chunks::advise(fd, off, len as u64)
}
