//! [`WorkQueue`]: which file is looked at next. Demands come first, in the order of the ring in
//! shared memory as far as it reaches, then prefetches.

use crate::snapshot::{Range, Tally};
use crate::sync::lock;
use crate::tier::TierDir;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::source_facts::{SourceFacts, is_asked_for, trimmed};
use crate::tiering::queue::waker::Waker;
use crate::tiering::throttle::PrefetchThrottle;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Files that are queued for a retry; beyond that all segments are walked again.
const RETRIES: usize = 1 << 17;

/// The queues, behind one lock.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pub(crate) demands: VecDeque<u64>,
    /// Demands for files that come from peers.
    pub(crate) remote: VecDeque<u64>,
    /// A file that the other lane took for prefetch.
    pub(crate) handed_over: Option<u64>,
    pub(crate) drained_at: Option<u32>,
    pub(crate) ring_tail: u64,
    pub(crate) retries: BTreeSet<u64>,
    /// Ranges that a job or a user asked to prefetch, in the order asked.
    pub(crate) asked: VecDeque<Range>,
    /// By segment: the next id to be prefetched.
    pub(crate) cursors: Vec<u32>,
    /// The segment whose cursor moves.
    pub(crate) segment: usize,
}

impl Lines {
    /// Starts prefetch of a segment from its first id on, if it is to be prefetched.
    pub(crate) fn begin(&mut self, number: usize, prefetch: bool) {
        if self.cursors.len() <= number {
            self.cursors.resize(number + 1, u32::MAX);
        }
        self.cursors[number] = if prefetch { 0 } else { u32::MAX };
        self.segment = self.segment.min(number);
    }

    /// Queues files for a retry. Beyond [`RETRIES`] all segments are walked again instead.
    pub(crate) fn retry(&mut self, keys: impl IntoIterator<Item = u64>) {
        self.retries.extend(keys);
        if self.retries.len() > RETRIES {
            self.retries.clear();
            self.begin_all();
        }
    }

    /// Whether prefetch has work left; `entries` returns the number of entries of a segment.
    pub(crate) fn has_more(&self, entries: impl Fn(usize) -> u32) -> bool {
        let listed = self.handed_over.is_some() || !self.retries.is_empty() || !self.asked.is_empty();
        listed || (self.segment..self.cursors.len()).any(|n| self.cursors[n] < entries(n))
    }

    /// Number of demands from the PFS, of demands from peers, and of retries in the queues.
    pub(crate) fn in_line(&self) -> (usize, usize, usize) {
        (self.demands.len(), self.remote.len(), self.retries.len())
    }

    /// Walks all segments again; files that are not Absent are skipped.
    pub(crate) fn begin_all(&mut self) {
        self.cursors.fill(0);
        self.segment = 0;
    }
}

/// What waits to be copied, in the order in which it is looked at.
pub(crate) struct WorkQueue {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    throttle: Arc<PrefetchThrottle>,
    waker: Arc<Waker>,
    source_facts: Arc<SourceFacts>,
    lines: Mutex<Lines>,
    held_back: AtomicBool,
}

impl WorkQueue {
    /// Locks the queues.
    pub(crate) fn lines(&self) -> MutexGuard<'_, Lines> {
        lock(&self.lines)
    }

    /// Notes that prefetch waits for a tier or for the PFS.
    pub(crate) fn hold_back(&self) {
        self.held_back.store(true, Ordering::Relaxed);
    }

    pub(crate) fn new(
        cx: &Arc<Context>,
        segments: &Arc<Segments>,
        throttle: &Arc<PrefetchThrottle>,
        waker: &Arc<Waker>,
        source_facts: &Arc<SourceFacts>,
    ) -> Self {
        Self {
            cx: cx.clone(),
            segments: segments.clone(),
            throttle: throttle.clone(),
            waker: waker.clone(),
            source_facts: source_facts.clone(),
            lines: Mutex::default(),
            held_back: AtomicBool::new(false),
        }
    }

    /// Prefetches the files in these ranges before all others. Returns how many there are. Files
    /// with a copy, and files on tape that were not named themselves, are skipped when their turn
    /// comes.
    pub(crate) fn prefetch_ranges(&self, ranges: &[Range]) -> Tally {
        let mut tally = Tally::default();
        for r in ranges {
            let Some(live) = self.segments.segment(r.segment) else { continue };
            let released = self.source_facts.released(r.segment);
            let r = trimmed(*r, &live.segment, &released);
            let records = (r.from..r.end).filter_map(|id| Some((id, live.segment.index.record(id)?)));
            let files = records.filter(|(id, record)| is_asked_for(&r, *id, record, &released));
            files.for_each(|(_, file)| tally.add(file.size));
            lock(&self.lines).asked.push_back(r);
        }
        self.waker.wake_all();
        tally
    }

    /// Whether no tier takes copies at present: then nothing is prefetched.
    pub(crate) fn all_rest(&self) -> bool {
        let rest = self.cx.tiers.iter().all(TierDir::suspended);
        if rest {
            self.held_back.store(true, Ordering::Relaxed);
        }
        rest
    }

    /// Resumes prefetch once a tier takes copies again, or the PFS is to be probed.
    pub(crate) fn wake_after_rest(&self) {
        let held = self.held_back.load(Ordering::Relaxed);
        if held && self.throttle.may_try() && !self.cx.tiers.iter().all(TierDir::suspended) {
            self.held_back.store(false, Ordering::Relaxed);
            self.waker.wake_all();
        }
    }
}
