//! What a job writes below output roots: it is staged in a tier of the node, and published on the
//! PFS in the job's order.
//!
//! The shim stages files and appends to the journal (formats: [`monarch_abi::outputs`]); this crate
//! is the other side, in the agent and in `monarch recover`.
#![forbid(unsafe_op_in_unsafe_fn)]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)]

pub mod admission;
pub mod ahead;
pub mod backlog;
pub mod compaction;
pub mod copier;
pub mod copy;
pub mod drain;
pub mod errors;
pub mod finder;
pub mod journal;
pub mod kept;
pub mod keys;
pub mod killed_creates;
pub mod latency;
pub mod lease;
pub mod load;
pub mod newer;
pub mod node_order;
pub mod order;
pub mod order_keeper;
pub mod outputs;
pub mod plan;
pub mod plan_file;
pub mod processes;
pub mod published;
pub mod publisher;
pub mod recovery;
pub mod retire;
pub mod room;
pub mod root;
pub mod shared_plan;
pub mod snapshot;
pub mod staging;
pub mod status;
pub mod sys;
pub mod target;
pub mod tree;
pub mod troubles;
