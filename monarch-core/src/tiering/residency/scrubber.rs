//! [`Scrubber`]: finds copies that another process has changed or removed, drops them, and has them
//! fetched again.

use crate::sync::lock;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::{LiveSegment, Segments};
use crate::tiering::core::shared::Shared;
use crate::tiering::core::state_transition::swap;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::queue::refetch::Refetch;
use crate::tiering::residency::catalog::Catalog;
use crate::tiering::residency::eviction::Eviction;
use crate::tiering::residency::orphans::Orphans;
use monarch_abi::segment::Entry;
use monarch_abi::word::{Refusal, State, Word};
use std::sync::{Arc, Mutex};

/// Checks copies, and drops those that are damaged.
pub(crate) struct Scrubber {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    orphans: Arc<Mutex<Orphans>>,
    catalog: Arc<Mutex<Catalog>>,
    policy: Arc<PolicyHandle>,
    eviction: Arc<Eviction>,
    refetch: Arc<Refetch>,
}

impl Scrubber {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        orphans: &Arc<Mutex<Orphans>>,
        catalog: &Arc<Mutex<Catalog>>,
        eviction: &Arc<Eviction>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            orphans: orphans.clone(),
            catalog: catalog.clone(),
            policy: policy.clone(),
            eviction: eviction.clone(),
            refetch: queue.refetch.clone(),
        }
    }

    /// Checks some of the resident copies, and drops those that are damaged. All copies are checked
    /// in turn, a few hundred a second, and a quarter of that while none is placed or opened.
    pub(crate) fn audit(&self) {
        let keys = lock(&self.catalog).next_audit();
        let bad: Vec<u64> = keys.into_iter().filter(|&key| self.drop_if_damaged(key).unwrap_or(false)).collect();
        if bad.is_empty() {
            return;
        }
        self.cx.count_damaged(bad.len());
        self.refetch.fetch_again(bad);
    }

    fn drop_if_damaged(&self, key: u64) -> Option<bool> {
        let (live, entry) = self.segments.entry(key)?;
        let w = entry.word();
        if w.state() != State::Resident {
            return Some(false);
        }
        let tier = self.cx.tiers.get(w.tier())?;
        let name = live.segment.copy_name(&entry);
        let found = match tier.copies.stat(name) {
            Ok(found) => found,
            Err(_) => {
                // The disk fails, which says nothing about the copy. Readers that cannot open it go
                // to the PFS.
                tier.space.rest();
                return Some(false);
            }
        };
        let sound = found.is_some_and(|c| {
            c.size == entry.record.size && c.stamp.fp44() == entry.master.fp >> 20 && c.stamp.matches(name)
        });
        Some(!sound && self.eviction.drop_copy(key, &live, &entry, w))
    }

    /// Drops a copy that a reader has found damaged: the reader has turned its word to Refused.
    pub(crate) fn drop_damaged(&self, key: u64, live: &LiveSegment, entry: &Entry<'static>) {
        let w = entry.word();
        let refused = w.refused(Refusal::Dropped);
        if w.refusal() != Some(Refusal::Damaged) || !swap(entry, w, refused) {
            return;
        }
        let (name, size) = (live.segment.copy_name(entry), entry.record.size);
        lock(&self.orphans).forget(name);
        self.cx.tiers.iter().for_each(|tier| tier.trash.evict(name, size));
        // A compressed copy has checksums of its own.
        let below = self.cx.packed_below(0, name);
        if below.is_none() {
            self.policy.report_dropped(key);
        }
        swap(entry, refused, below.map_or(refused.next(State::Absent), |tier| refused.packed(tier)));
        self.cx.count_damaged(1);
        self.refetch.fetch_again(vec![key]);
    }

    /// Drops a copy that was found damaged while its word was `seen`. Returns `false` if the word
    /// has changed.
    pub(crate) fn drop_found_damaged(&self, key: u64, live: &LiveSegment, entry: &Entry<'static>, seen: Word) -> bool {
        let dropped = seen.state() == State::Resident && self.eviction.drop_copy(key, live, entry, seen);
        if dropped {
            self.cx.count_damaged(1);
        }
        dropped
    }
}
