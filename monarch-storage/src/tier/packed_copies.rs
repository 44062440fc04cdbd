//! The packed copies of a tier. They lie beside the plain copies, under names that readers never
//! open.

use super::found_copy::Copy;
use super::ledger::Reservation;
use super::lz4_format::{PackedFile, SUFFIX};
use super::space::Space;
use super::trash::Trash;
use monarch_abi::hash::{CopyName, Identity, Stamp};
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Number and bytes of the packed copies of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PackedUsage {
    /// Packed copies.
    pub files: u64,
    /// Bytes of the files that they are copies of.
    pub bytes: u64,
    /// Bytes of the packed copies themselves.
    pub stored: u64,
}

/// Path of a packed copy below the tier's directory.
pub(super) fn path_of(name: CopyName) -> String {
    format!("{}{SUFFIX}", String::from_utf8_lossy(&name.rel_path()))
}

/// Finds, opens, counts and evicts the packed copies of a tier. [`super::PackedWriter`] makes them.
#[derive(Debug)]
pub struct PackedCopies {
    space: Arc<Space>,
    trash: Arc<Trash>,
    usage: Mutex<PackedUsage>,
}

impl PackedCopies {
    pub(super) fn new(space: Arc<Space>, trash: Arc<Trash>) -> Self {
        Self { space, trash, usage: Mutex::default() }
    }

    /// Reserves space for a packed copy of about `bytes` bytes; `None` when ledger or disk has
    /// none.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn reserve(&self, bytes: u64) -> io::Result<Option<Reservation>> {
        let room = self.space.ledger.reserve(bytes);
        Ok(if room.is_some() && self.space.disk_has_room()? { room } else { None })
    }

    /// Opens a packed copy of the file with this identity, if there is one.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(&self, name: CopyName, identity: Identity) -> io::Result<Option<PackedFile>> {
        let fd = match self.space.fs.read_file(&path_of(name)) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        Ok(Some(PackedFile::new(fd, Some(identity))))
    }

    /// Whether there is a packed copy of this name.
    #[must_use]
    pub fn has(&self, name: CopyName) -> bool {
        self.space.fs.stat(path_of(name)).is_ok()
    }

    /// Charge and stamp of the packed copy of a file of `size` bytes, if it exists.
    #[must_use]
    pub fn stat(&self, name: CopyName, size: u64) -> Option<Copy> {
        let st = self.space.fs.stat(path_of(name)).ok()?;
        let nsec = u32::try_from(st.st_mtime_nsec).unwrap_or(u32::MAX);
        let stamp = Stamp::from_time(st.st_mtime, nsec).unwrap_or(Stamp(0));
        Some(Copy { name, size, charged: self.space.charge_of_copy(&st), stamp, check: None, packed: true })
    }

    /// Evicts the packed copy of a file of `size` bytes; the bytes that it was charged, if it
    /// existed.
    pub fn evict(&self, name: CopyName, size: u64) -> Option<u64> {
        let path = path_of(name);
        let st = self.space.fs.stat(&path).ok()?;
        let charged = self.space.charge_of_copy(&st);
        let path = match self.trash.move_to_trash(&path) {
            // Another thread has evicted it meanwhile.
            Err(Errno::NOENT) => return None,
            aside => aside.unwrap_or(path),
        };
        self.note(-1, size, st.st_size as u64);
        self.space.ledger.release(0, 1);
        self.trash.remove_once_closed(path, charged);
        Some(charged)
    }

    /// Counts a packed copy more (`files` of 1) or less (-1).
    pub(super) fn note(&self, files: i64, size: u64, stored: u64) {
        let mut p = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let add = |to: &mut u64, n: u64| *to = if files < 0 { to.saturating_sub(n) } else { *to + n };
        add(&mut p.files, 1);
        add(&mut p.bytes, size);
        add(&mut p.stored, stored);
    }

    /// Number and bytes of the packed copies.
    #[must_use]
    pub fn usage(&self) -> PackedUsage {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
