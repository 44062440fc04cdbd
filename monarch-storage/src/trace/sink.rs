//! Writes the blocks of a trace: directly, or through a thread.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Takes the blocks of a trace in order.
pub(super) trait Sink: fmt::Debug + Send {
    /// Takes a block. Returns `false` when there is no space for it now.
    fn put(&mut self, block: Vec<u8>) -> io::Result<bool>;
    /// Returns the error of the last write, if it failed.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }
    /// Takes the last blocks and waits, at most for `limit`, until all are written.
    fn end(&mut self, blocks: Vec<Vec<u8>>, limit: Duration) -> io::Result<()>;
    /// Returns the number of bytes written.
    fn written(&self) -> u64;
}

/// A file that is written directly.
#[derive(Debug)]
pub(super) struct Direct {
    file: File,
    written: u64,
}

impl Direct {
    pub(super) fn create(path: &Path, head: &[u8]) -> io::Result<Self> {
        Self::begin(File::create(path)?, head)
    }

    fn begin(mut file: File, head: &[u8]) -> io::Result<Self> {
        file.write_all(head)?;
        Ok(Self { file, written: head.len() as u64 })
    }
}

impl Sink for Direct {
    fn put(&mut self, block: Vec<u8>) -> io::Result<bool> {
        self.file.write_all(&block)?;
        self.written += block.len() as u64;
        Ok(true)
    }

    fn end(&mut self, blocks: Vec<Vec<u8>>, _: Duration) -> io::Result<()> {
        blocks.into_iter().try_for_each(|block| self.put(block).map(drop))
    }

    fn written(&self) -> u64 {
        self.written
    }
}

/// A file that a thread writes, since its file system may not answer.
#[derive(Debug)]
pub(super) struct Behind {
    /// The queue of blocks; `None` after the last block.
    blocks: Option<SyncSender<Vec<u8>>>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    written: AtomicU64,
    error: Mutex<Option<io::Error>>,
}

fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the file system does not answer")
}

impl Behind {
    /// Begins the file that `open` opens. At most `most` blocks queue up.
    ///
    /// # Errors
    /// When the file cannot be opened and begun within `limit`.
    pub(super) fn create(
        open: impl FnOnce() -> io::Result<File> + Send + 'static,
        head: Vec<u8>,
        most: usize,
        limit: Duration,
    ) -> io::Result<Self> {
        let (blocks, taken) = sync_channel::<Vec<u8>>(most);
        let (tell_begun, begun) = channel();
        let (tell_ended, ended) = channel();
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let work = move || {
            let _closes_at_the_end = tell_ended;
            let mut to = match open().and_then(|file| Direct::begin(file, &head)) {
                Ok(to) => to,
                Err(e) => {
                    let _ = tell_begun.send(Err(e));
                    return;
                }
            };
            of_thread.written.store(to.written, Ordering::Relaxed);
            if tell_begun.send(Ok(())).is_err() {
                return;
            }
            for block in taken {
                if let Err(e) = to.put(block) {
                    *of_thread.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                    return;
                }
                of_thread.written.store(to.written, Ordering::Relaxed);
            }
        };
        thread::Builder::new().name("trace".to_owned()).spawn(work)?;
        match begun.recv_timeout(limit) {
            Ok(begun) => begun?,
            Err(_) => return Err(no_answer()),
        }
        Ok(Self { blocks: Some(blocks), ended, shared })
    }

    fn error(&self) -> io::Error {
        let error = self.shared.error.lock().unwrap_or_else(PoisonError::into_inner);
        // (The error stays for later calls.)
        match error.as_ref().map(|e| (e.raw_os_error(), e.kind())) {
            Some((Some(errno), _)) => io::Error::from_raw_os_error(errno),
            Some((None, kind)) => kind.into(),
            None => io::ErrorKind::BrokenPipe.into(),
        }
    }
}

impl Sink for Behind {
    fn put(&mut self, block: Vec<u8>) -> io::Result<bool> {
        match self.blocks.as_ref().map(|to| to.try_send(block)) {
            Some(Ok(())) => Ok(true),
            Some(Err(TrySendError::Full(_))) => Ok(false),
            Some(Err(TrySendError::Disconnected(_))) | None => Err(self.error()),
        }
    }

    fn check(&self) -> io::Result<()> {
        let failed = self.shared.error.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if failed { Err(self.error()) } else { Ok(()) }
    }

    fn end(&mut self, blocks: Vec<Vec<u8>>, limit: Duration) -> io::Result<()> {
        let until = Instant::now() + limit;
        let Some(to) = self.blocks.take() else { return self.check() };
        for mut block in blocks {
            loop {
                block = match to.try_send(block) {
                    Ok(()) => break,
                    Err(TrySendError::Full(_)) if Instant::now() >= until => return Err(no_answer()),
                    Err(TrySendError::Full(block)) => block,
                    Err(TrySendError::Disconnected(_)) => return Err(self.error()),
                };
                thread::sleep(Duration::from_millis(5));
            }
        }
        drop(to);
        match self.ended.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => Err(no_answer()),
            _ => self.check(),
        }
    }

    fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }
}
