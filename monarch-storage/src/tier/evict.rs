//! Taking copies out of a tier without losing sight of what they are charged.
//!
//! An evicted copy moves to `dying/` and stays charged until nobody has it open. What the kernel
//! will not move or unlink at the moment stays charged, too, and is tried again with every sweep:
//! only that a file is *not there* is proof that its blocks are free. What is released is what was
//! charged, whatever became of the file.

use super::dir::TierDir;
use super::leaving::{Dying, Held, Parts};
use monarch_abi::hash::CopyName;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

impl TierDir {
    /// Takes a copy of `size` bytes out of the tier, if it is there. Somebody may have it open:
    /// then it stays charged until [`TierDir::sweep`] finds that nobody has. The caller has
    /// taken it out of the state word before.
    pub fn evict(&self, name: CopyName, size: u64) {
        self.take_out(self.leaving.lock(), name, size, false);
    }

    /// The same if it is still the file with this inode number: somebody else may have made another
    /// copy of the name.
    pub fn evict_own(&self, name: CopyName, size: u64, ino: u64) {
        let parts = self.leaving.lock();
        let st = self.fs.stat(name.rel_path().as_slice());
        if st.is_ok_and(|st| st.st_ino == ino) {
            self.take_out(parts, name, size, false);
        }
    }

    /// Takes a resident copy out that somebody else may have removed or damaged: what was charged
    /// for it is released.
    pub fn evict_resident(&self, name: CopyName, size: u64) {
        self.take_out(self.leaving.lock(), name, size, true);
    }

    /// Moves a copy to `dying`; `false` if that cannot be done now. One that is `charged` is so
    /// whether it is there or not.
    fn take_out(&self, mut parts: MutexGuard<'_, Parts>, name: CopyName, size: u64, charged: bool) -> bool {
        let n = self.counter.fetch_add(1, Ordering::Relaxed);
        let path = format!("dying/{}.{n:x}", String::from_utf8_lossy(&name.hex()));
        match self.fs.rename(name.rel_path().as_slice(), &path) {
            Ok(()) => {
                let d = Dying { path, charged: self.charge_for(&mut parts, name, size), _holds: None };
                parts.is_out(name);
                drop(parts);
                self.ledger.release(0, 1);
                self.leaves(d);
            }
            Err(Errno::NOENT) if charged && !parts.out.contains(&name) => {
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

    /// What was charged for a copy that leaves.
    fn charge_for(&self, parts: &mut Parts, name: CopyName, size: u64) -> u64 {
        parts.odd.remove(&name).unwrap_or_else(|| self.ledger.cost(size))
    }

    /// Makes sure that a copy can get this name: what has it now is evicted.
    pub(super) fn make_name_free(&self, name: CopyName, size: u64) -> io::Result<()> {
        let mut parts = self.leaving.lock();
        let free = match parts.stuck.remove(&name) {
            Some((size, charged)) => self.take_out(parts, name, size, charged),
            None => {
                drop(parts);
                self.stat(name)?.is_none() || self.take_out(self.leaving.lock(), name, size, false)
            }
        };
        if free { Ok(()) } else { Err(Errno::BUSY.into()) }
    }

    /// A file that an earlier agent, or a copy that failed, left: charged until it can be removed.
    pub(super) fn leaves_later(&self, path: String, charged: u64) {
        self.ledger.charge(charged, 0);
        self.leaving.lock().dying.push(Dying { path, charged, _holds: None });
    }

    /// A file that is not needed any more, and was charged so much: gone as soon as nobody has it
    /// open. It is moved out of the way first.
    pub(super) fn dies(&self, path: &str, charged: u64) {
        let path = self.set_aside(path).unwrap_or_else(|_| path.to_owned());
        self.removed_later(path, charged);
    }

    /// The same of one that keeps something until it is gone.
    pub(super) fn dies_with(&self, path: &str, charged: u64, holds: Held) {
        let path = self.set_aside(path).unwrap_or_else(|_| path.to_owned());
        self.leaves(Dying { path, charged, _holds: Some(holds) });
    }

    /// Moves a file to `dying`; its path there.
    pub(super) fn set_aside(&self, path: &str) -> rustix::io::Result<String> {
        let n = self.counter.fetch_add(1, Ordering::Relaxed);
        let to = format!("dying/{n:x}.part");
        self.fs.rename(path, &to).map(|()| to)
    }

    /// Removes a file as soon as nobody has it open, and releases what it was charged.
    pub(super) fn removed_later(&self, path: String, charged: u64) {
        self.leaves(Dying { path, charged, _holds: None });
    }

    fn leaves(&self, d: Dying) {
        if !self.try_remove(&d) {
            self.leaving.lock().dying.push(d);
        }
    }

    /// Removes evicted copies that nobody has open any more; how many are left. Copiers are not
    /// kept waiting meanwhile.
    pub fn sweep(&self) -> usize {
        let stuck = self.leaving.lock().stuck.len();
        for _ in 0..stuck {
            // Taken and moved under one lock: a new copy may get the name right after.
            let mut parts = self.leaving.lock();
            if self.suspended() {
                break;
            }
            let Some((name, (size, charged))) = parts.stuck.pop_first() else { break };
            self.take_out(parts, name, size, charged);
        }
        let mut dying = std::mem::take(&mut self.leaving.lock().dying);
        dying.retain(|d| !self.try_remove(d));
        let mut parts = self.leaving.lock();
        parts.dying.append(&mut dying);
        parts.dying.len() + parts.stuck.len()
    }

    /// A write lease is granted only while nobody else has the file open or mapped.
    fn try_remove(&self, d: &Dying) -> bool {
        match self.fs.open_file(&d.path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(fd) if !crate::sys::nobody_else_has_it_open(fd.as_fd()) => return false,
            Ok(_) => {}
            Err(Errno::NOENT) => {
                self.ledger.release(d.charged, 0);
                return true;
            }
            Err(_) => return false,
        }
        let gone = self.fs.unlink(&d.path).is_ok();
        if gone {
            self.ledger.release(d.charged, 0);
        }
        gone
    }
}
