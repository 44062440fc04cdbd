//! The `threads` engine: plain pread and pwrite on the calling thread. It needs nothing that a kernel or container could
//! forbid, and is as fast as anything on sources whose reads block inline.

use super::{Copied, CopyEngine, CopyError, Limits, Marks, SourceFile, TRIES, Task, Work, is_passing};
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

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

    /// Makes a call to the PFS, as far as the limits let it.
    fn ask<T>(&self, marks: &dyn Marks, bytes: usize, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        marks.in_pfs(true);
        self.limits.before_call(bytes as u64, marks.waited_for());
        let answer = ask();
        marks.in_pfs(false);
        answer
    }

    /// Copies one file.
    fn copy(&self, buf: &mut Vec<u8>, task: &dyn Task) -> Result<Copied, CopyError> {
        let marks = task.marks();
        let open = || {
            let start = Instant::now();
            let from = task.source().open(task.rel());
            task.opened(start.elapsed());
            from
        };
        self.go_on()?;
        let from = self.ask(marks, 0, open).map_err(CopyError::Source)?;
        marks.progress();
        let (bytes, checksum) = self.bytes(buf, task, &*from)?;
        let identity = self.ask(marks, 0, || from.identity_now()).map_err(CopyError::Source)?;
        marks.progress();
        Ok(Copied { bytes, checksum, identity })
    }

    fn go_on(&self) -> Result<(), CopyError> {
        if self.stop.load(Ordering::Relaxed) { Err(CopyError::Stopped) } else { Ok(()) }
    }

    /// Moves the bytes of an open file: how many, and their checksum.
    fn bytes(&self, buf: &mut Vec<u8>, task: &dyn Task, from: &dyn SourceFile) -> Result<(u64, u64), CopyError> {
        let (size, marks) = (task.size(), task.marks());
        let want = usize::try_from(size).unwrap_or(usize::MAX).min(self.io_size);
        if buf.len() < want {
            buf.resize(want, 0);
        }
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let (mut off, mut tries) = (0u64, 0);
        while off < size {
            self.go_on()?;
            let n = usize::try_from(size - off).unwrap_or(usize::MAX).min(self.io_size);
            let got = match self.ask(marks, n, || from.read_at(&mut buf[..n], off)) {
                Err(e) if is_passing(&e) && tries < TRIES => {
                    tries += 1;
                    continue;
                }
                other => other.map_err(CopyError::Source)?,
            };
            if got == 0 {
                return Err(CopyError::Changed);
            }
            task.sink().write_at(&buf[..got], off).map_err(CopyError::Sink)?;
            hash.update(&buf[..got]);
            off += got as u64;
            marks.progress();
        }
        Ok((off, hash.digest()))
    }

    /// Copies one file, into another place if it has to be.
    pub(super) fn take(&self, task: &mut dyn Task) {
        BUFFER.with_borrow_mut(|buf| {
            loop {
                let end = self.copy(buf, task);
                if buf.len() > KEEP {
                    buf.truncate(KEEP);
                    buf.shrink_to_fit();
                }
                if !task.done(end) {
                    return;
                }
            }
        });
    }
}

impl CopyEngine for ThreadsEngine {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn run(&self, work: &dyn Work) {
        while let Some(mut task) = work.next() {
            self.take(&mut *task);
        }
    }
}
