//! [`DecompressAhead`]: chooses the compressed copy that is decompressed before a reader asks for
//! it.
//!
//! * Files are taken in the order of the index, from the one that a reader asked for last: readers
//!   in order find theirs decompressed.
//! * An announced order takes precedence. The order of a shuffled epoch is not known, but every
//!   file is read once: files that were read are skipped until the round ends (`DecodeRounds`).
//! * One part in eight of the space is left to readers that ask.

use crate::tier::TierDir;
use crate::tiering::core::context::Context;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::queue::inflight_slots::{InflightSlots, Job};
use crate::tiering::queue::waker::Waker;
use crate::tiering::residency::Residency;
use crate::tiering::residency::decode_rounds::{DecodeRounds, Round};
use crate::tiering::residency::transient_copies::SPARE_DIVISOR;
use crate::tiering::residency::transient_copies::TransientCopies;
use crate::tiering::throttle::PrefetchThrottle;
use monarch_abi::demand::file_key;
use monarch_policies::hints::Purpose;
use monarch_policies::{FileKey, RequestSource};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Entries that are looked at under one lock.
const ENTRIES_PER_LOCK: u32 = 512;
/// Pause after there was nothing to decompress: the first one, and the longest, as it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(64);

/// Decompresses copies ahead of readers.
pub(crate) struct DecompressAhead {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    waker: Arc<Waker>,
    policy: Arc<PolicyHandle>,
    rounds: Arc<DecodeRounds>,
    transient: Arc<TransientCopies>,
    slots: Arc<InflightSlots>,
    throttle: Arc<PrefetchThrottle>,
}

impl DecompressAhead {
    pub(crate) fn new(shared: &Shared, policy: &Arc<PolicyHandle>, queue: &Queue, residency: &Residency) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            waker: queue.waker.clone(),
            policy: policy.clone(),
            rounds: residency.rounds.clone(),
            transient: residency.transient.clone(),
            slots: queue.slots.clone(),
            throttle: queue.throttle.clone(),
        }
    }

    /// The compressed copy to decompress now.
    pub(crate) fn next_decoding(&self) -> Option<Job<'_>> {
        if !self.decodes_ahead() || self.cx.stop.load(Ordering::Relaxed) || !self.transient.has_room_ahead() {
            return None;
        }
        if let Some(key) = self.next_packed_in_order() {
            let mut job = Job::new(&self.slots, key, RequestSource::Prefetch, false);
            job.decodes = true;
            return Some(job);
        }
        let now = Instant::now();
        let numbers: Vec<usize> = {
            let segments = self.segments.read();
            segments.iter().enumerate().filter(|(_, live)| live.is_some()).map(|(number, _)| number).collect()
        };
        for number in numbers {
            let Some(live) = self.segments.segment(number) else { continue };
            let len = live.segment.index.len() as u32;
            loop {
                let (from, mut ids) = {
                    let mut rounds = self.rounds.lock();
                    let round = rounds.entry(number).or_default();
                    if round.rests_until.is_some_and(|until| now < until) {
                        break;
                    }
                    if round.passed >= len {
                        round.rested = (round.rested * 2).clamp(FIRST_PAUSE, MAX_PAUSE);
                        (round.passed, round.rests_until) = (0, Some(now + round.rested));
                        break;
                    }
                    let from = if round.cursor < len { round.cursor } else { 0 };
                    let to = len.min(from.saturating_add(ENTRIES_PER_LOCK));
                    round.cursor = to;
                    round.passed += to - from;
                    (from, (from..to).filter(|&id| !round.has(id)).collect::<Vec<_>>().into_iter())
                };
                let is_packed = |&id: &u32| {
                    let file = live.segment.index.record(id).is_some_and(monarch_abi::index::Record::is_file);
                    file && live.segment.by_id(id).is_some_and(|e| e.word().packed_in().is_some())
                };
                if let Some(id) = ids.find(is_packed) {
                    let mut rounds = self.rounds.lock();
                    let round = rounds.entry(number).or_default();
                    // If a reader asked for a file meanwhile, the cursor stays behind that file.
                    round.rested = Duration::ZERO;
                    if round.cursor >= from && round.passed > 0 {
                        round.cursor = id + 1;
                        round.passed = 0;
                    }
                    let mut job = Job::new(&self.slots, file_key(number, id), RequestSource::Prefetch, false);
                    job.decodes = true;
                    return Some(job);
                }
            }
        }
        None
    }

    /// The next compressed copy in the known order, if an order is known.
    fn next_packed_in_order(&self) -> Option<u64> {
        let mut hints = self.policy.lock_hints();
        while let Some(FileKey(key)) = hints.upcoming(Purpose::Decode) {
            if self.segments.entry(key).is_some_and(|(_, entry)| entry.word().packed_in().is_some()) {
                return Some(key);
            }
        }
        None
    }

    /// Whether copies are decompressed ahead of readers. Not while the job waits for memory.
    fn decodes_ahead(&self) -> bool {
        self.cx.options.prefetch && !self.throttle.is_under_memory_pressure()
    }

    /// Drops the decompressed copies in memory that readers have opened, as the job waits for
    /// memory: in an epoch each is read once.
    pub(crate) fn drop_read(&self) {
        let in_memory = |tier: &TierDir| tier.options.for_decoded > 0 && tier.space.is_in_memory();
        if !self.cx.compresses || !self.cx.tiers.iter().any(in_memory) {
            return;
        }
        self.transient.drain_touched();
        for (at, _) in self.cx.tiers.iter().enumerate().filter(|(_, tier)| in_memory(tier)) {
            let _ = self.transient.drop_some(at, u64::MAX, false);
        }
    }

    /// Maintenance: drops copies that were opened to keep space for others, and wakes a copier if
    /// there is space.
    pub(crate) fn decode_ahead(&self) {
        if self.cx.tiers.iter().all(|t| t.packed.usage().files == 0) {
            return;
        }
        self.transient.drain_touched();
        for (at, tier) in self.cx.tiers.iter().enumerate().filter(|(_, t)| t.options.for_decoded > 0) {
            // A reader that asks must not wait until copies are dropped.
            let short = (tier.options.for_decoded / SPARE_DIVISOR).saturating_sub(self.transient.reserved_bytes(at));
            if short > 0 {
                let _ = self.transient.drop_some(at, short, false);
            }
        }
        let now = Instant::now();
        let rests = |r: &Round| r.rests_until.is_some_and(|until| now < until);
        let all_suspended = {
            let rounds = self.rounds.lock();
            !rounds.is_empty() && rounds.values().all(rests)
        };
        if self.decodes_ahead() && self.transient.has_room_ahead() && !all_suspended {
            self.waker.wake(Lane::Threads);
        }
    }
}
