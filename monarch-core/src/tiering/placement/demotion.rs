//! [`Demotion`]: moves copies to a slower tier instead of dropping them.

use crate::sync::lock;
use crate::tier::Sum;
use crate::tiering::compression::Compression;
use crate::tiering::compression::packer::{Packed, Packer};
use crate::tiering::core::context::Context;
use crate::tiering::core::reservations::CompressionTarget;
use crate::tiering::core::segments::{EvictionCandidate, Segments};
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::residency::Residency;
use crate::tiering::residency::catalog::Catalog;
use crate::tiering::residency::mover::Mover;
use crate::tiering::residency::orphans::Orphans;
use crate::tiering::residency::transient_copies::TransientCopies;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Moves copies to slower tiers.
pub(crate) struct Demotion {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    orphans: Arc<Mutex<Orphans>>,
    catalog: Arc<Mutex<Catalog>>,
    policy: Arc<PolicyHandle>,
    transient: Arc<TransientCopies>,
    mover: Arc<Mover>,
    packer: Arc<Packer>,
}

impl Demotion {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        residency: &Residency,
        compression: &Compression,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            orphans: residency.orphans.clone(),
            catalog: residency.catalog.clone(),
            policy: policy.clone(),
            transient: residency.transient.clone(),
            mover: residency.mover.clone(),
            packer: compression.packer.clone(),
        }
    }

    /// Moves a copy to a slower tier that has space, if that can be done before `until`. Returns
    /// whether it was moved.
    pub(crate) fn demote(&self, candidate: &EvictionCandidate, sum: Sum, until: Instant) -> bool {
        let from = candidate.word.tier();
        let in_time = || Instant::now() < until;
        let moves = |to: usize| {
            let packed = if in_time() { self.demote_packed(candidate, sum, to, in_time) } else { Some(false) };
            packed.unwrap_or_else(|| {
                self.transient.takes(to, candidate.entry.record.size, 0)
                    && self.mover.move_copy(candidate, sum, to, in_time)
            })
        };
        let moved = self.is_below(candidate) || (from + 1..self.cx.tiers.len()).any(moves);
        if moved {
            // The caller has taken it out of the list; one that is promoted is still there.
            lock(&self.catalog).add(candidate.key);
            self.cx.stats.demoted.fetch_add(1, Ordering::Relaxed);
        }
        moved
    }

    /// Compresses a copy into the tier `to`. `None` if that tier does not compress, or it is not
    /// worth it.
    pub(crate) fn demote_packed(
        &self,
        candidate: &EvictionCandidate,
        sum: Sum,
        to: usize,
        may: impl Fn() -> bool,
    ) -> Option<bool> {
        let rel = self.segments.rel_of(candidate);
        let size = candidate.entry.record.size;
        let tier = self
            .cx
            .tiers
            .get(to)
            .filter(|t| t.options.packing.is_some() && t.space.ledger.cost(size) > t.space.ledger.cost(1))?;
        let known = self.cx.could_be_decoded(to, size);
        let estimate = if known { self.packer.ratios().estimate(&rel, size)? } else { return None };
        let room = tier.packed.reserve(estimate).ok().flatten();
        if room.is_none() {
            return Some(false);
        }
        match self.packer.pack_copy(candidate, &rel, sum, CompressionTarget { tier: to, room }, may) {
            Ok(Packed::Yes(stored)) => {
                self.packer.ratios().learn(&rel, size, Some(stored));
                self.cx.stats.packed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Packed::NotWorth) => {
                self.packer.ratios().learn(&rel, size, None);
                return None;
            }
            _ => return Some(false),
        }
        let (word, packed) = (&candidate.entry.master.word, candidate.word.packed(to));
        let turned = word.compare_exchange(candidate.word.0, packed.0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        let from = if turned { candidate.word.tier() } else { to };
        match (self.cx.tiers.get(from), turned) {
            (Some(tier), true) => {
                tier.trash.evict_resident(candidate.name(), size);
                self.policy.resync_policy(candidate.key);
            }
            (Some(tier), false) => drop(tier.packed.evict(candidate.name(), size)),
            _ => {}
        }
        Some(turned)
    }

    /// Turns the word of a copy to the copy that was left below when it was promoted, if that
    /// exists.
    fn is_below(&self, candidate: &EvictionCandidate) -> bool {
        let EvictionCandidate { key, live, entry, word } = candidate;
        let left = lock(&self.orphans).claim(&live.segment, entry, &self.cx.tiers);
        let Some(claim) = left else { return false };
        let size = entry.record.size;
        if claim.plain.or(claim.packed).is_none_or(|to| to <= word.tier()) {
            lock(&self.orphans).put_back(claim, candidate.name(), size, &self.cx.tiers);
            return false;
        }
        let turned = claim.word(*word);
        if entry.master.word.compare_exchange(word.0, turned.0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            lock(&self.orphans).put_back(claim, candidate.name(), size, &self.cx.tiers);
            return false;
        }
        if let Some(from) = self.cx.tiers.get(word.tier()) {
            from.trash.evict_resident(candidate.name(), size);
        }
        self.policy.resync_policy(*key);
        true
    }
}
