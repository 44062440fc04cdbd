//! What the overlay has below a directory: looked through, moved along, removed.

use super::answer::Result;
use super::entries::{Name, child, each, open_dir, open_dir_by};
use super::journal::{About, Journal};
use super::kernel;
use super::place::Place;
use super::roots::Root;
use super::tree::{self, Entry, drop_data};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::names::{self, Clean};
use monarch_abi::outputs::record::{Op, flag};

/// What lies in a directory of the overlay.
pub struct Below {
    /// Files or links that only the overlay has.
    pub has_pending_names: bool,
    /// Names that the PFS has, and the job does not see.
    pub hides_names: bool,
    /// Whether the job sees no name there.
    pub is_empty: bool,
}

/// Looks at a directory. Of a name that is none on the PFS, or a link to one, an error.
pub fn below(place: &Place) -> Result<Below> {
    let root = &place.root;
    let has_pending_names = has_new_names(root, place.rel())?;
    let mut below = Below { has_pending_names, hides_names: false, is_empty: true };
    // (The output root itself may be a link.)
    let follow = if place.rel().is_empty() { 0 } else { libc::O_NOFOLLOW };
    let dir = open_dir_by(root.on_pfs(place.rel()), follow)?;
    let instance = root.state().instance.load(Ordering::Relaxed);
    each(dir.0, |name| {
        let is_part = names::parse_part(name.name).is_some_and(|(of, _)| of == instance);
        let is_removed = || {
            let rel = child(place.rel(), name.name)?;
            Ok::<_, c_int>(matches!(tree::read(root, rel.get())?, Entry::Removed | Entry::RemovedDir))
        };
        if is_part || is_removed()? {
            below.hides_names = true;
        } else {
            below.is_empty = false;
        }
        Ok(())
    })?;
    below.is_empty &= !below.has_pending_names;
    Ok(below)
}

/// Whether anything is pending below a directory.
pub fn has_pending(root: &Root, dir: &[u8]) -> Result<bool> {
    has_name(root, dir, |name, rel| {
        // (One that is removed has a link that says so.)
        if name.kind == libc::DT_DIR {
            return has_pending(root, rel);
        }
        match tree::read(root, rel)? {
            Entry::Directory => has_pending(root, rel),
            entry => Ok(entry.is_pending()),
        }
    })
}

/// Whether a name of a directory is pending.
pub fn has_pending_names(root: &Root, dir: &[u8]) -> Result<bool> {
    has_name(root, dir, |_, rel| Ok(tree::read(root, rel)?.is_pending()))
}

/// Whether a directory has names that are not published; removed ones do not count.
pub fn has_new_names(root: &Root, dir: &[u8]) -> Result<bool> {
    has_name(root, dir, |name, rel| {
        Ok(name.kind != libc::DT_DIR && matches!(tree::read(root, rel)?, Entry::File(_) | Entry::Symlink(_)))
    })
}

/// Whether the overlay has a name in a directory that is looked for.
fn has_name(root: &Root, dir: &[u8], is_it: impl Fn(&Name<'_>, &[u8]) -> Result<bool>) -> Result<bool> {
    let Ok(open) = open_dir(root.in_tree(dir)) else { return Ok(false) };
    let mut has = false;
    each(open.0, |name| {
        if !has {
            let rel = child(dir, name.name)?;
            has = is_it(name, rel.get())?;
        }
        Ok(())
    })?;
    Ok(has)
}

/// Removes a directory of the overlay that has no links any more, where the PFS has no directory;
/// whether it is gone. With the lock held.
pub fn remove_empty(root: &Root, rel: &[u8]) -> bool {
    let Ok(dir) = open_dir(root.in_tree(rel)) else { return true };
    let _ = each(dir.0, |name| {
        if name.kind == libc::DT_DIR {
            remove_empty(root, child(rel, name.name)?.get());
        }
        Ok(())
    });
    let path = root.in_tree(rel);
    path.is_some_and(|mut path| path.c_str().is_some_and(|path| kernel::unlink(path, libc::AT_REMOVEDIR).is_ok()))
}

/// The same for a directory that others have removed on the PFS: its clean copies go, too.
pub fn remove_published(root: &Root, rel: &[u8]) -> bool {
    if let Ok(dir) = open_dir(root.in_tree(rel)) {
        let _ = each(dir.0, |name| {
            let rel = child(rel, name.name)?;
            let entry = tree::read(root, rel.get())?;
            match &entry {
                Entry::Directory => {
                    remove_published(root, rel.get());
                }
                Entry::Clean(clean) => {
                    let place = Place::in_overlay(*root, rel.get()).ok_or(libc::ENAMETOOLONG)?;
                    tree::forget(&place, &entry)?;
                    drop_data(root, &clean.file);
                }
                _ => {}
            }
            Ok(())
        });
    }
    remove_empty(root, rel)
}

/// Where the overlay has the clean copy with this number, or the pending file, below a directory;
/// whether it is published.
pub fn find_file(root: &Root, dir: &[u8], id: u64) -> Option<(PathBuffer, bool)> {
    let mut found = None;
    let open = open_dir(root.in_tree(dir)).ok()?;
    let _ = each(open.0, |name| {
        let rel = child(dir, name.name)?;
        match tree::read(root, rel.get())? {
            Entry::Clean(clean) if clean.file.id == id => found = Some((rel, true)),
            Entry::File(file) if file.id == id => found = Some((rel, false)),
            Entry::Directory | Entry::RemovedDir => found = find_file(root, rel.get(), id),
            _ => {}
        }
        // Any error ends the search.
        if found.is_some() { Err(libc::EEXIST) } else { Ok(()) }
    });
    found
}

/// Notes where the staged files below a directory are that was renamed on the PFS, and moves the
/// directory of the overlay along. With the lock held.
pub fn move_directory(journal: &Journal<'_>, from: &Place, to: &Place) -> Result<()> {
    tree::make_parents(&to.root, to.rel())?;
    // The PFS had no names there any more.
    remove_empty(&to.root, to.rel());
    let (mut a, mut b) = (from.in_tree()?, to.in_tree()?);
    let (a, b) = (a.c_str().ok_or(libc::ENAMETOOLONG)?, b.c_str().ok_or(libc::ENAMETOOLONG)?);
    if tree::has_dir(&to.root, to.rel()) {
        // Other processes have made names there since it was renamed on the PFS.
        return merge_directory(journal, &to.root, from.rel(), to.rel());
    }
    note_moved(journal, &to.root, from.rel(), to.rel())?;
    kernel::rename(a, b)
}

/// Moves what a directory of the overlay has into another one. What that has of the same name came
/// later, and stays.
#[cold]
#[inline(never)]
fn merge_directory(journal: &Journal<'_>, root: &Root, from: &[u8], to: &[u8]) -> Result<()> {
    let dir = open_dir(root.in_tree(from))?;
    each(dir.0, |name| {
        let (old, new) = (child(from, name.name)?, child(to, name.name)?);
        if name.kind == libc::DT_DIR {
            if tree::has_dir(root, new.get()) {
                return merge_directory(journal, root, old.get(), new.get());
            }
            note_moved(journal, root, old.get(), new.get())?;
            return move_link(root, old.get(), new.get());
        }
        let entry = tree::read(root, old.get())?;
        if matches!(tree::read(root, new.get())?, Entry::Nothing) {
            if let Entry::File(file) = &entry {
                journal.append(
                    Op::Rename,
                    About { id: file.id, flags: flag::PARENT, ..About::default() },
                    old.get(),
                    new.get(),
                )?;
            }
            return move_link(root, old.get(), new.get());
        }
        if let Entry::File(file) | Entry::Clean(Clean { file, .. }) = &entry {
            drop_data(root, file);
        }
        let place = Place::in_overlay(*root, old.get()).ok_or(libc::ENAMETOOLONG)?;
        tree::take(&place, &entry)
    })?;
    let mut path = root.in_tree(from).ok_or(libc::ENAMETOOLONG)?;
    kernel::unlink(path.c_str().ok_or(libc::ENAMETOOLONG)?, libc::AT_REMOVEDIR)
}

/// Renames what the overlay has.
fn move_link(root: &Root, from: &[u8], to: &[u8]) -> Result<()> {
    let (mut a, mut b) = (root.in_tree(from).ok_or(libc::ENAMETOOLONG)?, root.in_tree(to).ok_or(libc::ENAMETOOLONG)?);
    kernel::rename(a.c_str().ok_or(libc::ENAMETOOLONG)?, b.c_str().ok_or(libc::ENAMETOOLONG)?)
}

fn note_moved(journal: &Journal<'_>, root: &Root, from: &[u8], to: &[u8]) -> Result<()> {
    let dir = open_dir(root.in_tree(from))?;
    each(dir.0, |name| {
        let (old, new) = (child(from, name.name)?, child(to, name.name)?);
        match tree::read(root, old.get())? {
            Entry::File(file) => journal.append(
                Op::Rename,
                About { id: file.id, flags: flag::PARENT, ..About::default() },
                old.get(),
                new.get(),
            ),
            Entry::Directory | Entry::RemovedDir => note_moved(journal, root, old.get(), new.get()),
            _ => Ok(()),
        }
    })
}
