//! Traces: what a job opened, when, from which process, and from where it was served. The simulator
//! replays them.
//!
//! A thread writes a trace in blocks while the job runs: an agent that is killed leaves all blocks
//! but perhaps the last. An access takes about 5 bytes; a file is described at its first access.
//! The thread that learns of the opens does not write: while the trace's file system does not
//! answer, blocks are left out, their number of accesses is noted in the next block, and their
//! files are described at their next access.
//!
//! All numbers are little-endian. A *number* is a base-128 varint, low bits first, 10 bytes at
//! most. A *signed* is a number in which the sign is the lowest bit (0, -1, 1, -2, ...). A *text*
//! is a number of bytes, and these.
//!
//! | bytes | file header |
//! |---|---|
//! | 8 | `MONTRACE` |
//! | 4 | version, 1 |
//! | 4 | length of what follows the checksum |
//! | 8 | XXH3-64 of that |
//! | | numbers and texts: created (ms since 1970), host, policy, capacity (bytes of all tiers), roots (how many, and the paths) |
//!
//! | bytes | block |
//! |---|---|
//! | 4 | `MTBK`, or `MTND` for the empty block that ends a complete trace |
//! | 4 | length of what follows the checksum, at most 1 MiB |
//! | 8 | XXH3-64 of that |
//! | | items |
//!
//! | item | what it is |
//! |---|---|
//! | number | lowest 2 bits: served from a tier, waited, PFS; 3 for lost accesses. Next bit: whether a file is described. Above: the stream |
//! | number | of lost accesses: how many; the item ends |
//! | signed | file: its number in the order of their first access, less that of the item before in the block (0 at first) |
//! | signed | time in units of 100 us, less that of the item before in the block (0 at first) |
//! | numbers, text | described for the first time: number of its root, size, bytes that its path has in common with the path described before in the block, the rest of the path |
//! | number | described again: its size, which has changed |

use std::path::{Path, PathBuf};
use std::time::Duration;

mod csv;
mod read;
mod reuse;
mod sink;
mod stats;
mod varint;
mod write;

pub use csv::{export, import};
pub use read::{End, TraceReader};
pub use stats::{Bin, EpochStats, LruStats, ServedCounts, Stats, StreamStats, stats};
pub use write::TraceWriter;

/// Version of the format.
pub const VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"MONTRACE";
const BLOCK: &[u8; 4] = b"MTBK";
const LAST: &[u8; 4] = b"MTND";
/// Bytes of the file header before the part with a checksum.
const HEADER_LEN: usize = 24;
/// Bytes of a block before the part with a checksum.
const BLOCK_LEN: usize = 16;
/// Longest block or header, in bytes.
const MAX_BLOCK_BYTES: usize = 1 << 20;
/// Unit of time.
const TICK: Duration = Duration::from_micros(100);
/// The value for lost accesses, in place of how an access was served.
const LOST_ACCESSES: u64 = 3;

/// Where and when a trace was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceHeader {
    /// When it began, in milliseconds since 1970.
    pub created_ms: u64,
    /// Name of the node.
    pub host: String,
    /// The placement policy.
    pub policy: String,
    /// Capacity of all tiers, in bytes.
    pub capacity: u64,
    /// The data set. Files of the root at position n have n in the upper half of their key.
    pub roots: Vec<PathBuf>,
}

/// A file of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceFile {
    /// Position of its root.
    pub root: u32,
    /// Its path, relative to the root.
    pub path: Vec<u8>,
    /// Its size in bytes at the last open.
    pub size: u64,
}

/// Why a trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file system failed.
    #[error("trace {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Not a trace, or a trace of another version.
    #[error("{} is not a trace that can be read: {why}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A mistake in a CSV file.
    #[error("{}, line {line}: {what}; {remedy}", path.display())]
    Csv {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: u64,
        /// What is wrong.
        what: String,
        /// The remedy.
        remedy: &'static str,
    },
}

impl TraceError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        |source| Self::Io { path: path.to_owned(), source }
    }
}

#[cfg(test)]
mod tests;
