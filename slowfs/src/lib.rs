//! A stand-in for a parallel file system (PFS), for tests and benchmarks.
//!
//! The binary `slowfs` mounts a directory through FUSE and makes it behave like a PFS: every
//! metadata call and every data call costs a chosen latency, all clients share one bandwidth,
//! attributes may be stale for a chosen time, and each call is counted exactly. Faults (errors,
//! stalls, short reads) and changes made "by another client" happen on command, through a
//! Unix socket that speaks one JSON object per line ([`protocol`]).
//!
//! This library starts such a mount from a Rust test ([`Slowfs`]) and takes it down again when
//! dropped, even when the server is stuck.

#![deny(unsafe_code)]

mod client;
mod counters;
mod fault;
mod mutation;
mod options;
pub mod protocol;
mod units;

#[doc(hidden)]
pub mod cli;
mod glob;
mod lock;
mod server;
mod sys;

pub use client::{Builder, Slowfs};
pub use counters::{Class, Counters, Op, PathCounts};
pub use fault::{FaultKind, FaultSpec, FaultStatus};
pub use mutation::{MutateSpec, MutationKind, When, mutated};
pub use options::{CacheMode, Settings};
pub use units::{Rate, Time};
