//! access and its kin: existence of anything in the index, readability of resident files; the
//! kernel decides the rest.

use super::{enter, hook};
use crate::identity::is_current;
use crate::paths::find;
use core::ffi::{c_char, c_int};
use monarch_abi::control::Counter;
use monarch_abi::word::State;
use monarch_guest::absent;
use monarch_guest::guard::{Asked, is_still};
use monarch_guest::user;

const CWD: c_int = libc::AT_FDCWD;
const ANY_MODE: c_int = libc::R_OK | libc::W_OK | libc::X_OK;

#[inline]
unsafe fn check(
    dirfd: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the application's pointer, tested before it is read.
    if let Some(done) = unsafe { crate::outputs::access(dirfd, path, mode, flags) } {
        return done;
    }
    let answer = || {
        if mode & !ANY_MODE != 0 || flags & !(libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW) != 0 {
            return None;
        }
        // SAFETY: the application's pointer, tested before it is read.
        let (ctx, bytes) = unsafe { enter(path)? };
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        let f = match find(&ctx, dirfd, bytes, follow) {
            Ok(f) => f,
            Err(miss) => return absent::fails(&ctx, dirfd, bytes, miss).then_some(-1),
        };
        // The agent could read a resident file, and it runs as the user of this process.
        let readable = mode == libc::F_OK || (mode == libc::R_OK && f.entry.word().state() == State::Resident);
        if !is_current(&f) || !readable || !is_still(&ctx, &f, Asked::new(dirfd, bytes, follow)) {
            ctx.count(Counter::MetaKernel, 1);
            return None;
        }
        ctx.count(Counter::Stats, 1);
        Some(0)
    };
    answer().unwrap_or_else(|| {
        // SAFETY: tested before it is read; passed on.
        let is_empty = flags & libc::AT_EMPTY_PATH != 0 && unsafe { user::path(path) }.is_some_and(<[u8]>::is_empty);
        if is_empty && let Some(mut p) = super::pfs_path_of(dirfd) {
            return p.c_str().map_or(-1, |p| next(CWD, p.as_ptr()));
        }
        // SAFETY: passed on.
        let mut copy = unsafe { super::behind(dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0) };
        match copy.as_mut().and_then(|p| p.c_str()) {
            Some(p) => next(CWD, p.as_ptr()),
            // SAFETY: passed on.
            None => unsafe { access_beyond(dirfd, path, mode, flags) }.unwrap_or_else(|| next(dirfd, path)),
        }
    })
}

/// What is pending where a path from outside of the output roots leads says of it.
#[inline]
unsafe fn access_beyond(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Option<c_int> {
    // SAFETY: passed on.
    unsafe { crate::outputs::access_beyond(dirfd, path, mode, flags) }
}

/// What an output root says of a path, by links from outside, too.
pub(super) unsafe fn staged(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Option<c_int> {
    // SAFETY: passed on.
    unsafe { crate::outputs::access(dirfd, path, mode, flags).or_else(|| access_beyond(dirfd, path, mode, flags)) }
}

hook! { next;
    fn access(path: *const c_char, mode: c_int) -> c_int { check(CWD, path, mode, 0, |_, p| next(p, mode)) }
    fn faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        check(dirfd, path, mode, flags, |fd, p| next(fd, p, mode, flags))
    }
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        check(CWD, path, mode, libc::AT_EACCESS, |_, p| next(p, mode))
    }
    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        check(CWD, path, mode, libc::AT_EACCESS, |_, p| next(p, mode))
    }
}
