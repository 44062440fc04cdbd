//! Exchanges of two names below an output root (`RENAME_EXCHANGE`).

use crate::outputs::answer::Result;
use crate::outputs::journal::{About, Journal};
use crate::outputs::kernel::{self, Errno};
use crate::outputs::names::MAX_PUBLISHED;
use crate::outputs::place::Place;
use crate::outputs::remembered::on_pfs;
use crate::outputs::rename::target::leave;
use crate::outputs::staged::is_written;
use crate::outputs::tree::{self, Entry};
use crate::outputs::whereabouts::HeldParent;
use core::sync::atomic::Ordering;
use monarch_abi::outputs::record::{Op, flag};

/// One of the two names.
pub struct Named<'a> {
    /// Where it is.
    pub place: &'a Place,
    /// What the overlay says of it.
    pub entry: &'a Entry,
    /// Whether its path can only mean a directory.
    pub is_dir_path: bool,
}

/// The error of an exchange that is sure to fail, which waits for nothing: one of the names is
/// missing, or is no directory where its path says so.
pub fn both_are_there(names: &[Named<'_>; 2]) -> Result<()> {
    let [_, to] = names;
    for Named { place, entry, .. } in names {
        let missing = match entry {
            Entry::Removed | Entry::RemovedDir => Err(libc::ENOENT),
            Entry::File(_) | Entry::Symlink(_) => Ok(()),
            Entry::Nothing | Entry::Directory | Entry::Clean(_) => on_pfs(place).map(drop),
        };
        if let Err(e @ (libc::ENOENT | libc::ENOTDIR)) = missing {
            // (The kernel looks at both directories first.)
            return match HeldParent::of(to.place) {
                Err(of_parent @ (libc::ENOENT | libc::ENOTDIR | libc::EACCES)) => Err(of_parent),
                _ => Err(e),
            };
        }
    }
    let is_wrong = |name: &Named<'_>| name.is_dir_path && matches!(name.entry, Entry::File(_) | Entry::Symlink(_));
    if names.iter().any(is_wrong) { Err(libc::ENOTDIR) } else { Ok(()) }
}

/// Waits until both names are as the PFS has them, also where other processes replace them
/// meanwhile. False if a process has one of them open for writing.
pub fn are_published(from: &Place, to: &Place) -> Result<bool> {
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

/// After two names were exchanged: clean copies, and what is open in directories, change places.
pub fn exchanged(a: &Place, b: &Place) -> Result<()> {
    let root = &a.root;
    let journal = Journal::lock(root)?;
    let (mut at_a, mut at_b) = (a.in_tree()?, b.in_tree()?);
    let at_a = at_a.c_str().ok_or(libc::ENAMETOOLONG)?;
    let at_b = at_b.c_str().ok_or(libc::ENAMETOOLONG)?;
    let is_old = |place: &Place| {
        let entry = tree::read(root, place.rel())?;
        Ok::<_, Errno>(match entry {
            Entry::Clean(_) | Entry::Directory => Some(true),
            Entry::Nothing => Some(false),
            // Another process has entered it since the exchange: the shim leaves it alone.
            _ => None,
        })
    };
    let (old_a, old_b) = (is_old(a)?, is_old(b)?);
    if old_a == Some(true) || old_b == Some(true) {
        tree::make_parents(root, a.rel())?;
        tree::make_parents(root, b.rel())?;
    }
    let note = || {
        if root.state().pending.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let about = About { flags: flag::PARENT | flag::EXCHANGE, ..About::default() };
        journal.append(Op::Rename, about, a.rel(), b.rel())
    };
    note()?;
    let moved = match (old_a, old_b) {
        (Some(true), Some(true)) => kernel::exchange(at_a, at_b),
        (Some(true), Some(false)) => kernel::rename(at_a, at_b),
        (Some(false), Some(true)) => kernel::rename(at_b, at_a),
        _ => Ok(()),
    };
    // An exchange undoes itself: the agent goes by what the overlay says.
    if moved.is_err() { note().and(moved) } else { Ok(()) }
}
