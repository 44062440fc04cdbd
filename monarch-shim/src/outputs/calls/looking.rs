//! Calls that look at names, and change nothing.

use super::{at_path, failed_with};
use crate::descriptor_names::{is_below_proc, may_reopen};
use crate::descriptor_path::path_even_if_removed;
use crate::outputs::answer::{Answer, Result};
use crate::outputs::place::{Behind, Place};
use crate::outputs::stat::Subject;
use crate::outputs::{attributes, dir_times, kernel, lookup, peers, roots, stat as overlay_stat, tree};
use core::ffi::{c_char, c_int};
use monarch_abi::mem::PathBuffer;
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::{errno, sys, user};

/// Where a path leads by links outside of the output roots.
pub struct Lead {
    /// The absolute path there, on which the call is to be made first, or again.
    pub at: Absolute,
    /// Whether a link that was not published has led there: the kernel may not find it by the path
    /// itself. (Otherwise the kernel knows best: it follows `/proc/self/fd/N` to what is open,
    /// whatever has that name.)
    by_overlay: bool,
    /// Whether that is a directory that is open, and that the job has removed: the kernel finds it
    /// by the path itself alone.
    pub is_held: bool,
}

impl Lead {
    /// The path on which a call is to be made plainly in place of the original one, if there is
    /// one. What is not pending is published, but a link that leads there may not be.
    pub fn instead(&mut self) -> Option<&core::ffi::CStr> {
        if self.by_overlay { self.at.c_str() } else { None }
    }

    /// The path on which the call is to be made again; `None` if what the kernel found is right.
    #[must_use]
    pub fn elsewhere(self) -> Option<Absolute> {
        (!self.is_held).then_some(self.at)
    }
}

/// Where a path leads by links outside of the output roots, if something is pending below one.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn beyond(dirfd: c_int, path: *const c_char, follow: bool) -> Option<Lead> {
    let ctx = pending()?;
    // SAFETY: by contract.
    unsafe { lead_of(&ctx, dirfd, path, follow) }
}

/// The context, while something is pending below an output root.
#[inline]
fn pending() -> Option<Ctx> {
    ctx::for_outputs().filter(roots::any_pending)
}

#[cold]
#[inline(never)]
unsafe fn lead_of(ctx: &Ctx, dirfd: c_int, path: *const c_char, follow: bool) -> Option<Lead> {
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    let saved = errno::errno();
    let lead = || {
        if bytes.is_empty() || Place::find(ctx, dirfd, bytes).is_some() {
            return None;
        }
        match Place::behind(ctx, dirfd, bytes, follow)? {
            Behind::Inside(place) => {
                let at = place.as_named().ok()?;
                Some(Lead { at, by_overlay: place.by_overlay, is_held: place.is_held })
            }
            Behind::Outside(at) => Some(Lead { at, by_overlay: true, is_held: false }),
        }
    };
    let found = lead();
    errno::set_errno(saved);
    found
}

/// The output roots before a plain call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// The job has none.
    NoRoots,
    /// Nothing was pending.
    Quiet,
    /// Something was pending.
    Pending,
}

impl Before {
    /// Looks at the output roots.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        ctx::for_outputs().map_or(Self::NoRoots, |ctx| Self::of(&ctx))
    }

    #[inline(never)]
    fn of(ctx: &Ctx) -> Self {
        if roots::any_pending(ctx) { Self::Pending } else { Self::Quiet }
    }

    /// Whether the job has output roots.
    #[inline]
    #[must_use]
    pub const fn has_roots(self) -> bool {
        !matches!(self, Self::NoRoots)
    }

    /// The context, if something is pending, or was before the call: what is published meanwhile
    /// the plain call has missed.
    fn after(self) -> Option<Ctx> {
        ctx::for_outputs().filter(|ctx| self == Self::Pending || roots::any_pending(ctx))
    }
}

/// [`beyond`] after a plain call, which has found something on a device, or has failed. What is not
/// pending there is to be asked for again.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn beyond_found(
    before: Before,
    dev: Option<u64>,
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
) -> Option<Lead> {
    let ctx = before.after()?;
    let may_lead = match dev {
        Some(dev) => roots::on_device(&ctx, dev),
        None => matches!(errno::errno(), libc::ENOENT | libc::ENOTDIR),
    };
    // SAFETY: by contract.
    if may_lead { unsafe { lead_of(&ctx, dirfd, path, follow) } } else { None }
}

/// Where links have led that a plain open of a path outside of the output roots has followed, if
/// something is pending below one, or was. What is not pending there is to be opened again, unless
/// the descriptor [`is_at`] it by then.
///
/// # Safety
/// As for [`user::path`].
#[inline]
#[must_use]
pub unsafe fn beyond_opened(
    before: Before,
    fd: c_int,
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
) -> Option<Absolute> {
    // SAFETY: by contract.
    unsafe { opened_below(&before.after()?, fd, dirfd, path, follow) }
}

#[cold]
#[inline(never)]
unsafe fn opened_below(ctx: &Ctx, fd: c_int, dirfd: c_int, path: *const c_char, follow: bool) -> Option<Absolute> {
    let saved = errno::errno();
    let lead = || {
        if !roots::on_device(ctx, sys::fstat_local(fd)?.st_dev) {
            return None;
        }
        let mut now = PathBuffer::front();
        // SAFETY: as many bytes are written as it says. (Of a file that was replaced the kernel
        // gives the name with a note, or another one.)
        unsafe { now.fill(|out| path_even_if_removed(fd, out)) }?;
        roots::at(ctx, now.get())?;
        // SAFETY: by contract.
        unsafe { lead_of(ctx, dirfd, path, follow)?.elsewhere() }
    };
    let found = lead();
    errno::set_errno(saved);
    found
}

/// Whether an open file has this path. One that was replaced or removed has another, or a note
/// behind it.
#[cold]
#[must_use]
pub fn is_at(fd: c_int, path: &[u8]) -> bool {
    let mut now = PathBuffer::front();
    // SAFETY: as many bytes are written as it says.
    unsafe { now.fill(|out| path_even_if_removed(fd, out)) }.is_some()
        && now.get() == path.strip_suffix(b"/").unwrap_or(path)
}

/// The place that a path names, also by links outside of the output roots.
fn place_of(ctx: &Ctx, path: &[u8], follow: bool) -> Option<Place> {
    super::place_beyond(ctx, libc::AT_FDCWD, path, follow)
}

/// stat(2) and lstat(2).
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn stat(dirfd: c_int, path: *const c_char, buf: *mut libc::stat64, follow: bool) -> Option<c_int> {
    // SAFETY: by contract; the buffer is tested before it is written.
    unsafe {
        at_path(dirfd, path, -1, |place| {
            peers::settle(place, follow);
            Ok(match overlay_stat::stat(place, follow)? {
                Answer::Done(_) if !user::writable(buf) => return Err(libc::EFAULT),
                Answer::Done(st) => {
                    buf.write(st);
                    Answer::Done(0)
                }
                Answer::Plain => Answer::Plain,
            })
        })
    }
}

/// statx(2); `call` asks the kernel about an absolute path.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn statx(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    buf: *mut libc::statx,
    call: impl Fn(*const c_char) -> c_int,
) -> Option<c_int> {
    // SAFETY: by contract; a successful call has written the buffer.
    unsafe {
        at_path(dirfd, path, -1, |place| {
            peers::settle(place, follow);
            overlay_stat::ask(place, follow, |subject| {
                if call(subject.path().c_str().ok_or(libc::ENAMETOOLONG)?.as_ptr()) < 0 {
                    // (The kernel knows what is open.)
                    let is_open = matches!(subject, Subject::RemovedDir(_));
                    return if is_open { Ok(Answer::Plain) } else { Err(errno::errno()) };
                }
                match subject {
                    Subject::Staged(file, _) => overlay_stat::translate_x(file, &mut *buf),
                    Subject::Changed(_, time) => dir_times::raise_x(&mut *buf, *time),
                    Subject::Link(_, dev) => overlay_stat::translate_link_x(&mut *buf, *dev),
                    Subject::RemovedDir(_) => (*buf).stx_nlink = 0,
                    Subject::At(_) => {}
                }
                Ok(Answer::Done(0))
            })
        })
    }
}

/// What access(2) can be asked for.
const ANY_MODE: c_int = libc::R_OK | libc::W_OK | libc::X_OK;

/// access(2) and the like.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn access(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_path(dirfd, path, -1, |place| {
            // The kernel refuses these before it looks at the path.
            if mode & !ANY_MODE != 0
                || flags & !(libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0
            {
                return Ok(Answer::Plain);
            }
            let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
            peers::settle(place, follow);
            overlay_stat::ask(place, follow, |subject| match subject {
                // Times are no question of this call.
                Subject::Changed(..) | Subject::RemovedDir(_) => Ok(Answer::Plain),
                Subject::Staged(..) | Subject::At(_) | Subject::Link(..) => {
                    kernel::access(subject.path().c_str().ok_or(libc::ENAMETOOLONG)?, mode, flags)?;
                    Ok(Answer::Done(0))
                }
            })
        })
    }
}

/// [`access`] at the path to which links from outside of the output roots lead, while something is
/// pending below one.
///
/// # Safety
/// As for [`user::path`].
pub unsafe fn access_beyond(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Option<c_int> {
    // SAFETY: by contract; a path of the shim.
    unsafe {
        let mut lead = beyond(dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0).filter(|lead| !lead.is_held)?;
        access(libc::AT_FDCWD, lead.at.c_str()?.as_ptr(), mode, flags)
            .or_else(|| Some(kernel::access(lead.instead()?, mode, flags).map_or_else(failed_with, |()| 0)))
    }
}

/// [`read_link`] at the path to which links from outside of the output roots lead, while something
/// is pending below one.
///
/// # Safety
/// As for [`user::path`].
pub unsafe fn read_link_beyond(dirfd: c_int, path: *const c_char, buf: *mut c_char, room: usize) -> Option<isize> {
    // SAFETY: by contract; a path of the shim.
    unsafe {
        let mut lead = beyond(dirfd, path, false)?;
        read_link(libc::AT_FDCWD, lead.at.c_str()?.as_ptr(), buf, room).or_else(|| {
            let at = lead.instead()?.as_ptr() as usize;
            let done =
                sys::call(libc::SYS_readlinkat, [libc::AT_FDCWD as isize as usize, at, buf as usize, room, 0, 0]);
            Some(if done < 0 { failed_with(-done as c_int) as isize } else { done })
        })
    }
}

/// readlink(2).
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn read_link(dirfd: c_int, path: *const c_char, buf: *mut c_char, room: usize) -> Option<isize> {
    // SAFETY: by contract; the buffer is tested before it is written.
    unsafe {
        at_path(dirfd, path, -1, |place| {
            // The kernel refuses before it looks at the path.
            if room == 0 {
                return Ok(Answer::Plain);
            }
            peers::settle(place, false);
            Ok(match overlay_stat::read_link(place)? {
                Answer::Plain => Answer::Plain,
                Answer::Done(target) => {
                    let len = target.get().len().min(room);
                    if !user::writable_bytes(buf.cast(), len) {
                        return Err(libc::EFAULT);
                    }
                    core::ptr::copy_nonoverlapping(target.get().as_ptr(), buf.cast(), len);
                    Answer::Done(len as isize)
                }
            })
        })
    }
}

/// Where the name of a descriptor (`/proc/self/fd/N`) leads that is of a staged file: to the path
/// of the file. With `follow`, by the links that `/dev/stdin` and the like are, too.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn named_open(dirfd: c_int, path: *const c_char, follow: bool) -> Option<Absolute> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    may_reopen(bytes).then(|| path_of_open(&ctx, dirfd, bytes, follow))?
}

#[cold]
#[inline(never)]
fn path_of_open(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Absolute> {
    let saved = errno::errno();
    let place = || if follow || is_below_proc(path) { super::by_number(ctx, dirfd, path)?.on_pfs().ok() } else { None };
    let found = place();
    errno::set_errno(saved);
    found
}

/// realpath(3).
///
/// # Safety
/// The contract of realpath(3).
#[inline(never)]
pub unsafe fn real_path(path: *const c_char, out: *mut c_char) -> Option<*mut c_char> {
    // SAFETY: by contract.
    unsafe {
        at_path(libc::AT_FDCWD, path, core::ptr::null_mut(), |place| {
            use lookup::Found;
            use tree::Entry;
            peers::settle(place, true);
            match lookup::lookup(place, true)? {
                Found::Entry(Entry::File(_)) => {}
                Found::Entry(Entry::Removed | Entry::RemovedDir) | Found::Held => return Err(libc::ENOENT),
                // By a link that is not published.
                Found::Elsewhere(mut path) => {
                    let real = libc::realpath(path.c_str().ok_or(libc::ENAMETOOLONG)?.as_ptr(), out);
                    return if real.is_null() { Err(errno::errno()) } else { Ok(Answer::Done(real)) };
                }
                _ => return Ok(Answer::Plain),
            }
            if !place.parent().is_empty() {
                place.follow_parent()?;
            }
            let path = place.on_pfs()?;
            let len = path.get().len();
            let to = if out.is_null() { libc::malloc(monarch_abi::PATH_MAX).cast::<c_char>() } else { out };
            if to.is_null() {
                return Err(libc::ENOMEM);
            }
            core::ptr::copy_nonoverlapping(path.get().as_ptr(), to.cast::<u8>(), len);
            to.add(len).write(0);
            Ok(Answer::Done(to))
        })
    }
}

/// The part file of a pending file, if it lies beside it: it has what a new file gets from its
/// directory.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn part_of(path: *const c_char, follow: bool) -> Option<Absolute> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    let saved = errno::errno();
    let Some(mut place) = place_of(&ctx, bytes, follow) else {
        errno::set_errno(saved);
        return None;
    };
    let found = lookup::lookup(&mut place, follow);
    errno::set_errno(saved);
    let Ok(lookup::Found::Entry(tree::Entry::File(file))) = found else { return None };
    attributes::part(&place, &file).ok()
}

/// The output root of a pending file, for calls that ask about its file system.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn file_system(path: *const c_char) -> Option<Absolute> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    let saved = errno::errno();
    let Some(mut place) = place_of(&ctx, bytes, true) else {
        errno::set_errno(saved);
        return None;
    };
    let found = lookup::lookup(&mut place, true);
    errno::set_errno(saved);
    match found {
        Ok(lookup::Found::Entry(tree::Entry::File(_))) => place.root.on_pfs(b""),
        Ok(lookup::Found::Elsewhere(path)) => Some(path),
        found => if_removed(&found),
    }
}

/// A path that leads as little anywhere as a name that the job has removed, or one that lies below
/// a pending file.
fn if_removed(found: &Result<lookup::Found>) -> Option<Absolute> {
    use lookup::Found::Entry;
    match found {
        Ok(Entry(tree::Entry::Removed | tree::Entry::RemovedDir)) | Err(libc::ENOENT) => {
            Absolute::join(b"/proc/self/fd", b"-1")
        }
        Err(libc::ENOTDIR) => Absolute::join(b"/dev/null", b"none"),
        _ => None,
    }
}

/// The path on which a question about a pending name is made: that of the staged file, or where a
/// link leads that is not published.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn data_of(path: *const c_char, follow: bool) -> Option<Absolute> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    let saved = errno::errno();
    let Some(mut place) = place_of(&ctx, bytes, follow) else {
        errno::set_errno(saved);
        return None;
    };
    peers::settle(&place, follow);
    let found = lookup::lookup(&mut place, follow);
    errno::set_errno(saved);
    match found {
        Ok(lookup::Found::Entry(tree::Entry::File(file))) => place.root.data(&file.name()),
        // A link of the overlay has as few attributes as the link to be.
        Ok(lookup::Found::Entry(tree::Entry::Symlink(_))) if !follow => place.in_tree().ok(),
        Ok(lookup::Found::Elsewhere(path)) => Some(path),
        found => if_removed(&found),
    }
}
