//! From (dirfd, path) to an entry of the index.

use crate::descriptor_path::path_of_fd;
use core::ffi::c_int;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{Found, Miss, Parent, resolve, resolve_in, resolve_parent};
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::{self, Ctx, ids};
use monarch_guest::cwd;
use monarch_guest::sys;

/// The entry of `path` relative to `dirfd`. An empty path leads to no entry.
///
/// # Errors
/// [`Miss`] says why the kernel has to answer.
#[inline(never)]
pub fn find(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Result<Found<'static>, Miss> {
    if let Some((root, rest)) = ctx::below(ctx, path) {
        return resolve_in(ctx.map, ctx, root, rest, follow);
    }
    match path.first() {
        Some(b'/') => resolve(ctx.map, ctx, path, follow),
        None => Err(Miss::Outside),
        Some(_)
            if dirfd == libc::AT_FDCWD && ctx.only_reads() && cwd::is_outside(ctx.map) && !path.starts_with(b"..") =>
        {
            Err(Miss::Outside)
        }
        Some(_) => find_relative(ctx, dirfd, path, follow),
    }
}

#[cold]
#[inline(never)]
fn find_relative(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Result<Found<'static>, Miss> {
    let mut abs = Absolute(PathBuffer::front());
    make_absolute(ctx, dirfd, path, &mut abs).ok_or(Miss::Outside)?;
    resolve(ctx.map, ctx, abs.get(), follow)
}

/// The parent directory and entry of the last component of `path`.
///
/// # Errors
/// [`Miss`] when the parent is not in the index.
#[inline(never)]
pub fn find_parent(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Result<Parent<'static>, Miss> {
    if path.first() == Some(&b'/') {
        return resolve_parent(ctx.map, ctx, path);
    }
    let abs = absolute(ctx, dirfd, path).ok_or(Miss::Outside)?;
    resolve_parent(ctx.map, ctx, abs.get())
}

/// `path` relative to the working directory or to an open directory, made absolute. Leading `..`
/// are undone: neither the working directory nor an open directory has links in its path.
#[must_use]
pub fn absolute(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Absolute> {
    let mut abs = Absolute(PathBuffer::front());
    make_absolute(ctx, dirfd, path, &mut abs)?;
    Some(abs)
}

/// [`absolute`] in place: moving such a buffer costs more than a lookup.
#[inline(never)]
#[must_use]
fn make_absolute(ctx: &Ctx, dirfd: c_int, path: &[u8], abs: &mut Absolute) -> Option<()> {
    if path.first() == Some(&b'/') {
        return abs.0.append(path);
    }
    if dirfd != libc::AT_FDCWD && !is_way_in(ctx, dirfd, path) {
        return None;
    }
    // SAFETY: both write as many bytes as they say.
    unsafe {
        abs.0.fill(|out| {
            if dirfd == libc::AT_FDCWD {
                cwd::get(ctx.map, out)
            } else {
                path_of_fd(dirfd, out).or_else(|| crate::noproc::path_into(ctx, dirfd, out))
            }
        })?;
    }
    let mut rest = path;
    loop {
        match rest {
            [b'.', b'.', tail @ ..] if tail.is_empty() || tail[0] == b'/' => {
                let len = abs.get().iter().rposition(|&c| c == b'/')?.max(1);
                abs.0.truncate(len);
                rest = tail;
            }
            [b'.', tail @ ..] if tail.is_empty() || tail[0] == b'/' => rest = tail,
            [b'/', tail @ ..] if rest.len() < path.len() => rest = tail,
            _ => break,
        }
    }
    // A path that ends in `..`, `.` or a slash can only mean a directory; the trailing slash keeps
    // that.
    abs.append(rest)
}

/// Whether a path relative to a descriptor may lead below a root: it is a directory on the device
/// of some root. A cheap test before its path is asked for. Whether `.` and `..` may be looked up
/// in a directory that some users may not search only the kernel knows.
fn is_way_in(ctx: &Ctx, fd: c_int, path: &[u8]) -> bool {
    let Some(st) = sys::fstat(fd) else { return false };
    let open = ctx.map.ctl.uid == 0 || path.first() != Some(&b'.') || {
        if st.st_uid == ids::agents_user(ctx.map.ctl) { st.st_mode & 0o100 != 0 } else { st.st_mode & 0o011 == 0o011 }
    };
    open && st.st_mode & libc::S_IFMT == libc::S_IFDIR && ctx.is_root_device(st.st_dev)
}
