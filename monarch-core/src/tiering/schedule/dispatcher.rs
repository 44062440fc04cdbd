//! [`Dispatcher`]: gives each worker its next file, chunk or copy to compress. Demands come first,
//! then compression, then prefetch, then decompression ahead.

use crate::sharing::MAX_BATCH_BYTES;
use crate::tiering::access::prefetch_evidence::PrefetchEvidence;
use crate::tiering::access::prefetch_order::PrefetchOrder;
use crate::tiering::compression::compressor::{Compressor, Waiting};
use crate::tiering::copy::chunk_copy_task::ChunkCopyTask;
use crate::tiering::copy::chunked_fetches::ChunkedFetches;
use crate::tiering::core::context::Context;
use crate::tiering::core::engine_trial::Kind;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::{Segments, parts};
use crate::tiering::core::source_facts::{SourceFacts, is_asked_for};
use crate::tiering::queue::engine_lane::EngineLanes;
use crate::tiering::queue::inflight_slots::{BatchPlace, InflightSlots, Job};
use crate::tiering::queue::waker::Waker;
use crate::tiering::queue::work_queue::{Lines, Request, Upcoming, WorkQueue};
use crate::tiering::residency::orphans::Orphans;
use crate::tiering::schedule::decompress_ahead::DecompressAhead;
use crate::tiering::schedule::lower_rooms::LowerRooms;
use crate::tiering::schedule::peer_batches::PeerBatch;
use crate::tiering::status::prefetch_status::PrefetchStatus;
use crate::tiering::throttle::PrefetchThrottle;
use monarch_abi::control::RING;
use monarch_abi::demand::file_key;
use monarch_abi::index::Record;
use monarch_abi::sys::futex_wake;
use monarch_policies::RequestSource;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The next work of a lane.
pub(crate) enum Next<'a> {
    /// A file to look at.
    File(Job<'a>),
    /// A chunk of a large file to fetch.
    Chunk(ChunkCopyTask<'a>),
    /// A copy to compress.
    Pack(Waiting),
    /// Small files to request from a peer together.
    Batch(PeerBatch<'a>),
}

/// Whether a file is fetched with others.
enum Batched<'a> {
    Alone,
    /// From that peer, in that order.
    Together(BatchPlace<'a>, u16, Vec<u64>),
}

/// Files that are looked at before their turn, at most, and in one go: the queues are locked
/// meanwhile.
const MAX_UPCOMING: usize = 512;
const MAX_LOOKED_AT: usize = 128;
/// Bytes of a file that is small: the bandwidth of the PFS is no bound on how many of these come at
/// a time, and copiers need little memory for them.
const MAX_SMALL_DEMAND_BYTES: u64 = 256 << 10;
/// Part of the space in all tiers that small files may have which are looked at before their turn.
const LOOK_AHEAD_SHARE: u64 = 8;

/// Gives out the next work of each worker.
///
/// Fields: 17, one per source of work or limit that it asks, and whether a worker waits.
pub(crate) struct Dispatcher {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    orphans: Arc<Mutex<Orphans>>,
    throttle: Arc<PrefetchThrottle>,
    waker: Arc<Waker>,
    source_facts: Arc<SourceFacts>,
    peers: Arc<PeerLink>,
    lanes: Arc<EngineLanes>,
    queue: Arc<WorkQueue>,
    order: Arc<PrefetchOrder>,
    evidence: Arc<PrefetchEvidence>,
    compressor: Arc<Compressor>,
    slots: Arc<InflightSlots>,
    fetches: Arc<ChunkedFetches>,
    prefetch_status: Arc<PrefetchStatus>,
    decompress_ahead: Arc<DecompressAhead>,
    one_waits: AtomicBool,
}

impl Dispatcher {
    pub(crate) fn new(of: &LowerRooms<'_>, decompress_ahead: &Arc<DecompressAhead>) -> Self {
        Self {
            cx: of.shared.cx.clone(),
            segments: of.shared.segments.clone(),
            orphans: of.residency.orphans.clone(),
            throttle: of.queue.throttle.clone(),
            waker: of.queue.waker.clone(),
            source_facts: of.shared.source_facts.clone(),
            peers: of.shared.peers.clone(),
            lanes: of.queue.lanes.clone(),
            queue: of.queue.work.clone(),
            order: of.access.order.clone(),
            evidence: of.access.evidence.clone(),
            compressor: of.compression.compressor.clone(),
            slots: of.queue.slots.clone(),
            fetches: of.fetching.fetches.clone(),
            prefetch_status: of.reports.prefetch.clone(),
            decompress_ahead: decompress_ahead.clone(),
            one_waits: AtomicBool::new(false),
        }
    }

    /// The next work in this lane.
    pub(crate) fn next_job(&self, lane: Lane) -> Option<Next<'_>> {
        let ctl = self.cx.ctl.ctl;
        let mut q = self.queue.lines();
        let word = ctl.demand.load(Ordering::SeqCst);
        if q.drained_at != Some(word) {
            q.drained_at = Some(word);
            self.drain(&mut q);
        }
        if let Some(demand) = self.next_demand(&mut q, lane) {
            return Some(demand);
        }
        if lane == Lane::Threads
            && self.cx.compresses
            && let Some(waiting) = self.compressor.next_copy()
        {
            return Some(Next::Pack(waiting));
        }
        let now = Instant::now();
        let slots = self.throttle.slots(now);
        if slots == 0 {
            self.queue.hold_back();
        }
        if self.throttle.prefetching() >= slots || self.queue.all_suspended() {
            return None;
        }
        if lane == Lane::Rings && !self.has_place(&q) {
            return None;
        }
        if let Some(chunk) = self.fetches.next_chunk(lane, false) {
            return Some(Next::Chunk(ChunkCopyTask::new(&self.fetches, chunk)));
        }
        // The next file waits, as it may be a large one.
        if self.fetches.enough_ahead() || self.compressor.is_saturated() {
            return None;
        }
        if !self.throttle.may_prefetch_beside() || self.queue.is_closed_to_prefetch() {
            return None;
        }
        let next = self.prefetch_in(&mut q, lane)?;
        let key = next.key;
        let batch = if lane == Lane::Threads { self.batch(&mut q, next)? } else { Batched::Alone };
        let mut job = Job::new(&self.slots, key, RequestSource::Prefetch, self.peers.comes_from_peer(key));
        job.in_ring = lane == Lane::Rings;
        // After a pause more copiers may sleep than should.
        let more = self.throttle.prefetching() < slots;
        if lane == Lane::Threads && more && ctl.sleepers.load(Ordering::SeqCst) > 0 {
            futex_wake(&ctl.demand, 1);
        }
        Some(match batch {
            Batched::Alone => Next::File(job),
            Batched::Together(place, from, keys) => Next::Batch(PeerBatch { slot: job, place, from, keys }),
        })
    }

    /// The files that are fetched together with a file; `None` if it waits for its turn.
    fn batch(&self, q: &mut Lines, next: Upcoming) -> Option<Batched<'_>> {
        let (key, most) = (next.key, self.peers.batch_files());
        if next.request == Request::Alone || most < 2 || self.throttle.is_under_memory_pressure() {
            return Some(Batched::Alone);
        }
        let Request::Batched(from, size) = self.request(key) else { return Some(Batched::Alone) };
        let Some(place) = self.slots.begin_batch() else {
            // A copier that is at a batch takes it next.
            q.upcoming.push_front(next);
            return None;
        };
        self.look_ahead(q);
        let number = parts(key).map_or(usize::MAX, |(number, _)| number);
        let mut keys = q.take_together(number, from, most - 1, MAX_BATCH_BYTES.saturating_sub(size));
        // Since they were looked at, readers may have asked for some, and nodes may have gone.
        let is_still = |key: &u64| matches!(self.request(*key), Request::Batched(peer, _) if peer == from);
        let others: Vec<u64> = keys.extract_if(.., |key| !is_still(key)).collect();
        q.end_together(&others, others.iter().copied());
        if keys.is_empty() {
            return Some(Batched::Alone);
        }
        q.together.insert(key);
        keys.insert(0, key);
        Some(Batched::Together(place, from, keys))
    }

    /// How a file can be requested.
    fn request(&self, key: u64) -> Request {
        self.peers.batched(key).map_or(Request::Any, |(from, size)| Request::Batched(from, size))
    }

    /// Looks at the files that are prefetched next, to find some that come from the same peer. They
    /// are bounded by the space there is, as a known order is followed only as far.
    fn look_ahead(&self, q: &mut Lines) {
        let room = self.order.room() / LOOK_AHEAD_SHARE;
        let size = |request: Request| if let Request::Batched(_, size) = request { size } else { 0 };
        let mut bytes: u64 = q.upcoming.iter().map(|next| size(next.request)).sum();
        for _ in 0..MAX_LOOKED_AT {
            if q.upcoming.len() >= MAX_UPCOMING || bytes >= room {
                return;
            }
            let Some(key) = self.next_apart(q) else { return };
            let request = self.request(key);
            bytes += size(request);
            q.upcoming.push_back(Upcoming { key, request });
        }
    }

    /// A compressed copy to decompress, when there is no other work. One at a time: readers must
    /// find the other copiers free.
    pub(crate) fn next_ahead(&self, lane: Lane) -> Option<Next<'_>> {
        if lane == Lane::Rings || !self.cx.compresses || self.slots.begin_decoding() {
            return None;
        }
        let job = self.decompress_ahead.next_decoding();
        if job.is_none() {
            self.slots.end_decoding();
        }
        job.map(Next::File)
    }

    /// Whether a ring may start one more file: queued demands go first. If not, it is woken when a
    /// slot is free.
    fn has_place(&self, q: &Lines) -> bool {
        self.slots.rings_wait(true);
        let free = self.throttle.has_slot_beside(q.demands.len());
        if free {
            self.slots.rings_wait(false);
        }
        free
    }

    /// The next demand: a chunk, or a file, which only copiers take.
    fn next_demand(&self, q: &mut Lines, lane: Lane) -> Option<Next<'_>> {
        // There may be more copiers than slots.
        let has_any = || {
            self.throttle.has_slot_for_small_demand() || self.throttle.has_slot(false) || self.throttle.has_slot(true)
        };
        if lane == Lane::Threads && !has_any() {
            return None;
        }
        if let Some(chunk) = self.fetches.next_chunk(lane, true) {
            return Some(Next::Chunk(ChunkCopyTask::new(&self.fetches, chunk)));
        }
        if lane == Lane::Rings {
            return None;
        }
        let next = |remote: bool, line: &mut VecDeque<u64>| {
            let has_slot = |key: u64| {
                let is_small_demand = || !remote && self.throttle.has_slot_for_small_demand() && self.is_small(key);
                self.throttle.has_slot(remote) || is_small_demand()
            };
            Some((line.pop_front_if(|key| has_slot(*key))?, remote))
        };
        let (key, remote) = next(false, &mut q.demands).or_else(|| next(true, &mut q.remote))?;
        if !q.demands.is_empty() || !q.remote.is_empty() {
            futex_wake(&self.cx.ctl.ctl.demand, 1);
        }
        // (For readers in line behind it.)
        self.cx.ctl.ctl.taken.fetch_add(1, Ordering::Relaxed);
        Some(Next::File(Job::new(&self.slots, key, RequestSource::Demand, remote)))
    }

    /// Whether a file is one of those of which many are copied at a time for readers.
    fn is_small(&self, key: u64) -> bool {
        let size = |(number, id): (usize, u32)| Some(self.segments.segment(number)?.segment.index.record(id)?.size);
        parts(key).and_then(size).is_some_and(|size| size <= MAX_SMALL_DEMAND_BYTES)
    }

    /// Hands the chunks of a demand to their fetch, or queues the file.
    fn take_demand(&self, q: &mut Lines, key: u64) {
        self.evidence.demanded(key);
        if self.fetches.drain_chunk_requests(key) {
            return;
        }
        let line = if self.peers.comes_from_peer(key) { &mut q.remote } else { &mut q.demands };
        line.push_back(key);
    }

    /// The next file to prefetch, if it is one for this lane; otherwise hands it to the other lane.
    fn prefetch_in(&self, q: &mut Lines, lane: Lane) -> Option<Upcoming> {
        let next = match q.handed_over.take() {
            Some(next) => next,
            None => self.next_prefetch(q)?,
        };
        let its = self.lane(next.key);
        if its == lane {
            return Some(next);
        }
        q.handed_over = Some(next);
        self.waker.wake(its);
        // Files of peers do not wait for those of the PFS.
        if lane == Lane::Threads { q.take_of_peer() } else { None }
    }

    /// Takes all demands from shared memory.
    fn drain(&self, q: &mut Lines) {
        let ctl = self.cx.ctl.ctl;
        let head = ctl.ring_head.load(Ordering::Acquire);
        let tail = q.ring_tail.max(head.saturating_sub(RING as u64));
        // A demand is in the ring and sets a bit as well, for when the ring overflows.
        let mut seen = HashSet::new();
        for at in tail..head {
            let key = ctl.ring.get(at as usize % RING).map_or(0, |r| r.swap(0, Ordering::AcqRel));
            if key != 0 && seen.insert(key) {
                self.take_demand(q, key);
            }
        }
        q.ring_tail = head;
        for (number, live) in self.segments.served() {
            live.segment.state.drain(|id| {
                let key = file_key(number, id);
                if !seen.contains(&key) {
                    self.take_demand(q, key);
                }
            });
        }
    }

    /// The next file to prefetch.
    fn next_prefetch(&self, q: &mut Lines) -> Option<Upcoming> {
        let listed = |q: &mut Lines| Some(Upcoming { key: self.next_apart(q)?, request: Request::Any });
        q.upcoming.pop_front().or_else(|| listed(q))
    }

    /// The next file that is not under way together with others.
    fn next_apart(&self, q: &mut Lines) -> Option<u64> {
        loop {
            let key = self.next_listed(q)?;
            if !q.together.contains(&key) {
                return Some(key);
            }
        }
    }

    /// The next file to retry, or that was not looked at yet, in the order of the index. A probe of
    /// a failing PFS should not be a file that has failed before.
    fn next_listed(&self, q: &mut Lines) -> Option<u64> {
        if !self.throttle.only_probes()
            && let Some(key) = q.retries.pop_first()
        {
            return Some(key);
        }
        let segs = self.segments.read();
        while let Some(r) = q.asked.front_mut() {
            let (number, live) = (r.segment, segs.get(r.segment).and_then(Option::as_ref));
            let end = live.map_or(0, |l| r.end.min(l.segment.index.len() as u32));
            let record = |id: u32| live.and_then(|l| l.segment.index.record(id));
            let released = self.source_facts.released(number);
            // Files that peers own are prefetched by those peers.
            let is_ours = |id: u32| live.is_some_and(|live| self.peers.is_for_us(live, id));
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
            && let Some(key) = q.first.pop_front()
        {
            return Some(key);
        }
        if !self.throttle.only_probes()
            && let Some(key) = self.order.next_in_order()
        {
            return Some(key);
        }
        if std::mem::take(&mut q.walks_again) {
            self.evidence.rewind();
        }
        if let Some(key) = self.evidence.next() {
            return Some(key);
        }
        let segs = self.segments.read();
        while q.segment < q.cursors.len() {
            let number = q.segment;
            if let Some(live) = segs.get(number).and_then(Option::as_ref) {
                let n = live.segment.index.len() as u32;
                let released = self.source_facts.released(number);
                let software = self.source_facts.software(number);
                let is_wanted = |r: &Record| r.is_file() && !released.holds(r);
                while q.cursors[number] < n {
                    let id = q.cursors[number];
                    q.cursors[number] += 1;
                    let is_wanted = live.segment.index.record(id).is_some_and(is_wanted) && !software.holds(id);
                    if is_wanted && self.peers.is_for_us(live, id) {
                        return Some(file_key(number, id));
                    }
                }
            }
            q.segment += 1;
        }
        q.retries.pop_first()
    }

    /// Calls `sleep` with the longest time that a worker without work, looking since `since`, may
    /// sleep: until the reserve for readers runs out and prefetch may run. Only one worker gets a
    /// time, the others get `None`.
    pub(crate) fn patiently<T>(&self, since: Instant, sleep: impl FnOnce(Option<Duration>) -> T) -> T {
        let waits = self.prefetch_status.some_ahead();
        let until = if waits { self.throttle.more_slots_in(since) } else { None };
        let until = until.filter(|_| !self.one_waits.swap(true, Ordering::AcqRel));
        let slept = sleep(until);
        if until.is_some() {
            self.one_waits.store(false, Ordering::Release);
        }
        slept
    }

    /// The lane of a file that is prefetched.
    pub(crate) fn lane(&self, key: u64) -> Lane {
        if self.peers.comes_from_peer(key) {
            return Lane::Threads;
        }
        // Verifying a copy reads it in full: a ring would leave all its other files waiting, so a
        // copier does it. (Nor does the queue wait for a root whose copies are being claimed.)
        if self.lanes.engines.uring.is_none() || self.orphans.try_lock().map_or(true, |u| u.has_to_verify()) {
            return Lane::Threads;
        }
        parts(key)
            .and_then(|(number, _)| self.segments.segment(number))
            .map_or(Lane::Threads, |live| self.lanes.lane_of(&live, Kind::Files))
    }
}
