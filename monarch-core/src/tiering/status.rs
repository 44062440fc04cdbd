//! What the tiering engine reports: gauges, the state of prefetch, how far copies are.

pub(crate) mod gauges;
pub(crate) mod prefetch_status;
pub(crate) mod residency_report;

use crate::tiering::access::Access;
use crate::tiering::compression::Compression;
use crate::tiering::copy::fetching::Fetching;
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::residency::Residency;
use prefetch_status::PrefetchStatus;
use residency_report::ResidencyReport;
use std::sync::Arc;

/// The components of the room.
pub(crate) struct Reports {
    pub(crate) prefetch: Arc<PrefetchStatus>,
    pub(crate) residency: Arc<ResidencyReport>,
}

impl Reports {
    /// Makes the components.
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        residency: &Residency,
        access: &Access,
        compression: &Compression,
        fetching: &Fetching,
    ) -> Self {
        let prefetch = Arc::new(PrefetchStatus::new(shared, queue, access, fetching));
        let residency = Arc::new(ResidencyReport::new(shared, policy, residency, compression, &prefetch));
        Self { prefetch, residency }
    }
}
