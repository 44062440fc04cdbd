//! [`PrefetchEvidence`]: what the jobs have opened of each root that is prefetched by evidence, and
//! the next file that this speaks for.
//!
//! A demand counts when the dispatcher takes it, a hit when the access tracker does; an open that
//! both see counts once. The order of reading follows from the tracker, which sees all opens.

use crate::sync::lock;
use crate::tiering::access::read_pattern::{Prior, ReadPattern};
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::{LiveSegment, Segments, parts};
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::SourceFacts;
use monarch_abi::demand::file_key;
use monarch_abi::index::Index;
use monarch_abi::word::State;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Patterns of reading, by the number of the segment.
pub(crate) struct PrefetchEvidence {
    segments: Arc<Segments>,
    source_facts: Arc<SourceFacts>,
    peers: Arc<PeerLink>,
    patterns: Mutex<BTreeMap<usize, ReadPattern>>,
}

impl PrefetchEvidence {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self {
            segments: shared.segments.clone(),
            source_facts: shared.source_facts.clone(),
            peers: shared.peers.clone(),
            patterns: Mutex::default(),
        }
    }

    /// Prefetches a segment by evidence from now on, or counts opens only.
    pub(crate) fn begin(&self, number: usize, live: &LiveSegment, prior: Prior) {
        lock(&self.patterns).insert(number, ReadPattern::new(live.segment.index.len(), prior));
    }

    /// Forgets a segment.
    pub(crate) fn forget(&self, number: usize) {
        lock(&self.patterns).remove(&number);
    }

    /// Notes a demand.
    pub(crate) fn demanded(&self, key: u64) {
        self.note(key, ReadPattern::demanded);
    }

    /// Notes an open, in the order of the job.
    pub(crate) fn opened(&self, key: u64) {
        self.note(key, ReadPattern::opened);
    }

    /// Notes the use of a file. Software is no evidence for data.
    fn note(&self, key: u64, note: impl FnOnce(&mut ReadPattern, &Index<'_>, u32)) {
        let Some((number, id)) = parts(key) else { return };
        let mut patterns = lock(&self.patterns);
        let Some(pattern) = patterns.get_mut(&number) else { return };
        let Some(live) = self.segments.segment(number) else { return };
        if !self.source_facts.software(number).holds(id) {
            note(pattern, &live.segment.index, id);
        }
    }

    /// The next file to prefetch.
    pub(crate) fn next(&self) -> Option<u64> {
        for (&number, pattern) in lock(&self.patterns).iter_mut().filter(|(_, pattern)| pattern.has_more()) {
            let Some(live) = self.segments.segment(number) else { continue };
            let released = self.source_facts.released(number);
            let software = self.source_facts.software(number);
            let is_absent = |id: u32| live.segment.by_id(id).is_some_and(|e| e.word().state() == State::Absent);
            let id = pattern.next(&live.segment.index, |id, record| {
                !released.holds(record) && !software.holds(id) && is_absent(id) && self.peers.is_for_us(&live, id)
            });
            if let Some(id) = id {
                return Some(file_key(number, id));
            }
        }
        None
    }

    /// Number of files of data that were opened, each once; `None` if it is not counted.
    pub(crate) fn opened_files(&self, number: usize) -> Option<u64> {
        lock(&self.patterns).get(&number).map(ReadPattern::files)
    }

    /// Whether the opens so far may speak for a further file.
    pub(crate) fn has_more(&self) -> bool {
        lock(&self.patterns).values().any(ReadPattern::has_more)
    }

    /// Looks at all files again: copies of some were dropped or refused.
    pub(crate) fn rewind(&self) {
        for (&number, pattern) in lock(&self.patterns).iter_mut() {
            if let Some(live) = self.segments.segment(number) {
                pattern.rewind(&live.segment.index);
            }
        }
    }
}
