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
use super::roots::Root;
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
/// where a link that is not published leads to another file, by `on_pfs`. `under_way`, unless a new
/// version of the file loses what is set: to be kept until the plain call has ended. A process that
/// is about to stage a new version of a published file gives it what was set.
pub fn set(
    place: &mut Place,
    follow: bool,
    under_way: Option<&mut Option<UnderWay>>,
    call: impl FnOnce(&CStr) -> c_int,
    on_pfs: impl FnOnce(&CStr) -> c_int,
) -> Result<Answer<c_int>> {
    change(place, Change { follow, flags: 0 }, under_way, call, on_pfs)
}

/// Sets an extended attribute of a pending file by `call`, on its part file first: what the PFS
/// does not take is not set. Where the tier has no such attributes, the PFS is asked when the file
/// is published. `under_way`: as for [`set`].
pub fn set_extended(
    place: &mut Place,
    follow: bool,
    under_way: &mut Option<UnderWay>,
    call: impl Fn(&CStr) -> c_int,
) -> Result<Answer<c_int>> {
    match set_on_part_first(place, follow, under_way, call) {
        Err(libc::EOPNOTSUPP) => {
            *under_way = None;
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

fn set_on_part_first(
    place: &mut Place,
    follow: bool,
    under_way: &mut Option<UnderWay>,
    call: impl Fn(&CStr) -> c_int,
) -> Result<Answer<c_int>> {
    let (mut is_set, mut is_announced) = (false, false);
    for _ in 0..MAX_TRIES {
        match lookup(place, follow)? {
            Found::Entry(Entry::File(file)) => {
                *under_way = None;
                is_announced = false;
                if !set_on_part(place, &file, &call)? {
                    break;
                }
                if let Some(answer) = set_on_staged(place, &file, &call)? {
                    return Ok(answer);
                }
                // (A new version that another process has staged in its place gets it, too.)
                is_set = true;
            }
            Found::Entry(Entry::Nothing | Entry::Clean(_)) if is_set => {
                if is_announced {
                    return set_again(place, call);
                }
                *under_way = beside::changing(place);
                is_announced = true;
            }
            // It was renamed then, removed or replaced.
            Found::Entry(_) | Found::Held if is_set => return Ok(Answer::Done(0)),
            Found::Elsewhere(_) => {
                // (The next look may find that the file is published, and the link not.)
                place.by_overlay = true;
                break;
            }
            _ => break,
        }
    }
    match change(place, Change { follow, flags: flag::EXTENDED }, Some(under_way), &call, &call) {
        Err(libc::ENOENT | libc::EEXIST | libc::ENODATA) if is_set => Ok(Answer::Done(0)),
        done => done,
    }
}

/// Sets an extended attribute of a pending file whose part file has it already, whatever name that
/// has by now: a rename by another process comes after this call. `None`: it is not pending any
/// more.
fn set_on_staged(place: &mut Place, file: &Staged, call: impl Fn(&CStr) -> c_int) -> Result<Option<Answer<c_int>>> {
    let root = place.root;
    for _ in 0..MAX_TRIES {
        // (Without the lock: that takes a while where the overlay has many names.)
        let moved = if has_name(place, file)? { None } else { Some(subtree::find_file(&root, b"", file.id)) };
        let rel = match &moved {
            None => place.rel(),
            Some(Some((rel, false))) => rel.get(),
            // It is published, and perhaps kept as a clean copy.
            Some(Some((_, true)) | None) => return Ok(None),
        };
        let journal = match Journal::lock(&root) {
            Ok(journal) => journal,
            Err(e) => return if goes_plainly(place, e) { Ok(None) } else { Err(e) },
        };
        if !is_at(&root, rel, file)? {
            continue;
        }
        let mut path = root.data(&file.name()).ok_or(libc::ENAMETOOLONG)?;
        let result = call(path.c_str().ok_or(libc::ENAMETOOLONG)?);
        if result == 0 {
            let about = About { id: file.id, flags: flag::EXTENDED, ..About::default() };
            journal.append(Op::Attributes, about, rel, b"")?;
        }
        return done(result).map(Some);
    }
    Ok(None)
}

/// Sets an extended attribute of what is published at the name of a file whose part file has got
/// it: the file may have been published without, and a process that cuts it may have looked before,
/// whose new version is perhaps published, too. With the call announced.
fn set_again(place: &Place, call: impl Fn(&CStr) -> c_int) -> Result<Answer<c_int>> {
    let mut path = place.on_pfs()?;
    match done(call(path.c_str().ok_or(libc::ENAMETOOLONG)?)) {
        Err(libc::ENOENT | libc::EEXIST | libc::ENODATA) => Ok(Answer::Done(0)),
        again => again,
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

/// What is changed.
#[derive(Clone, Copy)]
struct Change {
    /// Whether a link in the last component is followed.
    follow: bool,
    /// Of the record about a pending file.
    flags: u16,
}

fn change(
    place: &mut Place,
    Change { follow, flags }: Change,
    mut under_way: Option<&mut Option<UnderWay>>,
    call: impl FnOnce(&CStr) -> c_int,
    on_pfs: impl FnOnce(&CStr) -> c_int,
) -> Result<Answer<c_int>> {
    let mut is_announced = false;
    for _ in 0..MAX_TRIES {
        let found = lookup(place, follow)?;
        if matches!(found, Found::Entry(Entry::Nothing | Entry::Clean(_))) && !place.rel().is_empty() {
            // (The next open finds the published file to be another one than was copied.)
            let Some(under_way) = under_way.as_mut().filter(|_| !is_announced) else { return Ok(Answer::Plain) };
            // What other processes enter until then, the next look finds.
            **under_way = beside::changing(place);
            is_announced = true;
            continue;
        }
        is_announced = false;
        if let Some(under_way) = &mut under_way {
            **under_way = None;
        }
        let file = match found {
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
    is_at(&place.root, place.rel(), file)
}

/// Whether the overlay has a pending file at a path.
fn is_at(root: &Root, rel: &[u8], file: &Staged) -> Result<bool> {
    Ok(matches!(tree::read(root, rel)?, Entry::File(now) if now.id == file.id))
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
