//! Paths that are names of open descriptors: `/proc/self/fd/N`, `/dev/stdin`, a number relative to
//! such a directory. Where such a path leads to a copy, the call is to reach the file on the PFS.

use crate::changes::{Target, bypass};
use core::ffi::c_int;
use monarch_abi::control::Start;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::Found;
use monarch_guest::ctx::Ctx;
use monarch_guest::sys;

/// What a path that may lead to an open descriptor leads to, if that is a copy: `/proc/self/fd/N`,
/// `/dev/stdin`, a number relative to such a directory, or the copy's own path. A copy is 0400, but
/// that does not stop root.
#[must_use]
pub fn behind_copy(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Found<'static>> {
    if may_be_descriptor(ctx, dirfd, path) { leads_to_copy(ctx, dirfd, path, follow) } else { None }
}

/// What a path leads to, if that is a copy.
fn leads_to_copy(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Found<'static>> {
    let no = if follow { 0 } else { libc::O_NOFOLLOW };
    // SAFETY: a path of the application, which ends with a NUL.
    let fd = unsafe { sys::open_at(dirfd, path.as_ptr().cast(), libc::O_PATH | libc::O_CLOEXEC | no) }?;
    crate::identity::copy_of_fd(ctx, fd.0)
}

/// [`behind_copy`] for a call that changes what it leads to.
#[must_use]
pub fn change_behind_copy(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Target {
    let Some(f) = behind_copy(ctx, dirfd, path, follow) else { return Target::AsNamed };
    bypass(ctx, &f);
    Target::of(ctx, &f)
}

/// [`change_behind_copy`] for a path that the kernel did not open for writing, whatever its
/// spelling: no process may write a copy.
#[must_use]
pub fn denied_copy(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Target {
    let Some(f) = leads_to_copy(ctx, dirfd, path, follow) else { return Target::AsNamed };
    bypass(ctx, &f);
    Target::of(ctx, &f)
}

/// Whether the spelling of a path allows that it leads to an open descriptor or into a tier. Links
/// elsewhere that lead to a descriptor are not recognised by it: they are found when they are open.
fn may_be_descriptor(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> bool {
    if ctx.map.tiers().iter().any(|t| path.starts_with(ctx.map.str(&t.path))) {
        return true;
    }
    if !is_descriptor_name(path) {
        return false;
    }
    let has = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|w| w == part);
    if path.first() == Some(&b'/') {
        // `/proc` may be mounted anywhere, but not below a root that is served.
        let is_number = path.last().is_some_and(u8::is_ascii_hexdigit);
        return has(path, b"/proc/")
            || path.starts_with(b"/dev/")
            || has(path, b"/dev/")
            || is_number && !matches!(ctx.map.match_root(path), Start::Root(_));
    }
    let mut here = PathBuffer::front();
    // SAFETY: both write as many bytes as they say.
    let read = unsafe {
        here.fill(|out| {
            if dirfd == libc::AT_FDCWD { sys::getcwd(out) } else { crate::descriptor_path::path_of_fd(dirfd, out) }
        })
    };
    read.is_none() || !matches!(ctx.map.match_root(here.get()), Start::Root(_))
}

/// Whether the last component of a path is one that names of descriptors have: a number, `stdin`,
/// or a range of addresses (`/proc/self/map_files`).
#[must_use]
pub fn is_descriptor_name(path: &[u8]) -> bool {
    let name = path.iter().rposition(|&c| c == b'/').map_or(path, |at| path.get(at + 1..).unwrap_or(&[]));
    let is_hex = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_hexdigit);
    let is_range = || {
        let dash = name.iter().position(|&c| c == b'-')?;
        Some(is_hex(name.get(..dash)?) && is_hex(name.get(dash + 1..)?))
    };
    matches!(name, b"stdin" | b"stdout" | b"stderr")
        || !name.is_empty() && name.iter().all(u8::is_ascii_digit)
        || is_range() == Some(true)
}

/// Whether a path may lead to an open descriptor of another process, or in another working
/// directory.
#[must_use]
pub fn may_name_descriptor(path: &[u8]) -> bool {
    let has = |part: &[u8]| path.windows(part.len()).any(|w| w == part);
    is_descriptor_name(path) && (path.first() != Some(&b'/') || has(b"/proc/") || has(b"/dev/") || is_below_proc(path))
}

/// Whether a path leads into a file system of processes, wherever that is mounted.
#[must_use]
pub fn is_below_proc(path: &[u8]) -> bool {
    const PROC_SUPER_MAGIC: i64 = 0x9fa0;
    let end = path.iter().rposition(|&c| c == b'/').unwrap_or(0);
    let dir = path.get(..end).and_then(|dir| sys::open_bytes(dir, libc::O_PATH | libc::O_CLOEXEC));
    dir.is_some_and(|dir| sys::file_system(dir.0) == Some(PROC_SUPER_MAGIC))
}

/// Whether a path may lead to an open descriptor, for opens that read: decided in a few
/// instructions.
#[inline]
#[must_use]
pub fn may_reopen(path: &[u8]) -> bool {
    match path {
        // `//proc` and `/./proc` lead there, too.
        [b'/', b'p' | b'd' | b'/' | b'.', ..] => is_descriptor_name(path),
        [b'/', ..] => false,
        [.., last] => (last.is_ascii_digit() || *last == b'n') && is_descriptor_name(path),
        [] => false,
    }
}
