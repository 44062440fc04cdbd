//! What the policy is told of copies and of the data set. (Of opens and hints:
//! [`reading`](super::access_tracker), [`hinting`](super::hint_inbox).)

use super::TieringEngine;
use crate::sync::lock;
use monarch_abi::demand::file_key;
use monarch_abi::hash::CopyName;
use monarch_abi::word::State;
use monarch_policies::{Event, FileKey};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl TieringEngine {
    /// Tells the policy.
    pub(super) fn tell(&self, event: &Event) {
        let mut policy = lock(&self.policy);
        policy.event(event, &lock(&self.hints));
    }

    /// Tells the policy of a copy that is complete in a tier now.
    pub(super) fn tell_placed(&self, key: u64, size: u64, tier: usize) {
        let cost = self.tiers.get(tier).map_or(size, |t| t.ledger.cost(size));
        self.tell(&Event::Placed { file: FileKey(key), size, cost, tier });
    }

    /// Tells the policy of a copy that lies packed in a tier now; whether there is one.
    pub(super) fn tell_packed(&self, key: u64, size: u64, (tier, name): (usize, CopyName)) -> bool {
        let copy = self.tiers.get(tier).and_then(|t| t.stat_packed(name, size));
        if let Some(copy) = &copy {
            self.tell(&Event::Placed { file: FileKey(key), size, cost: copy.charged, tier });
        }
        copy.is_some()
    }

    /// Tells the policy of a copy that is gone.
    pub(super) fn tell_dropped(&self, key: u64) {
        self.tell(&Event::Dropped { file: FileKey(key) });
    }

    /// Tells the policy where the copy of a file is that it may think elsewhere, or gone.
    pub(super) fn resync_policy(&self, key: u64) {
        let Some((live, entry)) = self.entry(key) else { return };
        let (word, size) = (entry.word(), entry.record.size);
        let resident = word.state() == State::Resident;
        let name = live.segment.copy_name(&entry);
        // Of one that was decoded the packed copy counts: the other makes way anyway.
        let packed = if resident && word.is_marked() { self.packed_below(word.tier(), name) } else { word.packed_in() };
        let told = packed.is_some_and(|at| self.tell_packed(key, size, (at, name)));
        if !told && resident && !word.is_marked() {
            self.tell_placed(key, size, word.tier());
        }
    }

    /// Tells a policy that replaces of the copies that there are of a segment already.
    pub(super) fn tell_residents(&self, number: usize) {
        let keeps_none = ["first_epoch", "static"].contains(&self.policy());
        let Some(live) = self.segment(number).filter(|_| !keeps_none) else { return };
        for entry in live.segment.files() {
            let word = entry.word();
            if word.state() == State::Resident || word.packed_in().is_some() {
                self.resync_policy(file_key(number, entry.id));
            }
        }
    }

    /// Tells the policy that the files of a segment are no more; what was hinted of them means
    /// nothing any more.
    pub(super) fn tell_index_gone(&self, number: usize) {
        let index = u32::try_from(number + 1).unwrap_or(u32::MAX);
        let mut policy = lock(&self.policy);
        let mut hints = lock(&self.hints);
        hints.forget_index(index);
        policy.event(&Event::IndexGone { index }, &hints);
    }

    /// Tells the policy how much there is, and how much room for it.
    pub(super) fn tell_extent(&self) {
        let (mut files, mut bytes) = (0, 0);
        for live in self.segments.read().unwrap_or_else(PoisonError::into_inner).iter().flatten() {
            files += live.segment.index.header.files;
            bytes = live.segment.index.header.bytes.saturating_add(bytes);
        }
        self.mean_size.store(bytes / files.max(1), Ordering::Relaxed);
        let capacity = self.tiers.iter().map(|t| t.ledger.usage().capacity).sum();
        self.tell(&Event::Extent { files, bytes, capacity });
    }
}
