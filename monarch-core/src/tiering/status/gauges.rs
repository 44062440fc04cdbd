//! [`Load`]: gauges of the tiering engine at one moment, for metrics. Numbers of files, unless
//! stated otherwise.

use crate::engine::Limits;
use crate::tiering::queue::work_queue::WorkQueue;
use crate::tiering::throttle::PrefetchThrottle;
use std::sync::atomic::Ordering;

/// Gauges of the tiering engine at one moment. Numbers of files, unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Queued demands from the PFS: readers wait for them.
    pub demands: usize,
    /// Queued demands from peers.
    pub remote_demands: usize,
    /// Queued retries.
    pub retries: usize,
    /// Files that wait for the end of a pause.
    pub paused: usize,
    /// In flight from the PFS, or from compressed copies.
    pub running: usize,
    /// In flight from peers.
    pub remote: usize,
    /// In flight from either, without a reader that waits.
    pub ahead: usize,
    /// The limit on copies in flight from the PFS at which prefetch waits.
    pub width: usize,
    /// Calls to the PFS for copies so far.
    pub pfs_calls: u64,
    /// Bytes that those calls requested.
    pub pfs_bytes: u64,
    /// Calls to the PFS of scans so far.
    pub scan_calls: u64,
    /// Recent and best latency of opens on the PFS, microseconds; `None` before the first.
    pub opens_us: Option<(u64, u64)>,
}

impl Load {
    /// Reads the gauges of the components.
    pub(crate) fn of(limits: &Limits, queue: &WorkQueue, throttle: &PrefetchThrottle, paused: usize) -> Self {
        let (demands, remote_demands, retries) = queue.lines().in_line();
        let counted = limits.counted();
        let (running, remote) = throttle.in_flight();
        let opens = throttle.open_us();
        Self {
            demands,
            remote_demands,
            retries,
            paused,
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
