//! Test doubles of sources and sinks: in memory, slow, failing after a number of calls.

use super::{Sink, Source, SourceFile};
use monarch_abi::hash::Identity;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of a file and which version they are.
type Content = (Vec<u8>, Identity);

/// Files in memory. Reads see later changes, as on a PFS.
#[derive(Clone, Debug, Default)]
pub struct MemSource {
    files: Arc<Mutex<HashMap<Vec<u8>, Content>>>,
}

impl MemSource {
    /// Creates or replaces a file; its identity gets the next inode number.
    pub fn put(&self, rel: &[u8], data: &[u8]) -> Identity {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let ino = files.len() as u64 + 1 + files.values().map(|f| f.1.ino).max().unwrap_or(0);
        let id = Identity { size: data.len() as u64, mtime_ns: 0, ctime_ns: 0, ino };
        files.insert(rel.to_vec(), (data.to_vec(), id));
        id
    }

    fn with<T>(&self, rel: &[u8], f: impl FnOnce(&Content) -> T) -> io::Result<T> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(rel).map(f).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

struct MemFile(MemSource, Vec<u8>);

impl Source for MemSource {
    fn open(&self, rel: &[u8]) -> io::Result<Box<dyn SourceFile>> {
        self.with(rel, |_| ())?;
        Ok(Box::new(MemFile(self.clone(), rel.to_vec())))
    }
    fn identity(&self, rel: &[u8]) -> io::Result<Identity> {
        self.with(rel, |f| f.1)
    }
}

impl SourceFile for MemFile {
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<usize> {
        self.0.with(&self.1, |(data, _)| {
            let rest = usize::try_from(off).ok().and_then(|o| data.get(o..)).unwrap_or(&[]);
            let n = rest.len().min(buf.len());
            buf[..n].copy_from_slice(&rest[..n]);
            n
        })
    }
    fn identity_now(&self) -> io::Result<Identity> {
        self.0.identity(&self.1)
    }
}

/// Calls the inner source after a pause, and reads at most `max_read` bytes a call.
#[derive(Debug)]
pub struct SlowSource<S> {
    /// The source behind it.
    pub inner: S,
    /// Pause before each call.
    pub pause: Duration,
    /// Most bytes a read gives.
    pub max_read: usize,
}

struct SlowFile {
    inner: Box<dyn SourceFile>,
    pause: Duration,
    max_read: usize,
}

impl<S: Source> Source for SlowSource<S> {
    fn open(&self, rel: &[u8]) -> io::Result<Box<dyn SourceFile>> {
        std::thread::sleep(self.pause);
        Ok(Box::new(SlowFile { inner: self.inner.open(rel)?, pause: self.pause, max_read: self.max_read }))
    }
    fn identity(&self, rel: &[u8]) -> io::Result<Identity> {
        self.inner.identity(rel)
    }
}

impl SourceFile for SlowFile {
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<usize> {
        std::thread::sleep(self.pause);
        let n = buf.len().min(self.max_read);
        self.inner.read_at(&mut buf[..n], off)
    }
    fn identity_now(&self) -> io::Result<Identity> {
        self.inner.identity_now()
    }
}

/// Fails every read after the first `after`, with `errno`.
#[derive(Debug)]
pub struct FailingSource<S> {
    /// The source behind it.
    pub inner: S,
    /// Reads left before it fails.
    pub after: Arc<AtomicU64>,
    /// The error code of the failure.
    pub errno: i32,
}

struct FailingFile {
    inner: Box<dyn SourceFile>,
    after: Arc<AtomicU64>,
    errno: i32,
}

impl<S: Source> Source for FailingSource<S> {
    fn open(&self, rel: &[u8]) -> io::Result<Box<dyn SourceFile>> {
        Ok(Box::new(FailingFile { inner: self.inner.open(rel)?, after: self.after.clone(), errno: self.errno }))
    }
    fn identity(&self, rel: &[u8]) -> io::Result<Identity> {
        self.inner.identity(rel)
    }
}

/// Counts down; `false` when there was nothing left.
fn countdown(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
}

impl SourceFile for FailingFile {
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<usize> {
        if countdown(&self.after) {
            self.inner.read_at(buf, off)
        } else {
            Err(io::Error::from_raw_os_error(self.errno))
        }
    }
    fn identity_now(&self) -> io::Result<Identity> {
        self.inner.identity_now()
    }
}

/// Keeps what is written, and fails after `after` writes.
#[derive(Debug)]
pub struct FailingSink {
    /// What was written.
    pub data: Mutex<Vec<u8>>,
    /// Writes left before it fails; `u64::MAX` for never.
    pub after: AtomicU64,
    /// What it says then.
    pub errno: i32,
}

impl Sink for FailingSink {
    fn write_at(&self, buf: &[u8], off: u64) -> io::Result<()> {
        if !countdown(&self.after) {
            return Err(io::Error::from_raw_os_error(self.errno));
        }
        let mut data = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(off).map_err(|_| io::ErrorKind::InvalidInput)?;
        let end = start + buf.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[start..end].copy_from_slice(buf);
        Ok(())
    }
}
