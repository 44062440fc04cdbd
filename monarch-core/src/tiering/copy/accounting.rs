//! [`CopyAccounting`]: reports copies and opens on the PFS to the throttle.

use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::SourceFacts;
use crate::tiering::queue::Queue;
use crate::tiering::queue::waker::Waker;
use crate::tiering::throttle::PrefetchThrottle;
use std::sync::Arc;
use std::time::Duration;

/// Reports copies and opens on the PFS to the throttle.
pub(crate) struct CopyAccounting {
    cx: Arc<Context>,
    throttle: Arc<PrefetchThrottle>,
    waker: Arc<Waker>,
    source_facts: Arc<SourceFacts>,
}

impl CopyAccounting {
    pub(crate) fn new(shared: &Shared, queue: &Queue) -> Self {
        Self {
            cx: shared.cx.clone(),
            throttle: queue.throttle.clone(),
            waker: queue.waker.clone(),
            source_facts: shared.source_facts.clone(),
        }
    }

    /// Notes a file, or a chunk, that came from the PFS.
    pub(crate) fn note_copy(&self, bytes: u64, took: Duration) {
        if self.throttle.note_copy(bytes, took) {
            // Copiers wake each other.
            self.waker.wake(Lane::Rings);
        }
    }

    /// Notes how long an open took. An open that waited for a tape says nothing about the PFS.
    pub(crate) fn note_open(&self, file: &ClaimedFile, took: Duration) {
        self.cx.latencies.opened(took);
        if !self.source_facts.is_released(file.key) {
            self.throttle.note_open(took);
        }
    }
}
