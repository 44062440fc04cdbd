//! [`Slots`]: the slots of the window of streamed files, each of which has space for one chunk.
//!
//! A slot is allocated, and belongs to one chunk from before its bytes are requested until a drop
//! of that chunk was counted. Its bytes are overwritten in place by the next chunk. Invariant: a
//! slot is free only when no tag speaks of it.

use crate::sync::{Mutex, lock};
use crate::tier::WindowFile;
use monarch_abi::control::Stream;
use std::sync::Arc;

/// The slots of a window. Its file goes with the last slot.
pub(crate) struct Slots {
    /// The tags that readers see.
    stream: &'static Stream,
    file: WindowFile,
    free: Mutex<FreeSlots>,
}

/// Numbers of the slots that no chunk has. What was freed last is taken first: its bytes may still
/// be in the processor's cache.
struct FreeSlots {
    /// Those with blocks.
    written: Vec<u32>,
    /// Those without.
    fresh: Vec<u32>,
    /// Those that the kernel may still write to: their engine's ring failed while it read.
    lent: Vec<u32>,
}

impl FreeSlots {
    /// Takes back what the kernel no longer writes to.
    fn reclaim(&mut self, file: &WindowFile) {
        self.written.extend(self.lent.extract_if(.., |slot| !file.is_lent(*slot)));
    }
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Slots {
    /// Makes `all` slots in this file, and shows them to readers.
    pub(crate) fn new(all: u32, stream: &'static Stream, file: WindowFile) -> Arc<Self> {
        stream.begin(file.number(), file.slot_bytes(), all as usize);
        let free = FreeSlots { written: Vec::new(), fresh: (0..all).rev().collect(), lent: Vec::new() };
        Arc::new(Self { stream, file, free: Mutex::new(free) })
    }

    /// Takes a slot, if one is free; one without blocks only if `may_allocate` says so.
    pub(crate) fn take(self: &Arc<Self>, may_allocate: impl FnOnce() -> bool) -> Option<Slot> {
        let mut free = lock(&self.free);
        free.reclaim(&self.file);
        let (number, is_fresh) = match free.written.pop() {
            Some(number) => (number, false),
            None if !free.fresh.is_empty() && may_allocate() => (free.fresh.pop()?, true),
            None => return None,
        };
        drop(free);
        Some(Slot { slots: self.clone(), number, is_fresh, tag: None })
    }

    /// Gives the blocks of free slots back, up to `bytes` bytes. Returns how many bytes those are.
    pub(crate) fn release(&self, bytes: u64) -> u64 {
        let mut released = 0;
        while released < bytes {
            // (Not under the lock: readers wait for slots.)
            let Some(number) = lock(&self.free).written.pop() else { break };
            if let Err(e) = self.file.punch(number) {
                tracing::debug!(error = %e, "a slot of the window keeps its blocks");
                lock(&self.free).written.push(number);
                break;
            }
            released += self.file.slot_bytes();
            lock(&self.free).fresh.push(number);
        }
        released
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.stream.end(self.file.number());
    }
}

/// A slot of the window. It is free again when this is dropped: whoever drops it has counted a drop
/// of its chunk, if readers have seen that.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    number: u32,
    /// Whether its blocks are not allocated.
    is_fresh: bool,
    /// What readers see of the chunk in it.
    tag: Option<u64>,
}

impl Slot {
    /// The file that it is in, its number, and whether its blocks are not allocated.
    pub(crate) fn place(&self) -> (&WindowFile, u32, bool) {
        (&self.slots.file, self.number, self.is_fresh)
    }

    /// Shows readers the chunk that was written into it.
    pub(crate) fn show(&mut self, part: u64, chunk: u32) {
        self.tag = Some(self.slots.stream.arrived(self.slots.file.number(), self.number as usize, part, chunk));
    }

    /// Hides its chunk from readers. The caller counts a drop afterwards.
    pub(crate) fn hide(&mut self) {
        if let Some(tag) = self.tag.take() {
            self.slots.stream.removed(self.number as usize, tag);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.hide();
        let mut free = lock(&self.slots.free);
        let to = if self.slots.file.is_lent(self.number) { &mut free.lent } else { &mut free.written };
        to.push(self.number);
    }
}
