//! [`WindowFile`]: the file through which large files are streamed that no tier has space for.
//!
//! Where the tier is in memory, the file is mapped for as long as it is there, and the kernel reads
//! chunks straight into their slots.

use super::part::{PAGE, PartCopies, PartCopy, absorb};
use super::part_writer::{PartWriter, SlotPlace};
use crate::engine::MappedFile;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The file of the window of streamed files: slots of the same size, for one chunk each, which are
/// overwritten in place. It is removed when this is dropped.
#[derive(Debug)]
pub struct WindowFile {
    parts: PartCopies,
    part: PartCopy,
    slot_bytes: u64,
    memory: Option<Arc<MappedFile>>,
}

impl WindowFile {
    /// Makes the file of a window with `slots` slots of `slot_bytes` bytes, and reserves space for
    /// all of it. Whether the disk has room for a slot is asked before that is first used.
    /// `Ok(None)` when it does not fit.
    ///
    /// # Errors
    /// As of [`PartCopies::begin`].
    pub fn begin(parts: &PartCopies, slots: u64, slot_bytes: u64) -> io::Result<Option<Self>> {
        let bytes = slots.saturating_mul(slot_bytes);
        let Some(room) = parts.space.ledger.reserve_bytes(bytes) else { return Ok(None) };
        let Some(part) = parts.begin(bytes, false)? else { return Ok(None) };
        absorb(&part, room);
        let memory = mapped(parts, &part, slots, slot_bytes);
        Ok(Some(Self { parts: parts.clone(), part, slot_bytes, memory }))
    }

    /// Its number, as that of a partial copy.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.part.number
    }

    /// Bytes of a slot.
    #[must_use]
    pub const fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Opens a slot to write the bytes `range` of a file there, and allocates its blocks if it
    /// `is_fresh`.
    ///
    /// # Errors
    /// What the kernel said; `InvalidInput` if the range is longer than the slot.
    pub fn open(&self, slot: u32, range: &Range<u64>, is_fresh: bool) -> io::Result<PartWriter> {
        let at = self.offset(slot);
        if range.end.saturating_sub(range.start) > self.slot_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let writer =
            if is_fresh { self.parts.open(&self.part, at, self.slot_bytes)? } else { self.parts.writer(&self.part)? };
        Ok(writer.in_slot(SlotPlace::new(slot as usize, at, range.start, self.memory.clone())))
    }

    /// Whether a call may still write to a slot, which must not be used meanwhile.
    #[must_use]
    pub fn is_lent(&self, slot: u32) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_lent(slot as usize))
    }

    /// Gives the blocks of a slot back.
    ///
    /// # Errors
    /// As of [`PartCopies::punch`].
    pub fn punch(&self, slot: u32) -> io::Result<()> {
        self.parts.punch(&self.part, self.offset(slot), self.slot_bytes)
    }

    fn offset(&self, slot: u32) -> u64 {
        u64::from(slot) * self.slot_bytes
    }
}

/// Maps the slots of a window, where that is of use.
fn mapped(parts: &PartCopies, part: &PartCopy, slots: u64, slot_bytes: u64) -> Option<Arc<MappedFile>> {
    // (Under a limit of addresses a mapping takes what the agent needs for itself.)
    let is_limited = rustix::process::getrlimit(rustix::process::Resource::As).current.is_some();
    if !parts.space.is_in_memory() || is_limited || !slot_bytes.is_multiple_of(PAGE) {
        return None;
    }
    let file = parts.space.fs.open_file(&part.path(), OFlags::RDWR, Mode::empty()).ok()?;
    let (slots, slot_bytes) = (usize::try_from(slots).ok()?, usize::try_from(slot_bytes).ok()?);
    let mapped = MappedFile::of(&file, slots, slot_bytes);
    mapped.inspect_err(|e| tracing::debug!(error = %e, "the window in memory is not mapped")).ok().map(Arc::new)
}

impl Drop for WindowFile {
    fn drop(&mut self) {
        // A file that is mapped keeps its memory.
        self.memory = None;
        self.parts.discard(&self.part);
    }
}
