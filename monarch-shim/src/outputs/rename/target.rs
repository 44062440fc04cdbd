//! The name that a rename gives: what the PFS has there, and the staged file that loses it.

use crate::outputs::answer::Result;
use crate::outputs::barrier;
use crate::outputs::beside::{self, UnderWay};
use crate::outputs::journal::{About, Journal};
use crate::outputs::name_watch::NameWatch;
use crate::outputs::names::MAX_TRIES;
use crate::outputs::place::Place;
use crate::outputs::remembered::{is_dir, on_pfs, unhide};
use crate::outputs::roots::Root;
use crate::outputs::staged::hold;
use crate::outputs::tree::{self, Entry, drop_data};
use crate::outputs::whereabouts::HeldParent;
use monarch_abi::outputs::names::Staged;
use monarch_abi::outputs::record::{Op, flag};
use monarch_guest::sys::Fd;

/// The name that a plain rename gives.
pub struct Target {
    /// Where it is.
    pub place: Place,
    /// The pending file that had the name before.
    held: Option<Held>,
    /// Until the plain call has ended; that of the other name, if it lies below the same root.
    pub under_way: [Option<UnderWay>; 2],
}

/// A staged file that loses its name to a plain rename. While the descriptor is open, the agent
/// finds a writer and does not publish the file.
struct Held {
    file: Staged,
    fd: Option<Fd>,
}

impl Target {
    /// A name that a plain rename is about to give. `from`: the other name, if it lies below the
    /// same root. What a process has open under the name is not published meanwhile.
    pub fn new(place: Place, flags: u32, from: Option<&Place>) -> Result<Self> {
        let root = place.root;
        let under_way = [beside::making(&place), None];
        for _ in 0..MAX_TRIES {
            let file = match tree::read(&root, place.rel())? {
                Entry::File(file) => file,
                // Another process has made or removed the name since the call began: in its turn.
                Entry::Symlink(_) => {
                    leave(&root)?;
                    continue;
                }
                Entry::Removed => {
                    unhide(&place)?;
                    continue;
                }
                _ => break,
            };
            // (What is wrong with the first name, the kernel says.)
            let source = from.map_or(Ok(None), |from| on_pfs(from).map(Some));
            match source {
                Ok(_) if flags & libc::RENAME_NOREPLACE != 0 => return Err(libc::EEXIST),
                // Another process has entered it since it was looked at.
                Ok(_) if flags & libc::RENAME_EXCHANGE != 0 => return Err(libc::EINVAL),
                Ok(Some(st)) if is_dir(&st) => {
                    let is_below = from.is_some_and(|from| lies_below(place.rel(), from.rel()));
                    return Err(if is_below { libc::EINVAL } else { libc::ENOTDIR });
                }
                Ok(_) => {}
                Err(_) => break,
            }
            let fd = match hold(&place, &file) {
                Ok(Some(fd)) => Some(fd),
                // It is another one by now.
                Ok(None) | Err(libc::ENOENT) => continue,
                Err(_) => None,
            };
            // A publication that was begun before is waited for.
            let state = root.state();
            leave(&root)?;
            barrier::wait_until(&root, |_| !state.is_publishing(file.id));
            return Ok(Self { place, held: Some(Held { file, fd }), under_way });
        }
        Ok(Self { place, held: None, under_way })
    }

    /// After the rename. What had the name before is lost, as on the PFS: its record has the agent
    /// forget it and leave the name alone. The record comes before the data is removed: an agent
    /// that finds the data gone cannot tell that the name was taken. A rename that has failed
    /// leaves all as it was.
    pub fn end(&mut self, is_done: bool) -> Result<()> {
        let Self { place, held, under_way } = self;
        drop(core::mem::take(under_way));
        if is_done && place.rel().is_empty() {
            barrier::wait_for_root(&place.root);
        }
        let held = held.take();
        if !is_done && held.is_none() {
            return Ok(());
        }
        let root = &place.root;
        let journal = Journal::lock(root)?;
        let entry = tree::read(root, place.rel())?;
        let lost = match (&entry, &held) {
            (Entry::Clean(clean), _) if is_done => Some(clean.file),
            (Entry::File(file), Some(held)) if is_done && file.id == held.file.id => Some(*file),
            _ => None,
        };
        // (Not if what is held was renamed by another process, or published, meanwhile.)
        let is_taken = lost.is_some() && matches!(entry, Entry::File(_));
        let close = |Held { file, fd }: Held| {
            // (Where it could not be held, no descriptor is closed.)
            if !is_taken && fd.is_none() {
                return Ok(());
            }
            drop(fd);
            let flags = if is_taken { flag::TAKEN } else { 0 };
            journal.append(Op::Close, About { id: file.id, flags, ..About::default() }, b"", b"")
        };
        let recorded = held.map_or(Ok(()), close);
        if let Some(file) = &lost {
            drop_data(root, file);
            tree::take(place, &entry)?;
        }
        recorded
    }
}

/// Whether a path lies below a directory.
pub fn lies_below(rel: &[u8], dir: &[u8]) -> bool {
    rel.strip_prefix(dir).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Waits for what is pending, before a plain call that must not overtake it. Where the PFS refuses
/// that, the call gets the error.
pub fn leave(root: &Root) -> Result<()> {
    if root.map.may_be_overtaken() {
        barrier::wait_for_all(root)?;
    }
    Ok(())
}

/// What the PFS has at the name that a rename gives, whose directory is followed, held, and may be
/// changed. The name is watched from before that.
pub fn look_at_target(to: &mut Place) -> Result<(HeldParent, NameWatch, Option<libc::stat64>)> {
    let root = to.root;
    if !to.parent().is_empty() && !tree::has_dir(&root, to.parent()) {
        match to.follow_parent() {
            Err(libc::ENOENT) if tree::has_file_above(&root, to.rel())? => return Err(libc::ENOTDIR),
            followed => followed.map(|_| ())?,
        }
    }
    let dir = HeldParent::of(to)?;
    let watch = NameWatch::exclusive(to);
    let there = match dir.lstat(to) {
        Ok(st) => Some(st),
        Err(libc::ENOENT) => None,
        Err(e) => return Err(e),
    };
    dir.may_change(to)?;
    Ok((dir, watch, there))
}
