//! Doubles of the PFS for tests: in memory, failing after a number of calls, slow.

use super::{Attributes, Extended, Kind, OutputTarget, TargetFile, TargetStat};
use rustix::io::{Errno, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A kind of call on the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Opening a file for writing.
    Open,
    /// Creating a file.
    Create,
    /// Writing bytes.
    Write,
    /// Making a file durable.
    Sync,
    /// Setting mode, owner, times.
    Attributes,
    /// Renaming.
    Rename,
    /// Removing a name.
    Unlink,
    /// Removing a directory.
    Rmdir,
    /// Making a symbolic link.
    Symlink,
    /// Making a directory durable.
    SyncDir,
    /// Asking for attributes, links, names.
    Look,
}

/// An inode of [`MemoryTarget`].
#[derive(Clone, Debug)]
struct Node {
    stat: TargetStat,
    bytes: Vec<u8>,
    extended: Vec<Extended>,
}

#[derive(Debug, Default)]
struct Memory {
    names: BTreeMap<Vec<u8>, u64>,
    nodes: BTreeMap<u64, Node>,
    clock: i64,
}

/// A tree in memory. Directories exist without being made.
#[derive(Clone, Debug, Default)]
pub struct MemoryTarget {
    memory: Arc<Mutex<Memory>>,
}

impl MemoryTarget {
    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names and contents; links as `-> target`.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let memory = self.lock();
        let bytes = |ino: &u64| memory.nodes.get(ino).map(|node| node.bytes.clone()).unwrap_or_default();
        memory.names.iter().map(|(name, ino)| (name.clone(), bytes(ino))).collect()
    }
}

impl Memory {
    fn add(&mut self, path: &[u8], kind: Kind, mode: u32, bytes: &[u8]) -> Result<u64> {
        if self.names.contains_key(path) {
            return Err(Errno::EXIST);
        }
        self.clock += 1;
        let ino = self.clock as u64;
        let stat = TargetStat {
            kind,
            dev: 1,
            ino,
            size: bytes.len() as u64,
            mode,
            uid: 0,
            gid: 0,
            mtime_ns: self.clock,
            ctime_ns: self.clock,
        };
        self.nodes.insert(ino, Node { stat, bytes: bytes.to_vec(), extended: Vec::new() });
        self.names.insert(path.to_vec(), ino);
        Ok(ino)
    }

    fn node(&mut self, ino: u64) -> Result<&mut Node> {
        self.clock += 1;
        let now = self.clock;
        let node = self.nodes.get_mut(&ino).ok_or(Errno::NOENT)?;
        node.stat.ctime_ns = now;
        Ok(node)
    }
}

impl OutputTarget for MemoryTarget {
    fn open(&self, path: &[u8]) -> Result<Box<dyn TargetFile>> {
        let ino = *self.lock().names.get(path).ok_or(Errno::NOENT)?;
        Ok(Box::new(MemoryFile { tree: self.clone(), ino }))
    }

    fn create(&self, path: &[u8], mode: u32) -> Result<Box<dyn TargetFile>> {
        let ino = self.lock().add(path, Kind::File, mode, b"")?;
        Ok(Box::new(MemoryFile { tree: self.clone(), ino }))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut memory = self.lock();
        let ino = memory.names.remove(from).ok_or(Errno::NOENT)?;
        memory.node(ino)?;
        memory.names.insert(to.to_vec(), ino);
        Ok(())
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.lock().names.remove(path).map(|_| ()).ok_or(Errno::NOENT)
    }

    fn rmdir(&self, _path: &[u8]) -> Result<()> {
        Ok(())
    }

    fn symlink(&self, path: &[u8], target: &[u8]) -> Result<()> {
        self.lock().add(path, Kind::Symlink, 0o777, &[b"-> ", target].concat()).map(|_| ())
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut memory = self.lock();
        let ino = *memory.names.get(path).ok_or(Errno::NOENT)?;
        memory.node(ino)?.bytes.strip_prefix(b"-> ").map(<[u8]>::to_vec).ok_or(Errno::INVAL)
    }

    fn stat(&self, path: &[u8]) -> Result<TargetStat> {
        let memory = self.lock();
        let ino = memory.names.get(path).ok_or(Errno::NOENT)?;
        memory.nodes.get(ino).map(|node| node.stat).ok_or(Errno::NOENT)
    }

    fn sync_dir(&self, _dir: &[u8]) -> Result<()> {
        Ok(())
    }

    fn names(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let prefix = if dir.is_empty() { Vec::new() } else { [dir, b"/"].concat() };
        let memory = self.lock();
        let below = memory.names.keys().filter_map(|name| name.strip_prefix(prefix.as_slice()));
        Ok(below.filter(|name| !name.contains(&b'/')).map(<[u8]>::to_vec).collect())
    }
}

#[derive(Debug)]
struct MemoryFile {
    tree: MemoryTarget,
    ino: u64,
}

impl TargetFile for MemoryFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        let mut memory = self.tree.lock();
        let node = memory.node(self.ino)?;
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        if node.bytes.len() < to {
            node.bytes.resize(to, 0);
        }
        node.bytes[from..to].copy_from_slice(bytes);
        node.stat.size = node.bytes.len() as u64;
        Ok(bytes.len())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut memory = self.tree.lock();
        let node = memory.node(self.ino)?;
        node.bytes.resize(len as usize, 0);
        node.stat.size = len;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn stat(&self) -> Result<TargetStat> {
        Ok(self.tree.lock().node(self.ino)?.stat)
    }

    fn set_attributes(&self, attributes: &Attributes, _before: &TargetStat) -> Result<()> {
        let mut memory = self.tree.lock();
        let stat = &mut memory.node(self.ino)?.stat;
        stat.mode = attributes.mode;
        stat.mtime_ns = attributes.mtime_ns;
        if let Some(owner) = attributes.owner {
            (stat.uid, stat.gid) = (owner.uid, owner.gid);
        }
        Ok(())
    }

    fn set_extended(&self, extended: &[Extended]) -> Result<()> {
        self.tree.lock().node(self.ino)?.extended = extended.to_vec();
        Ok(())
    }
}

/// What happens to calls.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Calls of this kind.
    pub call: Call,
    /// So many of them succeed first.
    pub after: u64,
    /// So many fail then.
    pub times: u64,
    /// With this error.
    pub errno: Errno,
}

/// Rules that can be changed while the target is used.
#[derive(Debug, Default)]
pub struct Faults {
    faults: Mutex<Vec<Fault>>,
    delays: Mutex<Vec<(Call, Duration)>>,
    calls: AtomicU64,
}

impl Faults {
    /// Adds a fault; its count begins now.
    pub fn add(&self, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    /// Removes all faults and delays.
    pub fn clear(&self) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Makes calls of a kind take longer.
    pub fn delay(&self, call: Call, time: Duration) {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).push((call, time));
    }

    /// Calls that were made.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn pass(&self, call: Call) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner).clone();
        delays.iter().filter(|(kind, _)| *kind == call).for_each(|(_, time)| std::thread::sleep(*time));
        for fault in self.faults.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            if fault.call != call {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 {
                fault.times -= 1;
                return Err(fault.errno);
            }
        }
        Ok(())
    }
}

/// A target whose calls fail or take long as [`Faults`] say.
#[derive(Debug)]
pub struct FaultyTarget<T> {
    inner: T,
    faults: Arc<Faults>,
}

impl<T> FaultyTarget<T> {
    /// Puts faults before a target.
    pub const fn new(inner: T, faults: Arc<Faults>) -> Self {
        Self { inner, faults }
    }

    fn file(&self, inner: Box<dyn TargetFile>) -> Box<dyn TargetFile> {
        Box::new(FaultyFile { inner, faults: self.faults.clone() })
    }
}

impl<T: OutputTarget> OutputTarget for FaultyTarget<T> {
    fn reopen(&self) -> Result<()> {
        self.inner.reopen()
    }

    fn follow(&self) -> Result<()> {
        self.inner.follow()
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn TargetFile>> {
        self.faults.pass(Call::Open)?;
        Ok(self.file(self.inner.open(path)?))
    }

    fn create(&self, path: &[u8], mode: u32) -> Result<Box<dyn TargetFile>> {
        self.faults.pass(Call::Create)?;
        Ok(self.file(self.inner.create(path, mode)?))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.faults.pass(Call::Rename)?;
        self.inner.rename(from, to)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.faults.pass(Call::Unlink)?;
        self.inner.unlink(path)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.faults.pass(Call::Rmdir)?;
        self.inner.rmdir(path)
    }

    fn symlink(&self, path: &[u8], target: &[u8]) -> Result<()> {
        self.faults.pass(Call::Symlink)?;
        self.inner.symlink(path, target)
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.faults.pass(Call::Look)?;
        self.inner.readlink(path)
    }

    fn stat(&self, path: &[u8]) -> Result<TargetStat> {
        self.faults.pass(Call::Look)?;
        self.inner.stat(path)
    }

    fn sync_dir(&self, dir: &[u8]) -> Result<()> {
        self.faults.pass(Call::SyncDir)?;
        self.inner.sync_dir(dir)
    }

    fn names(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.faults.pass(Call::Look)?;
        self.inner.names(dir)
    }
}

#[derive(Debug)]
struct FaultyFile {
    inner: Box<dyn TargetFile>,
    faults: Arc<Faults>,
}

impl TargetFile for FaultyFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.faults.pass(Call::Write)?;
        self.inner.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len)
    }

    fn sync(&self) -> Result<()> {
        self.faults.pass(Call::Sync)?;
        self.inner.sync()
    }

    fn stat(&self) -> Result<TargetStat> {
        self.inner.stat()
    }

    fn set_attributes(&self, attributes: &Attributes, before: &TargetStat) -> Result<()> {
        self.faults.pass(Call::Attributes)?;
        self.inner.set_attributes(attributes, before)
    }

    fn set_extended(&self, extended: &[Extended]) -> Result<()> {
        self.faults.pass(Call::Attributes)?;
        self.inner.set_extended(extended)
    }
}
