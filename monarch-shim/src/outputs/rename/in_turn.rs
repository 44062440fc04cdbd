//! Renames that are entered in the journal in their turn: of pending files and of symbolic links.

use crate::outputs::answer::Result;
use crate::outputs::barrier;
use crate::outputs::journal::{About, Journal};
use crate::outputs::kernel;
use crate::outputs::name_watch::NameWatch;
use crate::outputs::names::{MAX_TRIES, is_published, is_there, may_appear, may_change_directory};
use crate::outputs::place::Place;
use crate::outputs::remembered::{is_dir, on_pfs};
use crate::outputs::rename::target::{leave, lies_below, look_at_target};
use crate::outputs::roots::is_same;
use crate::outputs::staged::is_written;
use crate::outputs::subtree;
use crate::outputs::tree::{self, Entry, drop_data};
use crate::outputs::whereabouts::HeldParent;
use core::sync::atomic::Ordering;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::found;
use monarch_abi::outputs::names;
use monarch_abi::outputs::record::{self, Op, flag};
use monarch_abi::outputs::through;
use monarch_guest::sys;

/// Most seconds between the change and the modification of a link whose times the job has not set.
const MAX_MADE_S: u64 = 2;

/// Whether a link of the PFS is as the agent would make one under the new name. The kernel renames
/// one to which the job gave an owner or a time: it keeps them.
fn is_as_made(st: &libc::stat64, to: &Place) -> bool {
    let parent = || kernel::stat_at(libc::AT_FDCWD, to.parent_on_pfs().ok()?.c_str()?, 0).ok();
    let group = || match parent() {
        Some(dir) if dir.st_mode & libc::S_ISGID != 0 => dir.st_gid,
        _ => sys::fsgid(),
    };
    st.st_uid == sys::fsuid() && st.st_ctime.abs_diff(st.st_mtime) <= MAX_MADE_S && st.st_gid == group()
}

/// The target of the symbolic link that a name is, pending or on the PFS, which may be renamed by
/// making another one.
fn link_target(place: &Place, entry: &Entry, to: &Place) -> Result<Option<PathBuffer>> {
    if let Entry::Symlink(target) = entry {
        let mut copy = PathBuffer::front();
        copy.append(target.get()).ok_or(libc::ENAMETOOLONG)?;
        return Ok(Some(copy));
    }
    let mut path = place.on_pfs()?;
    // (One with several names keeps them. What is no link is not asked for a target.)
    let is_link = |st: &libc::stat64| st.st_mode & libc::S_IFMT == libc::S_IFLNK;
    if on_pfs(place).is_ok_and(|st| !is_link(&st) || st.st_nlink > 1 || !is_as_made(&st, to)) {
        return Ok(None);
    }
    Ok(kernel::read_link(path.c_str().ok_or(libc::ENAMETOOLONG)?).ok())
}

/// What became of a rename in its turn.
pub enum InTurn {
    /// It is entered.
    Done,
    /// Another process has made the new name meanwhile: it is looked at again.
    Again,
    /// It is none for the overlay.
    No,
}

/// Tries a rename in its turn. Whether it is entered.
pub fn in_turn(mut once: impl FnMut() -> Result<InTurn>) -> Result<bool> {
    for _ in 0..MAX_TRIES {
        match once()? {
            InTurn::Done => return Ok(true),
            InTurn::Again => {}
            InTurn::No => return Ok(false),
        }
    }
    Ok(false)
}

/// Whether another process has made, or makes, a name since the PFS was asked for it, of which the
/// overlay says nothing.
fn is_changed(to: &Place, entry: &Entry, watch: NameWatch, lock: &Journal<'_>) -> bool {
    !matches!(entry, Entry::File(_) | Entry::Symlink(_)) && watch.is_changed(to, lock)
}

/// Renames a symbolic link while something is pending, in its turn. [`InTurn::No`] if it is none,
/// or if all that is pending has to be published first.
pub fn rename_link(from: &Place, to: &mut Place, source: &Entry, noreplace: bool) -> Result<InTurn> {
    let root = from.root;
    // (Most are none. What calls beside this one do to a link is seen by the second look.)
    if link_target(from, source, to)?.is_none() {
        return Ok(InTurn::No);
    }
    let moved = NameWatch::exclusive(from);
    let Some(target) = link_target(from, source, to)? else { return Ok(InTurn::No) };
    let target = target.get();
    let (dir, watch, there) = look_at_target(to)?;
    if !is_same(&to.root, &root) {
        return Ok(InTurn::No);
    }
    if from.parent() != to.parent() {
        may_change_directory(from)?;
    }
    let journal = Journal::lock(&root)?;
    if !dir.is_at(to)? {
        return Ok(InTurn::No);
    }
    let is_same = match (tree::read(&root, from.rel())?, source) {
        (Entry::Symlink(now), Entry::Symlink(_)) => now.get() == target,
        (Entry::Nothing, Entry::Nothing) if moved.is_changed(from, &journal) => return Ok(InTurn::Again),
        (Entry::Nothing, Entry::Nothing) => true,
        _ => false,
    };
    if !is_same {
        return Ok(InTurn::No);
    }
    let replaced = tree::read(&root, to.rel())?;
    if is_changed(to, &replaced, watch, &journal) {
        return Ok(InTurn::Again);
    }
    let is_there = match &replaced {
        Entry::Nothing | Entry::Clean(_) => there.is_some(),
        Entry::Removed => false,
        Entry::Symlink(_) => true,
        // (What others write there is waited for.)
        Entry::File(_) | Entry::Directory | Entry::RemovedDir => return Ok(InTurn::No),
    };
    if noreplace && is_there {
        return Err(libc::EEXIST);
    }
    // Plain calls would go through what the PFS still has of that name.
    if there.is_some() {
        return Ok(InTurn::No);
    }
    if from.rel() == to.rel() {
        return Ok(InTurn::Done);
    }
    let mut what = PathBuffer::front();
    let fits = [to.rel(), b"\0", target].into_iter().all(|text| what.append(text).is_some());
    if !fits || record::len(from.rel().len(), what.get().len()).is_none() {
        return Ok(InTurn::No);
    }
    let about = About { id: 0, flags: flag::PUBLISHED, found: found::NOTHING };
    let append = || journal.append(Op::RenameLink, about, from.rel(), what.get());
    tree::make_parents(&root, to.rel())?;
    // Its link is that of a pending one, or a new one; the old name is hidden, as the agent may be
    // making the link there just now.
    if matches!(source, Entry::Symlink(_)) {
        let whiteout = tree::prepare(from, names::WHITEOUT)?;
        append()?;
        tree::move_to(from, to, &replaced)?;
        whiteout.put(&Entry::Nothing)?;
    } else {
        let mut text = PathBuffer::front();
        if text.append(names::SYMLINK).and_then(|()| text.append(target)).is_none() {
            return Ok(InTurn::No);
        }
        let link = match tree::prepare(to, text.get()) {
            Err(libc::ENAMETOOLONG) => return Ok(InTurn::No),
            link => link?,
        };
        let whiteout = tree::prepare_second(from, names::WHITEOUT)?;
        append()?;
        link.put(&replaced)?;
        whiteout.put(&Entry::Nothing)?;
    }
    if let Entry::Clean(clean) = replaced {
        drop_data(&root, &clean.file);
    }
    Ok(InTurn::Done)
}

/// Renames a pending file. [`InTurn::No`] if it is none any more.
pub fn rename_pending(from: &mut Place, to: &mut Place, noreplace: bool) -> Result<InTurn> {
    let root = from.root;
    let (dir, watch, there) = look_at_target(to)?;
    if !is_same(&to.root, &root) {
        return Ok(InTurn::No);
    }
    let has_names = there.is_some_and(|st| st.st_nlink > 1 && !is_dir(&st)) && !noreplace;
    if has_names {
        publish_for_names(from)?;
    }
    let other = if from.parent() == to.parent() { None } else { Some(HeldParent::to_look(from)?) };
    if let Some(dir) = &other {
        dir.may_change(from)?;
    }
    let from_dir = other.as_ref().unwrap_or(&dir);
    let was_published = is_there(from_dir, from);
    let journal = Journal::lock(&root)?;
    let Entry::File(file) = tree::read(&root, from.rel())? else { return Ok(InTurn::No) };
    if !dir.is_at(to)? {
        return Ok(InTurn::No);
    }
    let replaced = tree::read(&root, to.rel())?;
    if is_changed(to, &replaced, watch, &journal) {
        return Ok(InTurn::Again);
    }
    let is_there = match &replaced {
        Entry::Nothing | Entry::Directory | Entry::Clean(_) => there.is_some(),
        Entry::Removed | Entry::RemovedDir => false,
        Entry::File(_) | Entry::Symlink(_) => true,
    };
    if noreplace && is_there {
        return Err(libc::EEXIST);
    }
    if matches!(replaced, Entry::RemovedDir) {
        return Ok(InTurn::No);
    }
    // (Looked at again: the agent may just have removed the directory that was there.)
    if there.is_some_and(|st| is_dir(&st))
        && !matches!(replaced, Entry::Removed)
        && dir.lstat(to).is_ok_and(|st| is_dir(&st))
    {
        return Err(if lies_below(from.rel(), to.rel()) { libc::ENOTEMPTY } else { libc::EISDIR });
    }
    if from.rel() == to.rel() {
        return Ok(InTurn::Done);
    }
    if matches!(replaced, Entry::Directory) && !subtree::remove_empty(&root, to.rel()) {
        return Ok(InTurn::No);
    }
    let was_published = was_published || is_published(from_dir, from, &file);
    let flags = if was_published { flag::PUBLISHED } else { 0 };
    tree::make_parents(&root, to.rel())?;
    let may_appear = was_published || may_appear(from, file.id) && !through::is_temporary(from.rel(), to.rel());
    let whiteout = if may_appear { Some(tree::prepare(from, names::WHITEOUT)?) } else { None };
    let found = match &replaced {
        // What is pending there is published before, or left out.
        Entry::File(_) | Entry::Symlink(_) => found::UNKNOWN,
        Entry::Removed => found::NOTHING,
        _ => there.map_or(found::NOTHING, |st| kernel::found(&st)),
    };
    let is_removed = has_names && matches!(replaced, Entry::Nothing | Entry::Clean(_));
    let found = if is_removed { remove_one_of_names(&journal, to, found)? } else { found };
    let removal = root.state().last_entry.load(Ordering::Acquire);
    journal.append(Op::Rename, About { id: file.id, flags, found }, from.rel(), to.rel())?;
    tree::move_to(from, to, &replaced)?;
    if let Some(link) = whiteout {
        link.put(&Entry::Nothing)?;
    }
    match replaced {
        Entry::Clean(clean) => drop_data(&root, &clean.file),
        // It has no name any more, and is not published. (One that is closed keeps its turn.)
        Entry::File(old) if is_written(&root, &old) => drop_data(&root, &old),
        _ => {}
    }
    drop(journal);
    if is_removed {
        barrier::wait_until_entry(&root, removal);
    }
    Ok(InTurn::Done)
}

/// Before a pending file is renamed over one of several names of a file: the other names tell how
/// many there are, so that the rename is made on the PFS, if no process has the file open for
/// writing.
#[cold]
#[inline(never)]
fn publish_for_names(from: &Place) -> Result<()> {
    match tree::read(&from.root, from.rel())? {
        Entry::File(file) if is_written(&from.root, &file) => Ok(()),
        _ => leave(&from.root),
    }
}

/// Has one of several names of a file removed before a pending file gets it that is still open for
/// writing. What the PFS has at the name by then is not known.
#[cold]
#[inline(never)]
fn remove_one_of_names(journal: &Journal<'_>, to: &Place, found: u64) -> Result<u64> {
    journal.append(Op::Unlink, About { id: 0, flags: flag::PUBLISHED, found }, to.rel(), b"")?;
    Ok(found::UNKNOWN)
}
