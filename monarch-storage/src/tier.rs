//! Tiers: directories for copies, with a hard quota.
//!
//! ```text
//! <configured path>/monarch-<uid>/     0700, ours or another name is taken
//!     lock                             held by the agent (flock), one agent per tier; its process id
//!     seed                             seed of the path hashes, so that names survive a restart
//!     log                              checksums of the copies, and which of them have reached the disk
//!     roots, agent.log                 for commands without an agent: roots of the copies, last log
//!     working-sets                     files that the last jobs opened first, for the next ones
//!     copies/00 .. copies/ff/          complete copies under their 128-bit names, 0400; packed ones with `.lz4` or `.zst` behind
//!     tmp/                             being written; emptied at start
//!     part/                            partial copies of large files, 0600; emptied at start
//!     trash/                           evicted, and perhaps still open in a process: still charged
//! ```
//! A copy is written in `tmp`, stamped, logged, renamed, and only then published in the state word.
//! The agent syncs the file system once a minute. A copy of another boot that had not reached the
//! disk may hold any bytes, so it is read in full before it is used.

mod checksum;
mod codec;
mod copy;
mod dir;
mod error;
mod found_copy;
mod fs;
mod kept_open;
mod ledger;
mod lock;
mod log;
mod log_charge;
mod log_compactor;
mod log_reader;
mod log_record;
mod log_rewrite;
mod names;
mod notes;
mod packed_copies;
mod packed_format;
mod packed_writer;
mod part;
mod part_writer;
mod recover;
mod seed;
mod space;
mod stamp;
mod tier_inspector;
mod tier_log;
mod trash;
mod window;

pub use checksum::{Fits, READ_BYTES, Sum, Summing};
pub use codec::Codec;
pub use copy::{Copies, CopyFile, write_all_at};
pub use dir::{PackingOptions, TierDir, TierOptions, bytes};
pub use error::TierError;
pub use found_copy::Copy;
pub use kept_open::OpenCopy;
pub use ledger::{Ledger, Reservation, Usage};
pub use log_compactor::LogCompactor;
pub use log_reader::{Logged, read_log};
pub use monarch_abi::hash::CopyName;
pub use names::ByName;
pub use notes::{LAST_LOG, MAX_LOG_BYTES, ServedRoot, working_sets_in};
pub use packed_copies::{PackedCopies, PackedUsage};
pub use packed_format::PackedFile;
pub use packed_writer::PackedWriter;
pub use part::{PartCopies, PartCopy};
pub use part_writer::PartWriter;
pub use seed::Seed;
pub use space::Space;
pub use tier_inspector::{Health, Lying, TierView};
pub use tier_log::TierLog;
pub use trash::Trash;
pub use window::WindowFile;
