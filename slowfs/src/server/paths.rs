//! Paths of open descriptors and the counts kept by path.
//!
//! The kernel knows the present path of a descriptor (`/proc/self/fd`), renames included; nothing
//! is tracked here.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::sys::proc_path;
use crate::counters::{ByPath, PathCounts};
use crate::lock::lock;

/// Live counts of one path.
#[derive(Default)]
pub(super) struct PathLive {
    pub(super) lookups: AtomicU64,
    pub(super) getattrs: AtomicU64,
    pub(super) opens: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) bytes_read: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) bytes_written: AtomicU64,
}

impl PathLive {
    fn all(&self) -> [&AtomicU64; 7] {
        let Self { lookups, getattrs, opens, reads, bytes_read, writes, bytes_written } = self;
        [lookups, getattrs, opens, reads, bytes_read, writes, bytes_written]
    }

    fn snapshot(&self) -> PathCounts {
        let [lookups, getattrs, opens, reads, bytes_read, writes, bytes_written] = self.all().map(|c| c.load(Relaxed));
        PathCounts { lookups, getattrs, opens, reads, bytes_read, writes, bytes_written }
    }
}

/// Counts by path.
pub(super) struct Paths {
    root: Vec<u8>,
    counts: Mutex<HashMap<String, Arc<PathLive>>>,
}

impl Paths {
    /// For paths below the directory `root`.
    pub(super) fn new(root: BorrowedFd<'_>) -> io::Result<Self> {
        let mut root = read_link(root)?;
        if root != b"/" {
            root.push(b'/');
        }
        Ok(Self { root, counts: Mutex::default() })
    }

    /// The path of a descriptor relative to the root; the root itself is the empty path.
    pub(super) fn relative(&self, fd: BorrowedFd<'_>) -> Option<String> {
        let path = read_link(fd).ok()?;
        let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
        let relative = path.strip_prefix(self.root.as_slice());
        relative
            .or((self.root.strip_suffix(b"/") == Some(path)).then_some(b""))
            .map(|p| String::from_utf8_lossy(p).into_owned())
    }

    /// The counts of a path; those of `?` when the path is not known.
    pub(super) fn counts(&self, path: Option<String>) -> Arc<PathLive> {
        let path = path.unwrap_or_else(|| "?".into());
        Arc::clone(lock(&self.counts).entry(path).or_default())
    }

    /// All paths that were touched since the last reset.
    pub(super) fn snapshot(&self) -> ByPath {
        let counts = lock(&self.counts);
        let all = counts.iter().map(|(path, live)| (path.clone(), live.snapshot()));
        all.filter(|(_, counts)| *counts != PathCounts::default()).collect()
    }

    /// Back to zero; counters stay in place, since open files hold them.
    pub(super) fn reset(&self) {
        for live in lock(&self.counts).values() {
            for counter in live.all() {
                counter.store(0, Relaxed);
            }
        }
    }
}

/// The present path of a descriptor.
pub(super) fn read_link(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlink(proc_path(fd), Vec::with_capacity(256))?.into_bytes())
}
