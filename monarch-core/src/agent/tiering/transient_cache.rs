//! Transient copies: which there are, and which of them goes when another one needs its room.
//!
//! A tier in front of one with packed copies keeps a share of its room for them. moka holds the set
//! and bounds it by size (least recently made first); the tier's ledger says whether there is room.
//! Before that copies go that somebody has opened: in an epoch each is read once. Copies of files
//! that other nodes own are kept in the same way (see [`peers`](super::peers)).

use super::TieringEngine;
use super::migration::EvictionCandidate;
use super::orphans::Claim;
use crate::sync::lock;
use crate::tier::{CopyFile, PartCopy, TierDir, Usage};
use monarch_abi::hash::CopyName;
use monarch_abi::sys::futex_wake;
use monarch_abi::word::{State, Word};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Copies that are gone which the lines may have at any length.
const SLACK: u64 = 1024;
/// Copies opened last that are likely to be open still.
const OPEN: usize = 64;
/// What weights are counted in: moka's are 32 bits wide. What the ledger charges for a copy is a
/// multiple of it, so that the two do not drift apart.
const UNIT: u64 = 32;

/// The decoded copies of one tier.
pub(super) struct TransientCache {
    cache: moka::sync::Cache<u64, u32>,
    /// Those that moka has dropped; they are yet to go.
    dropped: Arc<Mutex<Vec<u64>>>,
    /// Those that somebody has opened, in that order, and all in the order they were made. Some may
    /// have gone meanwhile.
    used: Mutex<VecDeque<u64>>,
    made: Mutex<VecDeque<u64>>,
    /// Bytes that are kept for them, or that they may take of what is left.
    room: u64,
    /// Whether they stay from epoch to epoch as long as there is room, so that the last ones opened
    /// make way first. Then so many bytes are theirs in any case.
    floor: Option<u64>,
    /// Bytes of those in the making, and of copies that are yet to be packed.
    taken: Arc<AtomicU64>,
    /// Those of them that the ledger knows of as well, and that are not among the copies yet. It
    /// must not be too many at any time: who looks then takes room for copies that stay.
    charged: Arc<AtomicU64>,
}

/// A part of the room for decoded copies, taken for as long as this lives.
#[derive(Debug)]
pub(super) struct TransientReservation {
    taken: Arc<AtomicU64>,
    charged: Arc<AtomicU64>,
    bytes: u64,
    is_charged: AtomicBool,
}

impl TransientReservation {
    /// The ledger has been told.
    pub(super) fn charge(&self) {
        if !self.is_charged.swap(true, Ordering::AcqRel) {
            self.charged.fetch_add(self.bytes, Ordering::AcqRel);
        }
    }

    /// What it was taken for is about to be among the copies, or the ledger to be told that it is
    /// not.
    pub(super) fn hand_over(&self) {
        if self.is_charged.swap(false, Ordering::AcqRel) {
            self.charged.fetch_sub(self.bytes, Ordering::AcqRel);
        }
    }
}

impl Drop for TransientReservation {
    fn drop(&mut self) {
        self.hand_over();
        self.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl TransientCache {
    /// With so much room; with `elastic` that part of it at least.
    pub(super) fn new(room: u64, elastic: Option<f64>) -> Self {
        let floor = elastic.map(|part| (room as f64 * part) as u64);
        let dropped = Arc::new(Mutex::new(Vec::new()));
        let to = dropped.clone();
        let cache = moka::sync::Cache::builder()
            .max_capacity(room / UNIT)
            .weigher(|_, weight: &u32| *weight)
            .eviction_policy(moka::policy::EvictionPolicy::lru())
            .eviction_listener(move |key: Arc<u64>, _, cause| {
                if cause == moka::notification::RemovalCause::Size {
                    lock(&to).push(*key);
                }
            })
            .build();
        let (used, made) = (Mutex::default(), Mutex::default());
        let (taken, charged) = Default::default();
        Self { cache, dropped, used, made, room, floor, taken, charged }
    }

    /// Bytes of those that may go.
    fn held(&self) -> u64 {
        self.cache.run_pending_tasks();
        self.cache.weighted_size() * UNIT
    }

    /// Bytes of those that others may take the room of.
    pub(super) fn spare(&self) -> u64 {
        self.floor.map_or(0, |floor| self.held().saturating_sub(floor))
    }

    /// Bytes that are theirs, of which the ledger knows nothing.
    pub(super) fn kept(&self) -> u64 {
        let charged = self.charged.load(Ordering::Acquire);
        self.floor.unwrap_or(self.room).saturating_sub(self.held() + charged)
    }

    /// Bytes that are still free of what is kept for them.
    pub(super) fn free(&self) -> u64 {
        if self.room == 0 { 0 } else { self.room.saturating_sub(self.held() + self.taken.load(Ordering::Acquire)) }
    }

    /// Whether copies take room that cannot go yet.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire) > 0
    }

    /// Whether copies that cannot go yet take more than half of the room.
    pub(super) fn is_crowded(&self) -> bool {
        self.taken.load(Ordering::Acquire) > self.room / 2
    }

    /// Room that is taken while a copy is being made.
    fn take(&self, bytes: u64) -> TransientReservation {
        self.taken.fetch_add(bytes, Ordering::AcqRel);
        let (taken, charged) = (self.taken.clone(), self.charged.clone());
        TransientReservation { taken, charged, bytes, is_charged: AtomicBool::new(false) }
    }

    /// A copy that may go from here on; those that moka drops for it.
    fn add(&self, key: u64, bytes: u64) -> Vec<u64> {
        let weight = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX);
        self.cache.insert(key, weight);
        self.cache.run_pending_tasks();
        let mut made = lock(&self.made);
        made.push_back(key);
        if made.len() as u64 > 2 * self.cache.entry_count() + SLACK {
            made.retain(|key| self.cache.contains_key(key));
        }
        std::mem::take(&mut *lock(&self.dropped))
    }

    /// One that may go first.
    fn used(&self, key: u64) {
        if !self.cache.contains_key(&key) {
            return;
        }
        let mut used = lock(&self.used);
        used.push_back(key);
        if used.len() as u64 > 2 * self.cache.entry_count() + SLACK {
            // Each once, as it was opened last.
            let mut seen = HashSet::new();
            let mut last: VecDeque<u64> = VecDeque::new();
            let kept = used.iter().rev().filter(|&key| seen.insert(*key) && self.cache.contains_key(key));
            kept.for_each(|key| last.push_front(*key));
            *used = last;
        }
    }

    /// Whether some were opened.
    pub(super) fn has_used(&self) -> bool {
        !lock(&self.used).is_empty()
    }

    /// Takes out the one that goes first; with `any` also one that nobody has opened yet.
    fn pop(&self, any: bool) -> Option<u64> {
        let first = |line: &Mutex<VecDeque<u64>>| {
            let mut line = lock(line);
            // Each is read once an epoch: what was read last is needed last. (Those at the very end
            // are still being read.)
            let at = if self.floor.is_some() { line.len().saturating_sub(OPEN) } else { 0 };
            let next = || {
                let last = line.len().checked_sub(1)?;
                line.remove(at.min(last))
            };
            std::iter::from_fn(next).find(|key| self.cache.remove(key).is_some())
        };
        first(&self.used).or_else(|| if any { first(&self.made) } else { None })
    }
}

impl TieringEngine {
    /// Whether copies in a tier are packed.
    pub(super) fn packs(&self, at: usize) -> bool {
        self.tiers.get(at).is_some_and(|t| t.min_ratio.is_some())
    }

    /// Where the copies of a file lie whose word says so.
    #[must_use]
    pub fn copies_of(&self, word: Word, name: CopyName) -> Claim {
        match (word.state(), word.packed_in()) {
            (State::Resident, _) => {
                let packed = if word.is_marked() { self.packed_below(word.tier(), name) } else { None };
                Claim { plain: Some(word.tier()), packed, check: None }
            }
            // Being decoded, or about to be.
            (State::Requested | State::Fetching | State::Partial, _) => {
                Claim { packed: self.packed_from(0, name), ..Claim::default() }
            }
            (_, packed) => Claim { packed, ..Claim::default() },
        }
    }

    /// Takes note of decoded copies that were there before this agent started: those that are
    /// packed as well.
    pub fn note_decoded(&self, keys: impl Iterator<Item = u64>) {
        for key in keys {
            if let Some(leaver) = self.leaver(key) {
                self.add_decoded(leaver.word.tier(), key, leaver.entry.record.size, None);
            }
        }
    }

    /// The tier below this one that has a packed copy of this name.
    pub(super) fn packed_below(&self, at: usize, name: CopyName) -> Option<usize> {
        self.packed_from(at + 1, name)
    }

    /// The first tier from this one on that has.
    fn packed_from(&self, from: usize, name: CopyName) -> Option<usize> {
        let has = |t: &TierDir| t.packed().files > 0 && t.has_packed(name);
        self.tiers.iter().enumerate().skip(from).find_map(|(at, t)| has(t).then_some(at))
    }

    /// Bytes of a tier that are kept for decoded copies and not in use.
    pub(super) fn kept_for_decoded(&self, at: usize) -> u64 {
        self.transient.get(at).map_or(0, TransientCache::kept)
    }

    /// What is in use of a tier, and what is kept for decoded copies beside it: looked at so that
    /// one copy that comes or goes meanwhile does not make them less together.
    pub(super) fn usage_and_kept(&self, at: usize, tier: &TierDir) -> (Usage, u64) {
        let before = self.kept_for_decoded(at);
        let usage = tier.ledger.usage();
        (usage, self.kept_for_decoded(at).max(before))
    }

    /// A decoded copy is there, in this tier, where it had a share of the room.
    pub(super) fn add_decoded(&self, at: usize, key: u64, size: u64, share: Option<&TransientReservation>) {
        let (Some(decoded), Some(tier)) = (self.transient.get(at), self.tiers.get(at)) else { return };
        if let Some(share) = share {
            share.hand_over();
        }
        for key in decoded.add(key, tier.ledger.cost(size)) {
            let _ = self.drop_decoded(at, key);
        }
    }

    /// Takes note of copies that were opened: those that could move up, and those that may go.
    pub(super) fn drain_touched(&self) {
        if self.tiers.len() < 2 && self.transient.is_empty() {
            return;
        }
        let mut touched = Vec::new();
        let segments = self.segments.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (number, live) in segments.iter().enumerate() {
            let Some(live) = live else { continue };
            live.segment.state.drain_touched(|id| touched.push(monarch_abi::demand::file_key(number, id)));
        }
        drop(segments);
        for key in touched {
            let Some((_, entry)) = self.entry(key) else { continue };
            let word = entry.word();
            if word.state() != State::Resident {
                continue;
            }
            if word.is_marked() {
                self.was_read(key);
                if let Some(decoded) = self.transient.get(word.tier()) {
                    decoded.used(key);
                }
            } else {
                self.mark_hot(key);
            }
        }
    }

    /// Drops a decoded copy; the bytes that were charged for it, if it was one.
    fn drop_decoded(&self, at: usize, key: u64) -> Option<u64> {
        let leaver = self.leaver(key).filter(|l| l.word.is_marked() && l.word.tier() == at)?;
        self.drop_for_now(at, &leaver)
    }

    /// Drops a copy that is made again for whoever asks; the bytes that were charged for it.
    pub(super) fn drop_for_now(&self, at: usize, leaver: &EvictionCandidate) -> Option<u64> {
        let (tier, size) = (self.tiers.get(at)?, leaver.entry.record.size);
        let below = self.packed_below(at, leaver.name());
        // Nobody is to make the next one before this one is out of the way; who asks for it waits a
        // moment.
        let (between, word) = (leaver.word.next(State::Fetching), &leaver.entry.master.word);
        word.compare_exchange(leaver.word.0, between.0, Ordering::AcqRel, Ordering::Acquire).ok()?;
        tier.evict_resident(leaver.name(), size);
        // (Somebody else may have removed the packed one.)
        let to = below.map_or(between.next(State::Absent), |below| between.packed(below));
        if word.compare_exchange(between.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // A job has changed the file.
            let _ = self.evict_packed(leaver.name(), size);
        }
        futex_wake(word, u32::MAX >> 1);
        Some(tier.ledger.cost(size))
    }

    /// Drops decoded copies of a tier until so many bytes are free, first those that were opened;
    /// with `any` also others.
    pub(super) fn drop_some_decoded(&self, at: usize, bytes: u64, any: bool) -> u64 {
        let Some(decoded) = self.transient.get(at).filter(|d| d.room > 0) else { return 0 };
        let mut freed = 0;
        if !decoded.has_used() {
            self.drain_touched();
        }
        while freed < bytes {
            let Some(key) = decoded.pop(any) else { break };
            freed += self.drop_decoded(at, key).unwrap_or(0);
        }
        freed
    }

    /// Has decoded copies that were opened make way for one more of `size` bytes: nobody waits for
    /// that now, the next reader would.
    pub(super) fn make_way_ahead(&self, at: usize, size: u64) {
        let (Some(decoded), Some(tier)) = (self.transient.get(at), self.tiers.get(at)) else { return };
        let (free, cost) = (decoded.free(), tier.ledger.cost(size));
        if free < cost {
            self.drop_some_decoded(at, cost - free, false);
        }
    }

    /// Room for something of `size` bytes in a tier faster than `below`, among the decoded copies;
    /// `make` makes it. Others make way.
    pub(super) fn room_above<'a, T>(
        &'a self,
        below: usize,
        size: u64,
        any: bool,
        mut make: impl FnMut(&'a TierDir) -> io::Result<Option<T>>,
    ) -> Option<(usize, T, TransientReservation)> {
        for (at, tier) in self.tiers.iter().enumerate().take(below) {
            let (Some(decoded), cost) = (self.transient.get(at), tier.ledger.cost(size)) else { continue };
            if cost > decoded.room || tier.suspended() {
                continue;
            }
            loop {
                let free = decoded.free();
                // (Copies of indexes that are gone free nothing but their place.)
                if free < cost
                    && self.drop_some_decoded(at, cost - free, any) == 0
                    && decoded.free() < cost
                    && !(any && self.drop_idle_passing(at))
                {
                    break;
                }
                let share = decoded.take(cost);
                match make(tier) {
                    Ok(Some(made)) => {
                        share.charge();
                        return Some((at, made, share));
                    }
                    Ok(None) => {
                        drop(share);
                        let more =
                            self.orphans().make_way(at, &self.tiers) || self.drop_some_decoded(at, cost, any) > 0;
                        if !more {
                            break;
                        }
                    }
                    Err(e) => {
                        self.tier_failed(tier, &e);
                        break;
                    }
                }
            }
        }
        None
    }

    /// A file in a tier faster than `below`, among the decoded copies.
    pub(super) fn file_above(
        &self,
        below: usize,
        size: u64,
        any: bool,
    ) -> Option<(usize, CopyFile<'_>, TransientReservation)> {
        self.room_above(below, size, any, |tier| tier.create(size))
    }

    /// The same for a partial copy.
    pub(super) fn part_above(
        &self,
        below: usize,
        size: u64,
        any: bool,
    ) -> Option<(usize, PartCopy, TransientReservation)> {
        self.room_above(below, size, any, |tier| tier.begin_part(size, true))
    }

    /// Whether a file could be decoded at all.
    pub(super) fn could_be_decoded(&self, below: usize, size: u64) -> bool {
        self.tiers.iter().take(below).any(|t| t.ledger.cost(size) <= t.for_decoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that stays could be made in the room of a decoded one, at the moment when that was
    /// charged twice or not at all.
    #[test]
    fn room_for_decoded_copies_is_kept_until_the_ledger_knows_of_it() {
        for (elastic, kept) in [(None, 10 * UNIT), (Some(0.5), 5 * UNIT)] {
            let decoded = TransientCache::new(10 * UNIT, elastic);
            let share = decoded.take(3 * UNIT);
            assert_eq!(
                (decoded.free(), decoded.kept()),
                (7 * UNIT, kept),
                "promised to one, and the ledger knows nothing"
            );
            share.charge();
            assert_eq!((decoded.free(), decoded.kept()), (7 * UNIT, kept - 3 * UNIT));
            share.hand_over();
            assert_eq!((decoded.free(), decoded.kept()), (7 * UNIT, kept), "rather charged twice than not at all");
            assert!(decoded.add(1, 3 * UNIT).is_empty());
            assert_eq!((decoded.free(), decoded.kept()), (4 * UNIT, kept - 3 * UNIT), "nobody else takes it meanwhile");
            drop(share);
            assert_eq!((decoded.free(), decoded.kept(), decoded.is_taken()), (7 * UNIT, kept - 3 * UNIT, false));
            let failed = decoded.take(UNIT);
            failed.charge();
            drop(failed);
            assert_eq!((decoded.free(), decoded.kept()), (7 * UNIT, kept - 3 * UNIT));
        }
    }
}
