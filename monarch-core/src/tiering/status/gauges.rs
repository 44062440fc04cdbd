//! What the tiering engine is about at a moment, for metrics.

use crate::engine::Limits;
use crate::tiering::queue::retry_backoff::RetryBackoff;
use crate::tiering::queue::work_queue::WorkQueue;
use crate::tiering::throttle::PrefetchThrottle;
use std::sync::atomic::Ordering;

/// What the tiering engine is about at a moment. Numbers of files, unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// In line, with readers waiting.
    pub demands: usize,
    /// Those that other nodes have.
    pub remote_demands: usize,
    /// Tried again next.
    pub retries: usize,
    /// Tried again after a while.
    pub paused: usize,
    /// Under way from the PFS, or from packed copies.
    pub running: usize,
    /// Under way from other nodes.
    pub remote: usize,
    /// Those of both that nobody waits for.
    pub ahead: usize,
    /// So many from the PFS may be under way before fetching ahead waits.
    pub width: usize,
    /// Calls to the PFS for copies so far.
    pub pfs_calls: u64,
    /// Bytes that those asked for.
    pub pfs_bytes: u64,
    /// Calls to the PFS of scans so far.
    pub scan_calls: u64,
    /// How long opens at the PFS take lately and took at best, microseconds; once there was one.
    pub opens_us: Option<(u64, u64)>,
}

impl Load {
    /// Reads the gauges of the components.
    pub(crate) fn of(
        limits: &Limits,
        queue: &WorkQueue,
        throttle: &PrefetchThrottle,
        retry_backoff: &RetryBackoff,
    ) -> Self {
        let (demands, remote_demands, retries) = queue.lines().in_line();
        let counted = limits.counted();
        let (running, remote) = throttle.in_flight();
        let opens = throttle.open_us();
        Self {
            demands,
            remote_demands,
            retries,
            paused: retry_backoff.paused(),
            running,
            remote,
            ahead: throttle.prefetching(),
            width: throttle.limit(),
            pfs_calls: counted.calls.load(Ordering::Relaxed),
            pfs_bytes: counted.bytes.load(Ordering::Relaxed),
            scan_calls: counted.scans.load(Ordering::Relaxed),
            opens_us: (opens.1 != u64::MAX).then_some(opens),
        }
    }
}
