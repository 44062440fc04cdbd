//! What the overlay remembers of names that the PFS has: clean copies, directories, and names that
//! are hidden. Others may have changed these since.

use super::answer::{GONE, LEADS_OUT, Result};
use super::barrier;
use super::crossing;
use super::journal::{About, Journal};
use super::kernel::{self, Errno};
use super::lookup::{Found, lookup_to_change};
use super::place::Place;
use super::subtree;
use super::tree::{self, Entry, drop_data};
use monarch_abi::outputs::names::Clean;
use monarch_abi::outputs::record::{Op, flag};
use monarch_guest::sys;

/// What the PFS has at a place.
pub(super) fn on_pfs(place: &Place) -> core::result::Result<libc::stat64, Errno> {
    let mut path = place.on_pfs()?;
    kernel::lstat(path.c_str().ok_or(libc::ENAMETOOLONG)?)
}

/// Whether attributes are those of a directory.
pub(super) fn is_dir(st: &libc::stat64) -> bool {
    st.st_mode & libc::S_IFMT == libc::S_IFDIR
}

/// Whether the PFS has the file that was published, unchanged; `None` if it does not say.
pub fn is_unchanged(place: &Place, clean: &Clean) -> Option<bool> {
    let mut path = place.on_pfs().ok()?;
    // SAFETY: a C string.
    let now = match unsafe { sys::identity(libc::AT_FDCWD, path.c_str()?.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) } {
        Ok(now) => now,
        Err(libc::ENOENT | libc::ENOTDIR) => return Some(false),
        Err(_) => return None,
    };
    let then = (clean.file.ino, clean.size, clean.mtime_ns, clean.ctime_ns);
    Some((now.ino, now.size, now.mtime_ns, now.ctime_ns) == then)
}

/// Drops the clean copy at a place.
pub fn forget_clean(place: &Place) -> Result<()> {
    let _journal = Journal::lock(&place.root)?;
    let entry = tree::read(&place.root, place.rel())?;
    if let Entry::Clean(clean) = &entry {
        tree::forget(place, &entry)?;
        drop_data(&place.root, &clean.file);
    }
    Ok(())
}

/// Drops the clean copy at a place, if others have removed or changed its file: whether they have.
pub fn forget_changed(place: &Place, entry: &Entry) -> Result<bool> {
    match entry {
        Entry::Clean(clean) if is_unchanged(place, clean) == Some(false) => match forget_clean(place) {
            Err(GONE) => Err(GONE),
            // (Without a descriptor for the lock it stays, and is found changed again.)
            _ => Ok(true),
        },
        _ => Ok(false),
    }
}

/// Whether a directory of the overlay was left where the PFS has none any more, and is gone now.
pub fn is_left_over(place: &Place) -> Result<bool> {
    match on_pfs(place) {
        Ok(st) if is_dir(&st) => return Ok(false),
        Ok(_) | Err(libc::ENOENT | libc::ENOTDIR) => {}
        Err(_) => return Ok(false),
    }
    match Journal::lock(&place.root) {
        Ok(_journal) => Ok(subtree::remove_published(&place.root, place.rel())),
        Err(GONE) => Err(GONE),
        Err(_) => Ok(false),
    }
}

/// Before a plain call gives something a name that the job has removed: waits until it is. A file
/// that has left the name by a rename and is still open hides it for longer: then the name gets a
/// removal of its own.
pub(super) fn unhide(place: &Place) -> Result<()> {
    let root = &place.root;
    crossing::wait_for_all(place)?;
    let is_hidden = || Ok::<_, Errno>(matches!(tree::read(root, place.rel())?, Entry::Removed));
    if !is_hidden()? {
        return Ok(());
    }
    let journal = Journal::lock(root)?;
    if is_hidden()? {
        let about = About { flags: flag::PUBLISHED, ..About::default() };
        journal.append(Op::Unlink, about, place.rel(), b"")?;
    }
    drop(journal);
    barrier::wait_for_all(root).map(drop)
}

/// What the overlay says of a name that is to be changed, whose directory is followed. A clean copy
/// whose file others have removed or changed is none, nor is a directory that they have removed.
/// [`LEADS_OUT`] where links lead out of the output roots, which may be waited for.
pub(super) fn entry_at(place: &mut Place) -> Result<Entry> {
    let found = lookup_to_change(place)?;
    Ok(match inside(place, found)? {
        Found::Entry(entry) if forget_changed(place, &entry)? => Entry::Nothing,
        Found::Entry(Entry::Directory) if is_left_over(place)? => Entry::Nothing,
        Found::Entry(entry) => entry,
        Found::Held => Entry::RemovedDir,
        Found::Elsewhere(_) => Entry::Nothing,
    })
}

/// What a look has found where a name is to be changed. Where links lead out of the output roots,
/// the change is the kernel's: [`LEADS_OUT`], once those links are published.
pub(super) fn inside(place: &Place, found: Found) -> Result<Found> {
    if !place.leads_out {
        return Ok(found);
    }
    if matches!(found, Found::Elsewhere(_)) {
        crossing::wait_for_all(place)?;
    }
    Err(LEADS_OUT)
}
