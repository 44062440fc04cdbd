//! [`PrefetchThrottle`]: how many copies may run at a time, and how many of them for prefetch.
//!
//! Owns the counts of files and chunks in flight, and five judgements, four of them about the PFS:
//!
//! | module | what it judges |
//! |---|---|
//! | [`concurrency_limit`] | how many copies it takes to use what the PFS gives |
//! | [`demand_reserve`] | how many of these demands take, and will take again at once |
//! | [`latency_throttle`] | the divisor of prefetch while the PFS answers slowly |
//! | [`circuit_breaker`] | whether anything is prefetched while the PFS fails |
//! | [`memory_pressure`] | whether the job waits for memory that prefetch takes |
//!
//! Invariant: demands are held back only by the bounds of the configuration.

use crate::engine::slots_ahead;
use circuit_breaker::CircuitBreaker;
use concurrency_limit::ConcurrencyLimit;
use demand_reserve::DemandReserve;
use latency_throttle::LatencyThrottle;
use memory_pressure::MemoryPressure;
use monarch_policies::RequestSource;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

mod circuit_breaker;
mod concurrency_limit;
mod demand_reserve;
mod latency_throttle;
mod memory_pressure;

/// Lower bound on the slots that are divided while the PFS is slow: with fewer than this many slots
/// the limit itself is the bound.
const MIN_DIVIDED_SLOTS: usize = 16;

/// Bounds that the configuration sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Files and chunks in flight from the PFS.
    pub(crate) pfs: usize,
    /// The same while readers wait for small files; at least as many.
    pub(crate) demands: usize,
    /// Files and chunks in flight from peers; 0 without peers.
    pub(crate) remote: usize,
    /// Whether rings copy from the PFS beside the copiers.
    pub(crate) has_rings: bool,
    /// Whether prefetch slows down when the PFS does.
    pub(crate) backs_off: bool,
    /// Share of the time in which a task of the job waits for memory, above which prefetch is
    /// narrowed.
    pub(crate) memory_pressure: Option<f64>,
}

/// Counts what is in flight, and decides how many copies prefetch may run.
///
/// Methods: 31, most of them one question to one of the judgements.
#[derive(Debug)]
pub(crate) struct PrefetchThrottle {
    bounds: Bounds,
    /// Files and chunks in flight from the PFS, or from compressed copies.
    running: AtomicUsize,
    /// Those of `running` that a reader waits for.
    demanded: AtomicUsize,
    /// Files and chunks in flight from peers.
    remote: AtomicUsize,
    /// Files and chunks in flight from any source that no reader waits for.
    prefetching: AtomicUsize,
    latency_throttle: LatencyThrottle,
    demand_reserve: DemandReserve,
    concurrency_limit: ConcurrencyLimit,
    circuit_breaker: CircuitBreaker,
    memory_pressure: MemoryPressure,
}

impl PrefetchThrottle {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            running: AtomicUsize::new(0),
            demanded: AtomicUsize::new(0),
            remote: AtomicUsize::new(0),
            prefetching: AtomicUsize::new(0),
            latency_throttle: LatencyThrottle::default(),
            demand_reserve: DemandReserve::default(),
            concurrency_limit: ConcurrencyLimit::new(slots_ahead(bounds.pfs), bounds.remote > 0),
            circuit_breaker: CircuitBreaker::default(),
            memory_pressure: MemoryPressure::new(bounds.memory_pressure),
        }
    }

    /// Counts a file or a chunk until its slot is given back. The caller keeps the bounds.
    pub(crate) fn take(&self, source: RequestSource, remote: bool) -> Slot<'_> {
        self.under_way(remote).fetch_add(1, Ordering::AcqRel);
        let counted = match source {
            RequestSource::Prefetch => Some(&self.prefetching),
            RequestSource::Demand if remote => None,
            RequestSource::Demand => Some(&self.demanded),
        };
        if let Some(count) = counted {
            count.fetch_add(1, Ordering::AcqRel);
        }
        Slot { throttle: self, source, remote: Some(remote), counted, begun: Instant::now(), uses_reserve: false }
    }

    /// A slot for a file or chunk that counts nothing: another slot is held for it and others.
    pub(crate) fn within_another(&self, source: RequestSource) -> Slot<'_> {
        Slot { throttle: self, source, remote: None, counted: None, begun: Instant::now(), uses_reserve: false }
    }

    /// Whether one more file may be started from the PFS, or from a peer (`remote`).
    pub(crate) fn has_slot(&self, remote: bool) -> bool {
        self.under_way(remote).load(Ordering::Acquire) < self.bound(remote)
    }

    /// Whether one more small file may be started from the PFS for which a reader waits. (That
    /// reader would have a request of its own in flight otherwise.)
    pub(crate) fn has_slot_for_small_demand(&self) -> bool {
        self.running.load(Ordering::Acquire) < self.bounds.demands
    }

    /// Whether there is a slot for one more file from the PFS beside `demands` queued demands.
    pub(crate) fn has_slot_beside(&self, demands: usize) -> bool {
        self.running.load(Ordering::SeqCst) + demands < self.bounds.pfs
    }

    /// Number of files and chunks that may be prefetched at a time: the limit less what demands
    /// take. When they leave none, a prefetch gets a slot now and then.
    pub(crate) fn slots(&self, now: Instant) -> usize {
        self.circuit_breaker.slots(now, self.slots_beside_demands(now))
    }

    fn slots_beside_demands(&self, now: Instant) -> usize {
        if !self.bounds.backs_off {
            return self.limit();
        }
        let demands = self.demand_reserve.demands(self.demanded.load(Ordering::Relaxed), now);
        let left = self.limit().saturating_sub(demands);
        if left == 0 && !self.demand_reserve.is_its_turn(now) {
            return 0;
        }
        let divisor = self.latency_throttle.divisor();
        // (With fewer slots the limit could not be seen to be too low.)
        (left / divisor).max(left.min(MIN_DIVIDED_SLOTS / divisor)).max(1)
    }

    /// Number of files and chunks that are being prefetched.
    pub(crate) fn prefetching(&self) -> usize {
        self.prefetching.load(Ordering::Acquire)
    }

    /// Number of batches of files that may come from peers at a time: a quarter of what may come
    /// from there, so that demands find slots.
    pub(crate) fn max_batches(&self) -> usize {
        (self.bounds.remote / 4).max(1)
    }

    /// Number of files and chunks in flight from the PFS, and from peers.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.running.load(Ordering::Relaxed), self.remote.load(Ordering::Relaxed))
    }

    /// Number of copies from the PFS in flight at which prefetch waits.
    pub(crate) fn limit(&self) -> usize {
        if self.bounds.backs_off { self.concurrency_limit.limit() } else { slots_ahead(self.bounds.pfs) }
    }

    /// How long a worker that found nothing to do since `since` may sleep before the reserve for
    /// readers that have not asked again runs out. `None`: without bound.
    pub(crate) fn more_slots_in(&self, since: Instant) -> Option<Duration> {
        if self.bounds.backs_off { self.demand_reserve.over_in(since, Instant::now()) } else { None }
    }

    /// Notes a file, or a chunk, that came from the PFS. Returns whether more may run now.
    pub(crate) fn note_copy(&self, bytes: u64, took: Duration) -> bool {
        let demanded = self.demanded.load(Ordering::Relaxed);
        let kept = self.demand_reserve.demands(demanded, Instant::now()) - demanded;
        self.concurrency_limit.note(bytes, took, self.running.load(Ordering::Relaxed), kept)
    }

    /// Notes how long an open on the PFS took.
    pub(crate) fn note_open(&self, took: Duration) {
        self.latency_throttle.note(took);
    }

    /// Recent and best latency of opens on the PFS, in microseconds (`u64::MAX` before the first).
    pub(crate) fn open_us(&self) -> (u64, u64) {
        self.latency_throttle.figures()
    }

    /// The divisor of prefetch: 1 unless the PFS answers slowly and `backs_off` is set.
    pub(crate) fn divisor(&self) -> usize {
        if self.bounds.backs_off { self.latency_throttle.divisor() } else { 1 }
    }

    /// Notes an error of the PFS; `known` if the file has failed before.
    pub(crate) fn failed(&self, known: bool) {
        self.circuit_breaker.failed(Instant::now(), known);
    }

    /// Notes that a file was copied from the PFS.
    pub(crate) fn worked(&self) {
        self.circuit_breaker.worked();
    }

    /// Whether the PFS fails, so that prefetch only probes it.
    pub(crate) fn only_probes(&self) -> bool {
        self.circuit_breaker.is_open()
    }

    /// Time until the next probe, while prefetch only probes.
    pub(crate) fn next_probe(&self) -> Option<Duration> {
        self.circuit_breaker.next_try(Instant::now())
    }

    /// Whether the PFS may be probed now, or does not fail.
    pub(crate) fn may_try(&self) -> bool {
        self.circuit_breaker.slots(Instant::now(), 1) > 0
    }

    /// Notes the share of the time in which a task of the job waits for memory. Returns whether
    /// high pressure has begun or ended, if it has.
    pub(crate) fn note_memory_pressure(&self, share: Option<f64>) -> Option<bool> {
        self.memory_pressure.note(share)
    }

    /// Whether the job waits for memory.
    pub(crate) fn is_under_memory_pressure(&self) -> bool {
        self.memory_pressure.is_high()
    }

    /// The share of the time in which a task of the job waits for memory, in percent.
    pub(crate) fn memory_pressure_percent(&self) -> u32 {
        self.memory_pressure.percent()
    }

    /// Whether a file that no reader waits for may be begun beside those in flight: under memory
    /// pressure one at a time.
    pub(crate) fn may_prefetch_beside(&self) -> bool {
        !self.memory_pressure.is_high() || self.prefetching() == 0
    }

    /// Notes a file that prefetch leaves for later, as the job waits for memory.
    pub(crate) fn leave_out(&self, key: u64) {
        self.memory_pressure.leave_out(key);
    }

    /// Takes the files that prefetch has left for later.
    pub(crate) fn take_left_out(&self) -> Vec<u64> {
        self.memory_pressure.take_left_out()
    }

    const fn under_way(&self, remote: bool) -> &AtomicUsize {
        if remote { &self.remote } else { &self.running }
    }

    const fn bound(&self, remote: bool) -> usize {
        if remote { self.bounds.remote } else { self.bounds.pfs }
    }

    /// Whether there are more copiers than slots of a kind.
    const fn has_spare_copiers(&self, remote: bool) -> bool {
        self.bounds.remote > 0 || (!remote && self.bounds.has_rings)
    }
}

/// A slot for one file or chunk in flight.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    throttle: &'a PrefetchThrottle,
    source: RequestSource,
    /// Whether it comes from a peer; `None`: another slot is held for it.
    remote: Option<bool>,
    /// The count that it is part of, beside that of all in flight.
    counted: Option<&'a AtomicUsize>,
    begun: Instant,
    /// Whether it is a prefetch that takes bandwidth of the PFS.
    uses_reserve: bool,
}

impl Slot<'_> {
    /// Notes whether it is a prefetch that takes bandwidth of the PFS.
    pub(crate) const fn uses_reserve(&mut self, uses: bool) {
        self.uses_reserve = uses;
    }

    /// Notes that the file is decompressed: then it is no demand on the PFS.
    pub(crate) fn is_decoding(&mut self) {
        if self.source == RequestSource::Demand
            && let Some(count) = self.counted.take()
        {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Gives the slot back; called once. Returns whether a copier may wait for it.
    pub(crate) fn give_back(&mut self) -> bool {
        if self.uses_reserve {
            // Before the next prefetch can start.
            self.throttle.demand_reserve.had_its_turn();
        }
        if let Some(count) = self.counted {
            let before = count.fetch_sub(1, Ordering::AcqRel);
            if self.source == RequestSource::Demand {
                let now = Instant::now();
                self.throttle.demand_reserve.ended(before, now - self.begun, now);
            }
        }
        let Some(remote) = self.remote else { return false };
        let before = self.throttle.under_way(remote).fetch_sub(1, Ordering::AcqRel);
        let is_full = before >= self.throttle.bound(remote);
        (self.throttle.has_spare_copiers(remote) || self.throttle.bounds.demands > self.throttle.bounds.pfs) && is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds =
        Bounds { pfs: 64, demands: 256, remote: 0, has_rings: true, backs_off: true, memory_pressure: Some(0.3) };

    #[test]
    fn prefetch_gets_what_demands_leave_and_demands_are_not_held_back() {
        let throttle = PrefetchThrottle::new(BOUNDS);
        let (now, limit) = (Instant::now(), throttle.limit());
        assert_eq!(throttle.slots(now), limit);
        let mut demands: Vec<_> = (0..63).map(|_| throttle.take(RequestSource::Demand, false)).collect();
        // No prefetch, from the first second on; one if the demands hang.
        assert_eq!((throttle.slots(now), throttle.has_slot(false), throttle.in_flight()), (0, true, (63, 0)));
        assert_eq!(throttle.slots(now + Duration::from_secs(1)), 1);
        demands.push(throttle.take(RequestSource::Demand, false));
        assert!(!throttle.has_slot(false) && !throttle.has_slot_beside(0));
        // Rings copy as well, so that a copier may have been left without a slot.
        assert!(demands.iter_mut().map(Slot::give_back).next().unwrap());
        assert!(throttle.has_slot(false));
    }

    /// 256 readers waited for 64 copiers, and most gave up.
    #[test]
    fn readers_that_wait_for_small_files_have_slots_that_nothing_else_has() {
        let throttle = PrefetchThrottle::new(BOUNDS);
        let mut demands: Vec<_> = (0..64).map(|_| throttle.take(RequestSource::Demand, false)).collect();
        assert!(throttle.has_slot_for_small_demand() && !throttle.has_slot(false) && !throttle.has_slot_beside(0));
        assert_eq!(throttle.slots(Instant::now()), 0, "no prefetch");
        demands.extend((64..256).map(|_| throttle.take(RequestSource::Demand, false)));
        assert!(!throttle.has_slot_for_small_demand());
        assert!(demands.iter_mut().next().unwrap().give_back(), "a copier may wait for it");
        assert!(throttle.has_slot_for_small_demand());
    }

    #[test]
    fn what_is_decoded_is_no_demand_on_the_pfs() {
        let throttle = PrefetchThrottle::new(BOUNDS);
        let mut slot = throttle.take(RequestSource::Demand, false);
        assert_eq!(throttle.demanded.load(Ordering::Relaxed), 1);
        slot.is_decoding();
        assert_eq!((throttle.demanded.load(Ordering::Relaxed), throttle.in_flight()), (0, (1, 0)));
        slot.give_back();
        assert_eq!(throttle.in_flight(), (0, 0));
    }

    #[test]
    fn files_of_a_batch_count_once_together() {
        let throttle = PrefetchThrottle::new(Bounds { remote: 64, ..BOUNDS });
        let mut all = throttle.take(RequestSource::Prefetch, true);
        let mut one = throttle.within_another(RequestSource::Prefetch);
        assert_eq!((throttle.prefetching(), throttle.in_flight(), throttle.max_batches()), (1, (0, 1), 16));
        assert!(!one.give_back());
        assert_eq!((throttle.prefetching(), throttle.in_flight()), (1, (0, 1)));
        all.give_back();
        assert_eq!((throttle.prefetching(), throttle.in_flight()), (0, (0, 0)));
    }

    #[test]
    fn a_pfs_that_fails_is_probed_and_demanded_from() {
        let throttle = PrefetchThrottle::new(BOUNDS);
        (0..64).for_each(|_| throttle.failed(false));
        assert!(throttle.only_probes() && throttle.next_probe().is_some() && !throttle.may_try());
        assert_eq!((throttle.slots(Instant::now()), throttle.has_slot(false)), (0, true));
        throttle.worked();
        assert!(!throttle.only_probes() && throttle.slots(Instant::now()) > 0);
    }

    #[test]
    fn under_memory_pressure_one_file_is_prefetched_at_a_time_and_demands_are_not_held_back() {
        let throttle = PrefetchThrottle::new(BOUNDS);
        let first = [0; 2].map(|_| throttle.take(RequestSource::Prefetch, false));
        assert!(throttle.may_prefetch_beside());
        assert_eq!(throttle.note_memory_pressure(Some(0.5)), Some(true));
        assert!(!throttle.may_prefetch_beside() && throttle.has_slot(false));
        first.into_iter().for_each(|mut slot| assert!(!slot.give_back()));
        let _demand = throttle.take(RequestSource::Demand, false);
        assert!(throttle.may_prefetch_beside(), "the first, beside demands");
        let _one = throttle.take(RequestSource::Prefetch, false);
        assert!(!throttle.may_prefetch_beside() && throttle.has_slot(false));
        assert_eq!(throttle.note_memory_pressure(Some(0.1)), Some(false));
        assert!(throttle.may_prefetch_beside());
    }

    #[test]
    fn without_backoff_prefetch_has_all_slots() {
        let throttle = PrefetchThrottle::new(Bounds { backs_off: false, ..BOUNDS });
        (0..100).for_each(|_| throttle.note_open(Duration::from_millis(1)));
        (0..100).for_each(|_| throttle.note_open(Duration::from_secs(1)));
        let _demand = throttle.take(RequestSource::Demand, false);
        assert_eq!((throttle.slots(Instant::now()), throttle.divisor()), (slots_ahead(64), 1));
        assert_eq!(throttle.more_slots_in(Instant::now()), None);
    }
}
