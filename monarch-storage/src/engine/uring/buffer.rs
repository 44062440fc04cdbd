//! Buffers of a ring: aligned for unbuffered reads, reused, with a bound on their sum.

pub(super) use crate::engine::pages::{PAGE, Pages as Buffer};

/// Bytes of a buffer, at least, so that any buffer fits any small file.
const MIN_BUFFER_BYTES: usize = 128 << 10;
/// Bytes of all buffers of a ring, at most. A single buffer may be larger.
const MAX_RING_BYTES: usize = 64 << 20;

/// The buffers of a ring.
#[derive(Default)]
pub(super) struct Buffers {
    /// Buffers not in use. The last one was used last, and is still in the processor's cache.
    free: Vec<Buffer>,
    /// Bytes of all buffers, in use or not.
    total: usize,
}

impl Buffers {
    /// A buffer of at least `len` bytes; `None` until a buffer in use is given back.
    pub(super) fn take(&mut self, len: usize) -> Option<Buffer> {
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
        Some(Buffer::new(len))
    }

    pub(super) fn give_back(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }
}
