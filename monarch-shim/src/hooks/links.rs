//! readlink and its kin: targets of links, and what is no link, from the index.

use super::{enter, hook, stat};
use crate::outputs;
use core::ffi::{c_char, c_int};
use monarch_abi::control::Counter;
use monarch_guest::absent::link_target;
use monarch_guest::errno;
use monarch_guest::user;

const CWD: c_int = libc::AT_FDCWD;

unsafe fn target(dirfd: c_int, path: *const c_char, buf: *mut c_char, room: usize) -> Option<isize> {
    // SAFETY: the application's pointers, tested before they are used.
    unsafe {
        if let Some(done) = outputs::read_link(dirfd, path, buf, room) {
            return Some(done);
        }
        indexed(dirfd, path, buf, room).or_else(|| beyond(dirfd, path, buf, room))
    }
}

/// By links outside of the output roots, and names of descriptors.
unsafe fn beyond(dirfd: c_int, path: *const c_char, buf: *mut c_char, room: usize) -> Option<isize> {
    // SAFETY: passed on, with a path of the shim.
    unsafe {
        if let Some(file) = outputs::named_open(dirfd, path, false) {
            let text = file.get();
            let len = text.len().min(room);
            if len == 0 || !user::writable_bytes(buf.cast(), len) {
                return None;
            }
            core::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), len);
            return Some(len as isize);
        }
        outputs::read_link_beyond(dirfd, path, buf, room)
    }
}

/// What an output root says of a link, by links from outside, too.
pub(super) unsafe fn staged(dirfd: c_int, path: *const c_char, buf: *mut c_char, room: usize) -> Option<isize> {
    // SAFETY: passed on.
    unsafe { outputs::read_link(dirfd, path, buf, room).or_else(|| beyond(dirfd, path, buf, room)) }
}

/// The answer of the index.
unsafe fn indexed(dirfd: c_int, path: *const c_char, buf: *mut c_char, room: usize) -> Option<isize> {
    // SAFETY: the application's pointer, tested before it is read.
    let (ctx, bytes) = unsafe { enter(path)? };
    // Without room the kernel refuses before it looks at the path.
    if room == 0 || room > isize::MAX as usize {
        return None;
    }
    let f = match stat::lookup(&ctx, dirfd, bytes, false)? {
        Ok(f) => f,
        Err(stat::NOT_HELD) => {
            ctx.count(Counter::MetaKernel, 1);
            return None;
        }
        Err(failed) => return Some(failed as isize),
    };
    let told = match link_target(&f)? {
        Ok(target) => {
            let len = target.len().min(room);
            if !user::writable_bytes(buf.cast(), len) {
                return None;
            }
            // SAFETY: as much was tested to be writable.
            unsafe { core::ptr::copy_nonoverlapping(target.as_ptr(), buf.cast(), len) };
            len as isize
        }
        Err(why) => {
            errno::set_errno(why);
            -1
        }
    };
    ctx.count(Counter::Stats, 1);
    Some(told)
}

/// The real path of a pending file; null, with errno, for a name that the job has removed. All
/// others by `next`, at a path. Allocated if `out` is null.
unsafe fn real_path(
    path: *const c_char,
    out: *mut c_char,
    next: impl FnOnce(*const c_char) -> *mut c_char,
) -> *mut c_char {
    // SAFETY: the application's pointers, tested before they are read; `out` has PATH_MAX bytes by
    // the contract of realpath(3).
    unsafe {
        if let Some(real) = outputs::real_path(path, out) {
            return real;
        }
        if let Some(mut named) = outputs::named_open(CWD, path, true) {
            let real = named.c_str().and_then(|at| outputs::real_path(at.as_ptr(), out));
            return real.unwrap_or_else(|| next(path));
        }
        // By links outside of the output roots.
        let mut lead = outputs::beyond(CWD, path, true);
        if let Some(real) = lead.as_mut().and_then(|l| outputs::real_path(l.at.c_str()?.as_ptr(), out)) {
            return real;
        }
        match lead.as_mut().and_then(outputs::Lead::instead) {
            Some(at) => next(at.as_ptr()),
            None => next(path),
        }
    }
}

hook! { next;
    fn realpath(path: *const c_char, out: *mut c_char) -> *mut c_char {
        real_path(path, out, |path| next(path, out))
    }
    fn __realpath_chk(path: *const c_char, out: *mut c_char, len: usize) -> *mut c_char {
        real_path(path, out, |path| next(path, out, len))
    }
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        real_path(path, core::ptr::null_mut(), |path| next(path))
    }
    fn readlink(path: *const c_char, buf: *mut c_char, room: usize) -> isize {
        target(CWD, path, buf, room).unwrap_or_else(|| next(path, buf, room))
    }
    fn readlinkat(dirfd: c_int, path: *const c_char, buf: *mut c_char, room: usize) -> isize {
        target(dirfd, path, buf, room).unwrap_or_else(|| next(dirfd, path, buf, room))
    }
    fn __readlink_chk(path: *const c_char, buf: *mut c_char, room: usize, len: usize) -> isize {
        if room > len { next(path, buf, room, len) } else {
            target(CWD, path, buf, room).unwrap_or_else(|| next(path, buf, room, len))
        }
    }
    fn __readlinkat_chk(dirfd: c_int, path: *const c_char, buf: *mut c_char, room: usize, len: usize) -> isize {
        if room > len { next(dirfd, path, buf, room, len) } else {
            target(dirfd, path, buf, room).unwrap_or_else(|| next(dirfd, path, buf, room, len))
        }
    }
}
