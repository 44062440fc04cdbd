//! What waits to be copied: the queues of demands and prefetches, retries, the slots of what is in
//! flight, and the choice of the copy engine.

pub(crate) mod engine_lane;
pub(crate) mod inflight_slots;
pub(crate) mod refetch;
pub(crate) mod retry_backoff;
pub(crate) mod waker;
pub(crate) mod work_queue;
