//! What a job writes below output roots: it is staged in a tier of the node, and published on the
//! PFS in the job's order.
//!
//! The shim stages files and appends to the journal (formats: [`monarch_abi::outputs`]); this crate
//! is the other side, in the agent and in `monarch recover`.
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod status;
