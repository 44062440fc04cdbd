//! Reusable read buffers: a fresh megabyte per read would cost more in page faults than the read
//! itself.

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use crate::lock::lock;

/// Buffers kept for reuse.
const MAX_FREE_BUFFERS: usize = 64;
static FREE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// The bytes of an answer; the memory returns to the pool when dropped.
pub(super) struct Buffer {
    memory: Vec<u8>,
    len: usize,
}

impl Buffer {
    /// Fills up to `len` bytes by `read`, which returns how many it wrote.
    pub(super) fn fill<E>(len: usize, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<Self, E> {
        let mut memory = lock(&FREE).pop().unwrap_or_default();
        if memory.len() < len {
            memory.resize(len, 0);
        }
        let mut buffer = Self { memory, len: 0 };
        buffer.len = read(&mut buffer.memory[..len])?;
        Ok(buffer)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(memory: Vec<u8>) -> Self {
        let len = memory.len();
        Self { memory, len }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = lock(&FREE);
        if free.len() < MAX_FREE_BUFFERS {
            free.push(std::mem::take(&mut self.memory));
        }
    }
}
