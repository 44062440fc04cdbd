//! What follows a plain rename in the overlay.

use crate::outputs::answer::Result;
use crate::outputs::beside::UnderWay;
use crate::outputs::journal::{About, Journal};
use crate::outputs::names::is_quiet;
use crate::outputs::place::Place;
use crate::outputs::remembered::{forget_clean, is_dir, on_pfs};
use crate::outputs::rename::exchange::exchanged;
use crate::outputs::rename::target::Target;
use crate::outputs::roots::is_same;
use crate::outputs::subtree;
use crate::outputs::tree::{self, Entry, drop_data};
use core::sync::atomic::{Ordering, fence};
use monarch_abi::outputs::record::{Op, flag};

/// What is to be done after a plain rename.
pub enum After {
    /// Nothing.
    Nothing,
    /// The overlay moves along.
    Move(Place, Target),
    /// What the overlay has of two names is exchanged, too.
    Exchange(Place, Target),
    /// Nothing, if there is still nothing that is not as the PFS has it: else the overlay moves
    /// along.
    Quiet(Place, Place, [Option<UnderWay>; 2]),
    /// The first name is not Monarch's any more, and something else has the second one.
    Cross(Option<Place>, Option<Target>),
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
        After::Exchange(from, Target { place: to, under_way, .. }) => {
            drop(under_way);
            if is_done { exchanged(&from, &to) } else { Ok(()) }
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
