//! Renames below an output root, and over its edge.

use super::answer::{Answer, Result};
use super::barrier;
use super::beside::{self, UnderWay};
use super::create::is_through;
use super::data_roots;
use super::journal::{About, Journal};
use super::kernel::{self, Errno};
use super::name_watch::NameWatch;
use super::names::{MAX_PUBLISHED, MAX_TRIES, is_published, is_quiet, may_change_directory};
use super::place::Place;
use super::plainly::goes_plainly;
use super::remembered::{entry_at, forget_clean, is_dir, on_pfs, unhide};
use super::roots::{Root, is_same};
use super::staged::is_written;
use super::subtree;
use super::tree::{self, Entry, drop_data};
use super::whereabouts::HeldParent;
use core::sync::atomic::{Ordering, fence};
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::found;
use monarch_abi::outputs::names;
use monarch_abi::outputs::record::{self, Op, flag};
use monarch_abi::outputs::through;

mod target;

pub use target::Target;
use target::{leave, lies_below, look_at_target};

/// What is to be done after a plain rename.
pub enum After {
    /// Nothing.
    Nothing,
    /// The overlay moves along.
    Move(Place, Target),
    /// Nothing, if there is still nothing that is not as the PFS has it: else the overlay moves
    /// along.
    Quiet(Place, Place, [Option<UnderWay>; 2]),
    /// The first name is not Monarch's any more, and something else has the second one.
    Cross(Option<Place>, Option<Target>),
}

/// One of the two names of a rename.
pub enum Side {
    /// Below an output root.
    Place(Place),
    /// Elsewhere, on this device if that is known.
    Outside(Option<u64>),
}

/// rename(2), with the flags of renameat2(2).
pub fn rename(from: Side, to: Side, flags: u32) -> Result<(Answer<()>, After)> {
    let (mut from, mut to) = match (from, to) {
        (Side::Outside(_), Side::Outside(_)) => return Ok((Answer::Plain, After::Nothing)),
        (Side::Place(from), Side::Outside(dev)) => return leaves(from, dev),
        (Side::Outside(dev), Side::Place(to)) => return arrives(to, dev, flags),
        (Side::Place(from), Side::Place(to)) => (from, to),
    };
    if !is_same(&from.root, &to.root) {
        return between_roots(from, to, flags);
    }
    let root = from.root;
    if is_quiet(&root) {
        let under_way = [beside::making(&from), beside::making(&to)];
        if is_quiet(&root) {
            return Ok((Answer::Plain, After::Quiet(from, to, under_way)));
        }
    }
    let (is_dir_path, to_is_dir_path) = (from.is_dir_path, to.is_dir_path);
    (from.is_dir_path, to.is_dir_path) = (false, false);
    let (source, target) = (entry_at(&mut from)?, entry_at(&mut to)?);
    if !(is_same(&from.root, &root) && is_same(&to.root, &root)) {
        (from.is_dir_path, to.is_dir_path) = (is_dir_path, to_is_dir_path);
        return rename(Side::Place(from), Side::Place(to), flags);
    }
    if from.rel() == to.rel() && !source.is_pending() {
        // Nothing moves: the kernel gives the answer.
        return Ok((Answer::Plain, After::Nothing));
    }
    let exchanges = flags & libc::RENAME_EXCHANGE != 0;
    let through = is_through(&root, from.name());
    match &source {
        Entry::Removed | Entry::RemovedDir => return Err(libc::ENOENT),
        Entry::File(_) if is_dir_path || to_is_dir_path && !exchanges => {
            return Err(as_directory(&to, &target, flags));
        }
        Entry::File(_) if !exchanges => {
            let noreplace = flags & libc::RENAME_NOREPLACE != 0;
            match in_turn(|| rename_pending(&mut from, &mut to, noreplace)) {
                Ok(true) => return Ok(is_renamed(&from, &to, &source)),
                Ok(false) => {}
                Err(e) if goes_plainly(&mut from, e) => {}
                Err(e) => return Err(e),
            }
        }
        Entry::Symlink(_) | Entry::Nothing
            if !exchanges && !is_dir_path && !to_is_dir_path && root.map.may_be_overtaken() && !through =>
        {
            let noreplace = flags & libc::RENAME_NOREPLACE != 0;
            match in_turn(|| rename_link(&from, &mut to, &source, noreplace)) {
                Ok(true) => return Ok(is_renamed(&from, &to, &source)),
                Ok(false) => {}
                Err(e) if goes_plainly(&mut from, e) => {}
                Err(e) => return Err(e),
            }
        }
        _ => {}
    }
    if let (Entry::Nothing | Entry::Directory | Entry::Clean(_), false) = (&source, exchanges) {
        fails_at_once(&from, &to, &target, flags)?;
    }
    if matches!(target, Entry::Removed) {
        unhide(&to)?;
    }
    let is_plain =
        matches!(source, Entry::Nothing | Entry::Clean(_)) && matches!(target, Entry::Nothing | Entry::Clean(_));
    if !(through && is_plain) {
        leave(&root)?;
    }
    if exchanges && !are_published(&from, &to)? {
        return Err(libc::EINVAL);
    }
    if !is_same(&from.root, &to.root) {
        return between_roots(from, to, flags);
    }
    let moving = beside::making(&from);
    // Another process has removed or renamed it since the call began.
    if matches!(tree::read(&root, from.rel())?, Entry::RemovedDir | Entry::Removed) {
        return Err(libc::ENOENT);
    }
    let mut target = Target::new(to, flags, Some(&from))?;
    target.under_way[1] = moving;
    Ok((Answer::Plain, After::Move(from, target)))
}

/// Before two names below one root are exchanged: waits until both are as the PFS has them, also
/// where other processes replace them meanwhile. Not if one is a file that is open for writing.
fn are_published(from: &Place, to: &Place) -> Result<bool> {
    let root = &from.root;
    for _ in 0..MAX_PUBLISHED {
        let mut is_any_pending = false;
        for place in [from, to] {
            match tree::read(root, place.rel())? {
                Entry::File(file) if is_written(root, &file) => return Ok(false),
                entry => is_any_pending |= matches!(entry, Entry::File(_) | Entry::Symlink(_)),
            }
        }
        if !is_any_pending {
            return Ok(true);
        }
        leave(root)?;
    }
    Ok(false)
}

/// A rename from one output root to another, each of which has an order of its own: what is pending
/// below both is published first.
#[cold]
#[inline(never)]
fn between_roots(from: Place, mut to: Place, flags: u32) -> Result<(Answer<()>, After)> {
    leave(&to.root)?;
    let (_, after) = leaves(from, None)?;
    let After::Cross(from, _) = after else { return Ok((Answer::Plain, after)) };
    to.is_dir_path = false;
    if matches!(entry_at(&mut to)?, Entry::Removed) {
        unhide(&to)?;
    }
    let target = Target::new(to, flags, None)?;
    Ok((Answer::Plain, After::Cross(from, Some(target))))
}

/// The error of a rename of a pending file by, or to, a path that can only mean a directory.
#[cold]
fn as_directory(to: &Place, target: &Entry, flags: u32) -> Errno {
    let is_there = || match target {
        Entry::Removed | Entry::RemovedDir => false,
        Entry::File(_) | Entry::Symlink(_) => true,
        Entry::Nothing | Entry::Directory | Entry::Clean(_) => on_pfs(to).is_ok(),
    };
    if flags & libc::RENAME_NOREPLACE != 0 && is_there() {
        return libc::EEXIST;
    }
    if flags & libc::RENAME_EXCHANGE != 0 && !is_there() { libc::ENOENT } else { libc::ENOTDIR }
}

/// The end of a rename that is in the overlay.
fn is_renamed(from: &Place, to: &Place, entry: &Entry) -> (Answer<()>, After) {
    data_roots::changed(from, entry, true);
    data_roots::changed(to, entry, true);
    (Answer::Done(()), After::Nothing)
}

/// The error of a rename of what the PFS has, which waits for nothing where it is sure to fail: if
/// the first name is missing, or a directory would replace a pending file.
fn fails_at_once(from: &Place, to: &Place, target: &Entry, flags: u32) -> Result<()> {
    match on_pfs(from) {
        Err(e @ (libc::ENOENT | libc::ENOTDIR)) => {
            // (The kernel looks at both directories first.)
            match HeldParent::of(to) {
                Err(of_parent @ (libc::ENOENT | libc::ENOTDIR)) => Err(of_parent),
                _ => Err(e),
            }
        }
        Ok(st) if is_dir(&st) && matches!(target, Entry::File(_)) => Err(if flags & libc::RENAME_NOREPLACE != 0 {
            libc::EEXIST
        } else if lies_below(to.rel(), from.rel()) {
            libc::EINVAL
        } else {
            libc::ENOTDIR
        }),
        _ => Ok(()),
    }
}

/// Whether a rename leads to or from another device than that of the output root: there is none
/// then, and the call does not wait.
fn is_other_device(root: &Root, outside: Option<u64>) -> bool {
    outside.is_some_and(|dev| dev != root.output.dev.load(Ordering::Relaxed))
}

/// A rename out of an output root. A file that a process has open for writing is not published, and
/// cannot go: EXDEV, as to another file system.
fn leaves(mut from: Place, outside: Option<u64>) -> Result<(Answer<()>, After)> {
    let is_other = is_other_device(&from.root, outside);
    if !is_other {
        leave(&from.root)?;
    }
    let is_dir_path = core::mem::replace(&mut from.is_dir_path, false);
    match entry_at(&mut from)? {
        Entry::File(_) | Entry::Symlink(_) if is_dir_path && !is_other => return Err(libc::ENOTDIR),
        Entry::File(_) | Entry::Symlink(_) => return Err(libc::EXDEV),
        _ => {}
    }
    Ok((Answer::Plain, if is_other { After::Nothing } else { After::Cross(Some(from), None) }))
}

/// A rename into an output root.
fn arrives(mut to: Place, outside: Option<u64>, flags: u32) -> Result<(Answer<()>, After)> {
    if is_other_device(&to.root, outside) {
        return Ok((Answer::Plain, After::Nothing));
    }
    leave(&to.root)?;
    to.is_dir_path = false;
    if matches!(entry_at(&mut to)?, Entry::Removed) {
        unhide(&to)?;
    }
    let target = Target::new(to, flags, None)?;
    Ok((Answer::Plain, After::Cross(None, Some(target))))
}

/// The target of the symbolic link that a name is, pending or on the PFS.
fn link_target(place: &Place, entry: &Entry) -> Result<Option<PathBuffer>> {
    if let Entry::Symlink(target) = entry {
        let mut copy = PathBuffer::front();
        copy.append(target.get()).ok_or(libc::ENAMETOOLONG)?;
        return Ok(Some(copy));
    }
    let mut path = place.on_pfs()?;
    // (One with several names keeps them.)
    if on_pfs(place).is_ok_and(|st| st.st_nlink > 1) {
        return Ok(None);
    }
    Ok(kernel::read_link(path.c_str().ok_or(libc::ENAMETOOLONG)?).ok())
}

/// What became of a rename in its turn.
enum InTurn {
    /// It is entered.
    Done,
    /// Another process has made the new name meanwhile: it is looked at again.
    Again,
    /// It is none for the overlay.
    No,
}

/// Tries a rename in its turn. Whether it is entered.
fn in_turn(mut once: impl FnMut() -> Result<InTurn>) -> Result<bool> {
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
fn rename_link(from: &Place, to: &mut Place, source: &Entry, noreplace: bool) -> Result<InTurn> {
    let root = from.root;
    // (Most are none. What calls beside this one do to a link is seen by the second look.)
    if link_target(from, source)?.is_none() {
        return Ok(InTurn::No);
    }
    let moved = NameWatch::exclusive(from);
    let Some(target) = link_target(from, source)? else { return Ok(InTurn::No) };
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
        text.append(b"L").and_then(|()| text.append(target)).ok_or(libc::ENAMETOOLONG)?;
        let link = tree::prepare(to, text.get())?;
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
fn rename_pending(from: &mut Place, to: &mut Place, noreplace: bool) -> Result<InTurn> {
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
    let was_published = from_dir.lstat(from).is_ok();
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
    // If something else came after it, the agent gives it this name before the next one.
    let is_last = root.state().is_last_closed(file.id);
    let may_appear = was_published || !is_last && !through::is_temporary(from.rel(), to.rel());
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

/// After a plain rename: clean copies below move along, what was replaced is dropped.
pub fn renamed(after: After, is_done: bool) -> Result<()> {
    match after {
        After::Nothing => Ok(()),
        After::Quiet(from, to, under_way) => {
            drop(under_way);
            // (An order with what the kernel says of names: a file that was entered where it was
            // before the rename counts already.)
            fence(Ordering::SeqCst);
            if is_done && !is_quiet(&from.root) { entered_meanwhile(from, to) } else { Ok(()) }
        }
        After::Cross(from, mut to) => {
            let ended = to.as_mut().map_or(Ok(()), |to| to.end(is_done));
            if let (true, Some(from)) = (is_done, from) {
                forget_clean(&from)?;
            }
            ended
        }
        After::Move(from, mut target) => {
            target.end(is_done)?;
            if !is_done {
                return Ok(());
            }
            moved_along(&from, &target.place)
        }
    }
}

/// After a plain rename: the overlay moves along.
fn moved_along(from: &Place, to: &Place) -> Result<()> {
    if from.rel() == to.rel() {
        return Ok(());
    }
    let is_directory = on_pfs(to).is_ok_and(|st| is_dir(&st));
    let journal = Journal::lock(&from.root)?;
    match tree::read(&from.root, from.rel())? {
        // Another process has entered the new name, or its removal, since the plain call ended.
        entry @ Entry::Clean(clean) if tree::read(&to.root, to.rel())?.is_there() => {
            drop_data(&from.root, &clean.file);
            tree::forget(from, &entry)?;
        }
        Entry::Clean(_) => tree::move_to(from, to, &Entry::Nothing)?,
        // Files that are open in a directory that was renamed keep their places by number.
        Entry::Directory => subtree::move_directory(&journal, from, to)?,
        _ => {}
    }
    // Files that have left the directory may have their part files there.
    if is_directory && from.root.state().pending.load(Ordering::Acquire) != 0 {
        let about = About { flags: flag::PARENT, ..About::default() };
        journal.append(Op::Rename, about, from.rel(), to.rel())?;
    }
    Ok(())
}

/// After the plain rename of a directory in which files were entered since it began.
#[cold]
#[inline(never)]
fn entered_meanwhile(mut from: Place, mut to: Place) -> Result<()> {
    from.follow_parent()?;
    to.follow_parent()?;
    let is_directory = matches!(tree::read(&from.root, from.rel())?, Entry::Directory);
    if is_directory && is_same(&from.root, &to.root) { moved_along(&from, &to) } else { Ok(()) }
}
