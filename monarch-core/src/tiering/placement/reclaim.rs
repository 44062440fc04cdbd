//! [`Reclaim`]: frees space for copies: evicts orphans, drops transient and partial copies, demotes
//! or drops resident ones.

use crate::snapshot::{Range, Tally};
use crate::sync::lock;
use crate::tier::{ByName, CopyFile, PartCopy, TierDir};
use crate::tiering::core::context::Context;
use crate::tiering::core::reservations::TransientReservation;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::shared::Shared;
use crate::tiering::core::state_transition::swap;
use crate::tiering::placement::demotion::Demotion;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::residency::Residency;
use crate::tiering::residency::eviction::Eviction;
use crate::tiering::residency::mover::Mover;
use crate::tiering::residency::orphans::Orphans;
use crate::tiering::residency::transient_copies::TransientCopies;
use monarch_abi::demand::file_key;
use monarch_abi::hash::CopyName;
use monarch_abi::word::{Refusal, State};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long one round moves copies instead of dropping them: space has to be free within a second.
const MAX_DEMOTION_TIME: Duration = Duration::from_millis(300);
/// Pause of a file whose copy was dropped for lack of space.
const DROPPED_PAUSE: Duration = Duration::from_secs(30);

/// Drops partial copies. Implemented by the chunked fetches.
pub(crate) trait Reclaimer: Send + Sync {
    /// Drops partial copies in a tier until about `bytes` are free. Their files are tried again
    /// after `pause`. Returns the number of files, and the bytes.
    fn drop_fetches(&self, tier: usize, bytes: u64, pause: Duration) -> (usize, u64);
    /// Drops the partial copy in a tier that readers have left alone for longest, if there is one.
    fn drop_idle_fetch(&self, tier: usize) -> bool;
    /// Drops the partial copy of a file. Returns its bytes.
    fn drop_fetch(&self, key: u64) -> Option<u64>;
}

/// Frees space in tiers.
pub(crate) struct Reclaim {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    orphans: Arc<Mutex<Orphans>>,
    policy: Arc<PolicyHandle>,
    transient: Arc<TransientCopies>,
    eviction: Arc<Eviction>,
    mover: Arc<Mover>,
    demotion: Arc<Demotion>,
    fetches: Arc<dyn Reclaimer>,
}

impl Reclaim {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        residency: &Residency,
        demotion: &Arc<Demotion>,
        fetches: Arc<dyn Reclaimer>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            orphans: residency.orphans.clone(),
            policy: policy.clone(),
            transient: residency.transient.clone(),
            eviction: residency.eviction.clone(),
            mover: residency.mover.clone(),
            demotion: demotion.clone(),
            fetches,
        }
    }

    /// Creates a copy in a tier; evicts orphans and transient copies until there is space.
    pub(crate) fn room<'a>(&self, at: usize, tier: &'a TierDir, size: u64) -> io::Result<Option<CopyFile<'a>>> {
        tier.log.keep_room();
        loop {
            if let Some(file) = tier.copies.create(size)? {
                return Ok(Some(file));
            }
            let cost = tier.space.ledger.cost(size);
            let passed = || self.transient.replaceable_bytes(at) > 0 && self.transient.drop_some(at, cost, true) > 0;
            if !lock(&self.orphans).make_way(at, &self.cx.tiers) && !passed() {
                return Ok(None);
            }
        }
    }

    /// Finds space for a transient copy of `size` bytes in a tier faster than `below`; `make`
    /// creates it. Drops other transient copies for it; with `any` also ones that no reader has
    /// opened yet.
    pub(crate) fn room_above<'a, T>(
        &'a self,
        below: usize,
        size: u64,
        any: bool,
        mut make: impl FnMut(&'a TierDir) -> io::Result<Option<T>>,
    ) -> Option<(usize, T, TransientReservation)> {
        for (at, tier) in self.cx.tiers.iter().enumerate().take(below) {
            let (Some(decoded), cost) = (self.transient.of(at), tier.space.ledger.cost(size)) else { continue };
            if cost > decoded.room || tier.space.suspended() || (!any && tier.space.closed_to_prefetch()) {
                continue;
            }
            loop {
                let free = decoded.free();
                // (Dropping copies of retired indexes frees only their places.)
                if free < cost
                    && self.transient.drop_some(at, cost - free, any) == 0
                    && decoded.free() < cost
                    && !(any && self.fetches.drop_idle_fetch(at))
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
                        let more = lock(&self.orphans).make_way(at, &self.cx.tiers)
                            || self.transient.drop_some(at, cost, any) > 0;
                        if !more {
                            break;
                        }
                    }
                    Err(e) => {
                        self.cx.tier_failed(tier, &e);
                        break;
                    }
                }
            }
        }
        None
    }

    /// Creates a transient copy in a tier faster than `below`.
    pub(crate) fn file_above(
        &self,
        below: usize,
        size: u64,
        any: bool,
    ) -> Option<(usize, CopyFile<'_>, TransientReservation)> {
        self.room_above(below, size, any, |tier| tier.copies.create(size))
    }

    /// Creates a transient partial copy in a tier faster than `below`.
    pub(crate) fn part_above(
        &self,
        below: usize,
        size: u64,
        any: bool,
    ) -> Option<(usize, PartCopy, TransientReservation)> {
        self.room_above(below, size, any, |tier| tier.parts.begin(size, true))
    }

    /// Creates a partial copy in a tier; evicts orphans until there is space.
    pub(crate) fn room_for_part(&self, at: usize, tier: &TierDir, size: u64) -> std::io::Result<Option<PartCopy>> {
        loop {
            if let Some(part) = tier.parts.begin(size, true)? {
                return Ok(Some(part));
            }
            if !lock(&self.orphans).make_way(at, &self.cx.tiers) {
                return Ok(None);
            }
        }
    }

    /// Frees about `bytes` of a tier: first orphans, then transient and partial copies, then those
    /// placed last, which are demoted if a slower tier has space and there is time. Returns how
    /// many copies were dropped.
    pub(crate) fn shrink(&self, tier: usize, bytes: u64) -> usize {
        let Some(dir) = self.cx.tiers.get(tier) else { return 0 };
        let (mut dropped, mut freed) = lock(&self.orphans).make_room(tier, bytes, &self.cx.tiers);
        if freed < bytes {
            freed += self.transient.drop_some(tier, bytes - freed, true);
        }
        if freed < bytes {
            let (ended, partial) = self.fetches.drop_fetches(tier, bytes - freed, DROPPED_PAUSE);
            dropped += ended;
            freed += partial;
        }
        // (The ledger does not count partial copies as files.)
        let candidates = if dir.space.ledger.usage().files == 0 {
            Vec::new()
        } else {
            self.eviction.placed_last(tier, bytes.saturating_sub(freed))
        };
        let can_move = tier + 1 < self.cx.tiers.len();
        let sums =
            if can_move && !candidates.is_empty() { self.mover.sums_of(dir, &candidates) } else { ByName::default() };
        let until = Instant::now() + MAX_DEMOTION_TIME;
        for candidate in candidates {
            if candidate.word.packed_in().is_some() {
                dropped +=
                    usize::from(self.eviction.drop_packed(&candidate, Refusal::Dropped, Some(DROPPED_PAUSE)).is_some());
                continue;
            }
            if sums.get(candidate.name()).is_some_and(|logged| self.demotion.demote(&candidate, logged.sum, until)) {
                continue;
            }
            dropped += usize::from(self.eviction.refuse(&candidate, Refusal::Dropped, Some(DROPPED_PAUSE)));
        }
        self.cx.stats.evicted.fetch_add(dropped as u64, Ordering::Relaxed);
        dropped
    }

    /// Compacts logs, which grow with every copy. It takes as long as looking at all copies.
    pub(crate) fn compact_logs(&self) {
        let may = || !self.cx.stop.load(Ordering::Relaxed);
        for (at, tier) in self.cx.tiers.iter().enumerate() {
            let short = tier.compactor.compact_if_due(may);
            if short > 0 {
                self.shrink(at, short);
                // At once, before copies take the space; otherwise it is tried again later.
                let _ = tier.compactor.compact_if_due(may);
            }
        }
    }

    /// Drops the copies in these ranges, orphans named in `copies`, and with `unclaimed` all
    /// orphans. They are made again when a reader asks.
    pub(crate) fn evict_ranges(&self, ranges: &[Range], unclaimed: bool, copies: &[String]) -> Tally {
        let mut tally = Tally::default();
        for r in ranges {
            let len = self.segments.segment(r.segment).map_or(0, |live| live.segment.index.len() as u32);
            for id in r.from..r.end.min(len) {
                let key = file_key(r.segment, id);
                let Some((live, entry)) = self.segments.entry(key) else { continue };
                let mut w = entry.word();
                let first_name = core::ptr::eq(entry.slot, entry.master);
                if first_name && w.state() == State::Partial {
                    // First the copy that it is decompressed from, if it is.
                    self.cx.evict_packed(live.segment.copy_name(&entry), entry.record.size);
                    if let Some(partial) = self.fetches.drop_fetch(key) {
                        tally.add(partial);
                    }
                    w = entry.word();
                }
                if first_name && (w.is_marked() || w.packed_in().is_some()) {
                    let name = live.segment.copy_name(&entry);
                    self.cx.evict_packed(name, entry.record.size);
                }
                if first_name && w.packed_in().is_some() && swap(&entry, w, w.next(State::Absent)) {
                    tally.add(entry.record.size);
                    self.policy.report_dropped(key);
                }
                if first_name && w.state() == State::Resident && self.eviction.drop_copy(key, &live, &entry, w) {
                    tally.add(entry.record.size);
                    // A copy that was left below when this one was promoted.
                    let _ = lock(&self.orphans).evict(live.segment.copy_name(&entry), &self.cx.tiers);
                }
            }
        }
        for name in copies.iter().filter_map(|name| CopyName::parse(name.as_bytes())) {
            if let Some(bytes) = lock(&self.orphans).evict(name, &self.cx.tiers) {
                tally.add(bytes);
            }
        }
        if unclaimed {
            for at in 0..self.cx.tiers.len() {
                let (dropped, bytes) = lock(&self.orphans).make_room(at, u64::MAX, &self.cx.tiers);
                tally.files += dropped as u64;
                tally.bytes += bytes;
            }
        }
        self.cx.stats.evicted.fetch_add(tally.files, Ordering::Relaxed);
        tally
    }
}
