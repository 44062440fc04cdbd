//! [`Promoter`]: moves copies that readers opened to a faster tier, while prefetch is idle.

use crate::snapshot::Ahead;
use crate::tier::TierDir;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::{EvictionCandidate, Segments};
use crate::tiering::core::shared::Shared;
use crate::tiering::residency::Residency;
use crate::tiering::residency::mover::Mover;
use crate::tiering::residency::promotions::Promotions;
use crate::tiering::residency::transient_copies::TransientCopies;
use crate::tiering::status::prefetch_status::PrefetchStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Copies that are moved at a time: the log is read once for them.
const BATCH_COPIES: usize = 8192;
/// A faster tier keeps one part in this many free of promoted copies, for files that are yet to be
/// fetched.
const SPARE_DIVISOR: u64 = 32;

/// Bytes of a tier that promoted copies may take.
fn spare_of(tier: &TierDir) -> u64 {
    let u = tier.space.ledger.usage();
    if tier.space.closed_to_prefetch() {
        0
    } else {
        u.capacity.saturating_sub(u.used + u.reserved + u.capacity / SPARE_DIVISOR)
    }
}

/// Promotes copies that readers opened.
pub(crate) struct Promoter {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    promotions: Arc<Promotions>,
    transient: Arc<TransientCopies>,
    mover: Arc<Mover>,
    prefetch_status: Arc<PrefetchStatus>,
}

impl Promoter {
    pub(crate) fn new(shared: &Shared, residency: &Residency, prefetch_status: &Arc<PrefetchStatus>) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            promotions: residency.promotions.clone(),
            transient: residency.transient.clone(),
            mover: residency.mover.clone(),
            prefetch_status: prefetch_status.clone(),
        }
    }

    /// Promotes copies that were opened lately, while no file is to be fetched.
    pub(crate) fn promote(&self) {
        let upper = self.cx.tiers.iter().enumerate().take(self.cx.tiers.len().saturating_sub(1));
        let mut spare = upper.map(|(at, t)| spare_of(t).saturating_sub(self.transient.reserved_bytes(at)));
        if spare.all(|bytes| bytes == 0) || self.prefetch_status.ahead() != Ahead::Idle {
            return;
        }
        let waits = self.promotions.is_empty();
        if waits {
            self.transient.drain_touched();
        }
        let keys = self.promotions.take(BATCH_COPIES);
        let mut candidates: Vec<EvictionCandidate> =
            keys.into_iter().filter_map(|key| self.segments.candidate(key)).collect();
        for (at, tier) in self.cx.tiers.iter().enumerate().skip(1) {
            let (here, elsewhere): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|l| l.word.tier() == at);
            candidates = elsewhere;
            if here.is_empty() {
                continue;
            }
            let sums = self.mover.sums_of(tier, &here);
            let go_on = || !self.cx.stop.load(Ordering::Relaxed);
            for candidate in here {
                let to = (0..at).find(|&to| self.transient.takes(to, candidate.entry.record.size, SPARE_DIVISOR));
                let (Some(to), Some(logged)) = (to, sums.get(candidate.name())) else { continue };
                if self.mover.move_copy(&candidate, logged.sum, to, go_on) {
                    self.cx.stats.promoted.fetch_add(1, Ordering::Relaxed);
                }
                // Fetches go first.
                if !go_on() || self.prefetch_status.ahead() != Ahead::Idle {
                    return;
                }
            }
        }
    }
}
