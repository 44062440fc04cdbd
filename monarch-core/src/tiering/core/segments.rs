//! The segments that are served, by number.

use crate::engine::Source;
use crate::sharing::FileRef;
use crate::tier::CopyName;
use crate::tiering::core::engine_trial::Mount;
use crate::tiering::core::identity_scope::IdentityScope;
use monarch_abi::hash::Identity;
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::word::{State, Word};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

impl LiveSegment {
    /// Whether a file is the one that was indexed, perhaps by another node.
    #[must_use]
    pub fn is_same(&self, now: &Identity, want: &Identity) -> bool {
        let IdentityScope { ino, ctime } = self.portable;
        let same = |portable: bool, equal: bool| equal || !portable;
        (now.size, now.mtime_ns) == (want.size, want.mtime_ns)
            && same(ino, now.ino == want.ino)
            && same(ctime, now.ctime_ns == want.ctime_ns)
    }

    /// Number of its root.
    #[must_use]
    pub const fn root(&self) -> usize {
        self.root
    }

    /// What the nodes of a job call one of its files.
    #[must_use]
    pub fn file_ref(&self, entry: &Entry<'static>) -> FileRef {
        FileRef::of(&self.segment, entry)
    }
}

/// A resident copy that is to leave its tier.
pub(crate) struct EvictionCandidate {
    pub(crate) key: u64,
    pub(crate) live: LiveSegment,
    pub(crate) entry: Entry<'static>,
    pub(crate) word: Word,
}

impl EvictionCandidate {
    pub(crate) fn name(&self) -> CopyName {
        self.live.segment.copy_name(&self.entry)
    }
}

/// A segment that the tiering engine serves.
#[derive(Clone)]
pub struct LiveSegment {
    /// Index and state.
    pub segment: Segment<'static>,
    /// Where its files come from.
    pub source: Arc<dyn Source>,
    /// Whether the index was scanned for its jobs; of one that was loaded from a file each entry is
    /// compared before its first use.
    pub fresh: bool,
    /// What of an identity is the same on all nodes.
    pub portable: IdentityScope,
    pub(crate) root: usize,
    pub(crate) mount: Arc<Mount>,
}

impl std::fmt::Debug for LiveSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveSegment").field("fresh", &self.fresh).finish_non_exhaustive()
    }
}

/// Segment number and id of a file's key, if it can be one.
pub(crate) fn parts(key: u64) -> Option<(usize, u32)> {
    let number = usize::try_from(key >> 32).ok()?.checked_sub(1)?;
    Some((number, key as u32))
}

/// The segments that are served, by number.
pub(crate) struct Segments {
    slots: RwLock<Vec<Option<LiveSegment>>>,
}

impl Segments {
    /// All slots, for a moment.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Vec<Option<LiveSegment>>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a segment into its slot.
    pub(crate) fn set(&self, number: usize, live: LiveSegment) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.len() <= number {
            slots.resize(number + 1, None);
        }
        slots[number] = Some(live);
    }

    /// Empties a slot.
    pub(crate) fn clear(&self, number: usize) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = slots.get_mut(number) {
            *live = None;
        }
    }

    /// Whether a segment has files that are served in chunks.
    pub(crate) fn any_large(&self) -> bool {
        self.read().iter().flatten().any(|live| live.segment.state.header.large > 0)
    }

    pub(crate) fn new() -> Self {
        Self { slots: RwLock::default() }
    }

    /// The segment with this number.
    #[must_use]
    pub(crate) fn segment(&self, number: usize) -> Option<LiveSegment> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).get(number)?.clone()
    }

    pub(crate) fn entry(&self, key: u64) -> Option<(LiveSegment, Entry<'static>)> {
        let (number, id) = parts(key)?;
        let live = self.segment(number)?;
        let entry = live.segment.by_id(id)?;
        Some((live, entry))
    }

    /// A file with a copy, if it has one now.
    pub(crate) fn leaver(&self, key: u64) -> Option<EvictionCandidate> {
        let (live, entry) = self.entry(key)?;
        let word = entry.word();
        (word.state() == State::Resident).then_some(EvictionCandidate { key, live, entry, word })
    }

    /// A file with a packed copy, if that is all it has now.
    pub(crate) fn packed_leaver(&self, key: u64) -> Option<EvictionCandidate> {
        let (live, entry) = self.entry(key)?;
        let word = entry.word();
        word.packed_in().map(|_| EvictionCandidate { key, live, entry, word })
    }

    /// The segment of an index that is served now, and its number.
    #[must_use]
    pub(crate) fn segment_of(&self, index: [u8; 16]) -> Option<(usize, LiveSegment)> {
        let segments = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let found = segments.iter().enumerate().filter_map(|(n, live)| Some((n, live.as_ref()?)));
        found.filter(|(_, live)| live.segment.index.header.uuid == index).map(|(n, live)| (n, live.clone())).next()
    }

    /// All segments that are served now.
    #[must_use]
    pub(crate) fn served(&self) -> Vec<(usize, LiveSegment)> {
        let segments = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        segments.iter().enumerate().filter_map(|(n, live)| Some((n, live.clone()?))).collect()
    }

    /// Whether a file has a copy, or may have a packed one of which the word says nothing while it
    /// is being decoded.
    pub(crate) fn is_listed(&self, key: u64) -> bool {
        let state =
            |w: Word| matches!(w.state(), State::Requested | State::Fetching | State::Partial | State::Resident);
        self.entry(key).map(|(_, entry)| entry.word()).is_some_and(|w| state(w) || w.packed_in().is_some())
    }

    /// The segment of a key that a job has named, if there is such an entry.
    pub(crate) fn named(&self, key: u64) -> Option<(LiveSegment, usize, u32)> {
        let (number, id) = parts(key)?;
        let live = self.segment(number)?;
        live.segment.index.record(id)?;
        Some((live, number, id))
    }

    /// Path of a file below its root.
    pub(crate) fn rel_of(&self, leaver: &EvictionCandidate) -> Vec<u8> {
        let mut path = [0u8; monarch_abi::PATH_MAX];
        let len = leaver.live.segment.index.path(leaver.entry.id, &mut path).unwrap_or(0);
        path.get(..len).unwrap_or_default().to_vec()
    }
}
