//! Where what was opened below an output root lies by now, while others rename and remove
//! directories.

use super::barrier;
use super::kernel::{self, Errno};
use super::place::{Place, append_plain};
use super::remembered::on_pfs;
use super::roots::{self, Root};
use super::spare;
use super::tree::{self, Entry};
use super::walk::walk;
use crate::descriptor_path::{DELETED, path_even_if_removed};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use monarch_abi::mem::PathBuffer;
use monarch_guest::sys::{self, Fd};

/// Where an open file or directory lies by now. The kernel knows that without asking the PFS, and
/// learns at once what processes of this node rename and remove.
pub enum Whereabouts {
    /// It does not say.
    Unknown,
    /// Nowhere: it was removed.
    Removed,
    /// In no output root, or in another one.
    Outside,
    /// At this path relative to the output root.
    At(PathBuffer),
}

/// Where an open file or directory lies by now that was opened below an output root.
#[inline(never)]
pub fn whereabouts(root: &Root, fd: c_int) -> Whereabouts {
    let mut path = PathBuffer::front();
    // SAFETY: as many bytes are written as it says.
    if unsafe { path.fill(|out| path_even_if_removed(fd, out)) }.is_none() {
        return Whereabouts::Unknown;
    }
    if path.get().ends_with(DELETED) {
        // (The kernel may have forgotten the name only, and names may end like that, too.)
        let is_removed = sys::fstat(fd).is_none_or(|st| st.st_nlink == 0);
        return if is_removed { Whereabouts::Removed } else { Whereabouts::Unknown };
    }
    match roots::at(&root.ctx, path.get()) {
        Some((now, rest)) if now.staging() == root.staging() => {
            let mut rel = PathBuffer::front();
            append_plain(&mut rel, rest).map_or(Whereabouts::Unknown, |()| Whereabouts::At(rel))
        }
        _ => Whereabouts::Outside,
    }
}

/// Before a plain call about a name: where a link leads there that is not published, waits until it
/// is.
pub fn settle_links_above(place: &Place) -> Result<(), Errno> {
    let (root, rel) = (&place.root, place.rel());
    if root.state().pending.load(Ordering::Acquire) == 0
        || place.parent().is_empty()
        || tree::has_dir(root, place.parent())
    {
        return Ok(());
    }
    for (end, _) in rel.iter().enumerate().filter(|(_, c)| **c == b'/') {
        if matches!(tree::read(root, rel.get(..end).unwrap_or_default())?, Entry::Symlink(_)) {
            return barrier::wait_for_all(root).map(drop);
        }
    }
    // A link of the PFS may lead to one of these.
    let leads_to_pending = |dir: &[u8]| walk(&root.ctx, dir, true).is_some_and(|walked| walked.by_overlay);
    if !place.has_real_parent() && leads_to_pending(place.parent_on_pfs()?.get()) {
        return roots::all(&root.ctx).try_for_each(|root| barrier::wait_for_all(&root).map(drop));
    }
    Ok(())
}

/// The directory of a name that is about to be made, open since before it is looked at.
pub struct HeldParent(Option<Fd>);

impl HeldParent {
    /// Opens the directory of a place; the output root itself need not be held.
    pub fn of(place: &Place) -> Result<Self, Errno> {
        if place.parent().is_empty() {
            return Ok(Self(None));
        }
        let mut path = place.parent_on_pfs()?;
        spare::open_own(path.c_str().ok_or(libc::ENAMETOOLONG)?, libc::O_PATH | libc::O_DIRECTORY)
            .map(|fd| Self(Some(fd)))
    }

    /// One that is not held: looks go by paths.
    pub const fn by_path() -> Self {
        Self(None)
    }

    /// [`HeldParent::of`] for a few looks: without a descriptor they go by paths.
    pub fn to_look(place: &Place) -> Result<Self, Errno> {
        match Self::of(place) {
            Err(libc::EMFILE | libc::ENFILE) => Ok(Self::by_path()),
            held => held,
        }
    }

    /// What the PFS has at a name in the directory, which is that of the place.
    pub fn lstat(&self, place: &Place) -> Result<libc::stat64, Errno> {
        let Some(fd) = &self.0 else { return on_pfs(place) };
        let mut name = PathBuffer::front();
        name.append(place.name()).ok_or(libc::ENAMETOOLONG)?;
        kernel::stat_at(fd.0, name.c_str().ok_or(libc::ENAMETOOLONG)?, libc::AT_SYMLINK_NOFOLLOW)
    }

    /// Whether names in the directory, which is that of the place, may be changed.
    pub fn may_change(&self, place: &Place) -> Result<(), Errno> {
        const MODE: c_int = libc::W_OK | libc::X_OK;
        match &self.0 {
            Some(fd) => kernel::access_at(fd.0, c".", MODE, libc::AT_EACCESS),
            None => {
                let mut path = place.parent_on_pfs()?;
                kernel::access(path.c_str().ok_or(libc::ENAMETOOLONG)?, MODE, libc::AT_EACCESS)
            }
        }
    }

    /// Whether it still is the directory of the place: it may have been renamed. An error is that
    /// of a directory that was removed, here or on the PFS. With the lock of the journal held.
    pub fn is_at(&self, place: &Place) -> Result<bool, Errno> {
        let Some(fd) = &self.0 else { return Ok(true) };
        if matches!(tree::read(&place.root, place.parent())?, Entry::RemovedDir) {
            return Err(libc::ENOENT);
        }
        match whereabouts(&place.root, fd.0) {
            Whereabouts::Removed => Err(libc::ENOENT),
            Whereabouts::Unknown => Ok(true),
            Whereabouts::Outside => Ok(false),
            Whereabouts::At(rel) => Ok(rel.get() == place.parent()),
        }
    }
}
