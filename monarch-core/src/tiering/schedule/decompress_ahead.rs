//! Decoding ahead of the readers: which packed copy is decoded before somebody asks for it.
//!
//! Files are taken in the order of the index, on from the one that a reader asked for last: readers
//! in order find theirs decoded. Of a shuffled epoch nobody knows what comes next, unless it is
//! announced (then that order counts); but every file comes once, so those that were read already
//! are passed over until all have been, or until files are asked for again in earnest. One part in
//! eight of the room is left to those who ask.

use crate::tiering::core::context::Context;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::segments::Segments;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::inflight_slots::{InflightSlots, Job};
use crate::tiering::queue::waker::Waker;
use crate::tiering::residency::decode_rounds::{DecodeRounds, Round};
use crate::tiering::residency::transient_copies::SPARE;
use crate::tiering::residency::transient_copies::TransientCopies;
use monarch_abi::demand::file_key;
use monarch_policies::hints::Purpose;
use monarch_policies::{FileKey, RequestSource};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Entries that are looked at in one go.
const STEPS: u32 = 512;
/// How long it is taken for granted that there is nothing to decode: at first, and when that was so
/// for a long time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(64);

/// Decodes copies ahead of readers.
pub(crate) struct DecompressAhead {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    waker: Arc<Waker>,
    policy: Arc<PolicyHandle>,
    rounds: Arc<DecodeRounds>,
    transient: Arc<TransientCopies>,
    slots: Arc<InflightSlots>,
}

impl DecompressAhead {
    pub(crate) fn new(
        cx: &Arc<Context>,
        segments: &Arc<Segments>,
        waker: &Arc<Waker>,
        policy: &Arc<PolicyHandle>,
        rounds: &Arc<DecodeRounds>,
        transient: &Arc<TransientCopies>,
        slots: &Arc<InflightSlots>,
    ) -> Self {
        Self {
            cx: cx.clone(),
            segments: segments.clone(),
            waker: waker.clone(),
            policy: policy.clone(),
            rounds: rounds.clone(),
            transient: transient.clone(),
            slots: slots.clone(),
        }
    }

    /// A packed copy to be decoded now.
    pub(crate) fn next_decoding(&self) -> Option<Job<'_>> {
        if !self.cx.options.prefetch || self.cx.stop.load(Ordering::Relaxed) || !self.transient.has_room_ahead() {
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
                        round.rested = (round.rested * 2).clamp(PAUSE, LONGEST);
                        (round.passed, round.rests_until) = (0, Some(now + round.rested));
                        break;
                    }
                    let from = if round.cursor < len { round.cursor } else { 0 };
                    let to = len.min(from.saturating_add(STEPS));
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
                    // Whoever has been asked for something meanwhile goes on from there.
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

    /// The next packed copy in the known order, if one is known.
    fn next_packed_in_order(&self) -> Option<u64> {
        let mut hints = self.policy.lock_hints();
        while let Some(FileKey(key)) = hints.upcoming(Purpose::Decode) {
            if self.segments.entry(key).is_some_and(|(_, entry)| entry.word().packed_in().is_some()) {
                return Some(key);
            }
        }
        None
    }

    /// Upkeep: copies that were opened make room for others.
    pub(crate) fn decode_ahead(&self) {
        if self.cx.tiers.iter().all(|t| t.packed().files == 0) {
            return;
        }
        self.transient.drain_touched();
        for (at, tier) in self.cx.tiers.iter().enumerate().filter(|(_, t)| t.for_decoded > 0) {
            // Who asks is not to wait until others have made way.
            let short = (tier.for_decoded / SPARE).saturating_sub(self.transient.kept_for_decoded(at));
            if short > 0 {
                let _ = self.transient.drop_some_decoded(at, short, false);
            }
        }
        let now = Instant::now();
        let rests = |r: &Round| r.rests_until.is_some_and(|until| now < until);
        let all_rest = {
            let rounds = self.rounds.lock();
            !rounds.is_empty() && rounds.values().all(rests)
        };
        if self.cx.options.prefetch && self.transient.has_room_ahead() && !all_rest {
            self.waker.wake(Lane::Threads);
        }
    }
}
