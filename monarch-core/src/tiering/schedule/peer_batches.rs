//! [`PeerBatches`]: small files that a copier prefetches from a peer with one request.
//!
//! The files are not claimed before their bytes are there, so that a reader who wants one meanwhile
//! does not wait for the others: its demand claims the file and requests it by itself. What is then
//! left of the batch for that file is dropped. Files that do not come are looked at by themselves.

use crate::engine::Task;
use crate::tiering::copy::file_copies::FileCopies;
use crate::tiering::core::context::Context;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::shared::Shared;
use crate::tiering::queue::Queue;
use crate::tiering::queue::inflight_slots::{BatchPlace, InflightSlots, Job};
use crate::tiering::queue::waker::Waker;
use crate::tiering::queue::work_queue::WorkQueue;
use monarch_abi::word::State;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Files of one segment that come from the same peer.
pub(crate) struct PeerBatch<'a> {
    /// The slot of all of them.
    pub(crate) slot: Job<'a>,
    /// The place among all batches.
    pub(crate) place: BatchPlace<'a>,
    /// The peer.
    pub(crate) from: u16,
    pub(crate) keys: Vec<u64>,
}

/// Fetches batches.
pub(crate) struct PeerBatches {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    peers: Arc<PeerLink>,
    slots: Arc<InflightSlots>,
    queue: Arc<WorkQueue>,
    waker: Arc<Waker>,
    copies: Arc<FileCopies>,
}

impl PeerBatches {
    pub(crate) fn new(shared: &Shared, queue: &Queue, copies: &Arc<FileCopies>) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            peers: shared.peers.clone(),
            slots: queue.slots.clone(),
            queue: queue.work.clone(),
            waker: queue.waker.clone(),
            copies: copies.clone(),
        }
    }

    /// Requests the files of a batch, and has those that come copied, one after the other.
    pub(crate) fn fetch(&self, batch: PeerBatch<'_>, copy: impl Fn(&mut dyn Task)) {
        let PeerBatch { slot, place, from, keys } = batch;
        let mut left: Vec<Option<u64>> = keys.iter().copied().map(Some).collect();
        self.peers.fetch_batch(from, &keys, &mut |at, bytes| {
            let Some(key) = left.get_mut(at).and_then(Option::take) else { return false };
            let job = Job::of_batch(&self.slots, key);
            if let Some(mut task) = self.copies.begin_with(job, Some(&bytes)) {
                task.assigned(Lane::Threads);
                copy(&mut task);
            } else if self.is_refused(key) {
                // Most likely there is no space for the others, either.
                return false;
            }
            !self.cx.stop.load(Ordering::Relaxed)
        });
        let left: Vec<u64> = left.into_iter().flatten().collect();
        let is_rest = !left.is_empty();
        self.queue.lines().end_together(&keys, left.into_iter());
        drop((slot, place));
        if is_rest {
            self.waker.wake(Lane::Threads);
        }
    }

    fn is_refused(&self, key: u64) -> bool {
        self.segments.entry(key).is_some_and(|(_, entry)| entry.word().state() == State::Refused)
    }
}
