//! Modes, owners, times and lengths of staged files that are set by their paths.

use super::answer::{Answer, Result};
use super::barrier;
use super::beside::{self, UnderWay};
use super::crossing;
use super::dir_times;
use super::extended;
use super::journal::{About, Journal};
use super::kernel;
use super::lookup::{Found, lookup};
use super::place::Place;
use super::plainly::goes_plainly;
use super::remembered::{forget_clean, on_pfs};
use super::spare;
use super::subtree;
use super::tree::{self, Entry};
use core::ffi::{CStr, c_int};
use core::sync::atomic::Ordering;
use monarch_abi::outputs::names::{Staged, part_name};
use monarch_abi::outputs::record::{Op, flag};
use monarch_guest::absolute::Absolute;
use monarch_guest::errno;

/// How often a call looks again when other processes replace the file meanwhile.
const MAX_TRIES: usize = 100;

/// Sets mode, owner or times of a pending file by `call`, which gets the path of the staged file;
/// where a link that is not published leads to another file, by `on_pfs`.
pub fn set(
    place: &mut Place,
    follow: bool,
    call: impl FnOnce(&CStr) -> c_int,
    on_pfs: impl FnOnce(&CStr) -> c_int,
) -> Result<Answer<c_int>> {
    change(place, follow, 0, call, on_pfs)
}

/// Sets an extended attribute of a pending file by `call`, on its part file first: what the PFS
/// does not take is not set. Where the tier has no such attributes, the PFS is asked when the file
/// is published.
pub fn set_extended(place: &mut Place, follow: bool, call: impl Fn(&CStr) -> c_int) -> Result<Answer<c_int>> {
    let is_set = match lookup(place, follow)? {
        Found::Entry(Entry::File(file)) => set_on_part(place, &file, &call)?,
        _ => false,
    };
    match change(place, follow, flag::EXTENDED, &call, &call) {
        // It was published meanwhile, with what was just set or by a copy without.
        Ok(Answer::Plain) if is_set => {
            let mut path = place.on_pfs()?;
            match done(call(path.c_str().ok_or(libc::ENAMETOOLONG)?)) {
                Err(libc::EEXIST | libc::ENODATA) => Ok(Answer::Done(0)),
                again => again,
            }
        }
        Err(libc::EOPNOTSUPP) => {
            barrier::wait_for_all(&place.root)?;
            match lookup(place, follow)? {
                // It is open for writing.
                Found::Entry(Entry::File(_)) => Err(libc::EOPNOTSUPP),
                _ => Ok(Answer::Plain),
            }
        }
        done => done,
    }
}

/// Sets an extended attribute of the part file of a pending file that has the name of a place;
/// whether it has one.
pub fn set_on_part(place: &Place, file: &Staged, call: impl Fn(&CStr) -> c_int) -> Result<bool> {
    if let Some(mut data) = place.root.data(&file.name())
        && let Some(data) = data.c_str()
        && let Ok(mut part) = part(place, file)
        && let Some(part) = part.c_str()
    {
        extended::take_list(part, data);
    }
    let set = |mut path: Absolute| done(call(path.c_str().ok_or(libc::ENAMETOOLONG)?));
    let mut result = set(part(place, file)?);
    if matches!(result, Err(libc::ENOENT))
        && on_pfs(place).is_ok_and(|st| (st.st_dev, st.st_ino) == (file.dev, file.ino))
    {
        // It was published, and opened again.
        result = set(place.on_pfs()?);
    }
    match result {
        Ok(_) => Ok(true),
        // It was made in another directory; or the staged file has other attributes.
        Err(libc::ENOENT | libc::ENOTDIR | libc::EEXIST | libc::ENODATA) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The path of the part file of a pending file, if it lies beside the file.
pub fn part(place: &Place, file: &Staged) -> Result<Absolute> {
    let mut part = place.parent_on_pfs()?;
    let instance = place.root.state().instance.load(Ordering::Relaxed);
    part.append(&part_name(instance, file.id)).ok_or(libc::ENAMETOOLONG)?;
    Ok(part)
}

fn change(
    place: &mut Place,
    follow: bool,
    flags: u16,
    call: impl FnOnce(&CStr) -> c_int,
    on_pfs: impl FnOnce(&CStr) -> c_int,
) -> Result<Answer<c_int>> {
    for _ in 0..MAX_TRIES {
        let file = match lookup(place, follow)? {
            Found::Entry(Entry::File(file)) => file,
            Found::Entry(Entry::Removed | Entry::RemovedDir) => return Err(libc::ENOENT),
            Found::Entry(Entry::Directory) => {
                settle_directory(place)?;
                return Ok(Answer::Plain);
            }
            Found::Entry(Entry::Nothing) if place.rel().is_empty() => {
                settle_directory(place)?;
                return Ok(Answer::Plain);
            }
            // (The next open finds the published file to be another one than was copied.)
            Found::Entry(Entry::Clean(_)) => return Ok(Answer::Plain),
            Found::Entry(Entry::Symlink(_)) => {
                crossing::wait_for_all(place)?;
                return Ok(Answer::Plain);
            }
            Found::Entry(_) | Found::Held => return Ok(Answer::Plain),
            Found::Elsewhere(mut path) => {
                // (By a link that is not published.)
                if place.on_pfs().is_ok_and(|at| at.get() == path.get()) && tree::has_dir(&place.root, place.rel()) {
                    settle_directory(place)?;
                }
                return done(on_pfs(path.c_str().ok_or(libc::ENAMETOOLONG)?));
            }
        };
        let root = place.root;
        let mut path = root.data(&file.name()).ok_or(libc::ENAMETOOLONG)?;
        let journal = match Journal::lock(&root) {
            Err(e) if goes_plainly(place, e) => return Ok(Answer::Plain),
            journal => journal?,
        };
        if !has_name(place, &file)? {
            continue;
        }
        let path = path.c_str().ok_or(libc::ENAMETOOLONG)?;
        let owner = || kernel::lstat(path).map(|st| (st.st_uid, st.st_gid));
        let before = owner();
        let result = call(path);
        if result == 0 {
            let flags = flags | if owner() == before { 0 } else { flag::OWNER };
            journal.append(Op::Attributes, About { id: file.id, flags, ..About::default() }, place.rel(), b"")?;
        }
        return done(result);
    }
    Ok(Answer::Plain)
}

/// Whether a pending file still has the name of a place: it may have been published, or another
/// process may have replaced it. With the lock held.
fn has_name(place: &Place, file: &Staged) -> Result<bool> {
    Ok(matches!(tree::read(&place.root, place.rel())?, Entry::File(now) if now.id == file.id))
}

/// Before attributes of a directory are set: what is pending below it is published first. It would
/// change the time of the directory, and needs the right to write there.
pub fn settle_directory(place: &Place) -> Result<()> {
    if place.root.map.may_be_overtaken() && subtree::has_pending(&place.root, place.rel())? {
        barrier::wait_for_all(&place.root)?;
    }
    if dir_times::is_known(&place.root, place.rel()) {
        let _journal = Journal::lock(&place.root)?;
        dir_times::forget(&place.root, place.rel());
    }
    Ok(())
}

/// The result of a function of the C library, with its errno.
fn done(result: c_int) -> Result<Answer<c_int>> {
    if result < 0 { Err(errno::errno()) } else { Ok(Answer::Done(result)) }
}

/// truncate(2). `under_way`: to be kept until the plain call has ended. Until then no process gives
/// the name to another file: that would be cut as soon as it is published, and not here.
pub fn truncate(place: &mut Place, len: i64, under_way: &mut Option<UnderWay>) -> Result<Answer<c_int>> {
    for _ in 0..MAX_TRIES {
        *under_way = None;
        let file = match lookup(place, true)? {
            Found::Entry(Entry::File(file)) => file,
            Found::Entry(Entry::Removed | Entry::RemovedDir) => return Err(libc::ENOENT),
            Found::Entry(Entry::Clean(_)) => {
                forget_clean(place)?;
                continue;
            }
            Found::Entry(Entry::Nothing) if !place.rel().is_empty() => {
                *under_way = beside::making(place);
                match tree::read(&place.root, place.rel())? {
                    Entry::Nothing => return Ok(Answer::Plain),
                    _ => continue,
                }
            }
            // (By a link that is not published.)
            Found::Elsewhere(mut path) => {
                // SAFETY: a C string.
                return done(unsafe { libc::truncate(path.c_str().ok_or(libc::ENAMETOOLONG)?.as_ptr(), len) });
            }
            Found::Entry(_) | Found::Held => return Ok(Answer::Plain),
        };
        let root = place.root;
        let len = u64::try_from(len).map_err(|_| libc::EINVAL)?;
        let mut path = root.data(&file.name()).ok_or(libc::ENAMETOOLONG)?;
        let journal = super::staged::lock_unpublished(&root, &file)?;
        if !has_name(place, &file)? {
            continue;
        }
        let fd = spare::open_own(path.c_str().ok_or(libc::ENAMETOOLONG)?, libc::O_WRONLY)?;
        let about = About { id: file.id, ..About::default() };
        journal.append(Op::Open, About { flags: flag::TRUNCATED, ..about }, place.rel(), &file.name())?;
        let result = kernel::truncate(fd.0, len);
        drop(fd);
        journal.append(Op::Close, about, b"", b"")?;
        return result.map(|()| Answer::Done(0));
    }
    Ok(Answer::Plain)
}
