//! The copies of a tier. They are written in `tmp` until they get their stamp and their name.

use super::checksum::{Fits, Sum};
use super::codec::Codec;
use super::found_copy::Copy;
use super::kept_open::{KeptOpen, OpenCopy};
use super::ledger::Reservation;
use super::packed_copies::{self, PackedCopies};
use super::space::{Allocating, Space};
use super::stamp::set_stamp;
use super::tier_log::TierLog;
use super::trash::Trash;
use crate::engine::Sink;
use monarch_abi::hash::{CopyName, Stamp};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

/// A copy being written.
#[derive(Debug)]
pub struct CopyFile<'a> {
    pub(super) copies: &'a Copies,
    pub(super) fd: OwnedFd,
    pub(super) tmp: String,
    pub(super) room: Option<Reservation>,
    /// Bytes charged for it before it has its name.
    pub(super) charged: u64,
    /// Whether readers may have it open already.
    pub(super) may_be_read: bool,
}

/// What a packed copy is a copy of.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedAs {
    /// Bytes of the file.
    pub(super) size: u64,
    pub(super) codec: Codec,
}

/// How a copy gets its name.
#[derive(Clone, Copy, Default)]
pub(super) struct How {
    /// It is not logged.
    pub(super) passing: bool,
    /// Nothing may have the name.
    pub(super) new: bool,
    /// It is the packed copy of a file.
    pub(super) packed: Option<PackedAs>,
}

/// Makes, finds and opens the copies of a tier.
#[derive(Debug)]
pub struct Copies {
    pub(super) space: Arc<Space>,
    trash: Arc<Trash>,
    kept_open: Arc<KeptOpen>,
    log: Arc<TierLog>,
    packed: Arc<PackedCopies>,
}

impl Copies {
    pub(super) fn new(
        space: Arc<Space>,
        (trash, kept_open): (Arc<Trash>, Arc<KeptOpen>),
        log: Arc<TierLog>,
        packed: Arc<PackedCopies>,
    ) -> Self {
        Self { space, trash, kept_open, log, packed }
    }

    /// Starts a copy of `size` bytes: reserves them in the ledger, looks whether they fit above
    /// `keep_free` on the disk, and allocates the blocks. `Ok(None)` when it does not fit.
    ///
    /// # Errors
    /// What the kernel said, other than that the disk is full.
    pub fn create(&self, size: u64) -> io::Result<Option<CopyFile<'_>>> {
        let Some(room) = self.space.ledger.reserve(size) else { return Ok(None) };
        let _allocating = Allocating::new(&self.space.allocating, room.bytes());
        if !self.space.disk_has_room()? {
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
        let tmp = format!("tmp/{:x}", self.space.next_number());
        match self.space.fs.open_file(&tmp, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, Mode::RUSR) {
            Ok(fd) => Ok(Some(CopyFile { copies: self, fd, tmp, room: Some(room), charged: 0, may_be_read: false })),
            Err(Errno::NOSPC | Errno::DQUOT) => Ok(self.full()),
            Err(e) => Err(e.into()),
        }
    }

    /// Size, charge and stamp of a copy; `None` if it does not exist.
    ///
    /// # Errors
    /// What else the kernel said: the copy may exist, and stays charged.
    pub fn stat(&self, name: CopyName) -> io::Result<Option<Copy>> {
        let st = match self.space.fs.stat(name.rel_path().as_slice()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let nsec = u32::try_from(st.st_mtime_nsec).unwrap_or(u32::MAX);
        let stamp = Stamp::from_time(st.st_mtime, nsec).unwrap_or(Stamp(0));
        Ok(Some(Copy {
            name,
            size: st.st_size as u64,
            charged: self.space.charge_of_copy(&st),
            stamp,
            check: None,
            packed: false,
        }))
    }

    /// Whether the bytes of a copy have this checksum; `false` also when it cannot be read.
    #[must_use]
    pub fn verify(&self, name: CopyName, size: u64, sum: Sum) -> bool {
        self.open(name).and_then(|fd| sum.fits(&fd, size)).unwrap_or(false)
    }

    /// Opens a copy.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(&self, name: CopyName) -> io::Result<OwnedFd> {
        Ok(self.space.fs.read_file(name.rel_path().as_slice())?)
    }

    /// Opens a copy to send it: one that was sent a moment ago is still open, and may be used by
    /// other threads at the same time.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open_shared(&self, name: CopyName) -> io::Result<OpenCopy> {
        let seen = match self.kept_open.find(name) {
            Ok(copy) => return Ok(copy),
            Err(seen) => seen,
        };
        let (fd, st) = self.space.fs.read_file_and_stat(name.rel_path().as_slice())?;
        let copy = OpenCopy { fd: Arc::new(fd), size: st.st_size.unsigned_abs() };
        self.kept_open.keep(name, &copy, seen);
        Ok(copy)
    }

    /// Closes the copies that are open though no thread sends them, and keeps none open from now
    /// on.
    pub(super) fn close_kept(&self) {
        self.kept_open.end();
    }

    /// Removes a copy that no process uses: the caller holds the tier, and serves no job.
    pub fn remove(&self, name: CopyName, packed: bool) {
        match packed {
            true => {
                for codec in Codec::ALL {
                    self.space.unlink(&packed_copies::path_of(name, codec));
                }
            }
            false => drop(self.space.fs.unlink(name.rel_path().as_slice())),
        }
    }

    /// Suspends the tier, as its disk is full.
    fn full(&self) -> Option<CopyFile<'_>> {
        self.space.rest();
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
        let size = how.packed.map_or(stored, |packed| packed.size);
        // A copy of this name that the agent did not know, or could not evict: its charge must not
        // be lost.
        if how.packed.is_some() {
            let _ = self.copies.packed.evict(name, size);
        } else if !how.new {
            self.copies.trash.make_name_free(name, size)?;
        }
        let Some(room) = self.room.take() else { return Ok(None) };
        let charged = match room.settle(self.copies.space.blocks_of_copy(&st)) {
            Ok(charged) => charged,
            Err(room) => {
                self.room = Some(room);
                return Ok(None);
            }
        };
        if let Err(e) = self.log_and_rename(name, sum, size, how) {
            self.copies.space.ledger.release(0, 1);
            self.charged = charged;
            return Err(e);
        }
        match how.packed {
            Some(packed) => self.copies.packed.note(packed.codec, 1, size, stored),
            None => self.copies.trash.note_charge(name, room_bytes, charged),
        }
        self.tmp.clear();
        self.copies.space.worked();
        Ok(Some(Copy { name, size, charged, stamp, check: None, packed: how.packed.is_some() }))
    }

    fn log_and_rename(&self, name: CopyName, sum: Sum, size: u64, how: How) -> io::Result<()> {
        // A compaction of the log takes a copy that is logged and has no name for one that is gone.
        let _naming = self.copies.log.naming();
        if !how.passing {
            self.copies.log.append(name, sum, size, how.packed.is_some())?;
        }
        Ok(self.rename(name, how)?)
    }

    fn rename(&self, name: CopyName, how: How) -> rustix::io::Result<()> {
        let fs = &self.copies.space.fs;
        let to = match how.packed {
            Some(packed) => packed_copies::path_of(name, packed.codec).into_bytes(),
            None => name.rel_path().to_vec(),
        };
        if how.new {
            return fs.rename_with(&self.tmp, to.as_slice(), RenameFlags::NOREPLACE);
        }
        match fs.rename(&self.tmp, to.as_slice()) {
            // A user removed the directory.
            Err(Errno::NOENT) if !self.copies.space.is_given_up() => {
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
        let gone = || self.copies.space.fs.unlink(&tmp);
        if self.may_be_read || !matches!(gone(), Ok(()) | Err(Errno::NOENT)) {
            // Its blocks are still allocated.
            let charged = self.charged + self.room.take().map_or(0, Reservation::into_charge);
            self.copies.trash.put(&tmp, charged);
        } else {
            self.copies.space.ledger.release(self.charged, 0);
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
