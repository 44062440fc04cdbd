//! [`Segments`]: the segments that are served, by number, and the keys of their files.

use crate::engine::Source;
use crate::sharing::FileRef;
use crate::tier::CopyName;
use crate::tiering::core::engine_trial::Mount;
use crate::tiering::core::identity_scope::IdentityScope;
use monarch_abi::hash::Identity;
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::word::{State, Word};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// A segment that the tiering engine serves.
#[derive(Clone)]
pub struct LiveSegment {
    /// Index and state.
    pub segment: Segment<'static>,
    /// The PFS as its files are read from.
    pub source: Arc<dyn Source>,
    /// Whether the index was scanned for its jobs. Each entry of an index that was loaded from a
    /// file is compared with the PFS before its first use.
    pub fresh: bool,
    /// The parts of an identity that are the same on all nodes.
    pub portable: IdentityScope,
    /// Whether its files are prefetched, where the configuration has files prefetched.
    pub prefetched: bool,
    pub(crate) root: usize,
    pub(crate) mount: Arc<Mount>,
}

impl std::fmt::Debug for LiveSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveSegment").field("fresh", &self.fresh).finish_non_exhaustive()
    }
}

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

    /// Number of the root that it is of.
    #[must_use]
    pub const fn root(&self) -> usize {
        self.root
    }

    /// The name by which the nodes of a job refer to one of its files.
    #[must_use]
    pub fn file_ref(&self, entry: &Entry<'static>) -> FileRef {
        FileRef::of(&self.segment, entry)
    }
}

/// A file with a copy that may leave its tier.
pub(crate) struct EvictionCandidate {
    pub(crate) key: u64,
    pub(crate) live: LiveSegment,
    pub(crate) entry: Entry<'static>,
    pub(crate) word: Word,
}

impl EvictionCandidate {
    /// The name of its copies.
    pub(crate) fn name(&self) -> CopyName {
        self.live.segment.copy_name(&self.entry)
    }
}

/// Splits the key of a file into segment number and entry id; `None` if it cannot be a key.
pub(crate) fn parts(key: u64) -> Option<(usize, u32)> {
    let number = usize::try_from(key >> 32).ok()?.checked_sub(1)?;
    Some((number, key as u32))
}

/// The segments that are served, by number.
pub(crate) struct Segments {
    slots: RwLock<Vec<Option<LiveSegment>>>,
}

impl Segments {
    pub(crate) fn new() -> Self {
        Self { slots: RwLock::default() }
    }

    /// All slots, locked for reading.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Vec<Option<LiveSegment>>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a segment under this number.
    pub(crate) fn set(&self, number: usize, live: LiveSegment) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.len() <= number {
            slots.resize(number + 1, None);
        }
        slots[number] = Some(live);
    }

    /// Stops serving the segment with this number.
    pub(crate) fn clear(&self, number: usize) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = slots.get_mut(number) {
            *live = None;
        }
    }

    /// Whether any segment has files that are served in chunks.
    pub(crate) fn any_large(&self) -> bool {
        self.read().iter().flatten().any(|live| live.segment.state.header.large > 0)
    }

    /// The segment with this number.
    #[must_use]
    pub(crate) fn segment(&self, number: usize) -> Option<LiveSegment> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).get(number)?.clone()
    }

    /// The segment and the entry of a key, if it is served.
    pub(crate) fn entry(&self, key: u64) -> Option<(LiveSegment, Entry<'static>)> {
        let (number, id) = parts(key)?;
        let live = self.segment(number)?;
        let entry = live.segment.by_id(id)?;
        Some((live, entry))
    }

    /// The file with this key, if it has a plain copy now.
    pub(crate) fn candidate(&self, key: u64) -> Option<EvictionCandidate> {
        let (live, entry) = self.entry(key)?;
        let word = entry.word();
        (word.state() == State::Resident).then_some(EvictionCandidate { key, live, entry, word })
    }

    /// The file with this key, if a compressed copy is the only one it has now.
    pub(crate) fn packed_candidate(&self, key: u64) -> Option<EvictionCandidate> {
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

    /// Whether a file has a copy, or may have a compressed one: the word does not show it while it
    /// is being decompressed.
    pub(crate) fn is_listed(&self, key: u64) -> bool {
        let state =
            |w: Word| matches!(w.state(), State::Requested | State::Fetching | State::Partial | State::Resident);
        self.entry(key).map(|(_, entry)| entry.word()).is_some_and(|w| state(w) || w.packed_in().is_some())
    }

    /// The segment and the id of a key that a job has named, if there is such an entry.
    pub(crate) fn named(&self, key: u64) -> Option<(LiveSegment, usize, u32)> {
        let (number, id) = parts(key)?;
        let live = self.segment(number)?;
        live.segment.index.record(id)?;
        Some((live, number, id))
    }

    /// Path of a file below its root.
    pub(crate) fn rel_of(&self, candidate: &EvictionCandidate) -> Vec<u8> {
        let mut path = [0u8; monarch_abi::PATH_MAX];
        let len = candidate.live.segment.index.path(candidate.entry.id, &mut path).unwrap_or(0);
        path.get(..len).unwrap_or_default().to_vec()
    }
}
