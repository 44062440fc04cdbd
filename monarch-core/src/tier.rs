//! Tiers: directories for copies, with a hard quota.
//!
//! ```text
//! <configured path>/monarch-<uid>/     0700, ours or another name is taken
//!     lock                             held by the agent (flock), one agent per tier; its process id
//!     seed                             seed of the path hashes, so that names survive a restart
//!     boot                             boot of the machine in which the copies were written
//!     copies/00 .. copies/ff/          complete copies under their 128-bit names, 0400
//!     tmp/                             being written; emptied at start
//!     part/                            partial copies of large files, 0600; emptied at start
//!     dying/                           evicted but still open somewhere: still charged
//! ```
//! A copy is written in `tmp`, stamped, renamed, and only then published in the state word. Nothing is synced: copies of
//! another boot may hold anything and are dropped at start.

mod copy;
mod dir;
mod error;
mod evict;
mod ledger;
mod lock;
mod part;
mod recover;

pub use copy::CopyFile;
pub(crate) use copy::write_all_at;
pub(crate) use dir::bytes;
pub use dir::{Copy, TierDir};
pub use error::TierError;
pub use ledger::{Ledger, Reservation, Usage};
pub use part::{PartCopy, PartWriter};
