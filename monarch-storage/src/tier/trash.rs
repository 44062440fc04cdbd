//! Evicts copies, and keeps account of what is charged for them until they are gone.
//!
//! An evicted copy moves to the trash and stays charged until no process has it open; a partial one
//! is emptied if a process keeps it mapped. What the
//! kernel does not move or unlink now stays charged, too, and every sweep tries again: only that a
//! file is *not there* proves that its blocks are free. The ledger is given back what was charged,
//! whatever became of the file.

use super::fs::TRASH;
use super::kept_open::KeptOpen;
use super::space::Space;
use monarch_abi::hash::CopyName;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file that is unlinked once no process has it open.
#[derive(Debug)]
struct TrashedFile {
    /// Below the tier's directory.
    path: String,
    /// Bytes that are released with it.
    charged: u64,
    /// Of a partial copy or window: sweeps after which it is emptied if a process still has it open
    /// then. `None` for files that a job may have opened or mapped.
    sweeps_left: Option<u32>,
}

/// Sweeps that a reader has to end its read of a partial copy: of one chunk, or on behalf of
/// another node. What stays open after that is a process's mapping for small reads, whose bytes
/// count no more.
const SWEEPS_BEFORE_EMPTIED: u32 = 20;

/// The files that are leaving a tier. Its lock is held from finding a copy's name to taking it
/// away.
#[derive(Debug)]
pub struct Trash {
    space: Arc<Space>,
    kept_open: Arc<KeptOpen>,
    leaving: Mutex<Leaving>,
}

/// What has left, or has yet to leave.
#[derive(Debug, Default)]
struct Leaving {
    files: Vec<TrashedFile>,
    /// Evicted copies that could not be renamed yet: size, and whether they are charged even if
    /// they are not there.
    stuck: BTreeMap<CopyName, (u64, bool)>,
    /// Charges that differ from what the size would cost (compression, metadata blocks): few on
    /// most file systems.
    odd_charges: BTreeMap<CopyName, u64>,
    /// Copies evicted last whose names no copy has got since: their charge is released already.
    evicted: VecDeque<CopyName>,
}

/// Entries of [`Leaving::evicted`]. Two threads that evict the same copy do so within moments: one
/// turned its word, the other leaves the file to the PFS.
const MAX_EVICTED: usize = 64;

impl Leaving {
    /// Remembers that a copy has been evicted.
    fn note_evicted(&mut self, name: CopyName) {
        self.evicted.push_back(name);
        if self.evicted.len() > MAX_EVICTED {
            self.evicted.pop_front();
        }
    }
}

impl Trash {
    pub(super) fn new(space: Arc<Space>, kept_open: Arc<KeptOpen>) -> Self {
        Self { space, kept_open, leaving: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Leaving> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a file has the name of this copy.
    ///
    /// # Errors
    /// What the kernel said, other than that there is none.
    fn is_there(&self, name: CopyName) -> io::Result<bool> {
        match self.space.fs.stat(name.rel_path().as_slice()) {
            Err(Errno::NOENT) => Ok(false),
            other => Ok(other.map(|_| true)?),
        }
    }

    /// Remembers the bytes charged for a copy whose size would have cost `usual`.
    pub(super) fn note_charge(&self, name: CopyName, usual: u64, charged: u64) {
        let mut parts = self.lock();
        parts.evicted.retain(|evicted| *evicted != name);
        if charged == usual {
            parts.odd_charges.remove(&name);
        } else {
            parts.odd_charges.insert(name, charged);
        }
    }

    /// Evicts a copy of `size` bytes, if it is there. While a process has it open it stays charged;
    /// [`Trash::sweep`] looks. The caller has taken it out of the state word before.
    pub fn evict(&self, name: CopyName, size: u64) {
        self.take_out(self.lock(), name, size, false);
    }

    /// Evicts a copy if it still is the file with this inode number: another thread may have made a
    /// new copy of the name.
    pub fn evict_own(&self, name: CopyName, size: u64, ino: u64) {
        let parts = self.lock();
        let st = self.space.fs.stat(name.rel_path().as_slice());
        if st.is_ok_and(|st| st.st_ino == ino) {
            self.take_out(parts, name, size, false);
        }
    }

    /// Evicts a resident copy that another program may have removed or damaged: its charge is
    /// released even if the file is not there.
    pub fn evict_resident(&self, name: CopyName, size: u64) {
        self.take_out(self.lock(), name, size, true);
    }

    /// Moves a copy to the trash; `false` if the kernel does not do so now. A copy that is
    /// `charged` is so whether it is there or not.
    fn take_out(&self, mut parts: MutexGuard<'_, Leaving>, name: CopyName, size: u64, charged: bool) -> bool {
        let n = self.space.next_number();
        let path = format!("{TRASH}/{}.{n:x}", String::from_utf8_lossy(&name.hex()));
        let renamed = self.space.fs.rename(name.rel_path().as_slice(), &path);
        if let Ok(()) | Err(Errno::NOENT) = renamed {
            self.kept_open.forget(name);
        }
        match renamed {
            Ok(()) => {
                let charged = self.charge_for(&mut parts, name, size);
                let file = TrashedFile { path, charged, sweeps_left: None };
                parts.note_evicted(name);
                drop(parts);
                self.space.ledger.release(0, 1);
                self.remove_or_keep(file);
            }
            Err(Errno::NOENT) if charged && !parts.evicted.contains(&name) => {
                self.space.ledger.release(self.charge_for(&mut parts, name, size), 1);
            }
            Err(Errno::NOENT) => {}
            Err(_) => {
                parts.stuck.insert(name, (size, charged));
                drop(parts);
                self.space.rest();
                return false;
            }
        }
        true
    }

    /// The bytes charged for a copy that is evicted.
    fn charge_for(&self, parts: &mut Leaving, name: CopyName, size: u64) -> u64 {
        parts.odd_charges.remove(&name).unwrap_or_else(|| self.space.ledger.cost(size))
    }

    /// Makes sure that a copy can get this name: evicts the file that has it.
    ///
    /// # Errors
    /// `EBUSY` while the kernel does not move that file.
    pub(super) fn make_name_free(&self, name: CopyName, size: u64) -> io::Result<()> {
        let mut parts = self.lock();
        let free = match parts.stuck.remove(&name) {
            Some((size, charged)) => self.take_out(parts, name, size, charged),
            None => {
                drop(parts);
                !self.is_there(name)? || self.take_out(self.lock(), name, size, false)
            }
        };
        if free { Ok(()) } else { Err(Errno::BUSY.into()) }
    }

    /// Charges a file that an earlier agent left in the trash, until a sweep can remove it.
    pub(super) fn charge_and_remove_later(&self, path: String, charged: u64) {
        self.space.ledger.charge(charged, 0);
        self.lock().files.push(TrashedFile { path, charged, sweeps_left: None });
    }

    /// Moves a file of no further use to the trash, and removes it once no process has it open.
    /// `charged` bytes are released with it.
    pub(super) fn put(&self, path: &str, charged: u64) {
        let path = self.move_to_trash(path).unwrap_or_else(|_| path.to_owned());
        self.remove_once_closed(path, charged);
    }

    /// [`Trash::put`] for a partial copy or window, which no job has opened: it is emptied if it
    /// stays open.
    pub(super) fn put_part(&self, path: &str, charged: u64) {
        let path = self.move_to_trash(path).unwrap_or_else(|_| path.to_owned());
        self.remove_or_keep(TrashedFile { path, charged, sweeps_left: Some(SWEEPS_BEFORE_EMPTIED) });
    }

    /// Moves a file to the trash; its path there.
    pub(super) fn move_to_trash(&self, path: &str) -> rustix::io::Result<String> {
        let n = self.space.next_number();
        let to = format!("{TRASH}/{n:x}.part");
        self.space.fs.rename(path, &to).map(|()| to)
    }

    /// Removes a file once no process has it open, and releases `charged` bytes.
    pub(super) fn remove_once_closed(&self, path: String, charged: u64) {
        self.remove_or_keep(TrashedFile { path, charged, sweeps_left: None });
    }

    fn remove_or_keep(&self, file: TrashedFile) {
        if !self.try_remove(&file) {
            self.lock().files.push(file);
        }
    }

    /// Removes evicted files that no process has open any more; the number of those that are left.
    /// Copiers do not wait meanwhile.
    pub fn sweep(&self) -> usize {
        self.kept_open.close_unused();
        let stuck = self.lock().stuck.len();
        for _ in 0..stuck {
            // Both under one lock: a new copy may get the name right after.
            let mut parts = self.lock();
            if self.space.suspended() {
                break;
            }
            let Some((name, (size, charged))) = parts.stuck.pop_first() else { break };
            self.take_out(parts, name, size, charged);
        }
        let mut files = std::mem::take(&mut self.lock().files);
        files.retain_mut(|file| {
            if let Some(left) = &mut file.sweeps_left {
                *left = left.saturating_sub(1);
            }
            !self.try_remove(file)
        });
        let mut parts = self.lock();
        parts.files.append(&mut files);
        parts.files.len() + parts.stuck.len()
    }

    /// Gives back the blocks of a file; whether that worked.
    fn empty(&self, path: &str) -> bool {
        let file = self.space.fs.open_file(path, OFlags::WRONLY, Mode::empty());
        file.is_ok_and(|fd| rustix::fs::ftruncate(&fd, 0).is_ok())
    }

    /// Removes a file unless a process has it open or mapped: the kernel grants a write lease only
    /// then.
    fn try_remove(&self, file: &TrashedFile) -> bool {
        match self.space.fs.open_file(&file.path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(fd) if !crate::sys::nobody_else_has_it_open(fd.as_fd()) => {
                // (A copier that is still writing would allocate blocks again.)
                let may_be_emptied = file.sweeps_left == Some(0) && crate::sys::has_no_writer(fd.as_fd());
                drop(fd);
                if !may_be_emptied || !self.empty(&file.path) {
                    return false;
                }
            }
            Ok(_) => {}
            Err(Errno::NOENT) => {
                self.space.ledger.release(file.charged, 0);
                return true;
            }
            Err(_) => return false,
        }
        let gone = self.space.fs.unlink(&file.path).is_ok();
        if gone {
            self.space.ledger.release(file.charged, 0);
        }
        gone
    }
}
