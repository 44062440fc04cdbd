//! Buffers of a ring: aligned for unbuffered reads, reused, with a bound on their sum. Bytes that
//! the engine need not see go into the memory of their sink.

use crate::engine::MappedBytes;
pub(super) use crate::engine::pages::{PAGE, Pages};

/// Memory that a read goes to.
pub(super) enum Buffer {
    /// One of the ring's.
    Ring(Pages),
    /// The sink's.
    Sink(MappedBytes),
}

impl Buffer {
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Self::Ring(pages) => pages.bytes_mut().as_mut_ptr(),
            Self::Sink(memory) => memory.as_mut_ptr(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Ring(pages) => pages.len(),
            Self::Sink(memory) => memory.len(),
        }
    }
}

/// Bytes of a buffer, at least, so that any buffer fits any small file.
const MIN_BUFFER_BYTES: usize = 128 << 10;
/// Bytes of all buffers of a ring, at most. A single buffer may be larger.
const MAX_RING_BYTES: usize = 64 << 20;

/// Bytes of the buffers that a ring keeps between two bursts of work, at most.
const MAX_KEPT_BYTES: usize = 16 << 20;

/// The buffers of a ring.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Buffers not in use. The last one was used last, and is still in the processor's cache.
    free: Vec<Pages>,
    /// Bytes of all buffers, in use or not.
    total: usize,
}

impl Buffers {
    /// A buffer of at least `len` bytes; `None` until a buffer in use is given back.
    pub(super) fn take(&mut self, len: usize) -> Option<Pages> {
        let len = len.max(MIN_BUFFER_BYTES).next_multiple_of(PAGE);
        if let Some(at) = self.free.iter().rposition(|b| b.len() >= len) {
            return Some(self.free.remove(at));
        }
        while self.total + len > MAX_RING_BYTES {
            // All free buffers are too small.
            let Some(smaller) = self.free.pop() else { break };
            self.total -= smaller.len();
        }
        if self.total > 0 && self.total + len > MAX_RING_BYTES {
            return None;
        }
        self.total += len;
        Some(Pages::new(len))
    }

    pub(super) fn give_back(&mut self, buffer: Buffer) {
        if let Buffer::Ring(pages) = buffer {
            self.free.push(pages);
        }
    }

    /// Those that are kept for the next burst of work: what was used last, of all that are free.
    /// (Buffers that are in use still are of calls that were given up, and go with them.)
    pub(super) fn kept(mut self) -> Self {
        let mut kept = Self::default();
        while let Some(buffer) = self.free.pop().filter(|b| kept.total + b.len() <= MAX_KEPT_BYTES) {
            kept.total += buffer.len();
            kept.free.insert(0, buffer);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_is_kept_up_to_a_bound() {
        let mut buffers = Buffers::default();
        let taken: Vec<_> = (0..12).map(|_| buffers.take(4 << 20).unwrap()).collect();
        taken.into_iter().for_each(|b| buffers.give_back(Buffer::Ring(b)));
        assert_eq!(buffers.total, 48 << 20);
        let mut kept = buffers.kept();
        assert_eq!((kept.total, kept.free.len()), (MAX_KEPT_BYTES, 4));
        let again = kept.take(1 << 20).unwrap();
        assert_eq!((again.len(), kept.total), (4 << 20, MAX_KEPT_BYTES), "no new one");
        // One that a call given up still has is not counted any more.
        assert_eq!(kept.kept().total, 12 << 20);
        drop(again);
    }
}
