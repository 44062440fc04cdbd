//! [`Eviction`]: removes copies, and keeps the list of copies short.
//!
//! Invariant: the state word changes before the bytes go, so that no reader opens a copy that is
//! being removed.

use crate::sync::lock;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::{EvictionCandidate, LiveSegment, Segments};
use crate::tiering::core::shared::Shared;
use crate::tiering::core::state_transition::swap;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::queue::retry_backoff::RetryBackoff;
use crate::tiering::residency::catalog::Catalog;
use crate::tiering::residency::orphans::Orphans;
use monarch_abi::hash::CopyName;
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::word::{Refusal, State, Word};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Entries of the list that may be of copies that are gone.
const MAX_STALE_KEYS: usize = 1 << 14;

/// Removes copies from tiers.
pub(crate) struct Eviction {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    orphans: Arc<Mutex<Orphans>>,
    retry_backoff: Arc<Mutex<RetryBackoff>>,
    catalog: Arc<Mutex<Catalog>>,
    policy: Arc<PolicyHandle>,
}

impl Eviction {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        orphans: &Arc<Mutex<Orphans>>,
        catalog: &Arc<Mutex<Catalog>>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            orphans: orphans.clone(),
            retry_backoff: queue.retry_backoff.clone(),
            catalog: catalog.clone(),
            policy: policy.clone(),
        }
    }

    /// Drops a copy, and turns its file to Refused; with a `pause` until that is over. Returns
    /// `false` if its word has changed.
    pub(crate) fn refuse(&self, candidate: &EvictionCandidate, why: Refusal, pause: Option<Duration>) -> bool {
        let refused = candidate.word.refused(why);
        let Some(tier) =
            self.cx.tiers.get(candidate.word.tier()).filter(|_| swap(&candidate.entry, candidate.word, refused))
        else {
            return false;
        };
        tier.trash.evict_resident(candidate.name(), candidate.entry.record.size);
        self.policy.report_dropped(candidate.key);
        if let Some(pause) = pause {
            lock(&self.retry_backoff).add(pause, (candidate.key, refused));
        }
        true
    }

    /// Drops the copy that the word `w` stands for. Returns `false` if the word has changed.
    pub(crate) fn drop_copy(&self, key: u64, live: &LiveSegment, entry: &Entry<'static>, w: Word) -> bool {
        let Some(tier) = self.cx.tiers.get(w.tier()) else { return false };
        // Refused until the copy is removed: a copier that made a new copy at once would have that
        // one evicted.
        let refused = w.refused(Refusal::Dropped);
        if !swap(entry, w, refused) {
            return false;
        }
        let name = live.segment.copy_name(entry);
        tier.trash.evict_resident(name, entry.record.size);
        let below = if w.is_marked() { self.cx.packed_below(w.tier(), name) } else { None };
        if below.is_none() {
            self.policy.report_dropped(key);
        }
        swap(entry, refused, below.map_or(refused.next(State::Absent), |tier| refused.packed(tier)));
        true
    }

    /// Removes all copies of a file that must not be used any more.
    pub(crate) fn drop_copies(&self, segment: &Segment<'static>, entry: &Entry<'static>, key: u64) {
        self.policy.report_dropped(key);
        let name = segment.copy_name(entry);
        lock(&self.orphans).forget(name);
        for tier in &self.cx.tiers {
            tier.trash.evict(name, entry.record.size);
        }
        let _ = self.cx.evict_packed(name, entry.record.size);
    }

    /// Drops a compressed copy that is the only copy of its file. Returns the bytes that it was
    /// charged; `None` if its word has changed.
    pub(crate) fn drop_packed(
        &self,
        candidate: &EvictionCandidate,
        why: Refusal,
        pause: Option<Duration>,
    ) -> Option<u64> {
        let EvictionCandidate { key, entry, word, .. } = candidate;
        let tier = self.cx.tiers.get(word.packed_in()?)?;
        let refused = word.refused(why);
        let is = &entry.master.word;
        is.compare_exchange(word.0, refused.0, Ordering::AcqRel, Ordering::Acquire).ok()?;
        self.policy.report_dropped(*key);
        let charged = tier.packed.evict(candidate.name(), entry.record.size);
        if let Some(pause) = pause {
            lock(&self.retry_backoff).add(pause, (*key, refused));
        }
        Some(charged.unwrap_or(0))
    }

    /// Leaves the copies that the word `was` stands for, whose index is gone, to the next entry of
    /// that name.
    pub(crate) fn leave_orphaned(&self, was: Word, name: CopyName, size: u64) {
        let copies = self.cx.copies_of(was, name);
        if copies.awaits_compression(was) {
            // No log lists it, and it would keep space for transient copies.
            if let Some(tier) = self.cx.tiers.get(was.tier()) {
                tier.trash.evict_resident(name, size);
            }
        } else if !copies.is_empty() {
            lock(&self.orphans).put_back(copies, name, size, &self.cx.tiers);
        }
    }

    /// Takes the copies of a tier that were placed last out of the list, until they add up to
    /// `bytes`.
    pub(crate) fn placed_last(&self, tier: usize, bytes: u64) -> Vec<EvictionCandidate> {
        let (mut candidates, mut kept, mut sum) = (Vec::new(), Vec::new(), 0);
        while sum < bytes {
            let Some(key) = lock(&self.catalog).pop_last() else { break };
            let Some(candidate) = self.segments.candidate(key).or_else(|| self.segments.packed_candidate(key)) else {
                kept.extend(self.segments.is_listed(key).then_some(key));
                continue;
            };
            let (word, dir) = (candidate.word, self.cx.tiers.get(tier));
            if word.packed_in() == Some(tier) {
                let packed = dir.and_then(|t| t.packed.stat(candidate.name(), candidate.entry.record.size));
                sum += packed.map_or(0, |copy| copy.charged);
                candidates.push(candidate);
            } else if word.state() == State::Resident && word.tier() == tier {
                sum = dir.map_or(0, |t| t.space.ledger.cost(candidate.entry.record.size)).saturating_add(sum);
                candidates.push(candidate);
            } else {
                kept.push(key);
            }
        }
        lock(&self.catalog).extend(kept.into_iter().rev());
        candidates
    }

    /// Removes keys of copies that are gone from the list, once it has grown too long.
    pub(crate) fn tidy(&self) {
        let live: u64 = self.cx.tiers.iter().map(|t| t.space.ledger.usage().files).sum();
        let many = 2 * live as usize + MAX_STALE_KEYS;
        let Some(keys) = lock(&self.catalog).take_above(many) else { return };
        let mut seen = HashSet::new();
        // The last occurrence of each counts: that is when it was placed.
        let mut kept: VecDeque<u64> = VecDeque::new();
        keys.into_iter()
            .rev()
            .filter(|key| seen.insert(*key) && self.segments.is_listed(*key))
            .for_each(|key| kept.push_front(key));
        lock(&self.catalog).put_first(kept);
    }

    /// Notes copies that were resident before this agent started.
    pub(crate) fn note_placed(&self, keys: impl Iterator<Item = u64>) {
        lock(&self.catalog).extend(keys);
    }

    /// Notes copies that readers have opened. A program of root can write to the copy behind such a
    /// descriptor, if it makes its own system calls: the audit looks at these copies in every
    /// round. Other users cannot, since copies are read-only files of the agent's user.
    pub(crate) fn note_opened(&self, keys: impl Iterator<Item = u64>) {
        if self.cx.ctl.ctl.uid == 0 {
            let mut placed = lock(&self.catalog);
            keys.for_each(|key| placed.note_opened(key));
        }
    }
}
