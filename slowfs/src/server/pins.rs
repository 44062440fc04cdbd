//! The descriptors of nodes: as many as the process may have, not as many as the kernel knows
//! files.
//!
//! A node that was not used lately gives its descriptor back and keeps its path and birth time.
//! When it is needed again the path must still lead to the same inode; if it does not (a rename
//! meanwhile), the answer is `ESTALE`, and the kernel's new lookup brings a fresh descriptor to the
//! node. Nodes with open files or without a name keep theirs.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use fuser::Errno;
use rustix::fs::{self as sysfs, AtFlags, Mode, OFlags, Stat, StatxFlags};

use super::paths::read_link;
use super::sys::errno;
use crate::lock::lock;

/// Nodes that are looked at, at most, for one that can give its descriptor back.
const MAX_RELEASE_TRIES: usize = 64;

/// Seconds and nanoseconds of an inode's creation, where the backing file system knows: two inodes
/// of one number differ by it.
type Birth = Option<(i64, u32)>;

/// Device and number of an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl Identity {
    pub(super) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// A node's descriptor, or how to get it again.
pub(super) enum Pin {
    Held(Arc<OwnedFd>),
    Released { path: Vec<u8>, birth: Birth },
}

/// An owner of a descriptor that can open it again.
pub(super) trait Release: Send + Sync {
    /// Gives the descriptor back; false when its owner is in use or could not be found again.
    fn release(&self, pins: &Pins) -> bool;
}

/// The descriptors of all nodes, counted and bounded.
pub(super) struct Pins {
    root: Arc<OwnedFd>,
    /// Path of the root, with a slash at its end.
    prefix: Vec<u8>,
    most: usize,
    held: AtomicUsize,
    queue: Mutex<VecDeque<Weak<dyn Release>>>,
}

impl Pins {
    /// For nodes below `root`, which keep about `most` descriptors.
    pub(super) fn new(root: Arc<OwnedFd>, most: usize) -> io::Result<Self> {
        let mut prefix = read_link(root.as_fd())?;
        if prefix != b"/" {
            prefix.push(b'/');
        }
        Ok(Self { root, prefix, most, held: AtomicUsize::new(0), queue: Mutex::default() })
    }

    /// A node has got a descriptor: other nodes may have to give theirs back. The caller holds no
    /// node's lock.
    pub(super) fn admit(&self, node: Weak<dyn Release>) {
        let mut queue = lock(&self.queue);
        queue.push_back(node);
        if queue.len() > self.most.saturating_mul(2).max(1024) {
            queue.retain(|node| node.strong_count() > 0);
        }
        for _ in 0..MAX_RELEASE_TRIES.min(queue.len()) {
            if self.held.load(Relaxed) <= self.most {
                return;
            }
            let Some(weak) = queue.pop_front() else {
                return;
            };
            let Some(node) = weak.upgrade() else { continue };
            if !node.release(self) {
                queue.push_back(weak);
            }
        }
    }

    pub(super) fn count(&self) {
        self.held.fetch_add(1, Relaxed);
    }

    pub(super) fn discount(&self) {
        self.held.fetch_sub(1, Relaxed);
    }

    /// What is needed to open this again; `None` when it has no name.
    pub(super) fn remember(&self, fd: &OwnedFd) -> Option<Pin> {
        if sysfs::fstat(fd).ok()?.st_nlink == 0 {
            return None;
        }
        let path = read_link(fd.as_fd()).ok()?.strip_prefix(self.prefix.as_slice())?.to_vec();
        Some(Pin::Released { path, birth: birth(fd) })
    }

    /// Opens a path again if it still is the same inode.
    pub(super) fn reopen(&self, path: &[u8], identity: Identity, birth_then: Birth) -> Result<Arc<OwnedFd>, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match sysfs::openat(&self.root, OsStr::from_bytes(path), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Err(Errno::ESTALE),
            Err(error) => return Err(errno(error)),
        };
        let stat = sysfs::fstat(&fd).map_err(errno)?;
        let same = Identity::of(&stat) == identity && birth(&fd) == birth_then;
        if same { Ok(Arc::new(fd)) } else { Err(Errno::ESTALE) }
    }
}

fn birth(fd: &OwnedFd) -> Birth {
    let stat = sysfs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    StatxFlags::from_bits_retain(stat.stx_mask)
        .contains(StatxFlags::BTIME)
        .then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec))
}
