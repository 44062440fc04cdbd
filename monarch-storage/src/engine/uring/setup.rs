//! Settings and limits that all threads of the engine share.

use super::slot::Slot;
use crate::engine::threads::LOCAL_READ_BYTES;
use crate::engine::{Limits, ThreadsEngine};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Settings of the engine.
#[derive(Clone, Copy, Debug)]
pub struct UringOptions {
    /// Bytes of one read of a large file.
    pub io_size: u64,
    /// Calls at the PFS at a time, of each thread that runs the engine.
    pub depth: usize,
    /// Whether files of at least `io_size` are read past the page cache.
    pub direct: bool,
}

/// Settings, limits, and the flag that stops the engine.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) options: UringOptions,
    pub(super) limits: Arc<Limits>,
    pub(super) stop: Arc<AtomicBool>,
    /// Copies files of sources that the kernel cannot read itself.
    pub(super) plain: ThreadsEngine,
}

impl Setup {
    /// Bytes of one read of a file.
    pub(super) fn io_size(&self, slot: &Slot<'_>) -> u64 {
        if slot.may_block || slot.direct {
            self.options.io_size
        } else {
            self.options.io_size.min(LOCAL_READ_BYTES as u64)
        }
    }
}
