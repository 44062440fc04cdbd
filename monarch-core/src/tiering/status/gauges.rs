//! Reads the gauges of the tiering engine, for metrics and status.

use crate::engine::Limits;
use crate::snapshot::Load;
use crate::tiering::queue::work_queue::WorkQueue;
use crate::tiering::throttle::PrefetchThrottle;
use std::sync::atomic::Ordering;

/// Reads the gauges of the components.
pub(crate) fn read(limits: &Limits, queue: &WorkQueue, throttle: &PrefetchThrottle, paused: usize) -> Load {
    let (demands, remote_demands, retries) = queue.lines().in_line();
    let counted = limits.counted();
    let (running, remote) = throttle.in_flight();
    let opens = throttle.open_us();
    Load {
        demands,
        remote_demands,
        retries,
        paused,
        running,
        remote,
        ahead: throttle.prefetching(),
        width: throttle.limit(),
        memory_pressure_percent: throttle.memory_pressure_percent(),
        pfs_calls: counted.calls.load(Ordering::Relaxed),
        pfs_bytes: counted.bytes.load(Ordering::Relaxed),
        scan_calls: counted.scans.load(Ordering::Relaxed),
        opens_us: (opens.1 != u64::MAX).then_some(opens),
        bandwidth_limit: limits.bandwidth_limit(),
        iops_limit: limits.iops_limit(),
    }
}
