//! Bounds that both sides of a request for a file keep.

use std::time::Duration;

/// Bytes of a request at most.
pub(super) const AT_ONCE: u64 = 4 << 20;
/// How long a request for a file waits for its index.
pub(super) const NEWCOMER: Duration = Duration::from_millis(1500);
