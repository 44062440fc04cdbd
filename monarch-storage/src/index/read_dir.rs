//! Reading one directory of a root, for a scan.
//!
//! It is opened beneath the root without following links and read with getdents, with one `statx`
//! for every name, relative to its descriptor (with readdirplus the kernel has the answer already).
//! Other devices, `.snapshot` and what exceeds the memory bound are marked incomplete: the kernel
//! answers there. A directory cut off by the memory bound keeps the names that fitted.
//!
//! Every call waits for the limit of calls, if there is one, and lets demands go first.

use crate::beneath::open_beneath;
use crate::engine::Limits;
use monarch_abi::index::{DIR_INCOMPLETE, Dir, OWNER_KERNEL, Record};
use monarch_abi::state::MAX_ENTRIES;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags, RawDir, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Live figures of a scan, and the switch that ends it.
#[derive(Debug, Default)]
pub struct ScanProgress {
    /// Entries seen so far.
    pub entries: AtomicU64,
    /// Directories read so far.
    pub dirs: AtomicU64,
    /// Directories that other nodes have read so far.
    pub helped: AtomicU64,
    /// Calls to the PFS begun so far: the number changes as long as the scan makes progress.
    pub calls: AtomicU64,
    /// Set to end the scan early.
    pub cancel: AtomicBool,
}

/// One directory as scanned.
#[derive(Debug, Default)]
pub(super) struct DirScan {
    /// Children: `name_lo`/`name_len` point into `names`, `aux` of a directory is its position in
    /// `Tree::dirs`, of a link the offset of its target in `links`.
    pub(super) entries: Vec<Record>,
    pub(super) names: Vec<u8>,
    pub(super) links: Vec<u8>,
    pub(super) btimes: Vec<i64>,
    pub(super) flags: u32,
    /// The inode number of its `..`.
    pub(super) parent_ino: u64,
}

impl DirScan {
    /// The name of one of its entries.
    pub(super) fn name(&self, r: &Record) -> &[u8] {
        let off = r.name_lo as usize;
        self.names.get(off..off + r.name_len as usize).unwrap_or(&[])
    }

    /// A link target at an offset, behind its length.
    pub(super) fn link(&self, off: u32) -> Option<&[u8]> {
        let from = self.links.get(off as usize..)?;
        let len = u32::from_le_bytes(*from.first_chunk()?) as usize;
        from.get(..len.checked_add(4)?)
    }

    /// Bytes that it has allocated.
    pub(super) fn held_bytes(&self) -> usize {
        let per_entry = self.entries.capacity() * size_of::<Record>() + self.btimes.capacity() * size_of::<i64>();
        per_entry + self.names.capacity() + self.links.capacity()
    }

    /// Gives back what it has allocated beyond its entries.
    pub(super) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
        self.btimes.shrink_to_fit();
        self.names.shrink_to_fit();
        self.links.shrink_to_fit();
    }
}

#[derive(Default)]
struct Owners {
    ids: HashMap<u64, u16>,
    list: Vec<u64>,
}

impl Owners {
    /// Position of an owner; [`OWNER_KERNEL`] when the table is full.
    fn position(&mut self, key: u64) -> u16 {
        if let Some(&i) = self.ids.get(&key) {
            return i;
        }
        let Ok(i) = u16::try_from(self.list.len()) else { return OWNER_KERNEL };
        if i != OWNER_KERNEL {
            self.list.push(key);
            self.ids.insert(key, i);
        }
        i
    }
}

/// What directories of one root are read with, and what they are charged to.
pub(super) struct Reading<'a> {
    root: BorrowedFd<'a>,
    dev: (u32, u32),
    owners: Mutex<Owners>,
    max_memory: u64,
    memory: AtomicU64,
    /// Entries that the index can take.
    max_entries: u64,
    entries: AtomicU64,
    cut: AtomicBool,
    limits: &'a Limits,
    pub(super) progress: &'a ScanProgress,
}

impl<'a> Reading<'a> {
    /// Reads directories of `root`, which lies on the device `dev`, into an index of at most
    /// `max_memory` bytes.
    pub(super) fn new(
        root: BorrowedFd<'a>,
        dev: (u32, u32),
        max_memory: u64,
        limits: &'a Limits,
        progress: &'a ScanProgress,
    ) -> Self {
        let (owners, memory, cut) = (Mutex::default(), AtomicU64::new(0), AtomicBool::new(false));
        // (The root itself is one.)
        let (max_entries, entries) = (MAX_ENTRIES, AtomicU64::new(1));
        Self { root, dev, owners, max_memory, memory, max_entries, entries, cut, limits, progress }
    }

    /// The bound that was reached, if one was.
    pub(super) fn full(&self) -> Option<String> {
        let (entries, memory) = (self.entries.load(Ordering::Relaxed), self.memory.load(Ordering::Relaxed));
        if entries > self.max_entries {
            return Some(format!("{} entries, which is all that an index holds", self.max_entries));
        }
        (memory > self.max_memory).then(|| format!("{} bytes (index.max_memory)", self.max_memory))
    }

    /// Whether parts are missing that this user may see.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// The owners so far, (uid, gid) by position.
    pub(super) fn into_owners(self) -> Vec<u64> {
        self.owners.into_inner().unwrap_or_else(PoisonError::into_inner).list
    }

    fn owners(&self) -> std::sync::MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Position of an owner; [`OWNER_KERNEL`] when the table is full.
    pub(super) fn owner_position(&self, owner: u64) -> u16 {
        self.owners().position(owner)
    }

    /// The owner at a position of the table.
    pub(super) fn owner_at(&self, position: u16) -> Option<u64> {
        self.owners().list.get(usize::from(position)).copied()
    }

    /// The record of a `statx` answer, and the birth time (`i64::MIN` for none).
    pub(super) fn record(&self, st: &Statx) -> (Record, i64) {
        record(st, &self.owners)
    }

    /// Counts an entry, and memory for it; `false` as [`Reading::charge`] has it.
    pub(super) fn charge_entry(&self, bytes: usize) -> bool {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.charge(ENTRY_COST + bytes)
    }

    /// Counts memory for the index; `false` when none is left, or it has as many entries as it can
    /// take. It is `false` from then on, so that the rest of the scan is skipped.
    pub(super) fn charge(&self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let has_memory = self.memory.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.max_memory;
        let fits = has_memory && self.entries.load(Ordering::Relaxed) <= self.max_entries;
        if !fits {
            self.cut.store(true, Ordering::Relaxed);
        }
        fits
    }

    /// The result for a directory that cannot be read, by the error: no permission, gone, or a
    /// failure of the PFS.
    pub(super) fn unread(&self, path: &[u8], e: Errno) -> DirScan {
        if e == Errno::OVERFLOW {
            let directory = String::from_utf8_lossy(path);
            tracing::warn!(%directory, "more than 4 GiB of names or link targets in a directory: it is read from the PFS");
        }
        if !matches!(e, Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) {
            self.cut.store(true, Ordering::Relaxed);
        }
        unread()
    }

    /// Makes a call to the PFS, within the limits.
    ///
    /// # Errors
    /// What the kernel said, or that the scan was cancelled.
    fn ask<T>(&self, ask: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        self.turn()?;
        ask()
    }

    /// Waits for the limits. A directory may take long with them, so a cancelled scan ends before
    /// the directory does.
    ///
    /// # Errors
    /// The scan was cancelled.
    fn turn(&self) -> rustix::io::Result<()> {
        self.limits.before_scan_call();
        self.progress.calls.fetch_add(1, Ordering::Relaxed);
        if self.progress.cancel.load(Ordering::Relaxed) { Err(rustix::io::Errno::CANCELED) } else { Ok(()) }
    }

    /// Opens a directory beneath the root.
    ///
    /// # Errors
    /// What the kernel said, or that the scan was cancelled.
    pub(super) fn open(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        self.ask(|| open_beneath(self.root, path, OFlags::DIRECTORY))
    }

    /// The record of an open directory itself.
    ///
    /// # Errors
    /// As [`Reading::open`]; [`Errno::XDEV`] if it lies on another device.
    pub(super) fn own_record(&self, dir: &OwnedFd) -> rustix::io::Result<Record> {
        let st = self.ask(|| rustix::fs::statx(dir, c"", AtFlags::EMPTY_PATH, wanted()))?;
        if (st.stx_dev_major, st.stx_dev_minor) != self.dev {
            return Err(Errno::XDEV);
        }
        Ok(self.record(&st).0)
    }

    /// Opens a directory beneath the root and reads all of it.
    ///
    /// # Errors
    /// As [`Reading::open`].
    pub(super) fn read(&self, path: &[u8]) -> rustix::io::Result<DirScan> {
        self.read_open(&self.open(path)?)
    }

    /// Reads all of an open directory.
    ///
    /// # Errors
    /// As [`Reading::open`].
    pub(super) fn read_open(&self, fd: &OwnedFd) -> rustix::io::Result<DirScan> {
        let mut dir = DirScan::default();
        let mut buf: Vec<MaybeUninit<u8>> = vec![MaybeUninit::uninit(); 64 * 1024];
        let mut iter = RawDir::new(fd, &mut buf);
        loop {
            if iter.is_buffer_empty() {
                self.turn()?;
            }
            let Some(entry) = iter.next() else { break };
            let entry = entry?;
            let name = entry.file_name().to_owned();
            if name.as_bytes() == b".." {
                dir.parent_ino = entry.ino();
            }
            if name.as_bytes() == b"." || name.as_bytes() == b".." {
                continue;
            }
            if !add_entry(self, fd, &mut dir, &name)? {
                dir.flags |= DIR_INCOMPLETE;
                break;
            }
        }
        dir.shrink();
        Ok(dir)
    }
}

/// Bytes that an entry takes in addition to its name: record, share of the lookup table, birth
/// time.
const ENTRY_COST: usize = size_of::<Record>() + 23 + 8;

pub(super) fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME
}

/// A directory of which nothing is known.
pub(super) fn unread() -> DirScan {
    DirScan { flags: DIR_INCOMPLETE, ..DirScan::default() }
}

/// Mark in `aux` of a directory that must not be scanned.
pub(super) const SKIP: u32 = u32::MAX;

/// Adds one name to a directory; `false` when there is no memory left for it. A name that vanished
/// meanwhile makes the listing incomplete: it was changing.
fn add_entry(shared: &Reading<'_>, fd: &OwnedFd, dir: &mut DirScan, name: &CStr) -> rustix::io::Result<bool> {
    let bytes = name.to_bytes();
    if !shared.charge_entry(bytes.len()) {
        return Ok(false);
    }
    let st = match shared.ask(|| rustix::fs::statx(fd, name, AtFlags::SYMLINK_NOFOLLOW, wanted())) {
        Ok(st) => st,
        Err(rustix::io::Errno::NOENT) => {
            dir.flags |= DIR_INCOMPLETE;
            return Ok(true);
        }
        Err(e) => return Err(e),
    };
    let (mut r, btime) = shared.record(&st);
    r.name_lo = u32::try_from(dir.names.len()).map_err(|_| rustix::io::Errno::OVERFLOW)?;
    r.name_len = u8::try_from(bytes.len()).map_err(|_| rustix::io::Errno::NAMETOOLONG)?;
    // Files of an overlay have the device of the layer that they lie in, which only the kernel
    // knows.
    let elsewhere = (st.stx_dev_major, st.stx_dev_minor) != shared.dev;
    if elsewhere {
        r.owner = OWNER_KERNEL;
    }
    if r.is_dir() {
        let skip = elsewhere || bytes == b".snapshot" || !shared.charge(size_of::<Dir>());
        r.aux = if skip { SKIP } else { 0 };
    } else if r.is_link() {
        let target = shared.ask(|| rustix::fs::readlinkat(fd, name, Vec::new()))?;
        if !shared.charge(4 + target.as_bytes().len()) {
            return Ok(false);
        }
        r.aux = u32::try_from(dir.links.len()).map_err(|_| rustix::io::Errno::OVERFLOW)?;
        dir.links.extend_from_slice(&u32::try_from(target.as_bytes().len()).unwrap_or(0).to_le_bytes());
        dir.links.extend_from_slice(target.as_bytes());
    }
    dir.names.extend_from_slice(bytes);
    dir.entries.push(r);
    dir.btimes.push(btime);
    Ok(true)
}

/// Nanoseconds since the epoch, if they fit.
fn nanos(t: rustix::fs::StatxTimestamp) -> Option<i64> {
    t.tv_sec.checked_mul(1_000_000_000)?.checked_add(i64::from(t.tv_nsec))
}

/// The record of a `statx` answer, and the birth time (`i64::MIN` for none). What does not fit is
/// left to the kernel.
fn record(st: &Statx, owners: &Mutex<Owners>) -> (Record, i64) {
    let has_btime = st.stx_mask & StatxFlags::BTIME.bits() != 0;
    let btime = if has_btime { nanos(st.stx_btime).unwrap_or(i64::MIN) } else { i64::MIN };
    let mut owner = owners
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .position(u64::from(st.stx_uid) | u64::from(st.stx_gid) << 32);
    let mut fits = |ok: bool| {
        if !ok {
            owner = OWNER_KERNEL;
        }
    };
    fits(st.stx_mask & StatxFlags::BASIC_STATS.bits() == StatxFlags::BASIC_STATS.bits());
    let times = (nanos(st.stx_mtime), nanos(st.stx_ctime), nanos(st.stx_atime));
    fits(times.0.is_some() && times.1.is_some() && times.2.is_some());
    let blocks = u32::try_from(st.stx_blocks);
    let nlink = u16::try_from(st.stx_nlink);
    fits(blocks.is_ok() && nlink.is_ok());
    // Device numbers of special files are not held.
    fits(st.stx_rdev_major == 0 && st.stx_rdev_minor == 0);
    let r = Record {
        size: st.stx_size,
        mtime_ns: times.0.unwrap_or(0),
        ctime_ns: times.1.unwrap_or(0),
        atime_ns: times.2.unwrap_or(0),
        ino: st.stx_ino,
        // No blocks would look as if the file had been released to tape.
        blocks: blocks.unwrap_or(u32::MAX),
        nlink: nlink.unwrap_or(u16::MAX),
        mode: st.stx_mode,
        owner,
        ..Record::default()
    };
    (r, btime)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::Mode;

    /// An index names its entries by numbers of 32 bits.
    #[test]
    fn a_scan_reads_no_more_entries_than_an_index_holds() {
        let dir = tempfile::tempdir().unwrap();
        (0..10).for_each(|n| std::fs::write(dir.path().join(n.to_string()), "x").unwrap());
        let root = rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let st = rustix::fs::statx(&root, c"", AtFlags::EMPTY_PATH, wanted()).unwrap();
        let (limits, progress) = (Limits::default(), ScanProgress::default());
        let read = |max_entries: u64| {
            let dev = (st.stx_dev_major, st.stx_dev_minor);
            let mut reading = Reading::new(root.as_fd(), dev, u64::MAX, &limits, &progress);
            assert_eq!(reading.max_entries, MAX_ENTRIES);
            reading.max_entries = max_entries;
            let found = reading.read(b".").unwrap();
            (found.entries.len(), found.flags, reading.is_cut(), reading.full())
        };
        assert_eq!(read(11), (10, 0, false, None), "the root is an entry, too");
        let (entries, flags, is_cut, full) = read(6);
        assert_eq!((entries, flags, is_cut), (5, DIR_INCOMPLETE, true));
        assert!(full.unwrap().starts_with("6 entries"));
    }
}
