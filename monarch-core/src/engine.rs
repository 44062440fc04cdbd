//! Copy engines: how bytes get from the PFS into a tier.
//!
//! The engine is given an open source and an open sink and moves bytes; what a copy means (identity, names, publishing)
//! is the driver's business. Both sides are traits with doubles that ship with the product, so that every failure can be
//! driven in tests without waiting.

mod double;
mod limits;
mod pfs;
mod threads;

pub use double::{FailingSink, FailingSource, MemSource, SlowSource};
pub use limits::{Limits, TokenBucket};
pub use pfs::PfsSource;
pub use threads::ThreadsEngine;

use monarch_abi::hash::Identity;
use std::io;

/// A root on the PFS, as the agent reads it.
pub trait Source: Send + Sync {
    /// Opens a regular file below the root, following no links.
    ///
    /// # Errors
    /// What the kernel said.
    fn open(&self, rel: &[u8]) -> io::Result<Box<dyn SourceFile>>;
    /// Identity of the file that the path names now, for copies that may be of an older version.
    ///
    /// # Errors
    /// What the kernel said.
    fn identity(&self, rel: &[u8]) -> io::Result<Identity>;
}

/// An open file on the PFS.
pub trait SourceFile: Send {
    /// Reads up to `buf.len()` bytes at `off`; 0 at the end.
    ///
    /// # Errors
    /// What the kernel said; `Interrupted` is tried again.
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<usize>;
    /// The identity as the PFS's server has it now.
    ///
    /// # Errors
    /// What the kernel said.
    fn identity_now(&self) -> io::Result<Identity>;
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
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pwrite(self.fd(), &buf[done..], off + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// Marks by which waiting readers see that a copier is alive.
pub trait Marks {
    /// Called before and after every PFS call, the sleep that the limits demand included.
    fn in_pfs(&self, inside: bool);
    /// Called whenever bytes have arrived.
    fn progress(&self);
    /// Whether a reader waits for the copy: then it goes first within the limits.
    fn waited_for(&self) -> bool;
}

/// What was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Bytes.
    pub bytes: u64,
    /// XXH3-64 of them.
    pub checksum: u64,
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
    /// Copies exactly `size` bytes from `from` to `to`.
    ///
    /// # Errors
    /// See [`CopyError`]; the sink is unusable then.
    fn copy(&self, from: &dyn SourceFile, to: &dyn Sink, size: u64, marks: &dyn Marks) -> Result<Copied, CopyError>;
}
