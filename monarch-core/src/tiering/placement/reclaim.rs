//! Makes room.

use crate::snapshot::{Range, Tally};
use crate::sync::lock;
use crate::tier::{ByName, CopyFile, PartCopy, TierDir};
use crate::tiering::core::context::Context;
use crate::tiering::core::reservations::TransientReservation;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::state_transition::swap;
use crate::tiering::placement::demotion::Demotion;
use crate::tiering::policy::policy_handle::PolicyHandle;
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

/// How long copies are moved instead of dropped in one round: space is to be free again within a
/// second.
const MOVING: Duration = Duration::from_millis(300);
/// Pause after a copy was dropped for lack of space.
const DROPPED: Duration = Duration::from_secs(30);

/// Gives room back that files take of which only a part is there.
pub(crate) trait Reclaimer: Send + Sync {
    /// Drops what there is of some files in a tier until about `bytes` are free again: how many
    /// files, and bytes. Their next attempt is after `pause`.
    fn drop_fills(&self, tier: usize, bytes: u64, pause: Duration) -> (usize, u64);
    /// Gives up the file in a tier that readers have left alone for longest, if there is one.
    fn drop_idle_passing(&self, tier: usize) -> bool;
    /// Drops what there is of a file; its bytes.
    fn drop_fill(&self, key: u64) -> Option<u64>;
}

/// Makes room.
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
    #[expect(clippy::too_many_arguments, reason = "it is handed each component that it uses")]
    pub(crate) fn new(
        cx: &Arc<Context>,
        segments: &Arc<Segments>,
        orphans: &Arc<Mutex<Orphans>>,
        policy: &Arc<PolicyHandle>,
        transient: &Arc<TransientCopies>,
        eviction: &Arc<Eviction>,
        mover: &Arc<Mover>,
        demotion: &Arc<Demotion>,
        fetches: Arc<dyn Reclaimer>,
    ) -> Self {
        Self {
            cx: cx.clone(),
            segments: segments.clone(),
            orphans: orphans.clone(),
            policy: policy.clone(),
            transient: transient.clone(),
            eviction: eviction.clone(),
            mover: mover.clone(),
            demotion: demotion.clone(),
            fetches,
        }
    }

    /// Room for a copy; copies of an earlier run that nobody claims make way.
    pub(crate) fn room<'a>(&self, at: usize, tier: &'a TierDir, size: u64) -> io::Result<Option<CopyFile<'a>>> {
        tier.keep_log_room();
        loop {
            if let Some(file) = tier.create(size)? {
                return Ok(Some(file));
            }
            let cost = tier.ledger.cost(size);
            let passed =
                || self.transient.passing_bytes(at) > 0 && self.transient.drop_some_decoded(at, cost, true) > 0;
            if !lock(&self.orphans).make_way(at, &self.cx.tiers) && !passed() {
                return Ok(None);
            }
        }
    }

    /// Room for something of `size` bytes in a tier faster than `below`, among the decoded copies;
    /// `make` makes it. Others make way.
    pub(crate) fn room_above<'a, T>(
        &'a self,
        below: usize,
        size: u64,
        any: bool,
        mut make: impl FnMut(&'a TierDir) -> io::Result<Option<T>>,
    ) -> Option<(usize, T, TransientReservation)> {
        for (at, tier) in self.cx.tiers.iter().enumerate().take(below) {
            let (Some(decoded), cost) = (self.transient.of(at), tier.ledger.cost(size)) else { continue };
            if cost > decoded.room || tier.suspended() {
                continue;
            }
            loop {
                let free = decoded.free();
                // (Copies of indexes that are gone free nothing but their place.)
                if free < cost
                    && self.transient.drop_some_decoded(at, cost - free, any) == 0
                    && decoded.free() < cost
                    && !(any && self.fetches.drop_idle_passing(at))
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
                            || self.transient.drop_some_decoded(at, cost, any) > 0;
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

    /// A file in a tier faster than `below`, among the decoded copies.
    pub(crate) fn file_above(
        &self,
        below: usize,
        size: u64,
        any: bool,
    ) -> Option<(usize, CopyFile<'_>, TransientReservation)> {
        self.room_above(below, size, any, |tier| tier.create(size))
    }

    /// The same for a partial copy.
    pub(crate) fn part_above(
        &self,
        below: usize,
        size: u64,
        any: bool,
    ) -> Option<(usize, PartCopy, TransientReservation)> {
        self.room_above(below, size, any, |tier| tier.begin_part(size, true))
    }

    /// Room for a partial copy; copies of an earlier run that nobody claims make way.
    pub(crate) fn room_for_part(&self, at: usize, tier: &TierDir, size: u64) -> std::io::Result<Option<PartCopy>> {
        loop {
            if let Some(part) = tier.begin_part(size, true)? {
                return Ok(Some(part));
            }
            if !lock(&self.orphans).make_way(at, &self.cx.tiers) {
                return Ok(None);
            }
        }
    }

    /// Takes copies out of a tier until about `bytes` are free again: first those that nobody has
    /// claimed, then those placed last, which go to a slower tier if one has room and there is
    /// time. How many were dropped.
    pub(crate) fn shrink(&self, tier: usize, bytes: u64) -> usize {
        let Some(dir) = self.cx.tiers.get(tier) else { return 0 };
        let (mut dropped, mut freed) = lock(&self.orphans).make_room(tier, bytes, &self.cx.tiers);
        if freed < bytes {
            freed += self.transient.drop_some_decoded(tier, bytes - freed, true);
        }
        if freed < bytes {
            let (ended, partial) = self.fetches.drop_fills(tier, bytes - freed, DROPPED);
            dropped += ended;
            freed += partial;
        }
        // (Partial copies are no files of the ledger.)
        let leavers = if dir.ledger.usage().files == 0 {
            Vec::new()
        } else {
            self.eviction.placed_last(tier, bytes.saturating_sub(freed))
        };
        let can_move = tier + 1 < self.cx.tiers.len();
        let sums = if can_move && !leavers.is_empty() { self.mover.sums_of(dir, &leavers) } else { ByName::default() };
        let until = Instant::now() + MOVING;
        for leaver in leavers {
            if leaver.word.packed_in().is_some() {
                dropped += usize::from(self.eviction.drop_packed(&leaver, Refusal::Dropped, Some(DROPPED)).is_some());
                continue;
            }
            if sums.get(leaver.name()).is_some_and(|logged| self.demotion.demote(&leaver, logged.sum, until)) {
                continue;
            }
            dropped += usize::from(self.eviction.refuse(&leaver, Refusal::Dropped, Some(DROPPED)));
        }
        self.cx.stats.evicted.fetch_add(dropped as u64, Ordering::Relaxed);
        dropped
    }

    /// Keeps logs in bounds, which grow with every copy made. It takes as long as all copies take
    /// to be looked at.
    pub(crate) fn tidy_logs(&self) {
        let may = || !self.cx.stop.load(Ordering::Relaxed);
        for (at, tier) in self.cx.tiers.iter().enumerate() {
            let short = tier.tidy_log(may);
            if short > 0 {
                self.shrink(at, short);
                // At once, before others take the room; otherwise it is tried again later.
                let _ = tier.tidy_log(may);
            }
        }
    }

    /// Drops the copies in these ranges, and those that nobody has claimed if asked to, all or by
    /// name. They are made again when somebody asks.
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
                    // First what it is decoded from, if it is.
                    self.cx.evict_packed(live.segment.copy_name(&entry), entry.record.size);
                    if let Some(partial) = self.fetches.drop_fill(key) {
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
                    self.policy.tell_dropped(key);
                }
                if first_name && w.state() == State::Resident && self.eviction.drop_copy(key, &live, &entry, w) {
                    tally.add(entry.record.size);
                    // One that was left below when it moved up.
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
