//! Bounds that both sides of a request for a file keep.

use std::time::Duration;

/// Most bytes that one request for a file asks for.
pub(super) const MAX_REQUEST_BYTES: u64 = 4 << 20;
/// How long a request for a file waits at a node that has just come up for its index.
pub(super) const INDEX_ARRIVAL_TIMEOUT: Duration = Duration::from_millis(1500);
