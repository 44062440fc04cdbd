//! What `stat` and its kin say about staged files: attributes of the staged file, with device and
//! inode of the part file, which the published file keeps.

use super::answer::{Answer, Result};
use super::descriptors;
use super::dir_times::{self, Time};
use super::kernel;
use super::lookup::{Found, lookup};
use super::place::Place;
use super::spare;
use super::tree::{self, Entry};
use core::ffi::{CStr, c_char, c_int};
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::STAGED_MODE;
use monarch_abi::outputs::names::{SYMLINK, Staged};
use monarch_guest::absolute::Absolute;
use monarch_guest::{ctx, errno, sys, user};

/// How often the overlay is read again, when what it has is published meanwhile.
const MAX_LOOKS: usize = 100;

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
        Found::Held => Answer::Done(Subject::RemovedDir(place.on_pfs()?)),
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

impl Subject {
    /// The path on which the kernel is asked.
    pub const fn path(&mut self) -> &mut Absolute {
        match self {
            Self::Staged(_, path)
            | Self::At(path)
            | Self::Link(path, _)
            | Self::Changed(path, _)
            | Self::RemovedDir(path) => path,
        }
    }

    /// Whether this may be gone, or something else, in the moment after the overlay was read: what
    /// is published, and what other processes change.
    pub fn may_be_gone(&self, place: &Place, asked: Result<()>) -> bool {
        match self {
            Self::Staged(..) => asked == Err(libc::ENOENT),
            Self::Link(..) => {
                asked == Err(libc::ENOENT) || !matches!(tree::read(&place.root, place.rel()), Ok(Entry::Symlink(_)))
            }
            Self::At(_) | Self::Changed(..) | Self::RemovedDir(_) => false,
        }
    }
}

/// Asks about a place by `ask`, once more where the answer is not of what the overlay has by then.
pub fn ask<T>(
    place: &mut Place,
    follow: bool,
    mut ask: impl FnMut(&mut Subject) -> Result<Answer<T>>,
) -> Result<Answer<T>> {
    for _ in 0..MAX_LOOKS {
        let Answer::Done(mut subject) = subject(place, follow)? else { return Ok(Answer::Plain) };
        let answer = ask(&mut subject);
        if !subject.may_be_gone(place, answer.as_ref().map(drop).map_err(|e| *e)) {
            return answer;
        }
    }
    Ok(Answer::Plain)
}

/// Attributes of a place.
pub fn stat(place: &mut Place, follow: bool) -> Result<Answer<libc::stat64>> {
    ask(place, follow, |subject| {
        let flags = match subject {
            Subject::Changed(..) | Subject::RemovedDir(_) => 0,
            Subject::At(_) if follow => 0,
            Subject::At(_) | Subject::Staged(..) | Subject::Link(..) => libc::AT_SYMLINK_NOFOLLOW,
        };
        let path = subject.path().c_str().ok_or(libc::ENAMETOOLONG)?;
        let mut st = match kernel::stat_at(libc::AT_FDCWD, path, flags) {
            // (The path may lead nowhere by now: the kernel knows what is open.)
            Err(_) if matches!(subject, Subject::RemovedDir(_)) => return Ok(Answer::Plain),
            // The tier's own errors are not the application's.
            Err(e) if e != libc::ENOENT && matches!(subject, Subject::Staged(..)) => return Ok(Answer::Plain),
            st => st?,
        };
        match subject {
            Subject::Staged(file, _) => translate(file, &mut st),
            Subject::Changed(_, time) => dir_times::raise(&mut st, *time),
            Subject::RemovedDir(_) => st.st_nlink = 0,
            Subject::Link(_, dev) => {
                st.st_size -= SYMLINK.len() as i64;
                st.st_dev = *dev;
            }
            Subject::At(_) => {}
        }
        Ok(Answer::Done(st))
    })
}

/// The target of a link of the overlay.
pub fn read_link(place: &mut Place) -> Result<Answer<PathBuffer>> {
    match lookup(place, false)? {
        Found::Entry(Entry::Symlink(target)) => Ok(Answer::Done(target)),
        Found::Entry(Entry::File(_)) => Err(libc::EINVAL),
        Found::Entry(Entry::Removed | Entry::RemovedDir) => Err(libc::ENOENT),
        Found::Entry(_) | Found::Held => Ok(Answer::Plain),
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
    may_be_staged_file(mode) || is_directory(mode)
}

/// Whether what `stat` said may be about a staged file.
#[inline]
pub const fn may_be_staged_file(mode: u32) -> bool {
    mode & (libc::S_IFMT | STAGED_MODE) == libc::S_IFREG | STAGED_MODE
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

/// After a plain `stat` or `statx` by the name of a descriptor (`/proc/self/fd/N`), which has found
/// a staged file: `translate` gets a descriptor of it.
///
/// # Safety
/// As for [`user::path`].
#[cold]
#[inline(never)]
pub unsafe fn translate_named(dirfd: c_int, path: *const c_char, translate: impl FnOnce(c_int)) {
    let saved = errno::errno();
    // SAFETY: by contract.
    if unsafe { user::path(path) }.is_some() {
        // SAFETY: a C string, as just tested.
        let path = unsafe { CStr::from_ptr(path) };
        if let Ok(fd) = spare::open_own_at(dirfd, path, libc::O_PATH) {
            translate(fd.0);
        }
    }
    errno::set_errno(saved);
}

/// What statx says of a link of the overlay.
pub fn translate_link_x(st: &mut libc::statx, dev: u64) {
    st.stx_size = st.stx_size.saturating_sub(SYMLINK.len() as u64);
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
