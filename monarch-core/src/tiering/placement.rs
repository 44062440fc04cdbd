//! The tier of a copy, and which copies are dropped, moved or replaced to have space for it.

pub(crate) mod demotion;
pub(crate) mod fair_share;
pub(crate) mod guest_copies;
pub(crate) mod placer;
pub(crate) mod reclaim;

use crate::tiering::access::Access;
use crate::tiering::compression::Compression;
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::residency::Residency;
use demotion::Demotion;
use fair_share::FairShare;
use guest_copies::GuestCopies;
use placer::Placer;
use reclaim::{Reclaim, Reclaimer};
use std::sync::Arc;

/// The components of the room that other rooms use.
pub(crate) struct Placement {
    pub(crate) guests: Arc<GuestCopies>,
    pub(crate) fair_share: Arc<FairShare>,
    pub(crate) placer: Arc<Placer>,
    pub(crate) reclaim: Arc<Reclaim>,
}

impl Placement {
    /// Makes the components. `fetches` drops the partial copies of large files when a tier needs
    /// their space.
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        residency: &Residency,
        access: &Access,
        compression: &Compression,
        fetches: Arc<dyn Reclaimer>,
    ) -> Self {
        let demotion = Arc::new(Demotion::new(shared, policy, residency, compression));
        let guests = Arc::new(GuestCopies::new(shared, policy, residency));
        let fair_share = Arc::new(FairShare::new(shared, queue, residency, &guests));
        let placer = Arc::new(Placer::new(shared, policy, residency, access, compression, &fair_share));
        let reclaim = Arc::new(Reclaim::new(shared, policy, residency, &demotion, fetches));
        Self { guests, fair_share, placer, reclaim }
    }
}
