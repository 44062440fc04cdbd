//! Traces: what a job opened, when, from which process, and from where it was served. The simulator
//! replays them.
//!
//! A trace is written while the job runs, by one thread, in blocks: whoever is killed leaves all
//! blocks but perhaps the last one. An access takes 5 bytes or so; a file is described once, where
//! it is first met. That thread is not the one that learns of the opens: where its file system does
//! not answer, blocks are left out, how many accesses they had is noted behind them, and their
//! files are described when they are met again.
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
//! | 4 | `MTBK`, or `MTND` for the one that ends a trace in good order (empty) |
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
//! | number | described again: its size, which is another one from now on |

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
/// Bytes before what a checksum is of: of the header, and of blocks.
const HEADER_LEN: usize = 24;
const BLOCK_LEN: usize = 16;
/// Longest block or header.
const LONGEST: usize = 1 << 20;
/// Unit of time.
const TICK: Duration = Duration::from_micros(100);
/// In place of how an access was served.
const LOST: u64 = 3;

/// Where a trace comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceHeader {
    /// When it was begun, in milliseconds since 1970.
    pub created_ms: u64,
    /// Where.
    pub host: String,
    /// The policy that decided.
    pub policy: String,
    /// Bytes of all tiers.
    pub capacity: u64,
    /// The data set. Files of the root at position n have n in the upper half of their key.
    pub roots: Vec<PathBuf>,
}

/// A file of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceFile {
    /// Which root.
    pub root: u32,
    /// Its path, relative to the root.
    pub path: Vec<u8>,
    /// Bytes, when it was opened last.
    pub size: u64,
}

/// Why a trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// From the file system.
    #[error("trace {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another file, or one of another version.
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
        /// What to do about it.
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
