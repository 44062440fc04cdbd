//! The inodes that the kernel knows.
//!
//! A node is an `O_PATH` descriptor: it follows renames, and it pins the inode, so that its number
//! cannot be given to another file while the kernel still refers to it. (With more files than
//! descriptors see [`super::pins`].) The kernel's reference count (one per entry sent, less what
//! FORGET returns) decides its life. Node numbers are the backing inode numbers; only inodes of
//! other devices mounted below the source get numbers of their own.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use fuser::{Errno, INodeNo};
use rustix::fs::Stat;

use super::paths::{PathLive, Paths};
use super::pins::{Identity, Pin, Pins, Release};
use crate::lock::lock;

const SHARDS: usize = 16;
/// Set in the made-up numbers of inodes of other devices.
const FOREIGN_BIT: u64 = 1 << 63;

/// An inode that the kernel knows.
pub(super) struct Node {
    pin: Mutex<Pin>,
    pins: Arc<Pins>,
    me: Weak<Node>,
    /// Whether the descriptor was used since it was last considered for release.
    used: AtomicBool,
    /// Of the backing inode.
    identity: Identity,
    /// The number that the kernel sees.
    pub(super) number: u64,
    /// Open files of this node.
    pub(super) open: AtomicU32,
    /// Whether its last name was removed through this mount: then the kernel knows, and nothing is
    /// stale.
    pub(super) removed_here: AtomicBool,
    /// Hash of size, mtime and ctime as last sent to the kernel.
    pub(super) sent: AtomicU64,
    counts: Mutex<Option<Arc<PathLive>>>,
}

impl Node {
    fn new(fd: Arc<OwnedFd>, stat: &Stat, number: u64, pins: &Arc<Pins>) -> Arc<Self> {
        pins.count();
        Arc::new_cyclic(|me| Self {
            pin: Mutex::new(Pin::Held(fd)),
            pins: Arc::clone(pins),
            me: Weak::clone(me),
            used: AtomicBool::new(true),
            identity: Identity::of(stat),
            number,
            open: AtomicU32::new(0),
            removed_here: AtomicBool::new(false),
            sent: AtomicU64::new(version(stat)),
            counts: Mutex::default(),
        })
    }

    /// The `O_PATH` descriptor. It must be kept as long as a path made from it is in use.
    pub(super) fn fd(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.used.store(true, Relaxed);
        let mut pin = lock(&self.pin);
        let fd = match &*pin {
            Pin::Held(fd) => return Ok(Arc::clone(fd)),
            Pin::Released { path, birth } => self.pins.reopen(path, self.identity, *birth)?,
        };
        self.hold(&mut pin, Arc::clone(&fd));
        drop(pin);
        self.admit();
        Ok(fd)
    }

    /// Queues the node for release; none of its locks is held.
    fn admit(&self) {
        let me = Weak::clone(&self.me);
        self.pins.admit(me);
    }

    fn hold(&self, pin: &mut Pin, fd: Arc<OwnedFd>) {
        *pin = Pin::Held(fd);
        self.pins.count();
    }

    /// Takes a fresh descriptor over if the node has none; true when it did.
    fn accept(&self, fd: OwnedFd) -> bool {
        let mut pin = lock(&self.pin);
        let wanted = matches!(*pin, Pin::Released { .. });
        if wanted {
            self.hold(&mut pin, Arc::new(fd));
        }
        wanted
    }

    /// Whether another client removed the inode behind the mount's back.
    pub(super) fn is_stale(&self, stat: &Stat) -> bool {
        stat.st_nlink == 0 && !self.removed_here.load(Relaxed)
    }

    /// Notes the attributes that are sent to the kernel; true when they are new to it.
    pub(super) fn sends(&self, stat: &Stat) -> bool {
        let version = version(stat);
        self.sent.swap(version, Relaxed) != version
    }

    /// Its path relative to the root; the root itself is the empty path.
    pub(super) fn path(&self, paths: &Paths) -> Option<String> {
        paths.relative(self.fd().ok()?.as_fd())
    }

    /// Counts by path, under the path known since the last open.
    pub(super) fn counts(&self, paths: &Paths) -> Arc<PathLive> {
        Arc::clone(lock(&self.counts).get_or_insert_with(|| paths.counts(self.path(paths))))
    }

    /// Counts by path, under the present path.
    pub(super) fn fresh_counts(&self, paths: &Paths) -> Arc<PathLive> {
        let counts = paths.counts(self.path(paths));
        *lock(&self.counts) = Some(Arc::clone(&counts));
        counts
    }
}

impl Release for Node {
    fn release(&self, pins: &Pins) -> bool {
        if self.used.swap(false, Relaxed) || self.open.load(Relaxed) > 0 {
            return false;
        }
        let mut pin = lock(&self.pin);
        let Pin::Held(fd) = &*pin else { return true };
        let Some(released) = pins.remember(fd) else {
            return false;
        };
        *pin = released;
        pins.discount();
        true
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if matches!(*lock(&self.pin), Pin::Held(_)) {
            self.pins.discount();
        }
    }
}

/// A hash of the attributes by which two versions of a file differ.
fn version(stat: &Stat) -> u64 {
    let fields = (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec);
    BuildHasherDefault::<DefaultHasher>::new().hash_one(fields)
}

struct Known {
    node: Arc<Node>,
    lookups: u64,
}

/// All nodes.
pub(super) struct Nodes {
    root: Arc<Node>,
    pins: Arc<Pins>,
    shards: [Mutex<HashMap<u64, Known>>; SHARDS],
}

impl Nodes {
    /// A table with its root only; the nodes to come keep about `descriptors` descriptors.
    pub(super) fn new(root: OwnedFd, descriptors: usize) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&root)?;
        let fd = Arc::new(root);
        let pins = Arc::new(Pins::new(Arc::clone(&fd), descriptors)?);
        // Never queued, hence never released.
        let root = Node::new(fd, &stat, stat.st_ino, &pins);
        Ok(Self { root, pins, shards: std::array::from_fn(|_| Mutex::default()) })
    }

    pub(super) fn root(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.root.fd()
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Known>> {
        &self.shards[(number % SHARDS as u64) as usize]
    }

    /// The node that the kernel calls `ino`.
    pub(super) fn get(&self, ino: INodeNo) -> Result<Arc<Node>, Errno> {
        if ino == INodeNo::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        lock(self.shard(ino.0)).get(&ino.0).map(|known| Arc::clone(&known.node)).ok_or(Errno::ESTALE)
    }

    /// The node of a descriptor with one more reference by the kernel.
    pub(super) fn enter(&self, fd: OwnedFd, stat: &Stat) -> Arc<Node> {
        let mut number = self.number(stat);
        loop {
            let mut shard = lock(self.shard(number));
            let (node, pinned) = match shard.get_mut(&number) {
                None => {
                    let node = Node::new(Arc::new(fd), stat, number, &self.pins);
                    shard.insert(number, Known { node: Arc::clone(&node), lookups: 1 });
                    (node, true)
                }
                Some(known) if known.node.identity == Identity::of(stat) => {
                    known.lookups += 1;
                    let pinned = known.node.accept(fd);
                    (Arc::clone(&known.node), pinned)
                }
                Some(_) => {
                    number = FOREIGN_BIT | number.wrapping_add(1);
                    continue;
                }
            };
            drop(shard);
            if pinned {
                node.admit();
            }
            return node;
        }
    }

    /// The node of this inode, if the kernel knows it.
    pub(super) fn find(&self, stat: &Stat) -> Option<Arc<Node>> {
        let node = self.get(INodeNo(self.number(stat))).ok()?;
        (node.identity == Identity::of(stat)).then_some(node)
    }

    /// The kernel gives `lookups` references back.
    pub(super) fn forget(&self, ino: INodeNo, lookups: u64) {
        let mut shard = lock(self.shard(ino.0));
        if let Some(known) = shard.get_mut(&ino.0) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                shard.remove(&ino.0);
            }
        }
    }

    /// Backing numbers as they are; 0 and 1 mean "none" and "root" to the kernel, other devices may
    /// repeat numbers.
    fn number(&self, stat: &Stat) -> u64 {
        if stat.st_dev == self.root.identity.device && stat.st_ino > 1 && stat.st_ino & FOREIGN_BIT == 0 {
            return stat.st_ino;
        }
        FOREIGN_BIT | BuildHasherDefault::<DefaultHasher>::new().hash_one((stat.st_dev, stat.st_ino))
    }
}
