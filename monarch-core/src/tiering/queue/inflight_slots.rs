//! [`InflightSlots`]: hands out the slots of files that are looked at, and wakes workers that wait
//! for one.

use crate::tiering::core::lane::Lane;
use crate::tiering::queue::waker::Waker;
use crate::tiering::throttle::{PrefetchThrottle, Slot};
use monarch_policies::RequestSource;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Hands out slots, and knows which workers wait for one.
pub(crate) struct InflightSlots {
    waker: Arc<Waker>,
    throttle: Arc<PrefetchThrottle>,
    /// Whether a copy is being decompressed ahead of a reader.
    decoding: AtomicBool,
    /// Whether a ring found all slots in use.
    rings_wait: AtomicBool,
    /// Batches of files of peers that are under way.
    batches: AtomicUsize,
}

impl InflightSlots {
    pub(crate) fn new(waker: &Arc<Waker>, throttle: &Arc<PrefetchThrottle>) -> Self {
        Self {
            waker: waker.clone(),
            throttle: throttle.clone(),
            decoding: AtomicBool::new(false),
            rings_wait: AtomicBool::new(false),
            batches: AtomicUsize::new(0),
        }
    }

    /// Claims a place for a batch of files of a peer, which it holds until it is dropped; `None` if
    /// there are as many as there may be.
    pub(crate) fn begin_batch(&self) -> Option<BatchPlace<'_>> {
        let more = |n: usize| (n < self.throttle.max_batches()).then_some(n + 1);
        self.batches.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(BatchPlace(self))
    }

    /// Claims the single slot for decompression ahead. Returns `true` if it is taken already.
    pub(crate) fn begin_decoding(&self) -> bool {
        self.decoding.swap(true, Ordering::AcqRel)
    }

    /// Gives the slot for decompression ahead back.
    pub(crate) fn end_decoding(&self) {
        self.decoding.store(false, Ordering::Release);
    }

    /// Notes whether a ring waits for a slot: the next job that ends wakes it.
    pub(crate) fn rings_wait(&self, wait: bool) {
        self.rings_wait.store(wait, Ordering::SeqCst);
    }
}

/// A place among the batches of files of peers.
pub(crate) struct BatchPlace<'a>(&'a InflightSlots);

impl Drop for BatchPlace<'_> {
    fn drop(&mut self) {
        self.0.batches.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A file that a worker looks at. It holds its slot until it is dropped.
pub(crate) struct Job<'a> {
    slots: &'a InflightSlots,
    pub(crate) key: u64,
    pub(crate) source: RequestSource,
    pub(crate) slot: Slot<'a>,
    /// Whether its compressed copy is decompressed ahead of a reader.
    pub(crate) decodes: bool,
    /// Whether a ring is to copy it.
    pub(crate) in_ring: bool,
}

impl<'a> Job<'a> {
    pub(crate) fn new(slots: &'a InflightSlots, key: u64, source: RequestSource, remote: bool) -> Self {
        let slot = slots.throttle.take(source, remote);
        Self { slots, key, source, slot, decodes: false, in_ring: false }
    }

    /// One of the files of a batch, for which a slot is held.
    pub(crate) fn of_batch(slots: &'a InflightSlots, key: u64) -> Self {
        let source = RequestSource::Prefetch;
        let slot = slots.throttle.within_another(source);
        Self { slots, key, source, slot, decodes: false, in_ring: false }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if self.decodes {
            self.slots.end_decoding();
        }
        // A demand may have stayed queued because all slots were in use, or a prefetch because of a
        // demand.
        if self.slot.give_back() {
            self.slots.waker.wake(Lane::Threads);
        }
        if self.slots.rings_wait.swap(false, Ordering::SeqCst) {
            self.slots.waker.wake(Lane::Rings);
        }
    }
}
