//! [`Slots`]: space for chunks of streamed files.

use crate::sync::{AtomicUsize, Ordering};
use std::any::Any;
use std::sync::Arc;

/// The window of streamed files: slots for one chunk each. Its space is given back with the last
/// slot.
#[derive(Debug)]
pub(crate) struct Slots {
    all: usize,
    used: AtomicUsize,
    _room: Box<dyn Any + Send + Sync>,
}

impl Slots {
    /// Makes `all` slots in this space.
    pub(crate) fn new(all: usize, room: impl Any + Send + Sync) -> Arc<Self> {
        Arc::new(Self { all, used: AtomicUsize::new(0), _room: Box::new(room) })
    }

    /// Takes a slot, if one is free.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Slot> {
        let more = |n: usize| (n < self.all).then_some(n + 1);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Slot(self.clone()))
    }
}

/// A slot of the window: space for one chunk.
pub(crate) struct Slot(Arc<Slots>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::AcqRel);
    }
}
