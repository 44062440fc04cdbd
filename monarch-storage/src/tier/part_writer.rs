//! [`PartWriter`]: a partial copy, or a slot of the window of streamed files, open for one chunk.

use crate::engine::{MappedBytes, MappedFile, Sink};
use rustix::fd::{AsFd, OwnedFd};
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A partial copy, open for one chunk.
#[derive(Debug)]
pub struct PartWriter {
    fd: OwnedFd,
    /// Whether it lies on a disk: then the kernel is asked to write its bytes out soon, so that
    /// they do not pile up in memory.
    on_disk: bool,
    /// Where they lie, if that is a slot of the window of streamed files.
    slot: Option<SlotPlace>,
}

impl PartWriter {
    pub(super) const fn new(fd: OwnedFd, on_disk: bool) -> Self {
        Self { fd, on_disk, slot: None }
    }

    /// Writes to this slot of the file from here on.
    pub(super) fn in_slot(self, slot: SlotPlace) -> Self {
        Self { slot: Some(slot), ..self }
    }

    pub(super) const fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

impl Sink for PartWriter {
    fn write_at(&self, buf: &[u8], off: u64) -> io::Result<()> {
        let off = self.slot.as_ref().map_or(off, |slot| slot.offset(off));
        super::copy::write_all_at(&self.fd, buf, off)?;
        if self.on_disk {
            crate::sys::begin_to_write_out(self.fd.as_fd(), off, buf.len() as u64);
        }
        Ok(())
    }

    fn memory(&self, range: Range<u64>) -> Option<MappedBytes> {
        self.slot.as_ref()?.memory(range)
    }

    fn forgo_memory(&self) {
        if let Some(slot) = &self.slot {
            slot.forgone.set(true);
        }
    }
}

/// Where in the window some bytes of a file lie.
#[derive(Debug)]
pub(super) struct SlotPlace {
    number: usize,
    /// Where the slot begins, in the window.
    at: u64,
    /// The first of the bytes, in their own file.
    first: u64,
    /// The memory of the window, if it is mapped.
    memory: Option<Arc<MappedFile>>,
    /// Whether that memory is not used any more.
    forgone: Cell<bool>,
}

impl SlotPlace {
    /// A slot that begins at `at` in the window, for bytes from `first` on in their file.
    pub(super) const fn new(number: usize, at: u64, first: u64, memory: Option<Arc<MappedFile>>) -> Self {
        Self { number, at, first, memory, forgone: Cell::new(false) }
    }

    /// Where the byte at `off` in its file lies in the window. (Modulo 2^64.)
    const fn offset(&self, off: u64) -> u64 {
        off.wrapping_sub(self.first).wrapping_add(self.at)
    }

    /// The memory of these bytes of the file.
    fn memory(&self, range: Range<u64>) -> Option<MappedBytes> {
        let within = |off: u64| usize::try_from(off.checked_sub(self.first)?).ok();
        self.memory
            .as_ref()
            .filter(|_| !self.forgone.get())?
            .lend(self.number, within(range.start)?..within(range.end)?)
    }
}
