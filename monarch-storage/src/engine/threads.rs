//! The `threads` engine: plain pread and pwrite on the calling thread. It needs nothing that a
//! kernel or container could forbid, and is as fast as anything on sources whose reads block
//! inline.

use super::pages::{PAGE, Pages};
use super::{Copied, CopyEngine, CopyError, Limits, MAX_RETRIES, Marks, SourceFile, Task, Work, is_passing};
use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The `threads` engine.
#[derive(Debug)]
pub struct ThreadsEngine {
    io_size: usize,
    limits: Arc<Limits>,
    stop: Arc<AtomicBool>,
    large: LargeBuffers,
}

/// Bytes of the buffer that a thread keeps between copies, at most.
const KEPT_BUFFER_BYTES: usize = 1 << 20;
/// Bytes of a read, at most, where a request costs nothing: what was read is hashed and written
/// while it is in the processor's cache.
pub(super) const LOCAL_READ_BYTES: usize = 512 << 10;
/// Larger buffers that are kept for all threads, at most.
const MAX_LARGE_BUFFERS: usize = 8;

thread_local! {
    static BUFFER: RefCell<Pages> = RefCell::new(Pages::default());
}

impl ThreadsEngine {
    /// An engine that reads at most `io_size` bytes a call, within `limits`, until `stop`.
    #[must_use]
    pub fn new(io_size: u64, limits: Arc<Limits>, stop: Arc<AtomicBool>) -> Self {
        Self { io_size: usize::try_from(io_size).unwrap_or(4 << 20), limits, stop, large: LargeBuffers::default() }
    }

    /// Makes a call to an open file: within the limits, unless the file is local or remote.
    fn ask_file<T>(
        &self,
        file: &dyn SourceFile,
        marks: &dyn Marks,
        bytes: usize,
        ask: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if file.is_local() {
            return ask();
        }
        if file.is_remote() {
            marks.in_pfs(true);
            let answer = ask();
            marks.in_pfs(false);
            return answer;
        }
        self.ask(marks, bytes, ask)
    }

    /// Makes a call to the PFS, within the limits.
    fn ask<T>(&self, marks: &dyn Marks, bytes: usize, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        marks.in_pfs(true);
        self.limits.before_call(bytes as u64, marks.waited_for());
        let answer = ask();
        marks.in_pfs(false);
        answer
    }

    /// Copies one file, or a part of it.
    fn copy(&self, buf: &mut Pages, task: &dyn Task) -> Result<Copied, CopyError> {
        let marks = task.marks();
        self.go_on()?;
        let from = match task.file() {
            Some(from) => from,
            None => self.open(task).map_err(CopyError::Source)?,
        };
        let (bytes, checksum) = self.bytes(buf, task, &*from)?;
        let mut identity = None;
        if task.is_checked() {
            identity = Some(self.ask_file(&*from, marks, 0, || from.identity_now()).map_err(CopyError::Source)?);
            marks.progress();
        }
        Ok(Copied { bytes, checksum, identity })
    }

    fn open(&self, task: &dyn Task) -> io::Result<Arc<dyn SourceFile>> {
        let open = || {
            let start = Instant::now();
            let (source, rel) = (task.source(), task.rel());
            let from = if task.is_direct() { source.open_direct(rel)? } else { source.open(rel)? };
            let from: Arc<dyn SourceFile> = from.into();
            task.opened(&from, start.elapsed());
            Ok(from)
        };
        let from = self.ask(task.marks(), 0, open)?;
        task.marks().progress();
        Ok(from)
    }

    fn go_on(&self) -> Result<(), CopyError> {
        if self.stop.load(Ordering::Relaxed) { Err(CopyError::Stopped) } else { Ok(()) }
    }

    /// Moves the bytes of an open file; their number, and their checksum if the task is
    /// summed.
    fn bytes(&self, buf: &mut Pages, task: &dyn Task, from: &dyn SourceFile) -> Result<(u64, Option<u64>), CopyError> {
        let (range, marks) = (task.range(), task.marks());
        let io_size = match from.at_once() {
            Some(at_once) => at_once,
            None if task.source().keeps_nowait() => self.io_size.min(LOCAL_READ_BYTES),
            None => self.io_size,
        };
        let want = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(io_size);
        let mut hash = task.is_summed().then(xxhash_rust::xxh3::Xxh3::new);
        // What the kernel can read into the sink's memory. (Other sources would store the bytes
        // themselves.)
        let unseen_source = if hash.is_none() { from.fd() } else { None };
        let mut direct = task.is_direct() && !from.is_local() && !from.is_remote();
        let (mut off, mut tries) = (range.start, 0);
        while off < range.end {
            self.go_on()?;
            let n = usize::try_from(range.end - off).unwrap_or(usize::MAX).min(io_size);
            // Past the page cache the read is of whole pages; bytes by which the file has grown are
            // left out.
            let asked = if direct { n.next_multiple_of(PAGE) } else { n };
            let mut memory = match &unseen_source {
                Some(file) => task.sink().memory(off..off + asked as u64).map(|memory| (file, memory)),
                None => None,
            };
            if memory.is_none() && buf.len() < want {
                *buf = Pages::new(want);
            }
            let read = || match &mut memory {
                Some((file, memory)) => memory.read_from(file, off),
                None => {
                    let asked = asked.min(buf.len());
                    from.read_at(&mut buf.bytes_mut()[..asked], off)
                }
            };
            let got = match self.ask_file(from, marks, n, read) {
                Err(e) if memory.is_some() && e.raw_os_error() == Some(libc::EFAULT) => {
                    task.sink().forgo_memory();
                    continue;
                }
                Err(e) if direct && e.raw_os_error() == Some(libc::EINVAL) => {
                    direct = false;
                    from.use_cache();
                    continue;
                }
                Err(e) if is_passing(&e) && tries < MAX_RETRIES => {
                    tries += 1;
                    continue;
                }
                other => other.map_err(CopyError::Source)?.min(n),
            };
            if got == 0 {
                return Err(CopyError::Changed);
            }
            if memory.is_none() {
                let bytes = &buf.bytes()[..got];
                task.sink().write_at(bytes, off).map_err(CopyError::Sink)?;
                if let Some(hash) = &mut hash {
                    hash.update(bytes);
                }
            }
            off += got as u64;
            marks.progress();
            if off < range.end && direct && !off.is_multiple_of(PAGE as u64) {
                // After a short read the offset is no multiple of a page.
                direct = false;
                from.use_cache();
            }
        }
        Ok((off - range.start, hash.map(|hash| hash.digest())))
    }

    /// Copies one file, again and again as long as its task has another sink.
    pub fn take(&self, task: &mut dyn Task) {
        BUFFER.with_borrow_mut(|buf| {
            if !task.source().keeps_nowait()
                && buf.len() < KEPT_BUFFER_BYTES
                && task.range().end - task.range().start > KEPT_BUFFER_BYTES as u64
            {
                *buf = self.large.take();
            }
            loop {
                let end = self.copy(buf, task);
                if !task.done(end) {
                    break;
                }
            }
            if buf.len() > KEPT_BUFFER_BYTES {
                self.large.give_back(std::mem::take(buf));
            }
        });
    }
}

/// Large buffers, for any thread: the buffer used last is taken first.
#[derive(Debug, Default)]
struct LargeBuffers(Mutex<Vec<Pages>>);

impl LargeBuffers {
    fn lock(&self) -> MutexGuard<'_, Vec<Pages>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Pages {
        self.lock().pop().unwrap_or_default()
    }

    fn give_back(&self, buf: Pages) {
        let mut kept = self.lock();
        if kept.len() < MAX_LARGE_BUFFERS {
            kept.push(buf);
        }
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
