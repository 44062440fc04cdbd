//! Evicts copies, and keeps account of what is charged for them.
//!
//! An evicted copy moves to the trash and stays charged until no process has it open. What the
//! kernel does not move or unlink now stays charged, too, and every sweep tries again: only that a
//! file is *not there* proves that its blocks are free. The ledger is given back what was charged,
//! whatever became of the file.

use super::dir::TierDir;
use super::fs::TRASH;
use super::trash::{Held, Parts, TrashedFile};
use monarch_abi::hash::CopyName;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

impl TierDir {
    /// Evicts a copy of `size` bytes, if it is there. While a process has it open it stays charged;
    /// [`TierDir::sweep`] looks. The caller has taken it out of the state word before.
    pub fn evict(&self, name: CopyName, size: u64) {
        self.take_out(self.trash.lock(), name, size, false);
    }

    /// Evicts a copy if it still is the file with this inode number: another thread may have made a
    /// new copy of the name.
    pub fn evict_own(&self, name: CopyName, size: u64, ino: u64) {
        let parts = self.trash.lock();
        let st = self.fs.stat(name.rel_path().as_slice());
        if st.is_ok_and(|st| st.st_ino == ino) {
            self.take_out(parts, name, size, false);
        }
    }

    /// Evicts a resident copy that another program may have removed or damaged: its charge is
    /// released even if the file is not there.
    pub fn evict_resident(&self, name: CopyName, size: u64) {
        self.take_out(self.trash.lock(), name, size, true);
    }

    /// Moves a copy to the trash; `false` if the kernel does not do so now. A copy that is
    /// `charged` is so whether it is there or not.
    fn take_out(&self, mut parts: MutexGuard<'_, Parts>, name: CopyName, size: u64, charged: bool) -> bool {
        let n = self.counter.fetch_add(1, Ordering::Relaxed);
        let path = format!("{TRASH}/{}.{n:x}", String::from_utf8_lossy(&name.hex()));
        match self.fs.rename(name.rel_path().as_slice(), &path) {
            Ok(()) => {
                let file = TrashedFile { path, charged: self.charge_for(&mut parts, name, size), _holds: None };
                parts.note_evicted(name);
                drop(parts);
                self.ledger.release(0, 1);
                self.remove_or_keep(file);
            }
            Err(Errno::NOENT) if charged && !parts.evicted.contains(&name) => {
                self.ledger.release(self.charge_for(&mut parts, name, size), 1);
            }
            Err(Errno::NOENT) => {}
            Err(_) => {
                parts.stuck.insert(name, (size, charged));
                drop(parts);
                self.rest();
                return false;
            }
        }
        true
    }

    /// The bytes charged for a copy that is evicted.
    fn charge_for(&self, parts: &mut Parts, name: CopyName, size: u64) -> u64 {
        parts.odd_charges.remove(&name).unwrap_or_else(|| self.ledger.cost(size))
    }

    /// Makes sure that a copy can get this name: evicts the file that has it.
    ///
    /// # Errors
    /// `EBUSY` while the kernel does not move that file.
    pub(super) fn make_name_free(&self, name: CopyName, size: u64) -> io::Result<()> {
        let mut parts = self.trash.lock();
        let free = match parts.stuck.remove(&name) {
            Some((size, charged)) => self.take_out(parts, name, size, charged),
            None => {
                drop(parts);
                self.stat(name)?.is_none() || self.take_out(self.trash.lock(), name, size, false)
            }
        };
        if free { Ok(()) } else { Err(Errno::BUSY.into()) }
    }

    /// Charges a file that an earlier agent left in the trash, until a sweep can remove it.
    pub(super) fn charge_and_remove_later(&self, path: String, charged: u64) {
        self.ledger.charge(charged, 0);
        self.trash.lock().files.push(TrashedFile { path, charged, _holds: None });
    }

    /// Moves a file of no further use to the trash, and removes it once no process has it open.
    /// `charged` bytes are released with it.
    pub(super) fn trash_file(&self, path: &str, charged: u64) {
        let path = self.move_to_trash(path).unwrap_or_else(|_| path.to_owned());
        self.remove_once_closed(path, charged);
    }

    /// The same of a file with which `holds` is dropped.
    pub(super) fn trash_holding(&self, path: &str, charged: u64, holds: Held) {
        let path = self.move_to_trash(path).unwrap_or_else(|_| path.to_owned());
        self.remove_or_keep(TrashedFile { path, charged, _holds: Some(holds) });
    }

    /// Moves a file to the trash; its path there.
    pub(super) fn move_to_trash(&self, path: &str) -> rustix::io::Result<String> {
        let n = self.counter.fetch_add(1, Ordering::Relaxed);
        let to = format!("{TRASH}/{n:x}.part");
        self.fs.rename(path, &to).map(|()| to)
    }

    /// Removes a file once no process has it open, and releases `charged` bytes.
    pub(super) fn remove_once_closed(&self, path: String, charged: u64) {
        self.remove_or_keep(TrashedFile { path, charged, _holds: None });
    }

    fn remove_or_keep(&self, file: TrashedFile) {
        if !self.try_remove(&file) {
            self.trash.lock().files.push(file);
        }
    }

    /// Removes evicted files that no process has open any more; the number of those that are left.
    /// Copiers do not wait meanwhile.
    pub fn sweep(&self) -> usize {
        let stuck = self.trash.lock().stuck.len();
        for _ in 0..stuck {
            // Both under one lock: a new copy may get the name right after.
            let mut parts = self.trash.lock();
            if self.suspended() {
                break;
            }
            let Some((name, (size, charged))) = parts.stuck.pop_first() else { break };
            self.take_out(parts, name, size, charged);
        }
        let mut files = std::mem::take(&mut self.trash.lock().files);
        files.retain(|file| !self.try_remove(file));
        let mut parts = self.trash.lock();
        parts.files.append(&mut files);
        parts.files.len() + parts.stuck.len()
    }

    /// Removes a file unless a process has it open or mapped: the kernel grants a write lease only
    /// then.
    fn try_remove(&self, file: &TrashedFile) -> bool {
        match self.fs.open_file(&file.path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(fd) if !crate::sys::nobody_else_has_it_open(fd.as_fd()) => return false,
            Ok(_) => {}
            Err(Errno::NOENT) => {
                self.ledger.release(file.charged, 0);
                return true;
            }
            Err(_) => return false,
        }
        let gone = self.fs.unlink(&file.path).is_ok();
        if gone {
            self.ledger.release(file.charged, 0);
        }
        gone
    }
}
