//! [`WorkQueue`]: which file is looked at next. Demands come first, in the order of the ring in
//! shared memory as far as it reaches, then prefetches.

use crate::snapshot::{Range, Tally};
use crate::sync::lock;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::{Segments, parts};
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::{SourceFacts, is_asked_for, trimmed};
use crate::tiering::queue::waker::Waker;
use crate::tiering::throttle::PrefetchThrottle;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Files that are queued for a retry; beyond that all segments are walked again.
const MAX_RETRIES: usize = 1 << 17;

/// How a file is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// As it turns out.
    Any,
    /// By itself: it did not come with others.
    Alone,
    /// From this peer, together with others; with its size in bytes.
    Batched(u16, u64),
}

/// A file to prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upcoming {
    pub(crate) key: u64,
    pub(crate) request: Request,
}

/// The queues, behind one lock. Fields: 14, one for each line, and how far each has got.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pub(crate) demands: VecDeque<u64>,
    /// Demands for files that come from peers.
    pub(crate) remote: VecDeque<u64>,
    /// A file that the other lane took for prefetch.
    pub(crate) handed_over: Option<Upcoming>,
    pub(crate) drained_at: Option<u32>,
    pub(crate) ring_tail: u64,
    pub(crate) retries: BTreeSet<u64>,
    /// The next files to prefetch, as far as they were looked at.
    pub(crate) upcoming: VecDeque<Upcoming>,
    /// Files that are under way together with others. (They are Absent until they have come.)
    pub(crate) together: HashSet<u64>,
    /// Ranges that a job or a user asked to prefetch, in the order asked.
    pub(crate) asked: VecDeque<Range>,
    /// Files that the last jobs opened first, those of peers included.
    pub(crate) first: VecDeque<u64>,
    /// By segment: the next id to be prefetched.
    pub(crate) cursors: Vec<u32>,
    /// By segment: whether it is prefetched at all.
    pub(crate) prefetched: Vec<bool>,
    /// The segment whose cursor moves.
    pub(crate) segment: usize,
    /// Whether files that are prefetched by evidence are to be looked at again.
    pub(crate) walks_again: bool,
}

impl Lines {
    /// Starts prefetch of a segment from its first id on, if it is to be prefetched.
    pub(crate) fn begin(&mut self, number: usize, prefetch: bool) {
        if self.cursors.len() <= number {
            self.cursors.resize(number + 1, u32::MAX);
            self.prefetched.resize(number + 1, false);
        }
        self.prefetched[number] = prefetch;
        self.cursors[number] = if prefetch { 0 } else { u32::MAX };
        self.segment = self.segment.min(number);
    }

    /// Queues files for a retry. Beyond [`MAX_RETRIES`] all segments are walked again instead.
    pub(crate) fn retry(&mut self, keys: impl IntoIterator<Item = u64>) {
        self.retries.extend(keys);
        if self.retries.len() > MAX_RETRIES {
            self.retries.clear();
            self.begin_all();
        }
    }

    /// Whether prefetch has work left; `entries` returns the number of entries of a segment.
    pub(crate) fn has_more(&self, entries: impl Fn(usize) -> u32) -> bool {
        let taken = self.handed_over.is_some() || !self.upcoming.is_empty();
        let listed = taken || !self.retries.is_empty() || !self.asked.is_empty() || !self.first.is_empty();
        listed || (self.segment..self.cursors.len()).any(|n| self.cursors[n] < entries(n))
    }

    /// Takes up to `files` of the upcoming files, of at most `bytes` in all, that can be requested
    /// from the peer `from` together with a file of the segment `number`.
    pub(crate) fn take_together(&mut self, number: usize, from: u16, files: usize, mut bytes: u64) -> Vec<u64> {
        let (Self { upcoming, together, .. }, mut taken) = (self, Vec::new());
        upcoming.retain(|next| {
            let Request::Batched(peer, size) = next.request else { return true };
            let is_near = peer == from && parts(next.key).is_some_and(|(of, _)| of == number);
            let fits = is_near && size <= bytes && taken.len() < files;
            // (It may have been listed twice.)
            if fits && together.insert(next.key) {
                bytes -= size;
                taken.push(next.key);
            }
            !fits
        });
        taken
    }

    /// Notes that files are no longer under way together. Those that did not come are looked at
    /// next, each by itself.
    pub(crate) fn end_together(&mut self, keys: &[u64], left: impl DoubleEndedIterator<Item = u64>) {
        self.together.retain(|key| !keys.contains(key));
        self.alone(left);
    }

    /// Takes the first upcoming file that comes from a peer.
    pub(crate) fn take_of_peer(&mut self) -> Option<Upcoming> {
        let at = self.upcoming.iter().position(|next| next.request != Request::Any)?;
        self.upcoming.remove(at)
    }

    fn alone(&mut self, keys: impl DoubleEndedIterator<Item = u64>) {
        keys.rev().for_each(|key| self.upcoming.push_front(Upcoming { key, request: Request::Alone }));
    }

    /// Number of demands from the PFS, of demands from peers, and of retries in the queues.
    pub(crate) fn in_line(&self) -> (usize, usize, usize) {
        (self.demands.len(), self.remote.len(), self.retries.len())
    }

    /// Walks all segments again that are prefetched; files that are not Absent are skipped.
    pub(crate) fn begin_all(&mut self) {
        for (cursor, _) in self.cursors.iter_mut().zip(&self.prefetched).filter(|(_, prefetched)| **prefetched) {
            *cursor = 0;
        }
        (self.segment, self.walks_again) = (0, true);
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
    pub(crate) fn new(shared: &Shared, throttle: &Arc<PrefetchThrottle>, waker: &Arc<Waker>) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            throttle: throttle.clone(),
            waker: waker.clone(),
            source_facts: shared.source_facts.clone(),
            lines: Mutex::default(),
            held_back: AtomicBool::new(false),
        }
    }

    /// Locks the queues.
    pub(crate) fn lines(&self) -> MutexGuard<'_, Lines> {
        lock(&self.lines)
    }

    /// Notes that prefetch waits for a tier or for the PFS.
    pub(crate) fn hold_back(&self) {
        self.held_back.store(true, Ordering::Relaxed);
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
    pub(crate) fn all_suspended(&self) -> bool {
        let rest = self.cx.tiers.iter().all(|t| t.space.suspended());
        if rest {
            self.held_back.store(true, Ordering::Relaxed);
        }
        rest
    }

    /// Whether no tier takes copies at present that no reader waits for.
    pub(crate) fn is_closed_to_prefetch(&self) -> bool {
        let closed = self.cx.tiers.iter().all(|t| t.space.closed_to_prefetch());
        if closed {
            self.held_back.store(true, Ordering::Relaxed);
        }
        closed
    }

    /// Resumes prefetch once a tier takes copies again, or the PFS is to be probed.
    pub(crate) fn resume_prefetch(&self) {
        let held = self.held_back.load(Ordering::Relaxed);
        if held && self.throttle.may_try() && !self.cx.tiers.iter().all(|t| t.space.closed_to_prefetch()) {
            self.held_back.store(false, Ordering::Relaxed);
            self.waker.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_prefetched_from_its_first_entry_if_at_all() {
        let mut lines = Lines::default();
        lines.begin(2, false);
        assert!(!lines.has_more(|_| 10), "no prefetch");
        lines.segment = 3;
        lines.begin(1, true);
        assert_eq!((lines.segment, &lines.cursors[..]), (1, &[u32::MAX, 0, u32::MAX][..]));
        assert!(lines.has_more(|_| 10));
        lines.cursors[1] = 10;
        assert!(!lines.has_more(|_| 10), "its end");
        lines.retry([7]);
        assert!(lines.has_more(|_| 10), "a retry");
    }

    #[test]
    fn files_of_one_peer_are_taken_together_and_the_others_keep_their_order() {
        let mut lines = Lines::default();
        let key = |segment, id| monarch_abi::demand::file_key(segment, id);
        let upcoming = [
            (key(1, 1), Request::Batched(7, 40)),
            (key(1, 2), Request::Batched(8, 40)),
            (key(1, 3), Request::Any),
            (key(2, 4), Request::Batched(7, 40)),
            (key(1, 5), Request::Batched(7, 70)),
            (key(1, 6), Request::Batched(7, 50)),
            (key(1, 7), Request::Batched(7, 10)),
            (key(1, 8), Request::Batched(7, 1)),
        ];
        lines.upcoming.extend(upcoming.map(|(key, request)| Upcoming { key, request }));
        assert!(lines.has_more(|_| 0));
        assert_eq!(lines.take_together(1, 7, 3, 100), [key(1, 1), key(1, 6), key(1, 7)]);
        let left = |lines: &Lines| lines.upcoming.iter().map(|next| next.key).collect::<Vec<_>>();
        assert_eq!(left(&lines), [key(1, 2), key(1, 3), key(2, 4), key(1, 5), key(1, 8)]);
        lines.upcoming.push_back(Upcoming { key: key(1, 6), request: Request::Batched(7, 50) });
        assert_eq!(lines.take_together(1, 7, 64, 300), [key(1, 5), key(1, 8)], "one is under way");
        let all = [1, 5, 6, 7, 8].map(|id| key(1, id));
        lines.end_together(&all, [key(1, 3), key(1, 6)].into_iter());
        assert!(lines.together.is_empty());
        assert_eq!(left(&lines), [key(1, 3), key(1, 6), key(1, 2), key(1, 3), key(2, 4)]);
        assert!(lines.take_together(1, 7, 64, 100).is_empty(), "none of those that did not come");
        lines.upcoming.push_front(Upcoming { key: key(1, 9), request: Request::Any });
        assert_eq!(lines.take_of_peer().map(|next| next.key), Some(key(1, 3)));
        assert!(lines.take_together(1, 9, 64, 100).is_empty());
    }

    #[test]
    fn too_many_retries_become_a_walk_over_all_segments() {
        let mut lines = Lines::default();
        lines.begin(0, true);
        (lines.segment, lines.cursors[0]) = (1, 10);
        lines.retry(0..MAX_RETRIES as u64);
        assert_eq!((lines.in_line(), lines.segment), ((0, 0, MAX_RETRIES), 1));
        lines.retry([u64::MAX]);
        assert_eq!((lines.in_line(), lines.segment, lines.cursors[0]), ((0, 0, 0), 0, 0));
    }
}
