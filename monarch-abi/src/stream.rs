//! The window of streamed files: one file of a tier, in slots of one chunk each, which are
//! overwritten in place.
//!
//! The control block has a tag for each slot: a hash of the window, the partial copy, the chunk and
//! the slot. A tag is not believed to be anything else: one that another process has damaged,
//! copied or moved fits no chunk, and the chunk counts as missing. A reader takes a
//! [`DropSnapshot`](crate::chunks::DropSnapshot) before it looks for a tag. The agent removes the
//! tag and counts a drop before it gives the slot to another chunk, so that the reader notices.

use crate::chunks::mixed;
use crate::control::Stream;
use crate::sync::Ordering;

/// Keeps tags of one chunk in different slots apart.
const SLOT_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The tag of a chunk in slot 0.
const fn first_tag(window: u64, part: u64, chunk: u32) -> u64 {
    mixed(mixed(window, part), chunk as u64)
}

/// The tag of a chunk in a slot, from that in slot 0. Never 0, which is no tag.
const fn tag_in(first: u64, slot: usize) -> u64 {
    let tag = first.wrapping_add(SLOT_STEP.wrapping_mul(slot as u64));
    if tag == 0 { 1 } else { tag }
}

impl Stream {
    /// A window begins: its file, the bytes of a slot, and the number of slots, all of them empty.
    pub fn begin(&self, window: u64, slot_bytes: u64, slots: usize) {
        self.slots.store(0, Ordering::Release);
        self.tags.iter().for_each(|tag| tag.store(0, Ordering::Release));
        self.slot_bytes.store(slot_bytes, Ordering::Release);
        self.number.store(window, Ordering::Release);
        self.slots.store(slots as u64, Ordering::Release);
    }

    /// A window ends, unless another one has begun.
    pub fn end(&self, window: u64) {
        let _ = self.number.compare_exchange(window, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The bytes of a chunk have been written into a slot: readers may have them. Returns the tag.
    pub fn arrived(&self, window: u64, slot: usize, part: u64, chunk: u32) -> u64 {
        let tag = tag_in(first_tag(window, part, chunk), slot);
        if let Some(entry) = self.tags.get(slot) {
            entry.store(tag, Ordering::Release);
        }
        tag
    }

    /// A chunk is about to be taken out of a slot. The tag may be that of a later window.
    pub fn removed(&self, slot: usize, tag: u64) {
        if let Some(entry) = self.tags.get(slot) {
            let _ = entry.compare_exchange(tag, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Where a chunk is: the number of the window's file, and the offset there.
    #[must_use]
    pub fn find(&self, part: u64, chunk: u32) -> Option<(u64, u64)> {
        let slots = usize::try_from(self.slots.load(Ordering::Acquire)).ok()?;
        let window = self.number.load(Ordering::Acquire);
        let first = first_tag(window, part, chunk);
        let mut tags = self.tags.iter().take(slots).enumerate();
        // (Acquire: the bytes that the tag speaks of are written.)
        let (slot, _) = tags.find(|(slot, tag)| tag.load(Ordering::Acquire) == tag_in(first, *slot))?;
        Some((window, self.slot_bytes.load(Ordering::Acquire).checked_mul(slot as u64)?))
    }
}
