//! Opens below an output root.

use super::answer::{Answer, Result};
use super::attributes;
use super::beside;
use super::create::{Create, Created, create, is_through, replace};
use super::crossing;
use super::descriptors;
use super::journal::About;
use super::kernel::{self, Errno};
use super::lookup::{Found, lookup};
use super::name_watch::NameWatch;
use super::place::Place;
use super::remembered::{forget_changed, forget_clean, is_left_over, is_unchanged, unhide};
use super::roots::Root;
use super::staged::{self, is_written, lock_unpublished, open_data};
use super::tree::{self, Entry};
use core::ffi::c_int;
use monarch_abi::outputs::names::{Clean, Staged};
use monarch_abi::outputs::record::{Op, flag};
use monarch_guest::sys::Fd;

/// How often an open looks again when other processes change the name meanwhile.
const MAX_TRIES: usize = 100;

/// Opens what a path below an output root leads to.
pub fn open(place: &mut Place, mut how: Create) -> Result<Answer<Fd>> {
    if how.flags & libc::O_PATH != 0 {
        // The kernel looks at no others then.
        how.flags &= libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    }
    let answer = open_staged(place, how)?;
    // (A name that always goes through is never staged.)
    if matches!(answer, Answer::Plain)
        && how.flags & libc::O_ACCMODE != libc::O_RDONLY
        && !is_through(&place.root, place.name())
    {
        place.root.state().note_written_through(place.name());
    }
    Ok(answer)
}

/// What an open does next.
enum Next {
    /// This is the answer.
    Answer(Answer<Fd>),
    /// It looks again.
    Look,
    /// It creates a file, or what the PFS has is opened.
    Create,
}

fn open_staged(place: &mut Place, how: Create) -> Result<Answer<Fd>> {
    let flags = how.flags;
    let excludes = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let follow = flags & libc::O_NOFOLLOW == 0 && !excludes;
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return open_unnamed(place, how);
    }
    const MAKES_DIRECTORY: c_int = libc::O_CREAT | libc::O_DIRECTORY;
    // (Newer kernels refuse that before they look for the name.)
    if flags & MAKES_DIRECTORY == MAKES_DIRECTORY && no_directory(flags) == libc::EINVAL {
        return Err(libc::EINVAL);
    }
    if flags & libc::O_CREAT != 0 && place.is_dir_path {
        return make_directory(place, how);
    }
    for _ in 0..MAX_TRIES {
        let watch = how.can_be_staged().then(|| NameWatch::exclusive(place));
        let entry = match lookup(place, follow) {
            Ok(Found::Entry(_)) if place.leads_out => return Ok(Answer::Plain),
            Ok(Found::Entry(entry)) => entry,
            Ok(Found::Held) => return Ok(Answer::Plain),
            Ok(Found::Elsewhere(mut path)) => {
                let path = path.c_str().ok_or(libc::ENAMETOOLONG)?;
                return kernel::open(path, flags, how.mode).map(Answer::Done);
            }
            Err(libc::ENOTDIR) if flags & libc::O_CREAT != 0 => return Err(no_file(place)),
            Err(e) => return Err(e),
        };
        if excludes && forget_changed(place, &entry)? {
            continue;
        }
        // (For ioctl alone: the kernel counts no writer.)
        if flags & libc::O_ACCMODE == libc::O_ACCMODE {
            return through(place);
        }
        match open_entry(place, &entry, how, excludes)? {
            Next::Answer(answer) => return Ok(answer),
            Next::Look => continue,
            Next::Create => {}
        }
        if let Some(answer) = create_or_go_through(place, &entry, how, watch)? {
            return Ok(answer);
        }
    }
    through(place)
}

/// Opens what the overlay has.
fn open_entry(place: &mut Place, entry: &Entry, how: Create, excludes: bool) -> Result<Next> {
    let flags = how.flags;
    // (`O_CREAT` without `O_TRUNC` changes nothing of a file that is there.)
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    let may_make = flags & libc::O_CREAT != 0;
    let plain = || Ok(Next::Answer(Answer::Plain));
    match entry {
        Entry::Nothing if !writes && !may_make => plain(),
        Entry::Nothing => Ok(Next::Create),
        Entry::Directory if !may_make || !is_left_over(place)? => plain(),
        Entry::Directory => Ok(Next::Look),
        Entry::RemovedDir | Entry::Removed if !may_make => Err(libc::ENOENT),
        // The file lies where the directory is until its turn has come.
        Entry::RemovedDir if crossing::wait_for_all(place)? => Ok(Next::Look),
        Entry::RemovedDir => plain(),
        Entry::Removed => Ok(Next::Create),
        Entry::File(_) | Entry::Symlink(_) if excludes => Err(libc::EEXIST),
        Entry::File(_) | Entry::Symlink(_) if flags & libc::O_DIRECTORY != 0 => Err(no_directory(flags)),
        Entry::File(file) if !writes => match open_data(&place.root, file, flags) {
            // It was removed, or published and dropped, a moment ago.
            Err(libc::ENOENT) => Ok(Next::Look),
            done => {
                // For its fsync.
                done.iter().for_each(|fd| descriptors::opened(fd.0));
                done.map(|fd| Next::Answer(Answer::Done(fd)))
            }
        },
        Entry::File(file) => open_to_write(place, file, how),
        // The link itself is opened, once it is published.
        Entry::Symlink(_) if flags & libc::O_PATH != 0 && crossing::wait_for_all(place)? => Ok(Next::Look),
        Entry::Symlink(_) => Err(libc::ELOOP),
        Entry::Clean(_) if place.is_dir_path => plain(),
        // (With `O_CREAT` it is a file to lock, often: all nodes meet on that of the PFS.)
        Entry::Clean(clean) if !writes && !may_make => {
            Ok(Next::Answer(open_clean(place, clean, flags).map_or(Answer::Plain, Answer::Done)))
        }
        Entry::Clean(_) if excludes => Err(libc::EEXIST),
        Entry::Clean(_) => Ok(Next::Create),
    }
}

/// Opens a pending file to change it.
fn open_to_write(place: &mut Place, file: &Staged, how: Create) -> Result<Next> {
    let flags = how.flags;
    let opened = if flags & (libc::O_ACCMODE | libc::O_TRUNC) == libc::O_RDONLY | libc::O_TRUNC {
        match cut(place, file, flags) {
            Err(libc::ENOENT) => Ok(None),
            done => done,
        }
    } else if flags & libc::O_TRUNC == 0 {
        reopen(place, file, flags)
    } else {
        match truncate(place, file, how) {
            Ok(Created::Fd(fd)) => Ok(Some(fd)),
            Ok(Created::Again) => Ok(None),
            Ok(Created::Through | Created::Unstaged) => return through(place).map(Next::Answer),
            Err(e) => Err(e),
        }
    };
    match opened {
        Ok(fd) => Ok(fd.map_or(Next::Look, |fd| Next::Answer(Answer::Done(fd)))),
        Err(e) => through_for(place, e).map(Next::Answer),
    }
}

/// Stages a new file, or lets the PFS open the name. `None`: the overlay is to be looked at again.
fn create_or_go_through(
    place: &mut Place,
    entry: &Entry,
    how: Create,
    watch: Option<NameWatch>,
) -> Result<Option<Answer<Fd>>> {
    match create(place, how, entry, watch)? {
        Created::Fd(fd) => Ok(Some(Answer::Done(fd))),
        Created::Again => Ok(None),
        Created::Unstaged => {
            let answer = through(place)?;
            let excludes = how.flags & libc::O_EXCL != 0 && matches!(answer, Answer::Plain);
            if excludes { make_through(place, how) } else { Ok(Some(answer)) }
        }
        Created::Through if matches!(entry, Entry::Clean(_)) => {
            forget_clean(place)?;
            Ok(Some(Answer::Plain))
        }
        Created::Through if how.flags & libc::O_CREAT != 0 => {
            if matches!(entry, Entry::Removed) {
                through(place)?;
            }
            make_through(place, how)
        }
        Created::Through => Ok(Some(Answer::Plain)),
    }
}

/// An open of a file without a name, in a directory: a pending file is none.
#[cold]
fn open_unnamed(place: &mut Place, how: Create) -> Result<Answer<Fd>> {
    // (What is wrong with these, the kernel says before it looks for the directory.)
    if how.flags & libc::O_CREAT != 0 || how.flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Ok(Answer::Plain);
    }
    place.is_dir_path |= how.flags & libc::O_NOFOLLOW == 0;
    match lookup(place, false)? {
        Found::Entry(Entry::File(_) | Entry::Symlink(_)) => Err(libc::ENOTDIR),
        Found::Entry(Entry::Removed | Entry::RemovedDir) => Err(libc::ENOENT),
        Found::Entry(_) | Found::Held => Ok(Answer::Plain),
        Found::Elsewhere(mut path) => {
            kernel::open(path.c_str().ok_or(libc::ENAMETOOLONG)?, how.flags, how.mode).map(Answer::Done)
        }
    }
}

/// An open that would make a directory, by a slash at the end of the path: EISDIR, unless something
/// is wrong with the directories above, or with the flags. The kernel makes nothing then.
#[cold]
fn make_directory(place: &mut Place, how: Create) -> Result<Answer<Fd>> {
    // For the directories above: the kernel does not look for the name.
    place.is_dir_path = false;
    lookup(place, false)?;
    let mut path = place.on_pfs()?;
    path.0.append(b"/").ok_or(libc::ENAMETOOLONG)?;
    kernel::open(path.c_str().ok_or(libc::ENAMETOOLONG)?, how.flags, how.mode).map(Answer::Done)
}

/// The error of an open that would make a file, by a path that leads through one, or by a link that
/// leads to one with a slash behind it.
#[cold]
fn no_file(place: &Place) -> Errno {
    let is_file = place.is_dir_path && matches!(tree::read(&place.root, place.rel()), Ok(Entry::File(_)));
    if is_file { libc::EISDIR } else { libc::ENOTDIR }
}

/// The error of an open of a file as a directory. Newer kernels know no open that would make one.
#[cold]
fn no_directory(flags: c_int) -> Errno {
    if flags & libc::O_CREAT == 0 {
        return libc::ENOTDIR;
    }
    match kernel::open(c"/", flags | libc::O_CLOEXEC, 0) {
        Err(libc::EINVAL) => libc::EINVAL,
        _ => libc::ENOTDIR,
    }
}

/// Makes a file of the PFS at once, as its directory may be removed in the meantime, or the name be
/// entered. What is wrong with the call, the plain one says. `None`: another process has entered
/// the name.
fn make_through(place: &Place, how: Create) -> Result<Option<Answer<Fd>>> {
    // (A name that always goes through is never staged.)
    if place.is_dir_path || is_through(&place.root, place.name()) && !place.root.map.may_be_overtaken() {
        return Ok(Some(Answer::Plain));
    }
    let Some(_under_way) = beside::making(place) else { return Ok(Some(Answer::Plain)) };
    if tree::read(&place.root, place.rel())?.is_pending() {
        return Ok(None);
    }
    place.root.state().note_written_through(place.name());
    // (A path that is too long in full may be opened from its directory.)
    let mut path = place.on_pfs();
    let Some(path) = path.as_mut().ok().and_then(|path| path.c_str()) else { return Ok(Some(Answer::Plain)) };
    match kernel::open(path, how.flags, how.mode) {
        Err(e) if e != libc::EINTR => Ok(Some(Answer::Plain)),
        made => made.map(|fd| Some(Answer::Done(fd))),
    }
}

/// The PFS gets the call when nothing is pending: before, it would find another file at the name.
pub fn through(place: &Place) -> Result<Answer<Fd>> {
    unhide(place)?;
    let _ = forget_clean(place);
    Ok(Answer::Plain)
}

/// [`through`] for an error of the tier, which is not the application's unless the file stays
/// pending: it may be open elsewhere.
#[cold]
#[inline(never)]
fn through_for(place: &Place, errno: Errno) -> Result<Answer<Fd>> {
    if !matches!(errno, libc::ENOSPC | libc::EDQUOT | libc::EIO | libc::EFBIG) {
        return Err(errno);
    }
    let answer = through(place)?;
    if tree::read(&place.root, place.rel())?.is_pending() { Err(errno) } else { Ok(answer) }
}

/// Opens a clean copy, if the published file is unchanged: as an open does it on the PFS, past the
/// attributes that this node remembers.
fn open_clean(place: &Place, clean: &Clean, flags: c_int) -> Option<Fd> {
    if flags & (libc::O_DIRECT | libc::O_PATH | libc::O_DIRECTORY) != 0 {
        return None;
    }
    if !is_unchanged(place, clean)? {
        let _ = forget_clean(place);
        return None;
    }
    open_data(&place.root, &clean.file, flags).ok()
}

/// Opens a pending file again for writing; `None` if it is no longer that.
fn reopen(place: &Place, file: &Staged, flags: c_int) -> Result<Option<Fd>> {
    let fd = staged::reopen(place, file, flags)?;
    fd.iter().for_each(|fd| descriptors::opened(fd.0));
    Ok(fd)
}

/// Opens a pending file for reading, and truncates it; `None` if it is no longer that.
#[cold]
#[inline(never)]
fn cut(place: &mut Place, file: &Staged, flags: c_int) -> Result<Option<Fd>> {
    let fd = open_data(&place.root, file, flags)?;
    let is_cut = matches!(attributes::truncate(place, 0, &mut None)?, Answer::Done(_));
    if is_cut {
        // For its fsync.
        descriptors::opened(fd.0);
    }
    Ok(is_cut.then_some(fd))
}

/// Opens a pending file that is truncated. The staged file is used again if no other entry needs
/// what it holds: it is being written, or closing it was the last entry.
fn truncate(place: &mut Place, file: &Staged, how: Create) -> Result<Created> {
    let root = &{ place.root };
    let is_last = |root: &Root| {
        let state = root.state();
        state.is_last_closed(file.id) && !state.is_publishing(file.id)
    };
    if how.flags & libc::O_CREAT != 0 && how.can_be_staged() && !is_last(root) && !is_written(root, file) {
        return replace(place, how, file);
    }
    let journal = lock_unpublished(root, file)?;
    if !matches!(tree::read(root, place.rel())?, Entry::File(now) if now.id == file.id) {
        return Ok(Created::Again);
    }
    let fd = open_data(root, file, how.flags)?;
    let flags = flag::TRUNCATED | descriptors::watch(fd.0);
    let about = About { id: file.id, flags, ..About::default() };
    journal.append(Op::Open, about, place.rel(), &file.name())?;
    kernel::truncate(fd.0, 0)?;
    descriptors::opened(fd.0);
    Ok(Created::Fd(fd))
}
