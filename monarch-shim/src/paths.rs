//! From (dirfd, path) to an entry of the index.

use crate::ctx::Ctx;
use crate::cwd;
use crate::sys;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use monarch_abi::PATH_MAX;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{Found, Miss, Parent, resolve, resolve_in, resolve_parent};

/// A path made absolute.
pub struct Absolute(PathBuffer);

impl Absolute {
    /// Its bytes.
    #[must_use]
    pub fn get(&self) -> &[u8] {
        self.0.get()
    }

    /// It followed by a NUL.
    #[must_use]
    pub fn c_str(&mut self) -> Option<&core::ffi::CStr> {
        self.0.c_str()
    }

    /// `base/rel`.
    #[must_use]
    pub fn join(base: &[u8], rel: &[u8]) -> Option<Self> {
        let mut abs = Self(PathBuffer::front());
        abs.0.append(base)?;
        if !rel.is_empty() {
            abs.append(rel)?;
        }
        Some(abs)
    }

    fn append(&mut self, path: &[u8]) -> Option<()> {
        if self.get() != b"/" {
            self.0.append(b"/")?;
        }
        self.0.append(path)?;
        // Room for a NUL stays.
        (self.get().len() < PATH_MAX).then_some(())
    }
}

/// The entry of `path` relative to `dirfd`. An empty path is never ours.
///
/// # Errors
/// [`Miss`] says why the kernel has to answer.
#[inline]
pub fn find(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Result<Found<'static>, Miss> {
    if let Some((root, rest)) = ctx.below(path) {
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

/// `path` relative to the working directory or to an open directory, made absolute. Leading `..` are undone: neither
/// the working directory nor an open directory has links in its path.
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
    // A path that ends in `..`, `.` or a slash can only mean a directory; the trailing slash keeps that.
    abs.append(rest)
}

/// Whether a path relative to a descriptor may lead below a root: it is a directory on the device of some root. A cheap test before its path
/// is asked for. Whether `.` and `..` may be looked up in a directory that not everybody may search only the kernel knows.
fn is_way_in(ctx: &Ctx, fd: c_int, path: &[u8]) -> bool {
    let Some(st) = sys::fstat(fd) else { return false };
    let open = ctx.map.ctl.uid == 0 || path.first() != Some(&b'.') || {
        if st.st_uid == ctx.map.ctl.uid { st.st_mode & 0o100 != 0 } else { st.st_mode & 0o011 == 0o011 }
    };
    open && st.st_mode & libc::S_IFMT == libc::S_IFDIR && is_root_device(ctx, st.st_dev)
}

/// Whether some root lies on this device.
#[must_use]
pub fn is_root_device(ctx: &Ctx, dev: u64) -> bool {
    ctx.map.roots().iter().any(|r| r.dev.load(core::sync::atomic::Ordering::Relaxed) == dev)
}

/// The path of an open file or directory, as the kernel knows it.
#[must_use]
pub fn path_of_fd(fd: c_int, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
    let mut name = [0u8; 32];
    let len = proc_fd(fd, &mut name)?;
    let link = core::ffi::CStr::from_bytes_with_nul(name.get(..=len)?).ok()?;
    let len = sys::readlink(link, out)?;
    if len == 0 || len >= PATH_MAX {
        return None;
    }
    // SAFETY: as many bytes were written.
    let text = unsafe { core::slice::from_raw_parts(out.as_ptr().cast::<u8>(), len) };
    // The kernel says so of what was removed; but names may end like that, too.
    let removed = text.ends_with(b" (deleted)") && sys::fstat(fd).is_none_or(|st| st.st_nlink == 0);
    (text.first() == Some(&b'/') && !removed).then_some(len)
}

/// Whether the descriptors of this process can be seen below `/proc`.
#[must_use]
pub fn has_proc() -> bool {
    sys::stat_at(libc::AT_FDCWD, c"/proc/thread-self/fd", 0).is_some()
}

/// [`path_of_fd`] in a buffer of its own.
#[must_use]
pub fn real_path(fd: c_int) -> Option<PathBuffer> {
    let mut path = PathBuffer::front();
    // SAFETY: as many bytes are written as it says.
    unsafe { path.fill(|out| path_of_fd(fd, out)) }?;
    Some(path)
}

/// `/proc/thread-self/fd/N` with a NUL behind it.
#[must_use]
pub fn proc_path(fd: c_int) -> Option<[u8; 32]> {
    let mut name = [0u8; 32];
    proc_fd(fd, &mut name)?;
    Some(name)
}

/// `/proc/thread-self/fd/N` with a NUL behind it; its length.
fn proc_fd(fd: c_int, out: &mut [u8; 32]) -> Option<usize> {
    let prefix = b"/proc/thread-self/fd/";
    out.get_mut(..prefix.len())?.copy_from_slice(prefix);
    let mut digits = [0u8; 10];
    let mut n = u32::try_from(fd).ok()?;
    let mut at = digits.len();
    loop {
        at = at.checked_sub(1)?;
        *digits.get_mut(at)? = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    let tail = digits.get(at..)?;
    let len = prefix.len() + tail.len();
    out.get_mut(prefix.len()..len)?.copy_from_slice(tail);
    Some(len)
}
