//! What readers opened and what jobs announced: taken from shared memory and hint files, and passed
//! to the policy, the epochs and the trace.

pub(crate) mod access_tracker;
pub(crate) mod directory_costs;
pub(crate) mod epoch_stats;
pub(crate) mod event_merge;
pub(crate) mod hint_inbox;
pub(crate) mod prefetch_order;
pub(crate) mod trace_files;
