//! [`TransientCopies`]: the transient copies of all tiers: decompressed copies, copies that are to
//! be compressed, and copies of files that peers own.

use crate::tier::{TierDir, Usage};
use crate::tiering::core::context::Context;
use crate::tiering::core::reservations::TransientReservation;
use crate::tiering::core::segments::{EvictionCandidate, Segments};
use crate::tiering::core::shared::Shared;
use crate::tiering::residency::decode_rounds::DecodeRounds;
use crate::tiering::residency::promotions::Promotions;
use crate::tiering::residency::transient_cache::TransientCache;
use monarch_abi::sys::futex_wake;
use monarch_abi::word::State;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One part in this many of the space stays free for readers.
pub(crate) const SPARE_DIVISOR: u64 = 8;

/// The transient copies of all tiers.
pub(crate) struct TransientCopies {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    rounds: Arc<DecodeRounds>,
    promotions: Arc<Promotions>,
    caches: Vec<TransientCache>,
}

impl TransientCopies {
    pub(crate) fn new(
        shared: &Shared,
        rounds: &Arc<DecodeRounds>,
        promotions: &Arc<Promotions>,
        caches: Vec<TransientCache>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            rounds: rounds.clone(),
            promotions: promotions.clone(),
            caches,
        }
    }

    /// The transient copies of a tier.
    pub(crate) fn of(&self, at: usize) -> Option<&TransientCache> {
        self.caches.get(at)
    }

    /// Whether no tier keeps transient copies.
    pub(crate) fn is_empty(&self) -> bool {
        self.caches.is_empty()
    }

    /// Whether copies that cannot be dropped yet take more than half of the space of a tier.
    pub(crate) fn is_crowded(&self) -> bool {
        self.caches.iter().any(TransientCache::is_crowded)
    }

    /// Bytes of a tier that are reserved for transient copies and not in use.
    pub(crate) fn reserved_bytes(&self, at: usize) -> u64 {
        self.caches.get(at).map_or(0, TransientCache::kept)
    }

    /// The usage of a tier, and the bytes reserved for transient copies beside it. Both are read so
    /// that one copy that comes or goes meanwhile does not make their sum smaller.
    pub(crate) fn usage_and_kept(&self, at: usize, tier: &TierDir) -> (Usage, u64) {
        let before = self.reserved_bytes(at);
        let usage = tier.space.ledger.usage();
        (usage, self.reserved_bytes(at).max(before))
    }

    /// Adds a transient copy in the tier `at`, where it had a reservation.
    pub(crate) fn add(&self, at: usize, key: u64, size: u64, share: Option<&TransientReservation>) {
        let (Some(decoded), Some(tier)) = (self.caches.get(at), self.cx.tiers.get(at)) else { return };
        if let Some(share) = share {
            share.hand_over();
        }
        for key in decoded.add(key, tier.space.ledger.cost(size)) {
            let _ = self.drop_transient(at, key);
        }
    }

    /// Notes copies that were opened: those that may be promoted, and those that may be dropped.
    pub(crate) fn drain_touched(&self) {
        if self.cx.tiers.len() < 2 && self.caches.is_empty() {
            return;
        }
        let mut touched = Vec::new();
        let segments = self.segments.read();
        for (number, live) in segments.iter().enumerate() {
            let Some(live) = live else { continue };
            live.segment.state.drain_touched(|id| touched.push(monarch_abi::demand::file_key(number, id)));
        }
        drop(segments);
        for key in touched {
            let Some((_, entry)) = self.segments.entry(key) else { continue };
            let word = entry.word();
            if word.state() != State::Resident {
                continue;
            }
            if word.is_marked() {
                self.rounds.was_read(key);
                if let Some(decoded) = self.caches.get(word.tier()) {
                    decoded.used(key);
                }
            } else {
                self.promotions.mark_hot(key);
            }
        }
    }

    /// Drops a transient copy. Returns the bytes that were charged for it, if it was one.
    fn drop_transient(&self, at: usize, key: u64) -> Option<u64> {
        let candidate = self.segments.candidate(key).filter(|l| l.word.is_marked() && l.word.tier() == at)?;
        self.drop_refetchable(at, &candidate)
    }

    /// Drops a copy that the next reader has made again. Returns the bytes that were charged for
    /// it.
    pub(crate) fn drop_refetchable(&self, at: usize, candidate: &EvictionCandidate) -> Option<u64> {
        let (tier, size) = (self.cx.tiers.get(at)?, candidate.entry.record.size);
        let below = self.cx.packed_below(at, candidate.name());
        // Fetching until this copy is removed, so that no copier makes the next one before: its
        // reader waits a moment.
        let (between, word) = (candidate.word.next(State::Fetching), &candidate.entry.master.word);
        word.compare_exchange(candidate.word.0, between.0, Ordering::AcqRel, Ordering::Acquire).ok()?;
        tier.trash.evict_resident(candidate.name(), size);
        // (Another process may have removed the compressed copy.)
        let to = below.map_or(between.next(State::Absent), |below| between.packed(below));
        if word.compare_exchange(between.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // The job has changed the file.
            let _ = self.cx.evict_packed(candidate.name(), size);
        }
        futex_wake(word, u32::MAX >> 1);
        Some(tier.space.ledger.cost(size))
    }

    /// Drops transient copies of a tier until `bytes` are free, first those that were opened; with
    /// `any` also others. Returns the bytes freed.
    pub(crate) fn drop_some(&self, at: usize, bytes: u64, any: bool) -> u64 {
        let Some(decoded) = self.caches.get(at).filter(|d| d.room > 0) else { return 0 };
        let mut freed = 0;
        if !decoded.has_used() {
            self.drain_touched();
        }
        while freed < bytes {
            let Some(key) = decoded.pop(any) else { break };
            freed += self.drop_transient(at, key).unwrap_or(0);
        }
        freed
    }

    /// Drops transient copies that were opened to have space for one more of `size` bytes: no
    /// reader waits for that now, but the next one would.
    pub(crate) fn free_ahead(&self, at: usize, size: u64) {
        let (Some(decoded), Some(tier)) = (self.caches.get(at), self.cx.tiers.get(at)) else { return };
        let (free, cost) = (decoded.free(), tier.space.ledger.cost(size));
        if free < cost {
            self.drop_some(at, cost - free, false);
        }
    }

    /// Bytes of copies in a tier that any other copy may replace.
    pub(crate) fn replaceable_bytes(&self, at: usize) -> u64 {
        self.caches.get(at).map_or(0, crate::tiering::residency::transient_cache::TransientCache::spare)
    }

    /// Notes transient copies that were there before this agent started: those that have a
    /// compressed copy as well.
    pub(crate) fn note_transient(&self, keys: impl Iterator<Item = u64>) {
        for key in keys {
            if let Some(candidate) = self.segments.candidate(key) {
                self.add(candidate.word.tier(), key, candidate.entry.record.size, None);
            }
        }
    }

    /// Whether a tier has space for a file, and for one part in `spare` of its capacity beside it.
    pub(crate) fn takes(&self, tier: usize, size: u64, spare: u64) -> bool {
        self.cx.tiers.get(tier).is_some_and(|t| {
            let (u, kept) = self.usage_and_kept(tier, t);
            let spare = u.capacity.checked_div(spare).unwrap_or(0);
            !t.space.suspended() && u.used + u.reserved + t.space.ledger.cost(size) + kept + spare <= u.capacity
        })
    }

    /// Whether there is space to decompress a copy ahead of readers.
    pub(crate) fn has_room_ahead(&self) -> bool {
        self.caches.iter().zip(&self.cx.tiers).any(|(decoded, tier)| {
            tier.options.for_decoded > 0
                && !tier.space.suspended()
                && (decoded.free() > tier.options.for_decoded / SPARE_DIVISOR || decoded.has_used())
        })
    }

    /// Whether copies are in the making, or wait, that are to be compressed: they may take less
    /// space below than was reserved.
    pub(crate) fn has_uncompressed(&self) -> bool {
        self.caches.iter().any(TransientCache::is_taken)
    }
}
