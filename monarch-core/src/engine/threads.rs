//! The `threads` engine: plain pread and pwrite on the calling thread. It needs nothing that a kernel or container could
//! forbid, and is as fast as anything on sources whose reads block inline.

use super::{Copied, CopyEngine, CopyError, Limits, Marks, Sink, SourceFile};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug)]
pub struct ThreadsEngine {
    io_size: usize,
    limits: Arc<Limits>,
    stop: Arc<AtomicBool>,
}

/// A thread keeps a buffer up to this size between copies.
const KEEP: usize = 1 << 20;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl ThreadsEngine {
    /// An engine that reads at most `io_size` bytes a call, within `limits`, until `stop`.
    #[must_use]
    pub fn new(io_size: u64, limits: Arc<Limits>, stop: Arc<AtomicBool>) -> Self {
        Self { io_size: usize::try_from(io_size).unwrap_or(4 << 20), limits, stop }
    }

    fn copy_with(
        &self,
        buf: &mut Vec<u8>,
        from: &dyn SourceFile,
        to: &dyn Sink,
        size: u64,
        marks: &dyn Marks,
    ) -> Result<Copied, CopyError> {
        let want = usize::try_from(size).unwrap_or(usize::MAX).min(self.io_size);
        if buf.len() < want {
            buf.resize(want, 0);
        }
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let mut off = 0u64;
        while off < size {
            if self.stop.load(Ordering::Relaxed) {
                return Err(CopyError::Stopped);
            }
            let n = usize::try_from(size - off).unwrap_or(usize::MAX).min(self.io_size);
            marks.in_pfs(true);
            self.limits.before_call(n as u64, marks.waited_for());
            let got = from.read_at(&mut buf[..n], off);
            marks.in_pfs(false);
            let got = match got {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other.map_err(CopyError::Source)?,
            };
            if got == 0 {
                return Err(CopyError::Changed);
            }
            to.write_at(&buf[..got], off).map_err(CopyError::Sink)?;
            hash.update(&buf[..got]);
            off += got as u64;
            marks.progress();
        }
        Ok(Copied { bytes: off, checksum: hash.digest() })
    }
}

impl CopyEngine for ThreadsEngine {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn copy(&self, from: &dyn SourceFile, to: &dyn Sink, size: u64, marks: &dyn Marks) -> Result<Copied, CopyError> {
        BUFFER.with_borrow_mut(|buf| {
            let done = self.copy_with(buf, from, to, size, marks);
            if buf.len() > KEEP {
                buf.truncate(KEEP);
                buf.shrink_to_fit();
            }
            done
        })
    }
}
