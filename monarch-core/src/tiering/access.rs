//! What readers opened and what jobs announced: taken from shared memory and hint files, and passed
//! to the policy, the epochs and the trace.

pub(crate) mod access_tracker;
pub(crate) mod directory_costs;
pub(crate) mod epoch_stats;
pub(crate) mod event_merge;
pub(crate) mod hint_inbox;
pub(crate) mod listing_checks;
pub(crate) mod prefetch_evidence;
pub(crate) mod prefetch_order;
pub(crate) mod read_order;
pub(crate) mod read_pattern;
pub(crate) mod trace_files;
pub(crate) mod working_sets;

use crate::held_dir::HeldDir;
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::residency::Residency;
use access_tracker::AccessTracker;
use hint_inbox::HintInbox;
use listing_checks::ListingChecks;
use prefetch_evidence::PrefetchEvidence;
use prefetch_order::PrefetchOrder;
use std::sync::Arc;
use working_sets::WorkingSets;

/// The components of the room.
pub(crate) struct Access {
    pub(crate) order: Arc<PrefetchOrder>,
    pub(crate) evidence: Arc<PrefetchEvidence>,
    pub(crate) working_sets: Arc<WorkingSets>,
    pub(crate) listing_checks: Arc<ListingChecks>,
    pub(crate) tracker: Arc<AccessTracker>,
}

impl Access {
    /// Makes the components without opens and hints. Jobs leave hints in `hint_dir`.
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        residency: &Residency,
        hint_dir: Option<HeldDir>,
    ) -> Self {
        let order = Arc::new(PrefetchOrder::new(shared, policy));
        let hint_inbox = Arc::new(HintInbox::new(shared, policy, queue, &order, hint_dir));
        let evidence = Arc::new(PrefetchEvidence::new(shared));
        let working_sets = Arc::new(WorkingSets::new(shared, queue, &evidence));
        let listing_checks = Arc::new(ListingChecks::new(shared, &working_sets));
        let tracker =
            Arc::new(AccessTracker::new(shared, policy, queue, residency, &hint_inbox, (&evidence, &working_sets)));
        Self { order, evidence, working_sets, listing_checks, tracker }
    }
}
