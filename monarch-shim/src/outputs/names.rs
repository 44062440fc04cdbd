//! Names below an output root that are made or linked, and directories that are removed.

use super::answer::{Answer, Result};
use super::barrier;
use super::beside::{self, UnderWay};
use super::crossing;
use super::data_roots;
use super::journal::{About, Journal};
use super::kernel;
use super::lookup::{Found, lookup};
use super::place::Place;
use super::plainly::goes_plainly;
use super::remembered::{entry_at, on_pfs, unhide};
use super::roots::{Root, may_cross};
use super::staged::is_written;
use super::subtree;
use super::tree::{self, Entry};
use super::whereabouts::HeldParent;
use core::sync::atomic::Ordering;
use monarch_abi::outputs::names::Staged;
use monarch_abi::outputs::record::Op;

/// Whether anything below the root is not as the PFS has it.
pub(super) fn is_quiet(root: &Root) -> bool {
    root.state().entries.load(Ordering::Acquire) == 0 && !root.map.may_be_overtaken()
}

/// Whether the directory of a place may be changed.
pub(super) fn may_change_directory(place: &Place) -> Result<()> {
    let mut path = place.parent_on_pfs()?;
    kernel::access(path.c_str().ok_or(libc::ENAMETOOLONG)?, libc::W_OK | libc::X_OK, libc::AT_EACCESS)
}

/// Whether the PFS has a file at a place by which a staged file was published or is being
/// published.
pub(super) fn is_published(dir: &HeldParent, place: &Place, file: &Staged) -> bool {
    place.root.state().is_publishing(file.id) || is_there(dir, place)
}

/// Whether the PFS has a name, or does not say.
pub(super) fn is_there(dir: &HeldParent, place: &Place) -> bool {
    !matches!(dir.lstat(place), Err(libc::ENOENT))
}

/// Whether the agent may still make or remove a name that the job takes away from a staged file: if
/// something else came after the file, the agent publishes the file before that, and what came
/// before may be an older file of this name, or the removal of one. (A file that is closed is
/// pending itself: if it has left a published name, it is published in its turn all the same.)
pub(super) fn may_appear(place: &Place, file: u64) -> bool {
    !place.root.state().is_last_closed(file) || place.root.map.is_pending()
}

/// Most bytes of a name.
pub(super) const NAME_MAX: usize = 255;

/// How often a call looks again when other processes change the name meanwhile.
pub(super) const MAX_TRIES: usize = 100;
/// How often a call that makes a name waits for its removal, which others may do again.
const MAX_REMOVALS: usize = 3;
/// How often a call that needs the published file waits for it, while others replace it by files
/// that are not.
pub(super) const MAX_PUBLISHED: usize = 8;

/// Whether nothing below the root of a place is pending when a plain call about it begins.
/// `under_way`: to be kept until that has ended.
pub(super) fn begins_quietly(place: &Place, under_way: &mut Option<UnderWay>) -> bool {
    if is_quiet(&place.root) {
        *under_way = beside::making(place);
        if is_quiet(&place.root) {
            return true;
        }
        *under_way = None;
    }
    false
}

/// A path that ends in `.` or `..`, which names nothing that can be made or removed: the kernel
/// says so, but first, what is wrong with the directory before that.
#[cold]
pub fn in_dots(place: &mut Place) -> Result<Answer<()>> {
    if is_quiet(&place.root) || place.rel().is_empty() {
        return Ok(Answer::Plain);
    }
    place.is_dir_path = true;
    match lookup(place, true)? {
        Found::Entry(Entry::Removed | Entry::RemovedDir) => Err(libc::ENOENT),
        Found::Entry(_) | Found::Held => Ok(Answer::Plain),
        Found::Elsewhere(_) => {
            crossing::wait_for_all(place)?;
            Ok(Answer::Plain)
        }
    }
}

/// How often a directory that is to be removed is looked at without the lock of the journal, while
/// other processes append to it. The last time it is looked at with it: they wait for the PFS then.
const MAX_LOOKS: usize = 4;

/// The answer of rmdir(2) of a directory that is not empty.
fn not_empty(below: &subtree::Below) -> Result<Answer<()>> {
    if below.has_pending_names { Err(libc::ENOTEMPTY) } else { Ok(Answer::Plain) }
}

/// Whether the kernel refuses to remove a directory: for the directory that has it, or as it is a
/// mount point.
fn is_refused(place: &Place) -> Result<bool> {
    Ok(may_change_directory(place).is_err()
        || kernel::is_mount_point(place.on_pfs()?.c_str().ok_or(libc::ENAMETOOLONG)?))
}

/// rmdir(2).
pub fn rmdir(place: &mut Place) -> Result<Answer<()>> {
    let root = place.root;
    if is_quiet(&root) {
        return Ok(Answer::Plain);
    }
    if place.rel().is_empty() {
        // The root itself: what was removed in it has its turn first.
        if root.map.may_be_overtaken() && !subtree::below(place)?.has_pending_names {
            barrier::wait_for_all(&root)?;
        }
        return Ok(Answer::Plain);
    }
    place.is_dir_path = false;
    let mut looks = 1;
    // Until the overlay says that the directory is removed.
    let mut under_way = None;
    let journal = loop {
        let seen = root.state().seq.load(Ordering::Acquire);
        match entry_at(place)? {
            Entry::File(_) | Entry::Symlink(_) => return Err(libc::ENOTDIR),
            Entry::Removed | Entry::RemovedDir => return Err(libc::ENOENT),
            Entry::Directory | Entry::Nothing | Entry::Clean(_) => {}
        }
        if under_way.is_none() {
            under_way = beside::removing(place);
        }
        let may_be_queued = root.map.may_be_overtaken();
        // Before the names, so that few calls of others fall between the look at them and the lock.
        if may_be_queued && is_refused(place)? {
            return Ok(Answer::Plain);
        }
        // (Of what is no directory, or cannot be read, the kernel says what the answer is.)
        let Ok(below) = subtree::below(place) else { return Ok(Answer::Plain) };
        if !below.is_empty {
            return not_empty(&below);
        }
        // While something is pending, the PFS may have names there that the job does not see: part
        // files, and files that are just being published or removed.
        if !may_be_queued && (!below.hides_names || is_refused(place)?) {
            return Ok(Answer::Plain);
        }
        let journal = match Journal::lock(&root) {
            Err(e) => {
                drop(under_way);
                return if goes_plainly(place, e) { Ok(Answer::Plain) } else { Err(e) };
            }
            Ok(journal) => journal,
        };
        // A file may have been entered there meanwhile, and even published.
        if root.state().seq.load(Ordering::Acquire) == seen {
            break journal;
        }
        if looks == MAX_LOOKS {
            match tree::read(&root, place.rel())? {
                Entry::File(_) | Entry::Symlink(_) => return Err(libc::ENOTDIR),
                Entry::Removed | Entry::RemovedDir => return Err(libc::ENOENT),
                Entry::Directory | Entry::Nothing | Entry::Clean(_) => {}
            }
            let Ok(below) = subtree::below(place) else { return Ok(Answer::Plain) };
            if !below.is_empty {
                return not_empty(&below);
            }
            break journal;
        }
        looks += 1;
    };
    // Something else has got the name meanwhile, or had it before: it is published first.
    let Ok(link) = tree::prepare_remove_dir(place) else {
        drop(journal);
        drop(under_way);
        barrier::wait_for_all(&root)?;
        return Ok(Answer::Plain);
    };
    let appended = journal.append(Op::Rmdir, About::default(), place.rel(), b"");
    if let Err(e) = appended {
        drop(journal);
        drop(under_way);
        return if goes_plainly(place, e) { Ok(Answer::Plain) } else { Err(e) };
    }
    tree::remove_dir(place, link)?;
    data_roots::changed(place, &Entry::Directory, false);
    Ok(Answer::Done(()))
}

/// Before mkdir(2), mknod(2) and the like make a name. `under_way`: to be kept until the plain call
/// has ended.
pub fn make(place: &mut Place, under_way: &mut Option<UnderWay>) -> Result<Answer<()>> {
    if place.rel().is_empty() || begins_quietly(place, under_way) {
        return Ok(Answer::Plain);
    }
    let is_dir_path = core::mem::replace(&mut place.is_dir_path, false);
    let entry = entry_at(place)?;
    place.is_dir_path = is_dir_path;
    match entry {
        Entry::File(_) | Entry::Symlink(_) => Err(libc::EEXIST),
        // Of a clean copy, too, the PFS says whether its file is still there.
        Entry::Removed | Entry::RemovedDir | Entry::Directory | Entry::Nothing | Entry::Clean(_) => {
            plainly(place, under_way)
        }
    }
}

/// The plain call makes the name, once what the job has removed is gone, and unless another process
/// has entered it meanwhile.
pub(super) fn plainly(place: &Place, under_way: &mut Option<UnderWay>) -> Result<Answer<()>> {
    for waits_left in (0..=MAX_REMOVALS).rev() {
        *under_way = None;
        *under_way = beside::making(place);
        match tree::read(&place.root, place.rel())? {
            Entry::File(_) | Entry::Symlink(_) if under_way.is_some() => return Err(libc::EEXIST),
            Entry::Removed if waits_left > 0 => {
                *under_way = None;
                unhide(place)?;
            }
            Entry::RemovedDir if waits_left > 0 => {
                *under_way = None;
                barrier::wait_for_all(&place.root)?;
            }
            _ => break,
        }
    }
    Ok(Answer::Plain)
}

/// Whether the PFS may have a name only because an older file of that name was published a moment
/// ago, whose removal has its turn still to come. Waits for that.
pub fn was_removed(place: &mut Place) -> Result<bool> {
    let root = place.root;
    if !root.map.may_be_overtaken() || place.rel().is_empty() {
        return Ok(false);
    }
    place.is_dir_path = false;
    match entry_at(place)? {
        // The agent hides what it publishes for a removal that is still to come.
        Entry::Removed | Entry::RemovedDir => {}
        // It is just about to.
        Entry::Nothing if root.state().publishing_len.load(Ordering::Acquire) != 0 => {
            if on_pfs(place).is_ok_and(|st| !matches!(st.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK)) {
                return Ok(false);
            }
        }
        _ => return Ok(false),
    }
    barrier::wait_for_all(&root)?;
    Ok(on_pfs(place).is_err())
}

/// Before link(2) of what lies at a place: waits until it is published. A file that a process has
/// open for writing cannot be: EXDEV, as of a link to another file system. `outside`: the device
/// of the directory of the new name, if that lies outside of the output roots.
pub fn publish_for_link(place: &mut Place, follow: bool, outside: Option<u64>) -> Result<Answer<()>> {
    // The file that a descriptor named, and not what has got its name since.
    let mut named: Option<(u64, u64)> = None;
    let is_named = |named: Option<(u64, u64)>, file| named.is_none_or(|named| named == file);
    for _ in 0..MAX_PUBLISHED {
        match lookup(place, follow)? {
            // By a link that is not published.
            Found::Elsewhere(_) => {
                crossing::wait_for_all(place)?;
                return Ok(Answer::Plain);
            }
            Found::Entry(Entry::File(file)) => {
                let is_other_device = outside.is_some_and(|dev| dev != place.root.output.dev.load(Ordering::Relaxed));
                // (truncate(2) has it open with the lock held, for a moment.)
                let is_open = || Journal::lock(&place.root).map_or(true, |_held| is_written(&place.root, &file));
                if is_other_device || is_written(&place.root, &file) && is_open() {
                    break;
                }
                if !is_named(named, (file.dev, file.ino)) {
                    return Err(libc::ENOENT);
                }
                named = place.is_by_number.then_some((file.dev, file.ino));
            }
            Found::Entry(Entry::Symlink(_)) => {}
            Found::Entry(Entry::Removed | Entry::RemovedDir) => return Err(libc::ENOENT),
            Found::Held => return Ok(Answer::Plain),
            Found::Entry(_) if is_quiet(&place.root) && named.is_none() => return Ok(Answer::Plain),
            // Whether there is such a file comes before what the other name is.
            Found::Entry(_) => match on_pfs(place) {
                // Another process has replaced it before it was published.
                Err(libc::ENOENT) if is_pending(place, follow)? => {}
                Ok(st) if !is_named(named, (st.st_dev, st.st_ino)) => return Err(libc::ENOENT),
                found => return found.map(|_| Answer::Plain),
            },
        }
        if !crossing::wait_for_all(place)? {
            break;
        }
    }
    Err(libc::EXDEV)
}

/// Just before the plain link(2) of what lies at a place: a process that is about to stage a new
/// version of the file sees its second name then. `under_way`: as for [`make`]. `Done`: a process
/// has staged one meanwhile, which is to be published first.
pub fn announce_link(place: &mut Place, follow: bool, under_way: &mut Option<UnderWay>) -> Result<Answer<()>> {
    for is_announced in [false, true] {
        match lookup(place, follow)? {
            Found::Entry(Entry::Nothing | Entry::Clean(_)) if !place.rel().is_empty() => {}
            Found::Entry(Entry::File(_) | Entry::Symlink(_)) => {
                *under_way = None;
                return Ok(Answer::Done(()));
            }
            Found::Entry(_) | Found::Held | Found::Elsewhere(_) => break,
        }
        if !is_announced {
            *under_way = beside::changing(place);
        }
    }
    Ok(Answer::Plain)
}

/// Whether a place leads to what is pending.
fn is_pending(place: &mut Place, follow: bool) -> Result<bool> {
    Ok(matches!(lookup(place, follow)?, Found::Entry(Entry::File(_) | Entry::Symlink(_)) | Found::Elsewhere(_)))
}

/// Before a call that only the PFS can answer, such as link(2) or execve(2): waits until what lies
/// at a place is published.
pub fn settle(place: &mut Place, follow: bool) -> Result<Answer<()>> {
    if place.root.state().pending.load(Ordering::Acquire) == 0 && !may_cross(&place.root) {
        return Ok(Answer::Plain);
    }
    match lookup(place, follow)? {
        Found::Entry(Entry::Removed | Entry::RemovedDir) => Err(libc::ENOENT),
        // (Or a link on the way is not published.)
        Found::Entry(Entry::File(_) | Entry::Symlink(_)) | Found::Elsewhere(_) => {
            crossing::wait_for_all(place)?;
            Ok(Answer::Plain)
        }
        Found::Entry(_) | Found::Held => Ok(Answer::Plain),
    }
}
