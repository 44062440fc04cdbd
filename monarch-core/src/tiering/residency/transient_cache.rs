//! [`TransientCache`]: the transient copies of one tier, and which of them is dropped when another
//! one needs its space.
//!
//! A tier in front of one with compressed copies keeps a part of its space for them. moka holds the
//! set and bounds it by size (least recently made first); the ledger of the tier says whether there
//! is space. Before that, copies that readers have opened are dropped: in an epoch each is read
//! once. Copies of files that peers own are kept in the same way (see
//! [`peer_link`](crate::tiering::core::peer_link)).

use crate::sync::lock;
use crate::tiering::core::reservations::TransientReservation;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Entries of copies that are gone that each line may have beside twice its length.
const LINE_SLACK: u64 = 1024;
/// Copies opened last that are likely to be open still.
const LIKELY_OPEN: usize = 64;
/// Most copies that are remembered as opened before they were added.
const MAX_OPENED_EARLY: usize = 4096;
/// Unit of moka's weights, which are 32 bits wide, in bytes. The ledger's charges are multiples of
/// it, so that the two do not drift apart.
const UNIT_BYTES: u64 = 32;

/// The transient copies of one tier.
pub(crate) struct TransientCache {
    cache: moka::sync::Cache<u64, u32>,
    /// Copies that moka has dropped; their files have not been removed yet.
    dropped: Arc<Mutex<Vec<u64>>>,
    /// Copies that readers have opened, in that order; below it all copies in the order in which
    /// they were made. Some may be gone.
    used: Mutex<VecDeque<u64>>,
    made: Mutex<VecDeque<u64>>,
    /// Copies that readers have opened before they were added: while they waited to be compressed.
    opened_early: Mutex<HashSet<u64>>,
    /// Bytes that are reserved for them; with a floor, bytes that they may take of what is left.
    pub(crate) room: u64,
    /// With a floor they stay from epoch to epoch while there is space, so the ones opened last are
    /// dropped first, and this many bytes are reserved for them.
    floor: Option<u64>,
    /// Bytes of copies that are being made, and of copies that wait to be compressed.
    taken: Arc<AtomicU64>,
    /// The part of `taken` that the ledger counts as well, and that is not in the cache yet. It
    /// must never be too large: a copier would take space from copies that stay.
    charged: Arc<AtomicU64>,
}

impl TransientCache {
    /// A cache of `room` bytes. With `elastic` that part of it is its floor.
    pub(crate) fn new(room: u64, elastic: Option<f64>) -> Self {
        let floor = elastic.map(|part| (room as f64 * part) as u64);
        let dropped = Arc::new(Mutex::new(Vec::new()));
        let to = dropped.clone();
        let cache = moka::sync::Cache::builder()
            .max_capacity(room / UNIT_BYTES)
            .weigher(|_, weight: &u32| *weight)
            .eviction_policy(moka::policy::EvictionPolicy::lru())
            .eviction_listener(move |key: Arc<u64>, _, cause| {
                if cause == moka::notification::RemovalCause::Size {
                    lock(&to).push(*key);
                }
            })
            .build();
        let (used, made, opened_early) = Default::default();
        let (taken, charged) = Default::default();
        Self { cache, dropped, used, made, opened_early, room, floor, taken, charged }
    }

    /// Bytes of the copies in the cache.
    fn held(&self) -> u64 {
        self.cache.run_pending_tasks();
        self.cache.weighted_size() * UNIT_BYTES
    }

    /// Bytes of copies that any other copy may replace.
    pub(crate) fn spare(&self) -> u64 {
        self.floor.map_or(0, |floor| self.held().saturating_sub(floor))
    }

    /// Bytes that are reserved for transient copies, and not counted by the ledger.
    pub(crate) fn kept(&self) -> u64 {
        let charged = self.charged.load(Ordering::Acquire);
        self.floor.unwrap_or(self.room).saturating_sub(self.held() + charged)
    }

    /// Bytes of the space for transient copies that are free.
    pub(crate) fn free(&self) -> u64 {
        if self.room == 0 { 0 } else { self.room.saturating_sub(self.held() + self.taken.load(Ordering::Acquire)) }
    }

    /// Whether copies that cannot be dropped yet take space.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire) > 0
    }

    /// Whether copies that cannot be dropped yet take more than half of the space.
    pub(crate) fn is_crowded(&self) -> bool {
        self.taken.load(Ordering::Acquire) > self.room / 2
    }

    /// Takes space while a copy is being made.
    pub(crate) fn take(&self, bytes: u64) -> TransientReservation {
        self.taken.fetch_add(bytes, Ordering::AcqRel);
        TransientReservation::new(self.taken.clone(), self.charged.clone(), bytes)
    }

    /// Adds a copy, which may be dropped from here on. Returns the copies that moka drops for it.
    pub(crate) fn add(&self, key: u64, bytes: u64) -> Vec<u64> {
        let weight = u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        self.cache.insert(key, weight);
        self.cache.run_pending_tasks();
        if lock(&self.opened_early).remove(&key) {
            self.used(key);
        }
        let mut made = lock(&self.made);
        made.push_back(key);
        if made.len() as u64 > 2 * self.cache.entry_count() + LINE_SLACK {
            made.retain(|key| self.cache.contains_key(key));
        }
        std::mem::take(&mut *lock(&self.dropped))
    }

    /// Notes that a copy was opened: it may be dropped first, if need be once it is added.
    pub(crate) fn used(&self, key: u64) {
        let mut early = lock(&self.opened_early);
        if !self.cache.contains_key(&key) {
            // (Copies that were moved or evicted instead stay behind.)
            if early.len() >= MAX_OPENED_EARLY {
                early.clear();
            }
            early.insert(key);
            return;
        }
        drop(early);
        let mut used = lock(&self.used);
        used.push_back(key);
        if used.len() as u64 > 2 * self.cache.entry_count() + LINE_SLACK {
            // Each key once, at the place of its last open.
            let mut seen = HashSet::new();
            let mut last: VecDeque<u64> = VecDeque::new();
            let kept = used.iter().rev().filter(|&key| seen.insert(*key) && self.cache.contains_key(key));
            kept.for_each(|key| last.push_front(*key));
            *used = last;
        }
    }

    /// Whether some copies were opened.
    pub(crate) fn has_used(&self) -> bool {
        !lock(&self.used).is_empty()
    }

    /// Removes the copy that is to be dropped first; with `any` also one that no reader has opened
    /// yet.
    pub(crate) fn pop(&self, any: bool) -> Option<u64> {
        let first = |line: &Mutex<VecDeque<u64>>| {
            let mut line = lock(line);
            // Each is read once an epoch: the one read last is needed last. (Those at the very end
            // are still being read.)
            let at = if self.floor.is_some() { line.len().saturating_sub(LIKELY_OPEN) } else { 0 };
            let next = || {
                let last = line.len().checked_sub(1)?;
                line.remove(at.min(last))
            };
            std::iter::from_fn(next).find(|key| self.cache.remove(key).is_some())
        };
        first(&self.used).or_else(|| if any { first(&self.made) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that stays could be made in the space of a transient one, at the moment when that was
    /// charged twice or not at all.
    #[test]
    fn room_for_decoded_copies_is_kept_until_the_ledger_knows_of_it() {
        for (elastic, kept) in [(None, 10 * UNIT_BYTES), (Some(0.5), 5 * UNIT_BYTES)] {
            let decoded = TransientCache::new(10 * UNIT_BYTES, elastic);
            let share = decoded.take(3 * UNIT_BYTES);
            assert_eq!(
                (decoded.free(), decoded.kept()),
                (7 * UNIT_BYTES, kept),
                "promised to one, and the ledger knows nothing"
            );
            share.charge();
            assert_eq!((decoded.free(), decoded.kept()), (7 * UNIT_BYTES, kept - 3 * UNIT_BYTES));
            share.hand_over();
            assert_eq!(
                (decoded.free(), decoded.kept()),
                (7 * UNIT_BYTES, kept),
                "rather charged twice than not at all"
            );
            assert!(decoded.add(1, 3 * UNIT_BYTES).is_empty());
            assert_eq!(
                (decoded.free(), decoded.kept()),
                (4 * UNIT_BYTES, kept - 3 * UNIT_BYTES),
                "nobody else takes it meanwhile"
            );
            drop(share);
            assert_eq!(
                (decoded.free(), decoded.kept(), decoded.is_taken()),
                (7 * UNIT_BYTES, kept - 3 * UNIT_BYTES, false)
            );
            let failed = decoded.take(UNIT_BYTES);
            failed.charge();
            drop(failed);
            assert_eq!((decoded.free(), decoded.kept()), (7 * UNIT_BYTES, kept - 3 * UNIT_BYTES));
        }
    }

    #[test]
    fn copies_that_were_opened_are_dropped_first() {
        let add = |cache: &TransientCache, keys: std::ops::Range<u64>| {
            keys.for_each(|key| assert!(cache.add(key, UNIT_BYTES).is_empty()));
        };
        let cache = TransientCache::new(1000 * UNIT_BYTES, None);
        add(&cache, 0..4);
        cache.used(2);
        assert_eq!([cache.pop(false), cache.pop(false), cache.pop(true)], [Some(2), None, Some(0)]);
        // A reader may open a copy while it waits to be compressed.
        let cache = TransientCache::new(1000 * UNIT_BYTES, None);
        cache.used(1);
        add(&cache, 0..2);
        assert_eq!([cache.pop(false), cache.pop(false)], [Some(1), None]);
        (0..10 * MAX_OPENED_EARLY as u64).for_each(|key| cache.used(key));
        assert!(lock(&cache.opened_early).len() <= MAX_OPENED_EARLY);
        // Copies that stay for the next epoch: the one opened last, but for those still open.
        for (elastic, first) in [(None, 0), (Some(0.5), 6)] {
            let cache = TransientCache::new(1000 * UNIT_BYTES, elastic);
            let keys = LIKELY_OPEN as u64 + 6;
            add(&cache, 0..keys);
            (0..keys).for_each(|key| cache.used(key));
            assert_eq!(cache.pop(false), Some(first), "{elastic:?}");
        }
    }
}
