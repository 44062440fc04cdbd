//! [`CopyAccounting`]: reports copies and opens on the PFS to the throttle.

use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::SourceFacts;
use crate::tiering::queue::Queue;
use crate::tiering::queue::waker::Waker;
use crate::tiering::throttle::PrefetchThrottle;
use monarch_abi::mapping::fault_rate;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Reports copies and opens on the PFS to the throttle.
pub(crate) struct CopyAccounting {
    cx: Arc<Context>,
    throttle: Arc<PrefetchThrottle>,
    waker: Arc<Waker>,
    source_facts: Arc<SourceFacts>,
    /// The best rate of a single chunk of late, in bytes a second. (Chunks share the bandwidth, so
    /// that the others say less about one reader.)
    stream_rate: AtomicU64,
}

/// Bytes from which on the time of a copy says something about the rate.
const MIN_RATED_BYTES: u64 = 1 << 20;

impl CopyAccounting {
    pub(crate) fn new(shared: &Shared, queue: &Queue) -> Self {
        Self {
            cx: shared.cx.clone(),
            throttle: queue.throttle.clone(),
            waker: queue.waker.clone(),
            source_facts: shared.source_facts.clone(),
            stream_rate: AtomicU64::new(0),
        }
    }

    /// Notes a whole file that came from the PFS.
    pub(crate) fn note_file(&self, bytes: u64, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.cx.stats.pfs_copies.fetch_add(1, Ordering::Relaxed);
        self.cx.stats.pfs_copy_us.fetch_add(us, Ordering::Relaxed);
        self.note_copy(bytes, took);
    }

    /// Notes a file, or a chunk, that came from the PFS.
    pub(crate) fn note_copy(&self, bytes: u64, took: Duration) {
        self.note_fault_rate(bytes, took);
        if self.throttle.note_copy(bytes, took) {
            // Copiers wake each other.
            self.waker.wake(Lane::Rings);
        }
    }

    /// Publishes for mappings the rate that page faults would have.
    fn note_fault_rate(&self, bytes: u64, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        if bytes < MIN_RATED_BYTES {
            return;
        }
        let before = self.stream_rate.load(Ordering::Relaxed);
        let now = (before - before / 64).max(bytes.saturating_mul(1_000_000) / us);
        self.stream_rate.store(now, Ordering::Relaxed);
        let (latency_us, _) = self.throttle.open_us();
        self.cx.ctl.ctl.fault_rate.store(fault_rate(latency_us, now), Ordering::Relaxed);
    }

    /// Notes how long an open took. An open that waited for a tape says nothing about the PFS.
    pub(crate) fn note_open(&self, file: &ClaimedFile, took: Duration) {
        self.cx.latencies.opened(took);
        if !self.source_facts.is_released(file.key) {
            self.throttle.note_open(took);
        }
    }
}
