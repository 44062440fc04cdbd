//! Renames below an output root, and over its edge.

use super::answer::{Answer, LEADS_OUT, Result};
use super::beside;
use super::create::is_through;
use super::data_roots;
use super::kernel::Errno;
use super::names::is_quiet;
use super::place::Place;
use super::plainly::goes_plainly;
use super::remembered::{entry_at, is_dir, on_pfs, unhide};
use super::roots::{Root, is_same};
use super::tree::{self, Entry};
use super::whereabouts::HeldParent;
use core::sync::atomic::Ordering;

mod after;
mod exchange;
mod in_turn;
mod target;

pub use after::{After, renamed};
use exchange::{Named, are_published, both_are_there};
use in_turn::{in_turn, rename_link, rename_pending};
use target::{Target, leave, lies_below};

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
    let exchanges = flags & libc::RENAME_EXCHANGE != 0;
    // (After an exchange the shim cannot say whether another process entered a file before it.)
    if !exchanges && is_quiet(&root) {
        let under_way = [beside::making(&from), beside::making(&to)];
        if is_quiet(&root) {
            return Ok((Answer::Plain, After::Quiet(from, to, under_way)));
        }
    }
    let (is_dir_path, to_is_dir_path) = (from.is_dir_path, to.is_dir_path);
    (from.is_dir_path, to.is_dir_path) = (false, false);
    let (source, target) = match (entry_at(&mut from), entry_at(&mut to)) {
        (Err(LEADS_OUT), Err(LEADS_OUT)) => return Ok((Answer::Plain, After::Nothing)),
        (Err(LEADS_OUT), target) => {
            target?;
            to.is_dir_path = to_is_dir_path;
            return arrives(to, None, flags);
        }
        (Ok(_), Err(LEADS_OUT)) => {
            from.is_dir_path = is_dir_path;
            return leaves(from, None);
        }
        (source, target) => (source?, target?),
    };
    if !(is_same(&from.root, &root) && is_same(&to.root, &root)) {
        (from.is_dir_path, to.is_dir_path) = (is_dir_path, to_is_dir_path);
        return rename(Side::Place(from), Side::Place(to), flags);
    }
    if from.rel() == to.rel() && !source.is_pending() {
        // Nothing moves: the kernel gives the answer.
        return Ok((Answer::Plain, After::Nothing));
    }
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
    if exchanges && !is_quiet(&root) {
        both_are_there(&[
            Named { place: &from, entry: &source, is_dir_path },
            Named { place: &to, entry: &target, is_dir_path: to_is_dir_path },
        ])?;
    } else if let (Entry::Nothing | Entry::Directory | Entry::Clean(_), false) = (&source, exchanges) {
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
    let after = if exchanges { After::Exchange(from, target) } else { After::Move(from, target) };
    Ok((Answer::Plain, after))
}

/// A rename from one output root to another, each of which has an order of its own: what is pending
/// below both is published first.
#[cold]
#[inline(never)]
fn between_roots(from: Place, mut to: Place, flags: u32) -> Result<(Answer<()>, After)> {
    leave(&to.root)?;
    let from = match leaves(from, None) {
        // Out of the output roots, by a link.
        Err(LEADS_OUT) => return arrives(to, None, flags),
        Ok((_, After::Cross(from, _))) => from,
        done => return done,
    };
    to.is_dir_path = false;
    match entry_at(&mut to) {
        Err(LEADS_OUT) => return Ok((Answer::Plain, After::Cross(from, None))),
        Ok(Entry::Removed) => unhide(&to)?,
        entry => drop(entry?),
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
