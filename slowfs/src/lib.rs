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
//!
//! ```no_run
//! use std::time::Duration;
//! let pfs = slowfs::Slowfs::builder("/data", "/mnt/pfs").meta_latency(Duration::from_millis(1)).spawn()?;
//! std::fs::read("/mnt/pfs/file")?;
//! assert_eq!(pfs.counters()?.open, 1);
//! # std::io::Result::Ok(())
//! ```
//!
//! # What the mount promises
//! * **Inode numbers** are those of the backing directory; hard links share one. A node is an
//!   `O_PATH` descriptor, so it survives renames and its number cannot be reused while the kernel
//!   knows it. Beyond three quarters of the limit of open files, nodes not used lately are found
//!   again by path and checked.
//! * **Close-to-open consistency.** Attributes and names may be stale for their TTL, as on a PFS
//!   client. An `open` is always answered from the present: an inode that was removed or replaced
//!   behind the mount's back answers `ESTALE`, which makes the kernel look the name up again, and
//!   changed attributes are invalidated in the kernel before the open returns. `statx` with
//!   `AT_STATX_FORCE_SYNC` reaches the server too.
//! * **Descriptors keep the inode they opened**: a file replaced or deleted under a reader goes on
//!   being readable, as on Lustre or GPFS. (For NFS, install a fault `estale`.)
//! * **Latency is slept concurrently.** Server threads do the work at once; the answer waits in a
//!   timer heap.

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
