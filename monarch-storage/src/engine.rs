//! Copy engines: how bytes get from the PFS into a tier.
//!
//! An engine takes files to copy, each with a sink to write to, and moves bytes. What a copy means
//! (identity, names, publishing) is decided by the tiering engine. An engine takes as many files at
//! a time as it can hold: the `threads` engine one for each thread that runs it. Sources and sinks
//! are traits with test doubles, so that tests cause every failure without waiting.

mod choose;
mod double;
mod limits;
mod mapped;
mod pages;
mod pfs;
mod threads;
mod uring;

pub use choose::{Engines, slots_ahead};
pub use double::{FailingSink, FailingSource, MemSource, SlowSource};
pub use limits::Limits;
pub use mapped::{MappedBytes, MappedFile};
pub use pfs::PfsSource;
pub use threads::ThreadsEngine;
pub use uring::{Unavailable, UringEngine, UringOptions};

use monarch_abi::hash::Identity;
use rustix::fd::OwnedFd;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A root on the PFS, as the agent reads it.
pub trait Source: Send + Sync {
    /// Opens a regular file below the root, following no links.
    ///
    /// # Errors
    /// What the kernel said.
    fn open(&self, rel: &[u8]) -> io::Result<Box<dyn SourceFile>>;
    /// Opens a regular file past the page cache, where that is possible; reads are of whole pages
    /// then.
    ///
    /// # Errors
    /// What the kernel said.
    fn open_direct(&self, rel: &[u8]) -> io::Result<Box<dyn SourceFile>> {
        self.open(rel)
    }
    /// The identity of the file that the path names now.
    ///
    /// # Errors
    /// What the kernel said.
    fn identity(&self, rel: &[u8]) -> io::Result<Identity>;
    /// The root's directory, if the kernel can open, read and stat files below it as well as the
    /// calls above do. The `uring` engine needs it; files of other sources are copied with threads.
    fn root(&self) -> Option<Arc<OwnedFd>> {
        None
    }
    /// Whether a read that must not block does not.
    fn keeps_nowait(&self) -> bool {
        false
    }
}

/// An open file on the PFS.
pub trait SourceFile: Send + Sync {
    /// Reads up to `buf.len()` bytes at `off`; 0 at the end.
    ///
    /// # Errors
    /// What the kernel said; `Interrupted` and `WouldBlock` are tried again.
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<usize>;
    /// The identity as the PFS's server has it now.
    ///
    /// # Errors
    /// What the kernel said.
    fn identity_now(&self) -> io::Result<Identity>;
    /// Reads go through the page cache from now on.
    fn use_cache(&self) {}
    /// Reads go through the page cache from now on, which other processes read the file by: nothing
    /// but what is asked for is read.
    fn share_cache(&self) {
        self.use_cache();
    }
    /// Has the kernel begin to read a part of the file into the page cache.
    fn read_ahead(&self, _range: Range<u64>) {}
    /// Whether it lies on this node, so that its calls are no calls to the PFS.
    fn is_local(&self) -> bool {
        false
    }
    /// Whether it comes from another node: readers wait for it as for the PFS, and the limits of
    /// the PFS do not apply.
    fn is_remote(&self) -> bool {
        false
    }
    /// Bytes that are best read at a time, from a multiple of that on, if there is such a number.
    fn at_once(&self) -> Option<usize> {
        None
    }
    /// Its descriptor, if the kernel can do the same as the calls above.
    fn fd(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}

/// A place to which a copy is written.
pub trait Sink {
    /// Writes all of `buf` at `off`.
    ///
    /// # Errors
    /// What the kernel said.
    fn write_at(&self, buf: &[u8], off: u64) -> io::Result<()>;
    /// The memory of these bytes, if the kernel can read them straight into it: what it has read
    /// there needs no [`Sink::write_at`]. The memory may end before the range does.
    fn memory(&self, _range: Range<u64>) -> Option<MappedBytes> {
        None
    }
    /// Lends no memory from here on, since the kernel could not read into it (`EFAULT`). A write
    /// says what is wrong.
    fn forgo_memory(&self) {}
}

impl<S: Sink> Sink for Option<S> {
    fn write_at(&self, buf: &[u8], off: u64) -> io::Result<()> {
        self.as_ref().map_or_else(|| Err(io::ErrorKind::NotFound.into()), |to| to.write_at(buf, off))
    }
    fn memory(&self, range: Range<u64>) -> Option<MappedBytes> {
        self.as_ref()?.memory(range)
    }
    fn forgo_memory(&self) {
        if let Some(to) = self {
            to.forgo_memory();
        }
    }
}

/// Marks by which waiting readers see that a copier makes progress.
pub trait Marks {
    /// Called before and after every PFS call, which includes the wait for the limits. Calls of one
    /// file may overlap.
    fn in_pfs(&self, inside: bool);
    /// Called whenever the PFS has answered.
    fn progress(&self);
    /// Whether a reader waits for the copy: then it goes first within the limits.
    fn waited_for(&self) -> bool;
}

/// A file to be copied, or a part of one.
pub trait Task {
    /// The source of the root that it lies below.
    fn source(&self) -> &dyn Source;
    /// Its path below the root.
    fn rel(&self) -> &[u8];
    /// The bytes to copy.
    fn range(&self) -> Range<u64>;
    /// Whether it is to be read past the page cache.
    fn is_direct(&self) -> bool {
        false
    }
    /// The file, where it is open already.
    fn file(&self) -> Option<Arc<dyn SourceFile>> {
        None
    }
    /// Where they are written.
    fn sink(&self) -> &dyn Sink;
    /// The marks that readers watch.
    fn marks(&self) -> &dyn Marks;
    /// Called when the file is open, with the time that the PFS took for that.
    fn opened(&self, _file: &Arc<dyn SourceFile>, _took: Duration) {}
    /// Whether it is a whole file, whose identity is always asked for: the kernel can do so right
    /// after the last read.
    fn is_whole_file(&self) -> bool {
        true
    }
    /// Whether its checksum is asked for. Without it the engine need not see the bytes.
    fn is_summed(&self) -> bool {
        true
    }
    /// Whether the engine is to ask for the file's identity. Called once, when all bytes are
    /// written.
    fn is_checked(&self) -> bool {
        true
    }
    /// Called when the copy has ended, well or not. `true` when the task has another sink now and
    /// is to be copied again.
    fn done(&mut self, end: Result<Copied, CopyError>) -> bool;
}

/// Calls of one file that are repeated because they were interrupted or would have blocked, at
/// most.
const MAX_RETRIES: u32 = 100;

/// Whether a call failed in a way that calls for another try.
fn is_passing(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// The files that an engine copies.
pub trait Work {
    /// The next file; `None` when there is none to begin now.
    fn next(&self) -> Option<Box<dyn Task + '_>>;
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Bytes copied.
    pub bytes: u64,
    /// XXH3-64 of the bytes, if the task is summed.
    pub checksum: Option<u64>,
    /// The identity of the file after its bytes were read, as the PFS's server had it, if the
    /// engine asked for it.
    pub identity: Option<Identity>,
}

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A call to the source failed.
    #[error("reading the source: {0}")]
    Source(io::Error),
    /// A write to the tier failed.
    #[error("writing the copy: {0}")]
    Sink(io::Error),
    /// The file ended before its size. (A file that has grown has another identity.)
    #[error("the file changed its size while it was copied")]
    Changed,
    /// The agent is stopping.
    #[error("stopped")]
    Stopped,
}

/// Moves bytes.
pub trait CopyEngine: Send + Sync {
    /// Its name in status and logs.
    fn name(&self) -> &'static str;
    /// Copies on the calling thread until `work` has no file left and every copy has ended.
    fn run(&self, work: &dyn Work);
    /// Frees what the calling thread keeps between bursts of work: there was none for a while.
    fn rest(&self) {}
}
