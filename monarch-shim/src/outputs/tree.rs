//! The overlay of an output root: changing what its links say.

use super::dir_times;
pub use super::entry::{Entry, has_dir, read};
use super::kernel::{self, Errno};
use super::place::{Place, split};
use super::roots::Root;
use core::sync::atomic::Ordering;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::names::{self, Staged};
use monarch_abi::outputs::state::State;
use monarch_abi::outputs::{REMOVED_DIR, TREE};
use monarch_guest::absolute::Absolute;

/// Makes the directories of the overlay above a relative path.
pub fn make_parents(root: &Root, rel: &[u8]) -> Result<(), Errno> {
    let above = split(rel).0;
    if above.is_empty() || has_dir(root, above) {
        return Ok(());
    }
    let ends = above.iter().enumerate().filter(|(_, c)| **c == b'/').map(|(end, _)| end).chain([above.len()]);
    for end in ends {
        let dir = above.get(..end).unwrap_or_default();
        dir_times::make(root, dir)?;
        let entry = read(root, dir)?;
        // The file of a clean copy was removed by others, and its name is a directory's by now.
        if let (Entry::Clean(clean), Some(place)) = (&entry, Place::in_overlay(*root, dir)) {
            forget(&place, &entry)?;
            drop_data(root, &clean.file);
            dir_times::make(root, dir)?;
        }
    }
    Ok(())
}

/// The difference that a change of a link makes to the counters of the state. They go up before the
/// change, and down after it. A process that is killed in between leaves them too high: calls then
/// look at the overlay, or wait, for nothing, until the agent counts again. Where they are too low,
/// pending files would not be found.
pub struct Counting {
    state: &'static State,
    before: Counted,
    now: Counted,
    is_changed: bool,
}

/// In which counters an entry counts.
#[derive(Clone, Copy, Default)]
struct Counted {
    is_pending: bool,
    is_there: bool,
}

impl Counting {
    fn begin(root: &Root, before: &Entry, now: Counted) -> Self {
        let before = Counted { is_pending: before.is_pending(), is_there: before.is_there() };
        let state = root.state();
        // (An order with what the kernel says of names: see `rename::renamed`.)
        if now.is_pending && !before.is_pending && state.pending.fetch_add(1, Ordering::SeqCst) == 0 {
            state.pending_since_ns.store(kernel::tick_ns(), Ordering::Release);
        }
        if now.is_there && !before.is_there {
            state.entries.fetch_add(1, Ordering::SeqCst);
        }
        Self { state, before, now, is_changed: false }
    }

    /// Counts an entry more until the value is dropped, so that the output root is not quiet.
    pub fn unquiet(root: &Root) -> Self {
        Self::begin(root, &Entry::Nothing, Counted { is_pending: false, is_there: true })
    }

    /// The link was changed.
    fn end(mut self) {
        self.is_changed = true;
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let (old, new) = if self.is_changed { (self.before, self.now) } else { (self.now, self.before) };
        let less = |n: u64| n.checked_sub(1);
        for (counter, counts_no_more) in [
            (&self.state.pending, old.is_pending && !new.is_pending),
            (&self.state.entries, old.is_there && !new.is_there),
        ] {
            if counts_no_more {
                let _ = counter.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
            }
        }
    }
}

/// Whether a pending file stands where a path needs a directory.
pub fn has_file_above(root: &Root, rel: &[u8]) -> Result<bool, Errno> {
    for (end, _) in rel.iter().enumerate().filter(|(_, c)| **c == b'/') {
        if matches!(read(root, rel.get(..end).unwrap_or_default())?, Entry::File(_)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A link that lies beside the overlay, ready to be put there. Where the record cannot be appended,
/// it goes.
pub struct NewLink<'p> {
    place: &'p Place,
    beside: Absolute,
    is_pending: bool,
    is_put: bool,
}

/// Makes a link with this text for a place. With the lock held: before the record, so that the
/// record is not appended when the tier has no space for the link.
pub fn prepare<'p>(place: &'p Place, text: &[u8]) -> Result<NewLink<'p>, Errno> {
    prepare_beside(place, text, b"link")
}

/// [`prepare`] for a second link that goes with the same record.
pub fn prepare_second<'p>(place: &'p Place, text: &[u8]) -> Result<NewLink<'p>, Errno> {
    prepare_beside(place, text, b"link.second")
}

fn prepare_beside<'p>(place: &'p Place, text: &[u8], beside: &[u8]) -> Result<NewLink<'p>, Errno> {
    let root = &place.root;
    make_parents(root, place.rel())?;
    let mut link = PathBuffer::front();
    link.append(text).ok_or(libc::ENAMETOOLONG)?;
    let link = link.c_str().ok_or(libc::ENAMETOOLONG)?;
    let mut beside = Absolute::join(root.staging(), beside).ok_or(libc::ENAMETOOLONG)?;
    let path = beside.c_str().ok_or(libc::ENAMETOOLONG)?;
    match kernel::symlink(link, path) {
        // A process was killed before it put its link there.
        Err(libc::EEXIST) => {
            kernel::unlink(path, 0)?;
            kernel::symlink(link, path)?;
        }
        made => made?,
    }
    Ok(NewLink { place, beside, is_pending: names::is_pending(text), is_put: false })
}

impl NewLink<'_> {
    /// Puts it at its place, where the overlay has `before`. With the lock held: after the record.
    pub fn put(mut self, before: &Entry) -> Result<(), Errno> {
        let mut path = self.place.in_tree()?;
        let beside = self.beside.c_str().ok_or(libc::ENAMETOOLONG)?;
        let now = Counted { is_pending: self.is_pending, is_there: true };
        let counting = Counting::begin(&self.place.root, before, now);
        kernel::rename(beside, path.c_str().ok_or(libc::ENAMETOOLONG)?)?;
        self.is_put = true;
        counting.end();
        Ok(())
    }
}

impl Drop for NewLink<'_> {
    fn drop(&mut self) {
        if !self.is_put
            && let Some(path) = self.beside.c_str()
        {
            let _ = kernel::unlink(path, 0);
        }
    }
}

/// Takes the link at a place away. With the lock held.
pub fn take(place: &Place, before: &Entry) -> Result<(), Errno> {
    if before.is_there() {
        let mut path = place.in_tree()?;
        let counting = Counting::begin(&place.root, before, Counted::default());
        kernel::unlink(path.c_str().ok_or(libc::ENAMETOOLONG)?, 0)?;
        counting.end();
    }
    Ok(())
}

/// Takes the link of a clean copy away, whose file stays as it is. With the lock held.
pub fn forget(place: &Place, before: &Entry) -> Result<(), Errno> {
    dir_times::kept(&place.root, place.parent(), || take(place, before))
}

/// Moves the link at a place to another one. With the lock held.
pub fn move_to(from: &Place, to: &Place, replaced: &Entry) -> Result<(), Errno> {
    make_parents(&to.root, to.rel())?;
    let (mut a, mut b) = (from.in_tree()?, to.in_tree()?);
    let (a, b) = (a.c_str().ok_or(libc::ENAMETOOLONG)?, b.c_str().ok_or(libc::ENAMETOOLONG)?);
    let counting = Counting::begin(&to.root, replaced, Counted::default());
    kernel::rename(a, b)?;
    counting.end();
    Ok(())
}

/// Makes room for [`remove_dir`], and gives the path of its link. With the lock held.
pub fn prepare_remove_dir(place: &Place) -> Result<Absolute, Errno> {
    let mut below = PathBuffer::front();
    let all = || {
        below.append(place.rel())?;
        below.append(b"/")?;
        below.append(REMOVED_DIR.as_bytes())?;
        Some(below)
    };
    let below = all().ok_or(libc::ENAMETOOLONG)?;
    make_parents(&place.root, below.get())?;
    place.root.in_tree(below.get()).ok_or(libc::ENAMETOOLONG)
}

/// Says of a directory that the job has removed it, by a link at a path that was prepared. With the
/// lock held.
pub fn remove_dir(place: &Place, mut link: Absolute) -> Result<(), Errno> {
    let counting = Counting::begin(&place.root, &Entry::Nothing, Counted { is_pending: true, is_there: true });
    let mut text = PathBuffer::front();
    text.append(names::WHITEOUT).ok_or(libc::ENAMETOOLONG)?;
    kernel::symlink(text.c_str().ok_or(libc::ENAMETOOLONG)?, link.c_str().ok_or(libc::ENAMETOOLONG)?)?;
    counting.end();
    dir_times::changed(&place.root, place.parent());
    Ok(())
}

/// The path of the overlay itself.
pub fn path(root: &Root) -> Option<Absolute> {
    Absolute::join(root.staging(), TREE.as_bytes())
}

/// The text of the link of a staged file.
pub fn file_text(file: &Staged) -> [u8; names::FILE_LEN] {
    names::file_text(file)
}

/// Removes a staged file that no entry needs any more.
pub fn drop_data(root: &Root, file: &Staged) {
    if let Some(mut path) = root.data(&file.name())
        && let Some(path) = path.c_str()
    {
        let _ = kernel::unlink(path, 0);
    }
}
