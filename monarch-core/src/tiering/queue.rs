//! What waits to be copied: the queues of demands and prefetches, retries, the slots of what is in
//! flight, and the choice of the copy engine.

pub(crate) mod engine_lane;
pub(crate) mod inflight_slots;
pub(crate) mod refetch;
pub(crate) mod retry_backoff;
pub(crate) mod waker;
pub(crate) mod work_queue;

use crate::engine::Engines;
use crate::tiering::core::shared::Shared;
use crate::tiering::throttle::PrefetchThrottle;
use engine_lane::EngineLanes;
use inflight_slots::InflightSlots;
use refetch::Refetch;
use retry_backoff::RetryBackoff;
use std::sync::{Arc, Mutex};
use waker::Waker;
use work_queue::WorkQueue;

/// The components of the room, and the throttle that they count against.
pub(crate) struct Queue {
    pub(crate) throttle: Arc<PrefetchThrottle>,
    pub(crate) retry_backoff: Arc<Mutex<RetryBackoff>>,
    pub(crate) waker: Arc<Waker>,
    pub(crate) lanes: Arc<EngineLanes>,
    pub(crate) work: Arc<WorkQueue>,
    pub(crate) refetch: Arc<Refetch>,
    pub(crate) slots: Arc<InflightSlots>,
}

impl Queue {
    /// Makes empty queues.
    pub(crate) fn new(shared: &Shared, throttle: PrefetchThrottle, engines: Engines) -> Self {
        let throttle = Arc::new(throttle);
        let retry_backoff = Arc::new(Mutex::new(RetryBackoff::default()));
        let waker = Arc::new(Waker::new(&shared.cx));
        let lanes = Arc::new(EngineLanes::new(shared, &waker, engines));
        let work = Arc::new(WorkQueue::new(shared, &throttle, &waker));
        let refetch = Arc::new(Refetch::new(shared, &retry_backoff, &waker, &work));
        let slots = Arc::new(InflightSlots::new(&waker, &throttle));
        Self { throttle, retry_backoff, waker, lanes, work, refetch, slots }
    }
}
