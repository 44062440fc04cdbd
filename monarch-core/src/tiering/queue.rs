//! What waits to be copied, retries, and which engine copies it.

pub(crate) mod engine_lane;
pub(crate) mod inflight_slots;
pub(crate) mod refetch;
pub(crate) mod retry_backoff;
pub(crate) mod waker;
pub(crate) mod work_queue;
