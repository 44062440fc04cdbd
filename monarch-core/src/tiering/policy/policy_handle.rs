//! [`PolicyHandle`]: the placement policy and the hints, behind their locks, and the events that
//! tell the policy what is copied.
//!
//! Invariant: the policy is locked before the hints.

use crate::sync::lock;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::shared::Shared;
use monarch_abi::demand::file_key;
use monarch_abi::hash::CopyName;
use monarch_abi::word::{State, Word};
use monarch_policies::{Event, FileKey, Hints, Policy};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The policy, locked.
pub(crate) type PolicyGuard<'a> = MutexGuard<'a, Box<dyn Policy>>;

/// The placement policy and the hints that it decides by.
pub(crate) struct PolicyHandle {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    policy: Mutex<Box<dyn Policy>>,
    /// Locked after the policy.
    hints: Mutex<Hints>,
    /// Mean size of all indexed files, bytes.
    mean_size: AtomicU64,
}

impl PolicyHandle {
    pub(crate) fn new(shared: &Shared, policy: Box<dyn Policy>) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            policy: Mutex::new(policy),
            hints: Mutex::default(),
            mean_size: AtomicU64::new(0),
        }
    }

    /// Locks the policy. It is locked before the hints.
    pub(crate) fn lock_policy(&self) -> PolicyGuard<'_> {
        lock(&self.policy)
    }

    /// Locks the hints; after the policy, if both are locked.
    pub(crate) fn lock_hints(&self) -> MutexGuard<'_, Hints> {
        lock(&self.hints)
    }

    /// Locks both, unless another thread holds one of them.
    pub(crate) fn try_lock(&self) -> Option<(PolicyGuard<'_>, MutexGuard<'_, Hints>)> {
        Some((self.policy.try_lock().ok()?, self.hints.try_lock().ok()?))
    }

    /// Mean size of all indexed files, bytes.
    pub(crate) fn mean_size(&self) -> u64 {
        self.mean_size.load(Ordering::Relaxed)
    }

    /// Passes an event to the policy.
    pub(crate) fn notify(&self, event: &Event) {
        let mut policy = lock(&self.policy);
        policy.event(event, &lock(&self.hints));
    }

    /// Reports a copy that is complete in a tier.
    pub(crate) fn report_placed(&self, key: u64, size: u64, tier: usize) {
        let cost = self.cx.tiers.get(tier).map_or(size, |t| t.space.ledger.cost(size));
        self.notify(&Event::Placed { file: FileKey(key), size, cost, tier });
    }

    /// Reports a copy that is compressed in a tier. Returns whether it exists.
    pub(crate) fn report_packed(&self, key: u64, size: u64, (tier, name): (usize, CopyName)) -> bool {
        let copy = self.cx.tiers.get(tier).and_then(|t| t.packed.stat(name, size));
        if let Some(copy) = &copy {
            self.notify(&Event::Placed { file: FileKey(key), size, cost: copy.charged, tier });
        }
        copy.is_some()
    }

    /// Reports that the copy of a file is gone.
    pub(crate) fn report_dropped(&self, key: u64) {
        self.notify(&Event::Dropped { file: FileKey(key) });
    }

    /// Reports where the copy of a file is, after a change that the policy may not know of.
    pub(crate) fn resync_policy(&self, key: u64) {
        let Some((live, entry)) = self.segments.entry(key) else { return };
        let (word, size) = (entry.word(), entry.record.size);
        let resident = word.state() == State::Resident;
        let name = live.segment.copy_name(&entry);
        // Of a decompressed copy the compressed one counts: the other is transient.
        let packed =
            if resident && word.is_marked() { self.cx.packed_below(word.tier(), name) } else { word.packed_in() };
        let told = packed.is_some_and(|at| self.report_packed(key, size, (at, name)));
        if !told && resident && !word.is_marked() {
            self.report_placed(key, size, word.tier());
        }
    }

    /// Reports the copies that a segment has already, to a policy that replaces copies.
    pub(crate) fn report_residents(&self, number: usize) {
        let keeps_none = ["first_epoch", "static"].contains(&self.name());
        let Some(live) = self.segments.segment(number).filter(|_| !keeps_none) else { return };
        let has_copy = |word: Word| word.state() == State::Resident || word.packed_in().is_some();
        for entry in live.segment.files_that(has_copy) {
            self.resync_policy(file_key(number, entry.id));
        }
    }

    /// Reports that the files of a segment are gone, and drops the hints for them.
    pub(crate) fn report_index_gone(&self, number: usize) {
        let index = u32::try_from(number + 1).unwrap_or(u32::MAX);
        let mut policy = lock(&self.policy);
        let mut hints = lock(&self.hints);
        hints.forget_index(index);
        policy.event(&Event::IndexGone { index }, &hints);
    }

    /// Reports how many files and bytes there are, and the capacity for them.
    pub(crate) fn report_extent(&self) {
        let (mut files, mut bytes) = (0, 0);
        for live in self.segments.read().iter().flatten() {
            files += live.segment.index.header.files;
            bytes = live.segment.index.header.bytes.saturating_add(bytes);
        }
        self.mean_size.store(bytes / files.max(1), Ordering::Relaxed);
        let capacity = self.cx.tiers.iter().map(|t| t.space.ledger.usage().capacity).sum();
        self.notify(&Event::Extent { files, bytes, capacity });
    }

    /// Whether the policy decides again each time a file is opened.
    pub(crate) fn asks_again(&self) -> bool {
        lock(&self.policy).asks_again()
    }

    /// The name of the policy.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        lock(&self.policy).name()
    }

    /// Ages the orders of a root's files by one epoch.
    pub(crate) fn age_orders(&self, root: usize) {
        let live: Vec<bool> = {
            let segments = self.segments.read();
            segments.iter().map(|live| live.as_ref().is_some_and(|live| live.root == root)).collect()
        };
        let is_its = |index: u32| (index as usize).checked_sub(1).and_then(|n| live.get(n)).copied().unwrap_or(false);
        lock(&self.hints).epoch_began(is_its);
    }
}
