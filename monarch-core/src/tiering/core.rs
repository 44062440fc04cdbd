//! What all rooms of the tiering engine share: the context, the segments, domain types, traits of
//! peers.
//!
//! Nothing here decides what is copied, or where to.

pub(crate) mod claim;
pub(crate) mod claimed_file;
pub(crate) mod context;
pub(crate) mod copy_errors;
pub(crate) mod engine_trial;
pub(crate) mod identity_scope;
pub(crate) mod inflight_progress;
pub(crate) mod lane;
pub(crate) mod log_limit;
pub(crate) mod options;
pub(crate) mod outcome;
pub(crate) mod peer_link;
pub(crate) mod read_permission;
pub(crate) mod reservations;
pub(crate) mod segments;
pub(crate) mod shared;
pub(crate) mod source_facts;
pub(crate) mod state_transition;
pub(crate) mod stats;
