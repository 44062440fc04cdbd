//! [`Compressor`]: the queue of copies that are to be compressed. They are made in the tier in
//! front, where readers open them at once, and then compressed into the tier below.
//!
//! Space below is reserved before anything is fetched, as much as the
//! [`ratio_estimator`](crate::tiering::compression::ratio_estimator) estimates. A file that does
//! not shrink by `min_ratio` is moved as it is.

use crate::sync::lock;
use crate::tier::Sum;
use crate::tiering::compression::packer::{Packed, Packer};
use crate::tiering::core::claim::Claim;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::reservations::{CompressionTarget, TransientReservation};
use crate::tiering::core::segments::{EvictionCandidate, Segments};
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::queue::waker::Waker;
use crate::tiering::queue::work_queue::WorkQueue;
use crate::tiering::residency::Residency;
use crate::tiering::residency::eviction::Eviction;
use crate::tiering::residency::mover::Mover;
use crate::tiering::residency::orphans::Orphans;
use crate::tiering::residency::transient_copies::TransientCopies;
use monarch_abi::word::{Refusal, State};
use std::collections::{HashSet, VecDeque};
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How often a copier that a reader waits for looks for space, and the pause between two tries.
const MAX_SPACE_TRIES: u32 = 20;
const SPACE_TRY_PAUSE: Duration = Duration::from_millis(2);
/// How long after a try in vain other copiers do not wait.
const NO_WAIT_AFTER_FAILURE: Duration = Duration::from_millis(500);
/// Pause of a file after a tier has failed.
const TIER_FAILED_PAUSE: Duration = Duration::from_secs(5);

/// A copy that waits to be compressed.
pub(crate) struct Waiting {
    key: u64,
    below: CompressionTarget,
    sum: Sum,
    share: Option<std::sync::Arc<TransientReservation>>,
}

/// The queue, and what is in progress.
#[derive(Default)]
pub(crate) struct Pending {
    waiting: VecDeque<Waiting>,
    /// Files that wait, and files that are being compressed.
    keys: HashSet<u64>,
    packing: usize,
    /// When a file was deferred: no other is started for a moment, or until one is compressed.
    deferred_at: Option<Instant>,
    /// When a copier that waited found no space: the next ones do not wait.
    gave_up_at: Option<Instant>,
}

/// Compresses copies, as many at a time as half of the processors.
///
/// Fields: 14, ten components and the four parts of its queue.
pub(crate) struct Compressor {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    orphans: Arc<Mutex<Orphans>>,
    waker: Arc<Waker>,
    policy: Arc<PolicyHandle>,
    queue: Arc<WorkQueue>,
    transient: Arc<TransientCopies>,
    eviction: Arc<Eviction>,
    mover: Arc<Mover>,
    packer: Arc<Packer>,
    pending: Mutex<Pending>,
    packers: usize,
    packs_wait: AtomicBool,
    packs_end: OnceLock<Instant>,
}

impl Compressor {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        residency: &Residency,
        packer: &Arc<Packer>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            orphans: residency.orphans.clone(),
            waker: queue.waker.clone(),
            policy: policy.clone(),
            queue: queue.work.clone(),
            transient: residency.transient.clone(),
            eviction: residency.eviction.clone(),
            mover: residency.mover.clone(),
            packer: packer.clone(),
            pending: Mutex::default(),
            packers: (std::thread::available_parallelism().map_or(1, NonZero::get) / 2).max(1),
            packs_wait: AtomicBool::new(false),
            packs_end: OnceLock::new(),
        }
    }

    /// Queues a copy to be compressed.
    pub(crate) fn enqueue(&self, f: &ClaimedFile, sum: Sum) {
        let below = f.below.as_ref().map(|b| CompressionTarget { tier: b.tier, room: lock(&b.room).take() });
        let Some(below) = below else { return };
        let waiting = Waiting { key: f.key, below, sum, share: f.share.clone() };
        let mut pending = lock(&self.pending);
        pending.keys.insert(f.key);
        pending.waiting.push_back(waiting);
        let more = pending.packing < self.packers;
        drop(pending);
        if more {
            self.waker.wake(Lane::Threads);
        }
    }

    /// Whether too many copies wait to be compressed for another one to be started.
    pub(crate) fn is_saturated(&self) -> bool {
        let pending = lock(&self.pending);
        // Readers have the same amount of space for themselves.
        let crowded = !pending.keys.is_empty() && self.transient.is_crowded();
        let enough = crowded || pending.deferred_at.is_some_and(|at| at.elapsed() < SPACE_TRY_PAUSE * 10);
        drop(pending);
        if enough {
            self.packs_wait.store(true, Ordering::SeqCst);
            self.queue.hold_back();
        }
        enough
    }

    /// Whether a copy waits to be compressed, or is being compressed.
    pub(crate) fn is_queued(&self, key: u64) -> bool {
        lock(&self.pending).keys.contains(&key)
    }

    /// Compresses what waits for at most `within`: the copies in front go with the job.
    pub(crate) fn compress_rest(&self, within: Duration) {
        let start = Instant::now();
        let _ = self.packs_end.set(start + within);
        while start.elapsed() < within && (self.compress_one() || lock(&self.pending).packing > 0) {
            if lock(&self.pending).waiting.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Takes the next copy to compress, unless as many as are allowed are in progress.
    pub(crate) fn next_copy(&self) -> Option<Waiting> {
        let mut pending = lock(&self.pending);
        if pending.packing >= self.packers {
            return None;
        }
        let next = pending.waiting.pop_front()?;
        pending.packing += 1;
        Some(next)
    }

    /// Compresses a copy that [`Compressor::next_copy`] has returned.
    pub(crate) fn compress_next(&self, waiting: Waiting) {
        self.pack_out(waiting);
        let mut pending = lock(&self.pending);
        pending.packing -= 1;
        pending.deferred_at = None;
        let more = !pending.waiting.is_empty();
        drop(pending);
        if more {
            self.waker.wake(Lane::Threads);
        }
        if self.packs_wait.swap(false, Ordering::SeqCst) {
            self.waker.wake(Lane::Threads);
            self.waker.wake(Lane::Rings);
        }
    }

    fn pack_out(&self, waiting: Waiting) {
        let key = waiting.key;
        self.pack(waiting);
        lock(&self.pending).keys.remove(&key);
    }

    /// Compresses one copy now, if one waits: a copier needs the space.
    pub(crate) fn compress_one(&self) -> bool {
        let Some(waiting) = self.next_copy() else { return false };
        self.compress_next(waiting);
        true
    }

    fn pack(&self, waiting: Waiting) {
        // If it was evicted, changed or moved meanwhile, nothing has to be done.
        let Some(candidate) = self.segments.candidate(waiting.key).filter(|l| l.word.is_marked()) else { return };
        let (up, rel) = (candidate.word.tier(), self.segments.rel_of(&candidate));
        let (below, sum) = (waiting.below, waiting.sum);
        let to = below.tier;
        let size = candidate.entry.record.size;
        let packed = self.packer.pack_copy(&candidate, &rel, sum, below, || self.may_pack());
        if !matches!(packed, Ok(Packed::Stopped)) {
            // It leaves this tier, or becomes a transient copy.
            waiting.share.iter().for_each(|share| share.hand_over());
        }
        match packed {
            Ok(Packed::Yes(stored)) => {
                self.packer.ratios().learn(&rel, size, Some(stored));
                self.cx.stats.packed.fetch_add(1, Ordering::Relaxed);
                if candidate.entry.word() == candidate.word {
                    self.policy.report_packed(candidate.key, size, (to, candidate.name()));
                    // Only from here on it may be dropped.
                    self.transient.add(up, candidate.key, size, None);
                } else {
                    self.packed_too_late(&candidate, to);
                }
            }
            Ok(Packed::NotWorth) => {
                self.packer.ratios().learn(&rel, size, None);
                while !self.transient.takes(to, size, 0) && lock(&self.orphans).make_way(to, &self.cx.tiers) {}
                let room = self.transient.takes(to, size, 0);
                if !self.mover.move_copy(&candidate, sum, to, || self.may_pack()) {
                    self.cannot_stay(&candidate, if room { Refusal::TierFailed } else { Refusal::NoRoom });
                }
            }
            Ok(Packed::NoRoom) => self.cannot_stay(&candidate, Refusal::NoRoom),
            Ok(Packed::Damaged) => {
                self.cx.found_damaged();
                self.eviction.drop_copy(candidate.key, &candidate.live, &candidate.entry, candidate.word);
            }
            Ok(Packed::Stopped) => {}
            Err(e) => {
                if let Some(tier) = self.cx.tiers.get(to) {
                    self.cx.tier_failed(tier, &e);
                }
                self.cannot_stay(&candidate, Refusal::TierFailed);
            }
        }
    }

    fn may_pack(&self) -> bool {
        !self.cx.stop.load(Ordering::Relaxed) && self.packs_end.get().is_none_or(|end| Instant::now() < *end)
    }

    /// Removes the compressed copy of a file whose word changed meanwhile: no word names it.
    fn packed_too_late(&self, candidate: &EvictionCandidate, to: usize) {
        let (name, size) = (candidate.name(), candidate.entry.record.size);
        match (candidate.entry.word().state(), self.cx.tiers.get(to)) {
            // Changed by the job, or dropped on command.
            (State::Bypass | State::Absent, Some(tier)) => drop(tier.packed.evict(name, size)),
            // Its index was replaced: the next entry of that name claims it.
            _ => {
                lock(&self.orphans).put_back(
                    Claim { packed: Some(to), ..Claim::default() },
                    name,
                    size,
                    &self.cx.tiers,
                );
            }
        }
    }

    /// Drops a copy that could not be compressed: other copies use its space.
    fn cannot_stay(&self, candidate: &EvictionCandidate, why: Refusal) {
        if self.eviction.refuse(candidate, why, (why == Refusal::TierFailed).then_some(TIER_FAILED_PAUSE)) {
            self.cx.stats.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Looks for space in front with `find`. With `asked` (a reader waits) it is tried again for a
    /// while, after compressing copies there or closing those that readers have read.
    pub(crate) fn retry_until_room<T>(&self, asked: bool, find: impl Fn() -> Option<T>) -> Option<T> {
        let skips_wait = lock(&self.pending).gave_up_at.is_some_and(|at| at.elapsed() < NO_WAIT_AFTER_FAILURE);
        for _ in 0..if asked && !skips_wait { MAX_SPACE_TRIES } else { 0 } {
            let found = find();
            if found.is_some() || self.cx.stop.load(Ordering::Relaxed) {
                return found;
            }
            if !self.compress_one() {
                for tier in self.cx.tiers.iter().filter(|t| t.options.for_decoded > 0) {
                    tier.trash.sweep();
                }
                std::thread::sleep(SPACE_TRY_PAUSE);
            }
        }
        let found = find();
        if asked {
            lock(&self.pending).gave_up_at = found.is_none().then(Instant::now);
        }
        found
    }

    /// Defers the fetch of a file until copies that take its space are compressed.
    pub(crate) fn defer(&self, key: u64) {
        lock(&self.pending).deferred_at = Some(Instant::now());
        self.packs_wait.store(true, Ordering::SeqCst);
        self.queue.lines().retry([key]);
    }
}
