//! Writes copies: in `tmp`, until they get their stamp and their name.

use super::checksum::Sum;
use super::dir::{Allocating, Copy, TierDir};
use super::ledger::Reservation;
use super::stamp::set_stamp;
use crate::engine::Sink;
use monarch_abi::hash::{CopyName, Stamp};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// A copy being written.
#[derive(Debug)]
pub struct CopyFile<'a> {
    pub(super) tier: &'a TierDir,
    pub(super) fd: OwnedFd,
    pub(super) tmp: String,
    pub(super) room: Option<Reservation>,
    /// Bytes charged for it before it has its name.
    pub(super) charged: u64,
    /// Whether readers may have it open already.
    pub(super) may_be_read: bool,
}

/// How a copy gets its name.
#[derive(Clone, Copy, Default)]
pub(super) struct How {
    /// It is not logged.
    pub(super) passing: bool,
    /// Nothing may have the name.
    pub(super) new: bool,
    /// It is the packed copy of a file of this size, in bytes.
    pub(super) packed: Option<u64>,
}

impl TierDir {
    /// Starts a copy of `size` bytes: reserves them in the ledger, looks whether they fit above
    /// `keep_free` on the disk, and allocates the blocks. `Ok(None)` when it does not fit.
    ///
    /// # Errors
    /// What the kernel said, other than that the disk is full.
    pub fn create(&self, size: u64) -> io::Result<Option<CopyFile<'_>>> {
        let Some(room) = self.ledger.reserve(size) else { return Ok(None) };
        let _allocating = Allocating::new(&self.allocating, room.bytes());
        if !self.disk_has_room()? {
            return Ok(None);
        }
        let Some(file) = self.make_file(room)? else { return Ok(None) };
        if size > 0 {
            match rustix::fs::fallocate(&file.fd, rustix::fs::FallocateFlags::empty(), 0, size) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(Errno::NOSPC | Errno::DQUOT) => return Ok(self.full()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Some(file))
    }

    /// Makes the file of a copy with a reservation; `Ok(None)` when the disk is full.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn make_file(&self, room: Reservation) -> io::Result<Option<CopyFile<'_>>> {
        let tmp = format!("tmp/{:x}", self.counter.fetch_add(1, Ordering::Relaxed));
        match self.fs.open_file(&tmp, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, Mode::RUSR) {
            Ok(fd) => Ok(Some(CopyFile { tier: self, fd, tmp, room: Some(room), charged: 0, may_be_read: false })),
            Err(Errno::NOSPC | Errno::DQUOT) => Ok(self.full()),
            Err(e) => Err(e.into()),
        }
    }

    /// Suspends the tier, as its disk is full.
    fn full(&self) -> Option<CopyFile<'_>> {
        self.rest();
        None
    }
}

impl CopyFile<'_> {
    /// The descriptor to write to.
    pub fn fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Stamps the copy, logs its checksum, gives it its name and settles its charge. `Ok(None)`,
    /// with the file removed, when the file system took more than the quota allows.
    ///
    /// # Errors
    /// What the kernel said; the file is removed.
    pub fn publish(self, name: CopyName, stamp: Stamp, sum: Sum) -> io::Result<Option<Copy>> {
        self.publish_as(name, stamp, sum, How::default())
    }

    /// Publishes the copy where no file may have its name.
    ///
    /// # Errors
    /// `AlreadyExists` if a file has it; otherwise as [`CopyFile::publish`].
    pub fn publish_new(self, name: CopyName, stamp: Stamp, sum: Sum) -> io::Result<Option<Copy>> {
        self.publish_as(name, stamp, sum, How { new: true, ..How::default() })
    }

    /// Publishes a transient copy, without a record in the log: one that was decoded, is to be
    /// packed, or belongs to another node. It is lost with the agent.
    ///
    /// # Errors
    /// As [`CopyFile::publish`].
    pub fn publish_passing(self, name: CopyName, stamp: Stamp) -> io::Result<Option<Copy>> {
        self.publish_as(name, stamp, Sum::whole(0), How { passing: true, ..How::default() })
    }

    pub(super) fn publish_as(mut self, name: CopyName, stamp: Stamp, sum: Sum, how: How) -> io::Result<Option<Copy>> {
        set_stamp(&self.fd, stamp)?;
        let st = rustix::fs::fstat(&self.fd)?;
        let Some(room_bytes) = self.room.as_ref().map(Reservation::bytes) else { return Ok(None) };
        let stored = st.st_size as u64;
        let size = how.packed.unwrap_or(stored);
        // A copy of this name that the agent did not know, or could not evict: its charge must not
        // be lost.
        if how.packed.is_some() {
            let _ = self.tier.evict_packed(name, size);
        } else if !how.new {
            self.tier.make_name_free(name, size)?;
        }
        let Some(room) = self.room.take() else { return Ok(None) };
        let charged = match room.settle(self.tier.blocks_of_copy(&st)) {
            Ok(charged) => charged,
            Err(room) => {
                self.room = Some(room);
                return Ok(None);
            }
        };
        if let Err(e) = self.log_and_rename(name, sum, size, how) {
            self.tier.ledger.release(0, 1);
            self.charged = charged;
            return Err(e);
        }
        match how.packed {
            Some(_) => self.tier.note_packed(1, size, stored),
            None => self.tier.trash.note_charge(name, room_bytes, charged),
        }
        self.tmp.clear();
        self.tier.worked();
        Ok(Some(Copy { name, size, charged, stamp, check: None, packed: how.packed.is_some() }))
    }

    fn log_and_rename(&self, name: CopyName, sum: Sum, size: u64, how: How) -> io::Result<()> {
        // A compaction of the log takes a copy that is logged and has no name for one that is gone.
        let _naming = self.tier.naming.read().unwrap_or_else(PoisonError::into_inner);
        if !how.passing {
            self.tier.log_copy(name, sum, size, how.packed.is_some())?;
        }
        Ok(self.rename(name, how)?)
    }

    fn rename(&self, name: CopyName, how: How) -> rustix::io::Result<()> {
        let fs = &self.tier.fs;
        let to = match how.packed {
            Some(_) => super::packed_usage::path_of(name).into_bytes(),
            None => name.rel_path().to_vec(),
        };
        if how.new {
            return fs.rename_with(&self.tmp, to.as_slice(), RenameFlags::NOREPLACE);
        }
        match fs.rename(&self.tmp, to.as_slice()) {
            // A user removed the directory.
            Err(Errno::NOENT) if !self.tier.given_up.load(Ordering::SeqCst) => {
                fs.make_dirs()?;
                fs.rename(&self.tmp, to.as_slice())
            }
            other => other,
        }
    }
}

impl Sink for CopyFile<'_> {
    fn write_at(&self, buf: &[u8], off: u64) -> io::Result<()> {
        write_all_at(self.fd(), buf, off)
    }
}

impl Drop for CopyFile<'_> {
    fn drop(&mut self) {
        if self.tmp.is_empty() {
            return;
        }
        let tmp = std::mem::take(&mut self.tmp);
        let gone = || self.tier.fs.unlink(&tmp);
        if self.may_be_read || !matches!(gone(), Ok(()) | Err(Errno::NOENT)) {
            // Its blocks are still allocated.
            let charged = self.charged + self.room.take().map_or(0, Reservation::into_charge);
            self.tier.trash_file(&tmp, charged);
        } else {
            self.tier.ledger.release(self.charged, 0);
        }
    }
}

/// Writes all of `buf` at `off`.
///
/// # Errors
/// What the kernel said.
pub fn write_all_at(fd: impl AsFd, buf: &[u8], off: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pwrite(&fd, &buf[done..], off + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
