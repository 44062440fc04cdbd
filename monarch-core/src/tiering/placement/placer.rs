//! [`Placer`]: asks the policy for the tier of a copy, and drops the copies that it replaces.

use crate::sync::lock;
use crate::tier::TierDir;
use crate::tiering::access::Access;
use crate::tiering::access::prefetch_order::PrefetchOrder;
use crate::tiering::compression::Compression;
use crate::tiering::compression::packer::Packer;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::shared::Shared;
use crate::tiering::placement::fair_share::FairShare;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::residency::Residency;
use crate::tiering::residency::catalog::Catalog;
use crate::tiering::residency::eviction::Eviction;
use crate::tiering::residency::orphans::Orphans;
use crate::tiering::residency::transient_copies::TransientCopies;
use monarch_abi::word::Refusal;
use monarch_policies::hints::Priority;
use monarch_policies::{Candidate, Decision, FileKey, RequestSource, TierRoom, Why};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// How often a tier is chosen for one copy: another copier may take the space first, and a reader
/// that has a dropped copy open keeps its blocks for a while.
pub(crate) const MAX_CHOICES: u32 = 4;
/// Copies that are looked at to find some to drop for a file of high priority.
const MAX_LOOKED_AT: usize = 1 << 12;

/// Whether a tier accepts the copy of a file at present.
fn is_open(tier: &TierDir, f: &ClaimedFile) -> bool {
    match f.source {
        RequestSource::Demand => !tier.space.suspended(),
        RequestSource::Prefetch => !tier.space.closed_to_prefetch(),
    }
}

/// Decides where a copy goes, and which copies it replaces.
pub(crate) struct Placer {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    orphans: Arc<Mutex<Orphans>>,
    catalog: Arc<Mutex<Catalog>>,
    policy: Arc<PolicyHandle>,
    transient: Arc<TransientCopies>,
    eviction: Arc<Eviction>,
    order: Arc<PrefetchOrder>,
    packer: Arc<Packer>,
    fair_share: Arc<FairShare>,
}

impl Placer {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        residency: &Residency,
        access: &Access,
        compression: &Compression,
        fair_share: &Arc<FairShare>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            orphans: residency.orphans.clone(),
            catalog: residency.catalog.clone(),
            policy: policy.clone(),
            transient: residency.transient.clone(),
            eviction: residency.eviction.clone(),
            order: access.order.clone(),
            packer: compression.packer.clone(),
            fair_share: fair_share.clone(),
        }
    }

    /// The tier that the policy chooses for a copy, without those in `skip`. Drops the copies that
    /// it replaces.
    ///
    /// # Errors
    ///
    /// Why it is left on the PFS.
    pub(crate) fn place(&self, f: &ClaimedFile, skip: &[bool]) -> Result<usize, Why> {
        match self.decide(f, skip) {
            Decision::Admit(tier) => Ok(tier),
            Decision::Replace { tier, victims } => {
                self.make_way(tier, &victims);
                Ok(tier)
            }
            Decision::Refuse(why) => self.place_high_priority(f, skip).ok_or(why),
        }
    }

    /// The policy's decision for a copy, without the tiers in `skip`.
    pub(crate) fn decide(&self, f: &ClaimedFile, skip: &[bool]) -> Decision {
        let packed =
            if self.transient.is_empty() { f.want.size } else { self.packer.ratios().guess(&f.rel, f.want.size) };
        let unclaimed = lock(&self.orphans);
        let room = |(at, tier): (usize, &TierDir)| {
            let (u, kept) = self.transient.usage_and_kept(at, tier);
            // Orphans and transient copies can be dropped.
            let evictable = unclaimed.bytes(at) + self.transient.replaceable_bytes(at);
            let taken = (u.used + u.reserved).saturating_sub(evictable) + kept;
            let usable = !skip.get(at).copied().unwrap_or(true) && is_open(tier, f);
            let size = if self.cx.packs(at) { packed } else { f.want.size };
            TierRoom {
                cost: tier.space.ledger.cost(size) + tier.log.wants(),
                free: u.capacity.saturating_sub(taken),
                usable,
            }
        };
        let rooms: Vec<TierRoom> = self.cx.tiers.iter().enumerate().map(room).collect();
        drop(unclaimed);
        let candidate = Candidate { file: FileKey(f.key), size: f.want.size, source: f.source };
        let mut policy = self.policy.lock_policy();
        policy.place(&candidate, &rooms, &self.policy.lock_hints())
    }

    /// Drops copies that the policy has chosen. The policy counts them as gone, so it is corrected
    /// where that is wrong.
    fn make_way(&self, tier: usize, victims: &[FileKey]) {
        let again = self.policy.lock_policy().asks_again();
        for &FileKey(key) in victims {
            if let Some(candidate) = self.segments.packed_candidate(key) {
                let here = candidate.word.packed_in() == Some(tier);
                if here && self.eviction.drop_packed(&candidate, Refusal::Replaced, None).is_some() {
                    self.cx.stats.replaced.fetch_add(1, Ordering::Relaxed);
                    if again {
                        self.order.consider_again(key);
                    }
                } else {
                    self.policy.resync_policy(key);
                }
                continue;
            }
            let Some(candidate) = self.segments.candidate(key) else { continue };
            let here = candidate.word.tier() == tier && !candidate.word.is_marked();
            if here && self.eviction.refuse(&candidate, Refusal::Replaced, None) {
                self.cx.stats.replaced.fetch_add(1, Ordering::Relaxed);
                if again {
                    self.order.consider_again(key);
                }
                continue;
            }
            // Moved, decompressed, or changed just now.
            self.policy.resync_policy(key);
        }
    }

    /// Frees space for a file of high priority at the cost of others, those placed last first.
    /// Returns the tier.
    fn place_high_priority(&self, f: &ClaimedFile, skip: &[bool]) -> Option<usize> {
        if self.policy.lock_hints().priority(FileKey(f.key)) != Priority::High {
            return None;
        }
        let usable = |(at, tier): &(usize, &TierDir)| !skip.get(*at).copied().unwrap_or(true) && is_open(tier, f);
        let (at, tier) = self.cx.tiers.iter().enumerate().rfind(usable)?;
        let cost = tier.space.ledger.cost(f.want.size);
        let last = lock(&self.catalog).last_of(|_| true, MAX_LOOKED_AT);
        let keys: Vec<u64> = {
            let hints = self.policy.lock_hints();
            last.into_iter().filter(|key| hints.priority(FileKey(*key)) == Priority::Normal).collect()
        };
        // Drops none unless there are enough.
        let here = |key: &u64| self.segments.candidate(*key).filter(|l| l.word.tier() == at && !l.word.is_marked());
        let mut sum = 0;
        let enough = keys.iter().filter_map(here).any(|l| {
            sum = tier.space.ledger.cost(l.entry.record.size).saturating_add(sum);
            sum >= cost
        });
        (enough && self.fair_share.drop_keys(&keys, at, cost) >= cost).then_some(at)
    }
}
