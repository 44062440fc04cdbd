//! [`GuestCopies`]: drops copies of files that peers own when a file of this node needs their
//! space.

use crate::sharing::Peers;
use crate::sync::lock;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::residency::Residency;
use crate::tiering::residency::catalog::Catalog;
use crate::tiering::residency::transient_copies::TransientCopies;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Copies of peers' files that are looked at for space; and how long it is assumed that there are
/// none after none was found.
const MAX_GUESTS_LOOKED_AT: usize = 256;
const NO_GUESTS_FOR: Duration = Duration::from_secs(10);

/// Drops copies of files that peers own.
pub(crate) struct GuestCopies {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    catalog: Arc<Mutex<Catalog>>,
    policy: Arc<PolicyHandle>,
    peers: Arc<PeerLink>,
    transient: Arc<TransientCopies>,
    no_guests: Mutex<Option<Instant>>,
}

impl GuestCopies {
    pub(crate) fn new(shared: &Shared, policy: &Arc<PolicyHandle>, residency: &Residency) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            catalog: residency.catalog.clone(),
            policy: policy.clone(),
            peers: shared.peers.clone(),
            transient: residency.transient.clone(),
            no_guests: Mutex::default(),
        }
    }

    /// Forgets that there were none: they are looked for again when space is needed.
    pub(crate) fn reset(&self) {
        *lock(&self.no_guests) = None;
    }

    /// Frees space for a file that this node owns: drops copies of peers' files, which were kept
    /// while their owners were away or had no space, those placed last first. Returns `false` if
    /// none was freed.
    pub(crate) fn free_for_own(&self, f: &ClaimedFile) -> bool {
        let is_ours = |peers: &Arc<dyn Peers>| peers.is_mine(&f.live.file_ref(&f.entry));
        if !self.peers.get().is_some_and(is_ours) || lock(&self.no_guests).is_some_and(|t| t.elapsed() < NO_GUESTS_FOR)
        {
            return false;
        }
        let guests = lock(&self.catalog).last_of(|key| self.peers.is_guest(key), MAX_GUESTS_LOOKED_AT);
        let mut freed = false;
        for (at, tier) in self.cx.tiers.iter().enumerate().filter(|(_, t)| !t.space.suspended()) {
            let (cost, mut bytes) = (tier.space.ledger.cost(f.want.size), 0);
            let here = |key: &u64| self.segments.candidate(*key).filter(|l| l.word.tier() == at && !l.word.is_marked());
            for candidate in guests.iter().filter_map(here) {
                if bytes >= cost {
                    break;
                }
                self.policy.report_dropped(candidate.key);
                bytes += self.transient.drop_refetchable(at, &candidate).unwrap_or(0);
            }
            freed |= bytes > 0;
        }
        *lock(&self.no_guests) = (!freed).then(Instant::now);
        freed
    }
}
