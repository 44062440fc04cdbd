//! Copy engines: how bytes get from the PFS into a tier.
//!
//! The engine is given files to copy, each with a place to write it to, and moves bytes; what a
//! copy means (identity, names, publishing) is the business of the tiering engine. It takes as many
//! files at a time as it can hold: the `threads` engine one for each thread that runs it. Both
//! sides are traits with doubles that ship with the product, so that every failure can be driven in
//! tests without waiting.

mod choose;
mod double;
mod limits;
mod pages;
mod pfs;
mod threads;
mod uring;

pub use choose::{Engines, slots_ahead};
pub use double::{FailingSink, FailingSource, MemSource, SlowSource};
pub use limits::Limits;
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
    /// The same past the page cache, where that can be; reads are of whole pages then.
    ///
    /// # Errors
    /// What the kernel said.
    fn open_direct(&self, rel: &[u8]) -> io::Result<Box<dyn SourceFile>> {
        self.open(rel)
    }
    /// Identity of the file that the path names now, for copies that may be of an older version.
    ///
    /// # Errors
    /// What the kernel said.
    fn identity(&self, rel: &[u8]) -> io::Result<Identity>;
    /// The root's directory, where the kernel can open, read and stat files below it as well as the
    /// calls above do. Engines that have the kernel do so need it; without one they are of no
    /// use for this source.
    fn root(&self) -> Option<Arc<OwnedFd>> {
        None
    }
    /// Whether a read that is asked not to block does not.
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
    /// Whether it lies on this node: what is asked of it is no call to the PFS.
    fn is_local(&self) -> bool {
        false
    }
    /// Whether it comes from another node: who waits for it waits as for the PFS, within limits of
    /// its own.
    fn is_remote(&self) -> bool {
        false
    }
    /// Bytes that are best read at a time, from a multiple of them on, if there is such a number.
    fn at_once(&self) -> Option<usize> {
        None
    }
    /// Its descriptor, where the kernel can do the same as the calls above.
    fn fd(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}

/// Where a copy is written.
pub trait Sink {
    /// Writes all of `buf` at `off`.
    ///
    /// # Errors
    /// What the kernel said.
    fn write_at(&self, buf: &[u8], off: u64) -> io::Result<()>;
}

impl Sink for crate::tier::CopyFile<'_> {
    fn write_at(&self, buf: &[u8], off: u64) -> io::Result<()> {
        crate::tier::write_all_at(self.fd(), buf, off)
    }
}

impl<S: Sink> Sink for Option<S> {
    fn write_at(&self, buf: &[u8], off: u64) -> io::Result<()> {
        self.as_ref().map_or_else(|| Err(io::ErrorKind::NotFound.into()), |to| to.write_at(buf, off))
    }
}

/// Marks by which waiting readers see that a copier is alive.
pub trait Marks {
    /// Called before and after every PFS call, the wait that the limits demand included. Calls of
    /// one file may overlap.
    fn in_pfs(&self, inside: bool);
    /// Called whenever the PFS has answered.
    fn progress(&self);
    /// Whether a reader waits for the copy: then it goes first within the limits.
    fn waited_for(&self) -> bool;
}

/// A file to be copied, or a part of one.
pub trait Task {
    /// The root that it lies below.
    fn source(&self) -> &dyn Source;
    /// Its path below the root.
    fn rel(&self) -> &[u8];
    /// Bytes to copy: exactly these.
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
    /// What others see of the copy under way.
    fn marks(&self) -> &dyn Marks;
    /// The file is open now, which took the PFS so long.
    fn opened(&self, _file: &Arc<dyn SourceFile>, _took: Duration) {}
    /// Whether it is a file as a whole, which is asked who it is in any case: the kernel can do so
    /// right after the last read.
    fn is_whole_file(&self) -> bool {
        true
    }
    /// Asked once, when all bytes are written: whether the file is to be asked who it is now.
    fn is_checked(&self) -> bool {
        true
    }
    /// The copy has ended, well or not. `true` when the task has another sink now and is to be
    /// copied once more.
    fn done(&mut self, end: Result<Copied, CopyError>) -> bool;
}

/// How often calls of one file are repeated that were interrupted or not ready.
const TRIES: u32 = 100;

/// Whether a call failed in a way that asks for another one.
fn is_passing(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// Where an engine gets its files from.
pub trait Work {
    /// The next file; `None` when there is nothing to be begun now.
    fn next(&self) -> Option<Box<dyn Task + '_>>;
}

/// What was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Bytes.
    pub bytes: u64,
    /// XXH3-64 of them.
    pub checksum: u64,
    /// Identity of the file after its bytes were read, as the PFS's server had it; if it was asked
    /// for.
    pub identity: Option<Identity>,
}

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The PFS said no.
    #[error("reading the source: {0}")]
    Source(io::Error),
    /// The tier said no.
    #[error("writing the copy: {0}")]
    Sink(io::Error),
    /// The file ended before its size. (That it went on behind it is for the identity to tell.)
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
    /// Copies on the calling thread until `work` has nothing more and every copy has ended.
    fn run(&self, work: &dyn Work);
}
