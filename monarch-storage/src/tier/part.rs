//! Partial copies of large files: chunks are written in any order, and read while others arrive.
//!
//! Readers open a partial copy by its number, which is never used again, for one read at a time.
//! Space is reserved for all of it at first, or for each chunk when it comes. Blocks are allocated
//! chunk by chunk, so that the first chunk need not wait for the last.

use super::checksum::Sum;
use super::copy::{Copies, CopyFile};
use super::found_copy::Copy;
use super::ledger::Reservation;
use super::part_writer::PartWriter;
use super::space::Space;
use super::trash::Trash;
use monarch_abi::hash::{CopyName, Stamp};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Chunks begin and end at multiples of this, in bytes, except for the end of a file.
pub(super) const PAGE: u64 = 4096;

/// A partial copy. Its owner has to publish it or drop it, by the methods of [`PartCopies`].
#[derive(Debug)]
pub struct PartCopy {
    /// Its number.
    pub number: u64,
    /// Size of the file.
    pub size: u64,
    room: Mutex<Option<Reservation>>,
    /// Bytes that are reserved but whose blocks are not allocated.
    unallocated: AtomicU64,
}

impl PartCopy {
    pub(super) fn path(&self) -> String {
        format!("part/{:016x}", self.number)
    }

    fn take_room(&self) -> Option<Reservation> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Adds to what is reserved for a partial copy; `false` if that was dropped.
pub(super) fn absorb(part: &PartCopy, more: Reservation) -> bool {
    match part.room.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        Some(room) => room.absorb(more),
        None => return false,
    }
    true
}

/// Gives blocks back. The last block of the file is given back only if the hole covers all of it.
fn punch(fd: &OwnedFd, off: u64, len: u64) -> io::Result<()> {
    let end = (off + len).next_multiple_of(PAGE);
    Ok(rustix::fs::fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, off, end - off)?)
}

/// The partial copies of a tier.
#[derive(Clone, Debug)]
pub struct PartCopies {
    pub(super) space: Arc<Space>,
    trash: Arc<Trash>,
    copies: Arc<Copies>,
}

impl PartCopies {
    pub(super) fn new(space: Arc<Space>, trash: Arc<Trash>, copies: Arc<Copies>) -> Self {
        Self { space, trash, copies }
    }

    /// Begins a partial copy of a file of `size` bytes, with space for all of it if it is to be
    /// `whole`. `Ok(None)` when it does not fit.
    ///
    /// # Errors
    /// What the kernel said, other than that the disk is full.
    pub fn begin(&self, size: u64, whole: bool) -> io::Result<Option<PartCopy>> {
        let Some(room) = self.space.ledger.reserve(if whole { size } else { 0 }) else { return Ok(None) };
        let number = crate::sys::random_u64().max(1);
        let unallocated = AtomicU64::new(room.bytes());
        self.space.allocating.fetch_add(room.bytes(), Ordering::SeqCst);
        let part = PartCopy { number, size, room: Mutex::new(Some(room)), unallocated };
        let made = self.space.disk_has_room().and_then(|has| if has { self.make(&part) } else { Ok(false) });
        match made {
            Ok(true) => Ok(Some(part)),
            other => {
                self.forget_allocation(&part);
                other.map(|_| None)
            }
        }
    }

    /// Makes its file; `false` when the disk is full.
    ///
    /// # Errors
    /// What the kernel said.
    fn make(&self, part: &PartCopy) -> io::Result<bool> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let made = self.space.fs.open_file(&part.path(), flags, Mode::RUSR | Mode::WUSR).and_then(|fd| {
            rustix::fs::ftruncate(&fd, part.size).inspect_err(|_| {
                self.space.unlink(&part.path());
            })
        });
        match made {
            Ok(()) => Ok(true),
            Err(Errno::NOSPC | Errno::DQUOT) => {
                self.space.rest();
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Opens a partial copy to write from `off` on, and allocates the blocks of `len` bytes.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(&self, part: &PartCopy, off: u64, len: u64) -> io::Result<PartWriter> {
        let writer = self.writer(part)?;
        // In memory the write itself allocates, and nothing is gained by asking before.
        if !self.space.is_in_memory() {
            match rustix::fs::fallocate(writer.fd(), FallocateFlags::KEEP_SIZE, off, len) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(e) => {
                    // Some of them may be allocated.
                    let _ = punch(writer.fd(), off, len);
                    return Err(e.into());
                }
            }
        }
        let less = |left: u64| Some(left.saturating_sub(len));
        let before = part.unallocated.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).unwrap_or(0);
        self.space.allocating.fetch_sub(before.min(len), Ordering::SeqCst);
        Ok(writer)
    }

    /// Opens a partial copy to write.
    pub(super) fn writer(&self, part: &PartCopy) -> io::Result<PartWriter> {
        let fd = self.space.fs.open_file(&part.path(), OFlags::WRONLY, Mode::empty())?;
        Ok(PartWriter::new(fd, !self.space.is_in_memory()))
    }

    /// Opens a partial copy by its number, to read.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn read(&self, number: u64) -> io::Result<OwnedFd> {
        Ok(self.space.fs.read_file(&format!("part/{number:016x}"))?)
    }

    /// Reserves space for one more chunk of `bytes` bytes, above `keep_free` on the disk; `false`
    /// when there is none.
    pub fn grow(&self, part: &PartCopy, bytes: u64) -> bool {
        if !self.space.has_room_on_disk(bytes) {
            return false;
        }
        let Some(more) = self.space.ledger.reserve_bytes(bytes.next_multiple_of(self.space.ledger.block())) else {
            return false;
        };
        absorb(part, more)
    }

    /// Gives blocks back; they stay reserved.
    ///
    /// # Errors
    /// What the kernel said; `Unsupported` where the file system cannot do that.
    pub(super) fn punch(&self, part: &PartCopy, off: u64, len: u64) -> io::Result<()> {
        let fd = self.space.fs.open_file(&part.path(), OFlags::WRONLY, Mode::empty())?;
        punch(&fd, off, len)
    }

    /// Publishes a complete partial copy, as [`CopyFile::publish`] does; without a sum as
    /// [`CopyFile::publish_passing`] does.
    ///
    /// # Errors
    /// What the kernel said; the file is removed.
    pub fn publish(&self, part: &PartCopy, name: CopyName, stamp: Stamp, sum: Option<Sum>) -> io::Result<Option<Copy>> {
        let opened = self
            .space
            .fs
            .open_file(&part.path(), OFlags::RDWR, Mode::empty())
            .and_then(|fd| rustix::fs::fchmod(&fd, Mode::RUSR).map(|()| fd));
        let fd = match opened {
            Ok(fd) => fd,
            Err(e) => {
                self.discard(part);
                return Err(e.into());
            }
        };
        self.forget_allocation(part);
        let file = CopyFile {
            copies: &self.copies,
            fd,
            tmp: part.path(),
            room: part.take_room(),
            charged: 0,
            may_be_read: true,
        };
        match sum {
            Some(sum) => file.publish(name, stamp, sum),
            None => file.publish_passing(name, stamp),
        }
    }

    /// Drops a partial copy. The caller has taken it out of the state word before.
    pub fn discard(&self, part: &PartCopy) {
        self.forget_allocation(part);
        if let Some(room) = part.take_room() {
            self.trash.put_part(&part.path(), room.into_charge());
        }
    }

    fn forget_allocation(&self, part: &PartCopy) {
        self.space.allocating.fetch_sub(part.unallocated.swap(0, Ordering::AcqRel), Ordering::SeqCst);
    }
}
