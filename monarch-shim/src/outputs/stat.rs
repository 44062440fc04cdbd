//! What `stat` and its kin say about staged files: attributes of the staged file, with device and
//! inode of the part file, which the published file keeps.

use super::answer::{Answer, Result};
use super::descriptors;
use super::dir_times::{self, Time};
use super::kernel;
use super::lookup::{Found, lookup};
use super::place::Place;
use super::tree::Entry;
use core::ffi::c_int;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::STAGED_MODE;
use monarch_abi::outputs::names::Staged;
use monarch_guest::absolute::Absolute;
use monarch_guest::{ctx, errno, sys};

/// What is asked about is an open descriptor, or a file at an absolute path.
pub enum Subject {
    /// A staged file, at this path.
    Staged(Staged, Absolute),
    /// What lies at this path, as it is.
    At(Absolute),
    /// A link that is not published, at this path in the overlay, and the device of its root.
    Link(Absolute, u64),
    /// A directory of the PFS at this path, in which the job has last changed names at this time.
    Changed(Absolute, Time),
    /// A directory at this path that the job has removed, and that is open.
    RemovedDir(Absolute),
}

/// What a call that asks about a place asks about; a plain call is the PFS's.
pub fn subject(place: &mut Place, follow: bool) -> Result<Answer<Subject>> {
    Ok(match lookup(place, follow)? {
        Found::Elsewhere(path) => Answer::Done(Subject::At(path)),
        Found::Entry(Entry::Directory) => changed(place)?,
        // (The spelling of an output root may be a symbolic link, which the kernel knows.)
        Found::Entry(Entry::Nothing) if place.rel().is_empty() && (follow || place.is_dir_path) => changed(place)?,
        Found::Entry(Entry::Nothing | Entry::Clean(_)) => Answer::Plain,
        Found::Entry(Entry::Removed | Entry::RemovedDir) if place.is_held => {
            Answer::Done(Subject::RemovedDir(place.on_pfs()?))
        }
        Found::Entry(Entry::Removed | Entry::RemovedDir) => return Err(libc::ENOENT),
        Found::Entry(Entry::File(file)) => {
            let path = place.root.data(&file.name()).ok_or(libc::ENAMETOOLONG)?;
            Answer::Done(Subject::Staged(file, path))
        }
        Found::Entry(Entry::Symlink(_)) => Answer::Done(Subject::Link(place.in_tree()?, place.root.dev())),
    })
}

fn changed(place: &Place) -> Result<Answer<Subject>> {
    Ok(match dir_times::last_change(&place.root, place.rel()) {
        Some(time) => Answer::Done(Subject::Changed(place.on_pfs()?, time)),
        None => Answer::Plain,
    })
}

/// Attributes of a place.
pub fn stat(place: &mut Place, follow: bool) -> Result<Answer<libc::stat64>> {
    Ok(match subject(place, follow)? {
        Answer::Plain => Answer::Plain,
        Answer::Done(Subject::Staged(file, mut path)) => {
            match kernel::lstat(path.c_str().ok_or(libc::ENAMETOOLONG)?) {
                Ok(mut st) => {
                    translate(&file, &mut st);
                    Answer::Done(st)
                }
                // Published and dropped a moment ago.
                Err(_) => Answer::Plain,
            }
        }
        Answer::Done(Subject::Changed(mut path, time)) => {
            let mut st = kernel::stat_at(libc::AT_FDCWD, path.c_str().ok_or(libc::ENAMETOOLONG)?, 0)?;
            dir_times::raise(&mut st, time);
            Answer::Done(st)
        }
        // (The path may lead nowhere by now: the kernel knows what is open.)
        Answer::Done(Subject::RemovedDir(mut path)) => {
            match kernel::stat_at(libc::AT_FDCWD, path.c_str().ok_or(libc::ENAMETOOLONG)?, 0) {
                Ok(mut st) => {
                    st.st_nlink = 0;
                    Answer::Done(st)
                }
                Err(_) => Answer::Plain,
            }
        }
        Answer::Done(Subject::At(mut path)) => {
            let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
            Answer::Done(kernel::stat_at(libc::AT_FDCWD, path.c_str().ok_or(libc::ENAMETOOLONG)?, flags)?)
        }
        Answer::Done(Subject::Link(mut path, dev)) => {
            let mut st = kernel::lstat(path.c_str().ok_or(libc::ENAMETOOLONG)?)?;
            // Its text has a letter in front.
            st.st_size -= 1;
            st.st_dev = dev;
            Answer::Done(st)
        }
    })
}

/// The target of a link of the overlay.
pub fn read_link(place: &mut Place) -> Result<Answer<PathBuffer>> {
    match lookup(place, false)? {
        Found::Entry(Entry::Symlink(target)) => Ok(Answer::Done(target)),
        Found::Entry(Entry::File(_)) => Err(libc::EINVAL),
        Found::Entry(Entry::Removed | Entry::RemovedDir) => Err(libc::ENOENT),
        Found::Entry(_) => Ok(Answer::Plain),
        Found::Elsewhere(mut path) => kernel::read_link(path.c_str().ok_or(libc::ENAMETOOLONG)?).map(Answer::Done),
    }
}

fn translate(file: &Staged, st: &mut libc::stat64) {
    st.st_dev = file.dev;
    st.st_ino = file.ino;
    st.st_mode &= !STAGED_MODE;
}

/// Whether what `fstat` said may be about a staged file, or a directory in which names are pending.
#[inline]
pub const fn may_be_staged(mode: u32) -> bool {
    mode & (libc::S_IFMT | STAGED_MODE) == libc::S_IFREG | STAGED_MODE || is_directory(mode)
}

const fn is_directory(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFDIR
}

/// After `fstat` of a descriptor.
#[cold]
#[inline(never)]
pub fn translate_open(fd: c_int, st: &mut libc::stat64) {
    if is_directory(st.st_mode) {
        return dir_times::of_open(fd, st.st_dev).into_iter().for_each(|time| dir_times::raise(st, time));
    }
    let saved = errno::errno();
    if let Some(ctx) = ctx::for_outputs()
        && descriptors::is_marked_mode(&ctx, st)
        && let Some((_, file)) = descriptors::named(&ctx, fd)
    {
        translate(&file, st);
    }
    errno::set_errno(saved);
}

/// After `statx` of a descriptor or of a staged file at a path.
#[cold]
#[inline(never)]
pub fn translate_open_x(fd: c_int, st: &mut libc::statx) {
    if is_directory(u32::from(st.stx_mode)) {
        let dev = sys::makedev(st.stx_dev_major, st.stx_dev_minor);
        return dir_times::of_open(fd, dev).into_iter().for_each(|time| dir_times::raise_x(st, time));
    }
    let saved = errno::errno();
    if let Some(ctx) = ctx::for_outputs()
        && super::roots::staged_on_device(&ctx, sys::makedev(st.stx_dev_major, st.stx_dev_minor))
        && let Some((_, file)) = descriptors::named(&ctx, fd)
    {
        translate_x(&file, st);
    }
    errno::set_errno(saved);
}

/// What statx says of a link of the overlay.
pub fn translate_link_x(st: &mut libc::statx, dev: u64) {
    st.stx_size = st.stx_size.saturating_sub(1);
    st.stx_dev_major = sys::major(dev);
    st.stx_dev_minor = sys::minor(dev);
}

/// [`translate`] for statx.
pub fn translate_x(file: &Staged, st: &mut libc::statx) {
    st.stx_dev_major = sys::major(file.dev);
    st.stx_dev_minor = sys::minor(file.dev);
    st.stx_ino = file.ino;
    st.stx_mode &= !(STAGED_MODE as u16);
}
