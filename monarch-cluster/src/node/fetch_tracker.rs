//! Fetches from the PFS that are under way, and the node that answered for each file when its fetch
//! began: if another node does at the end, that one is informed.
//!
//! An entry lives as long as its fetch. It goes when the copy is complete, when the fetch ends
//! otherwise, and with the source that began it.

use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most fetches that are remembered: more than can be under way. A copy beyond that is announced to
/// no node.
const MAX_FETCHES: usize = 1 << 16;

/// Identifies one beginning of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FetchId(u64);

#[derive(Debug)]
struct Entry {
    /// The node that answered for the file, and in which of its lives.
    answerer: (u16, u64),
    id: FetchId,
}

/// Files that this node reads from the PFS.
#[derive(Debug, Default)]
pub(super) struct FetchTracker {
    fetches: Mutex<HashMap<FileRef, Entry>>,
    next_id: AtomicU64,
    /// Files that this node is to fetch from the PFS, whichever node owns them.
    forced: Mutex<HashSet<FileRef>>,
}

impl FetchTracker {
    /// Notes that a file is about to be read from the PFS while `answerer` answers for it: a node
    /// and the number of its life.
    pub(super) fn begin(&self, file: &FileRef, answerer: (u16, u64)) -> FetchId {
        let id = FetchId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut fetches = lock(&self.fetches);
        if fetches.len() < MAX_FETCHES || fetches.contains_key(file) {
            fetches.insert(*file, Entry { answerer, id });
        }
        id
    }

    /// Notes that the fetch of a file has ended; the node that answered for it at the beginning, if
    /// that is remembered.
    pub(super) fn end(&self, file: &FileRef) -> Option<(u16, u64)> {
        lock(&self.fetches).remove(file).map(|e| e.answerer)
    }

    /// The same, unless another fetch of the file has begun since.
    pub(super) fn end_this(&self, file: &FileRef, id: FetchId) {
        let mut fetches = lock(&self.fetches);
        if fetches.get(file).is_some_and(|e| e.id == id) {
            fetches.remove(file);
        }
    }

    /// Whether a file is being read from the PFS.
    pub(super) fn contains(&self, file: &FileRef) -> bool {
        lock(&self.fetches).contains_key(file)
    }

    /// Has a file fetched from the PFS by this node, whichever node owns it, until
    /// [`FetchTracker::unforce`].
    pub(super) fn force(&self, file: FileRef) {
        lock(&self.forced).insert(file);
    }

    /// Ends [`FetchTracker::force`]; whether it was in effect.
    pub(super) fn unforce(&self, file: &FileRef) -> bool {
        lock(&self.forced).remove(file)
    }

    /// Whether [`FetchTracker::force`] is in effect.
    pub(super) fn is_forced(&self, file: &FileRef) -> bool {
        lock(&self.forced).contains(file)
    }

    /// Forgets an index that is not served any more.
    pub(super) fn forget_index(&self, index: &[u8; 16]) {
        lock(&self.forced).retain(|f| f.index != *index);
        lock(&self.fetches).retain(|f, _| f.index != *index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(id: u32) -> FileRef {
        FileRef { index: [1; 16], id, fp: u64::from(id) }
    }

    fn len(tracker: &FetchTracker) -> usize {
        lock(&tracker.fetches).len()
    }

    #[test]
    fn fetches_that_failed_are_not_remembered() {
        let tracker = FetchTracker::default();
        for id in 0..10 {
            tracker.begin(&file(id), (3, 5));
            assert!(tracker.contains(&file(id)));
            assert_eq!(tracker.end(&file(id)), Some((3, 5)));
            assert!(!tracker.contains(&file(id)));
            assert_eq!(tracker.end(&file(id)), None);
        }
        assert_eq!(len(&tracker), 0);
    }

    #[test]
    fn what_ends_late_does_not_end_the_next_fetch() {
        let tracker = FetchTracker::default();
        let first = tracker.begin(&file(1), (3, 5));
        let second = tracker.begin(&file(1), (4, 5));
        tracker.end_this(&file(1), first);
        assert_eq!(len(&tracker), 1);
        tracker.end_this(&file(1), second);
        assert_eq!(len(&tracker), 0);
    }

    #[test]
    fn fetches_that_are_remembered_are_bounded_and_none_of_them_is_lost() {
        let tracker = FetchTracker::default();
        for id in 0..MAX_FETCHES as u32 + 100 {
            tracker.begin(&file(id), (3, 5));
        }
        assert_eq!(len(&tracker), MAX_FETCHES);
        tracker.begin(&file(0), (7, 7));
        assert_eq!((tracker.end(&file(0)), tracker.end(&file(1))), (Some((7, 7)), Some((3, 5))));
        tracker.forget_index(&[2; 16]);
        assert_eq!(len(&tracker), MAX_FETCHES - 2);
        tracker.forget_index(&[1; 16]);
        assert_eq!(len(&tracker), 0);
    }
    #[test]
    fn a_file_is_forced_until_that_is_taken_back_or_its_index_goes() {
        let tracker = FetchTracker::default();
        tracker.force(file(1));
        tracker.force(file(2));
        assert!(tracker.is_forced(&file(1)) && tracker.unforce(&file(1)) && !tracker.unforce(&file(1)));
        tracker.forget_index(&[1; 16]);
        assert!(!tracker.is_forced(&file(2)));
    }
}
