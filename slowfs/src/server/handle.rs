//! Open files and directories, by the handle numbers that the kernel sends back.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use fuser::{Errno, FileType};

use super::node::Node;
use super::paths::PathLive;
use crate::lock::lock;

const SHARDS: u64 = 16;

/// An open file: a real descriptor on the backing file, which it keeps whatever happens to the
/// name.
pub(super) struct FileHandle {
    pub(super) fd: OwnedFd,
    pub(super) node: Arc<Node>,
    pub(super) counts: Arc<PathLive>,
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        self.node.open.fetch_sub(1, Relaxed);
    }
}

/// An open directory: its entries as they were when it was last read from the start. Offsets are
/// indices.
pub(super) struct DirHandle {
    pub(super) node: Arc<Node>,
    pub(super) entries: Mutex<Arc<Vec<Listed>>>,
}

/// An entry of a listing.
pub(super) struct Listed {
    pub(super) ino: u64,
    pub(super) kind: FileType,
    pub(super) name: OsString,
}

/// A table of open things.
pub(super) struct Handles<T> {
    next: AtomicU64,
    shards: [Mutex<HashMap<u64, Arc<T>>>; SHARDS as usize],
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl<T> Handles<T> {
    fn shard(&self, handle: u64) -> &Mutex<HashMap<u64, Arc<T>>> {
        &self.shards[(handle % SHARDS) as usize]
    }

    /// Adds an open thing and returns its handle.
    pub(super) fn add(&self, value: T) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        lock(self.shard(handle)).insert(handle, Arc::new(value));
        handle
    }

    /// The open thing of a handle.
    pub(super) fn get(&self, handle: fuser::FileHandle) -> Result<Arc<T>, Errno> {
        lock(self.shard(handle.0)).get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    /// Closes a handle.
    pub(super) fn remove(&self, handle: fuser::FileHandle) {
        lock(self.shard(handle.0)).remove(&handle.0);
    }
}
