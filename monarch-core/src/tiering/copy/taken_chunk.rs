//! [`TakenChunk`]: a chunk between the queue and its copy.

use crate::tiering::copy::chunked_fetch::{ChunkedFetch, Room};
use crate::tiering::queue::inflight_slots::Job;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A chunk that a lane took out of the lines, with the slots that it holds until it is dropped.
pub(crate) struct TakenChunk<'a> {
    pub(crate) fetch: Arc<ChunkedFetch>,
    pub(crate) chunk: u32,
    pub(crate) room: Room,
    pub(crate) job: Job<'a>,
    /// The place of a chunk that no reader waits for; `None`: one waits.
    pub(crate) ahead: Option<Counted<'a>>,
    /// The place of one that a reader waits for, and a peer sends.
    pub(crate) from_peer: Option<Counted<'a>>,
}

/// Adds one to a count until it is dropped.
pub(crate) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
