//! Which file is looked at next: demands first, in the order of the ring as far as it reaches, then
//! prefetches.

use super::chunk_copy_task::ChunkCopyTask;
use super::compressor::Waiting;
use super::engine_lane::Lane;
use super::source_facts::{is_asked_for, trimmed};
use super::{Job, TieringEngine};
use crate::agent::protocol::{Range, Tally};
use crate::sync::lock;
use crate::tier::TierDir;
use monarch_abi::control::RING;
use monarch_abi::demand::file_key;
use monarch_abi::index::Record;
use monarch_abi::sys::futex_wake;
use monarch_policies::RequestSource;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Most files that are listed for a second try.
const RETRIES: usize = 1 << 17;

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct WorkQueue {
    demands: VecDeque<u64>,
    /// Those of files that come from other nodes.
    remote: VecDeque<u64>,
    /// A file that was taken for prefetching by the other lane.
    handed_over: Option<u64>,
    drained_at: Option<u32>,
    ring_tail: u64,
    retries: BTreeSet<u64>,
    /// What somebody asked to have prefetched, in the order asked.
    asked: VecDeque<Range>,
    /// Per segment, the next id to be prefetched.
    cursors: Vec<u32>,
    /// Segment in which the cursor moves.
    segment: usize,
}

impl WorkQueue {
    /// A segment is there; it is prefetched from its first id on, if at all.
    pub(super) fn begin(&mut self, number: usize, prefetch: bool) {
        if self.cursors.len() <= number {
            self.cursors.resize(number + 1, u32::MAX);
        }
        self.cursors[number] = if prefetch { 0 } else { u32::MAX };
        self.segment = self.segment.min(number);
    }

    /// Prefetches files again that were tried before. Very many are found by going over everything
    /// again.
    pub(super) fn retry(&mut self, keys: impl IntoIterator<Item = u64>) {
        self.retries.extend(keys);
        if self.retries.len() > RETRIES {
            self.retries.clear();
            self.begin_all();
        }
    }

    /// Whether something is left to be fetched ahead, where a segment has so many entries.
    pub(super) fn has_more(&self, entries: impl Fn(usize) -> u32) -> bool {
        let listed = self.handed_over.is_some() || !self.retries.is_empty() || !self.asked.is_empty();
        listed || (self.segment..self.cursors.len()).any(|n| self.cursors[n] < entries(n))
    }

    /// Demands, those of them for other nodes, files to be tried again.
    pub(super) fn in_line(&self) -> (usize, usize, usize) {
        (self.demands.len(), self.remote.len(), self.retries.len())
    }

    /// Goes over all segments again; what is not Absent is passed over.
    pub(super) fn begin_all(&mut self) {
        self.cursors.fill(0);
        self.segment = 0;
    }
}

/// What a lane does next.
pub(super) enum Next<'a> {
    /// Looks at a file.
    File(Job<'a>),
    /// Fetches a chunk of a large one.
    Chunk(ChunkCopyTask<'a>),
    /// Compresses a copy.
    Pack(Waiting),
}

impl TieringEngine {
    /// What is to be done next in this lane.
    pub(super) fn next_job(&self, lane: Lane) -> Option<Next<'_>> {
        let ctl = self.ctl.ctl;
        let mut q = lock(&self.work_queue);
        let word = ctl.demand.load(Ordering::SeqCst);
        if q.drained_at != Some(word) {
            q.drained_at = Some(word);
            self.drain(&mut q);
        }
        if let Some(demand) = self.next_demand(&mut q, lane) {
            return Some(demand);
        }
        if lane == Lane::Threads
            && self.compresses
            && let Some(waiting) = self.next_pack()
        {
            return Some(Next::Pack(waiting));
        }
        let now = Instant::now();
        let slots = self.throttle.slots(now);
        if slots == 0 {
            self.held_back.store(true, Ordering::Relaxed);
        }
        if self.throttle.prefetching() >= slots || self.all_rest() {
            return None;
        }
        if lane == Lane::Rings && !self.has_place(&q) {
            return None;
        }
        if let Some(piece) = self.next_piece(lane, false) {
            return Some(Next::Chunk(piece));
        }
        // The next file waits for its turn, as it may be a large one.
        if self.enough_ahead() || self.packs_enough() {
            return None;
        }
        let key = self.prefetch_in(&mut q, lane)?;
        let mut job = Job::new(self, key, RequestSource::Prefetch, self.comes_from_peer(key));
        job.in_ring = lane == Lane::Rings;
        // After a pause more copiers may sleep than should.
        let more = self.throttle.prefetching() < slots;
        if lane == Lane::Threads && more && ctl.sleepers.load(Ordering::SeqCst) > 0 {
            futex_wake(&ctl.demand, 1);
        }
        Some(Next::File(job))
    }

    /// A packed copy to be decoded, when there is nothing else to do. One at a time: readers are to
    /// find the others free.
    pub(super) fn next_ahead(&self, lane: Lane) -> Option<Next<'_>> {
        if lane == Lane::Rings || !self.compresses || self.decoding.swap(true, Ordering::AcqRel) {
            return None;
        }
        let job = self.next_decoding();
        if job.is_none() {
            self.decoding.store(false, Ordering::Release);
        }
        job.map(Next::File)
    }

    /// Whether a ring may begin one more file: demands that are in line go first. If not, it will
    /// be told.
    fn has_place(&self, q: &WorkQueue) -> bool {
        self.rings_wait.store(true, Ordering::SeqCst);
        let free = self.throttle.has_slot_beside(q.demands.len());
        if free {
            self.rings_wait.store(false, Ordering::SeqCst);
        }
        free
    }

    /// The next demand: a chunk, or a file, which copiers take.
    fn next_demand(&self, q: &mut WorkQueue, lane: Lane) -> Option<Next<'_>> {
        // There may be more copiers than files that may be under way.
        if lane == Lane::Threads && !self.throttle.has_slot(false) && !self.throttle.has_slot(true) {
            return None;
        }
        if let Some(piece) = self.next_piece(lane, true) {
            return Some(Next::Chunk(piece));
        }
        if lane == Lane::Rings {
            return None;
        }
        let next = |remote: bool, line: &mut VecDeque<u64>| {
            let key = if self.throttle.has_slot(remote) { line.pop_front()? } else { return None };
            Some((key, remote))
        };
        let (key, remote) = next(false, &mut q.demands).or_else(|| next(true, &mut q.remote))?;
        if !q.demands.is_empty() || !q.remote.is_empty() {
            futex_wake(&self.ctl.ctl.demand, 1);
        }
        Some(Next::File(Job::new(self, key, RequestSource::Demand, remote)))
    }

    /// Puts a demand in line.
    fn line_up_demand(&self, q: &mut WorkQueue, key: u64) {
        let line = if self.comes_from_peer(key) { &mut q.remote } else { &mut q.demands };
        line.push_back(key);
    }

    /// The next file to be prefetched, if it is one for this lane; otherwise the other one is told.
    fn prefetch_in(&self, q: &mut WorkQueue, lane: Lane) -> Option<u64> {
        let key = match q.handed_over.take() {
            Some(key) => key,
            None => self.next_prefetch(q)?,
        };
        let its = self.lane(key);
        if its == lane {
            return Some(key);
        }
        q.handed_over = Some(key);
        self.wake(its);
        None
    }

    /// Has the files in these ranges prefetched before all others; how many there are. Those with a
    /// copy are passed over then, and those on tape that were not named themselves.
    pub fn prefetch_ranges(&self, ranges: &[Range]) -> Tally {
        let mut tally = Tally::default();
        for r in ranges {
            let Some(live) = self.segment(r.segment) else { continue };
            let released = self.released(r.segment);
            let r = trimmed(*r, &live.segment, &released);
            let records = (r.from..r.end).filter_map(|id| Some((id, live.segment.index.record(id)?)));
            let files = records.filter(|(id, record)| is_asked_for(&r, *id, record, &released));
            files.for_each(|(_, file)| tally.add(file.size));
            lock(&self.work_queue).asked.push_back(r);
        }
        self.wake_all();
        tally
    }

    /// Whether no tier takes copies at present: then nothing is prefetched.
    pub(super) fn all_rest(&self) -> bool {
        let rest = self.tiers.iter().all(TierDir::suspended);
        if rest {
            self.held_back.store(true, Ordering::Relaxed);
        }
        rest
    }

    /// Goes on with prefetching once a tier takes copies again, or the PFS is to be probed.
    pub fn wake_after_rest(&self) {
        let held = self.held_back.load(Ordering::Relaxed);
        if held && self.throttle.may_try() && !self.tiers.iter().all(TierDir::suspended) {
            self.held_back.store(false, Ordering::Relaxed);
            self.wake_all();
        }
    }

    /// How long one of those who found nothing to do, looking since then, sleeps at most: until
    /// readers have not asked again for so long that files are fetched ahead. `sleep` gets it,
    /// or `None`.
    pub(super) fn patiently(&self, since: Instant, sleep: impl FnOnce(Option<Duration>)) {
        let waits = self.some_ahead.load(Ordering::Relaxed);
        let until = if waits { self.throttle.more_slots_in(since) } else { None };
        let until = until.filter(|_| !self.one_waits.swap(true, Ordering::AcqRel));
        sleep(until);
        if until.is_some() {
            self.one_waits.store(false, Ordering::Release);
        }
    }

    /// Takes note of a file, or a chunk of one, that came from the PFS.
    pub(super) fn note_copy(&self, bytes: u64, took: Duration) {
        if self.throttle.note_copy(bytes, took) {
            // Copiers send for more themselves.
            self.wake(Lane::Rings);
        }
    }

    /// Takes over all demands.
    fn drain(&self, q: &mut WorkQueue) {
        let ctl = self.ctl.ctl;
        let head = ctl.ring_head.load(Ordering::Acquire);
        let tail = q.ring_tail.max(head.saturating_sub(RING as u64));
        // A demand is in the ring and leaves a bit as well, for when the ring runs over.
        let mut seen = HashSet::new();
        for at in tail..head {
            let key = ctl.ring.get(at as usize % RING).map_or(0, |r| r.swap(0, Ordering::AcqRel));
            if key != 0 && seen.insert(key) && !self.drain_chunk_requests(key) {
                self.line_up_demand(q, key);
            }
        }
        q.ring_tail = head;
        for (number, live) in self.served() {
            live.segment.state.drain(|id| {
                let key = file_key(number, id);
                if !seen.contains(&key) && !self.drain_chunk_requests(key) {
                    self.line_up_demand(q, key);
                }
            });
        }
    }

    /// The next file that is worth a second try, or that nobody has looked at, in the order of the
    /// index. A probe of a failing PFS had better not be a file that has failed before.
    fn next_prefetch(&self, q: &mut WorkQueue) -> Option<u64> {
        if !self.throttle.only_probes()
            && let Some(key) = q.retries.pop_first()
        {
            return Some(key);
        }
        let segs = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        while let Some(r) = q.asked.front_mut() {
            let (number, live) = (r.segment, segs.get(r.segment).and_then(Option::as_ref));
            let end = live.map_or(0, |l| r.end.min(l.segment.index.len() as u32));
            let record = |id: u32| live.and_then(|l| l.segment.index.record(id));
            let released = self.released(number);
            // What others own they are asked for by those who stage there.
            let is_ours = |id: u32| live.is_some_and(|live| self.is_for_us(live, id));
            let is_asked =
                |id: u32| record(id).is_some_and(|record| is_asked_for(r, id, record, &released)) && is_ours(id);
            match (r.from..end).find(|&id| is_asked(id)) {
                Some(id) => {
                    r.from = id + 1;
                    return Some(file_key(number, id));
                }
                None => drop(q.asked.pop_front()),
            }
        }
        drop(segs);
        if !self.throttle.only_probes()
            && let Some(key) = self.next_in_order()
        {
            return Some(key);
        }
        let segs = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        while q.segment < q.cursors.len() {
            let number = q.segment;
            if let Some(live) = segs.get(number).and_then(Option::as_ref) {
                let n = live.segment.index.len() as u32;
                let released = self.released(number);
                let is_wanted = |r: &Record| r.is_file() && !released.holds(r);
                while q.cursors[number] < n {
                    let id = q.cursors[number];
                    q.cursors[number] += 1;
                    if live.segment.index.record(id).is_some_and(is_wanted) && self.is_for_us(live, id) {
                        return Some(file_key(number, id));
                    }
                }
            }
            q.segment += 1;
        }
        q.retries.pop_first()
    }
}
