//! Buffers of a ring: aligned for unbuffered reads, used again, bounded in sum.

pub(super) use crate::engine::pages::{PAGE, Pages as Buffer};

/// Buffers of small files are of this size, so that any of them fits.
const SMALL: usize = 128 << 10;
/// Most bytes that one ring holds. A single buffer may be larger.
const MOST: usize = 64 << 20;

/// The buffers of a ring.
#[derive(Default)]
pub(super) struct Buffers {
    /// Not in use; the one used last is at the end and still in the processor's cache.
    free: Vec<Buffer>,
    /// Bytes of all, in use or not.
    total: usize,
}

impl Buffers {
    /// A buffer of at least `len` bytes; `None` when so many are in use that one has to come back
    /// first.
    pub(super) fn take(&mut self, len: usize) -> Option<Buffer> {
        let len = len.max(SMALL).next_multiple_of(PAGE);
        if let Some(at) = self.free.iter().rposition(|b| b.len() >= len) {
            return Some(self.free.remove(at));
        }
        while self.total + len > MOST {
            // What is free is too small.
            let Some(smaller) = self.free.pop() else { break };
            self.total -= smaller.len();
        }
        if self.total > 0 && self.total + len > MOST {
            return None;
        }
        self.total += len;
        Some(Buffer::new(len))
    }

    pub(super) fn give_back(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }
}
