//! Calls about open directories and roots.

use super::at_path;
use crate::outputs::answer::{Answer, GONE, Result};
use crate::outputs::journal::{self, Journal};
use crate::outputs::place::Place;
use crate::outputs::roots::{self, Root};
use crate::outputs::{attributes, barrier, began, descriptors, entries, kernel, listing, lookup, peers, spare, tree};
use core::ffi::{c_char, c_int};
use core::sync::atomic::Ordering;
use monarch_abi::outputs::state::flag;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys::Fd;
use monarch_guest::{errno, sys};

/// opendir(3).
///
/// # Safety
/// As for [`monarch_guest::user::path`].
#[inline]
pub unsafe fn open_dir(dirfd: c_int, path: *const c_char) -> Option<*mut crate::dirs::Shared> {
    // SAFETY: by contract.
    unsafe {
        at_path(dirfd, path, core::ptr::null_mut(), |place| {
            use lookup::Found;
            use tree::Entry;
            let (mut is_removed, mut outside) = (false, None);
            match lookup::lookup(place, true)? {
                Found::Held => is_removed = true,
                Found::Elsewhere(path) if place.leads_out => outside = Some(path),
                Found::Entry(Entry::Removed | Entry::RemovedDir) => return Err(libc::ENOENT),
                Found::Entry(Entry::File(_)) => return Err(libc::ENOTDIR),
                _ => {}
            }
            peers::settle_names(place);
            if !listing::may_differ(&place.root) {
                return Ok(Answer::Plain);
            }
            let mut on_pfs = outside.map_or_else(|| place.on_pfs(), Ok)?;
            let fd = if is_removed {
                entries::open_named(dirfd, core::ffi::CStr::from_ptr(path))?
            } else {
                entries::open_named(libc::AT_FDCWD, on_pfs.c_str().ok_or(libc::ENAMETOOLONG)?)?
            };
            let Some(merged) = listing::Merged::new(place, fd.0) else { return Ok(Answer::Plain) };
            core::mem::forget(fd);
            Ok(crate::dirs::open_merged(merged).map_or(Answer::Plain, Answer::Done))
        })
    }
}

/// opendir(3) by the name of a directory that is open, and that the job has removed: the PFS may
/// still have names there.
///
/// # Safety
/// As for [`monarch_guest::user::path`].
#[cold]
pub unsafe fn open_held_dir(dirfd: c_int, path: *const c_char) -> Option<*mut crate::dirs::Shared> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    unsafe { monarch_guest::user::path(path)? };
    // SAFETY: a C string, as just tested.
    let fd = entries::open_named(dirfd, unsafe { core::ffi::CStr::from_ptr(path) }).ok()?;
    let stream = merged_dir(&ctx, fd.0)?;
    core::mem::forget(fd);
    Some(stream)
}

/// fdopendir(3).
#[inline]
#[must_use]
pub fn open_dir_fd(fd: c_int) -> Option<*mut crate::dirs::Shared> {
    let ctx = ctx::for_outputs()?;
    merged_dir(&ctx, fd)
}

#[cold]
#[inline(never)]
fn merged_dir(ctx: &Ctx, fd: c_int) -> Option<*mut crate::dirs::Shared> {
    let work = || {
        let mut path = monarch_abi::mem::PathBuffer::front();
        let st = monarch_guest::sys::fstat_local(fd)?;
        if st.st_mode & libc::S_IFMT != libc::S_IFDIR || !roots::on_device(ctx, st.st_dev) {
            return None;
        }
        // A descriptor that only names a directory does not read it: the kernel says so.
        if sys::fcntl(fd, libc::F_GETFL, 0)? & libc::O_PATH != 0 {
            return None;
        }
        // SAFETY: as many bytes are written as it says.
        unsafe { path.fill(|out| crate::descriptor_path::path_of_fd(fd, out)) }?;
        let place = Place::absolute(ctx, path.get())?;
        peers::settle_names(&place);
        if !listing::may_differ(&place.root) {
            return None;
        }
        let merged = listing::Merged::new(&place, fd)?;
        crate::dirs::open_merged(merged)
    };
    let saved = errno::errno();
    let stream = work();
    errno::set_errno(saved);
    stream
}

/// Before attributes of an open file are set: of a directory, what is pending below it is published
/// first. (Where that is done, the overlay may still tell when the job has changed names there.)
#[inline]
pub fn settle_open_directory(fd: c_int) {
    if let Some(ctx) = ctx::for_outputs() {
        settle_directory_of(&ctx, fd);
    }
}

#[cold]
#[inline(never)]
fn settle_directory_of(ctx: &Ctx, fd: c_int) {
    let saved = errno::errno();
    let is_directory = |st: &libc::stat64| st.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let is_in_output = |st: &libc::stat64| is_directory(st) && roots::on_device(ctx, st.st_dev);
    if fd >= 0
        && sys::fstat_local(fd).is_some_and(|st| is_in_output(&st))
        && let Some(place) = Place::find(ctx, fd, b".")
    {
        let _ = attributes::settle_directory(&place);
    }
    errno::set_errno(saved);
}

/// After fsync(2) of a descriptor: what the journal says of the file, or of names in the directory,
/// is on the disk, too, or is published. Returns what the call returns.
#[cold]
#[inline(never)]
pub fn synced(fd: c_int) -> c_int {
    let Some(ctx) = ctx::for_outputs() else { return 0 };
    let saved = errno::errno();
    let result = root_of_synced(&ctx, fd).map_or(Ok(()), |root| sync(&root));
    ended(result, saved)
}

/// [`synced`] after msync(2) of memory, which may be mapped from any staged file.
#[cold]
#[inline(never)]
pub fn synced_memory() -> c_int {
    let Some(ctx) = ctx::for_outputs() else { return 0 };
    let saved = errno::errno();
    let result = roots::all(&ctx).filter(|root| root.map.may_be_overtaken()).try_for_each(|root| sync(&root));
    ended(result, saved)
}

fn ended(result: Result<()>, saved: c_int) -> c_int {
    match result {
        Ok(()) | Err(GONE) => {
            errno::set_errno(saved);
            0
        }
        Err(e) => {
            errno::set_errno(e);
            -1
        }
    }
}

/// The output root of a staged file that is open, or of a directory in which something is pending.
fn root_of_synced(ctx: &Ctx, fd: c_int) -> Option<Root> {
    let st = sys::fstat_local(fd)?;
    if st.st_mode & libc::S_IFMT != libc::S_IFDIR {
        return descriptors::staged(ctx, fd).map(|(root, _)| root);
    }
    if !roots::on_device(ctx, st.st_dev) {
        return None;
    }
    Place::find(ctx, fd, b".").map(|place| place.root).filter(|root| root.map.may_be_overtaken())
}

fn sync(root: &Root) -> Result<()> {
    Journal::lock(root)?.sync()?;
    let flags = root.state().flags.load(Ordering::Relaxed);
    if flags & flag::FSYNC_PUBLISHES != 0 {
        barrier::wait_for_all(root)?;
    }
    Ok(())
}

/// The directory of the output root of a staged file that is open.
#[must_use]
pub fn root_of(fd: c_int, flags: c_int) -> Option<Fd> {
    let ctx = ctx::for_outputs()?;
    let saved = errno::errno();
    let open = || {
        let (root, _) = descriptors::staged(&ctx, fd)?;
        kernel::open(root.on_pfs(b"")?.c_str()?, flags | libc::O_DIRECTORY | libc::O_CLOEXEC, 0).ok()
    };
    let dir = open();
    errno::set_errno(saved);
    dir
}

/// In a child of `fork`.
pub fn forked() {
    roots::forked();
    journal::forked();
    began::forked();
    spare::forked();
}
