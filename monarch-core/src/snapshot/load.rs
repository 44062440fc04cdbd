//! Gauges of the tiering engine at one moment. Numbers of files, unless stated otherwise.

use serde::{Deserialize, Serialize};

/// Gauges of the tiering engine. The fields are those of one JSON object, which programs of users
/// read: so they stay flat.
///
/// Fields: 15, one per key of the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
    /// Share of the last 10 s in which a task of the job waited for memory, in percent; 0 where the
    /// kernel does not measure it.
    pub memory_pressure_percent: u32,
    /// Calls to the PFS for copies so far.
    pub pfs_calls: u64,
    /// Bytes that those calls requested.
    pub pfs_bytes: u64,
    /// Calls to the PFS of scans so far.
    pub scan_calls: u64,
    /// Recent and best latency of opens on the PFS, microseconds; `None` before the first.
    pub opens_us: Option<(u64, u64)>,
    /// Bytes a second that may be read from the PFS for copies (`source.bandwidth_limit`).
    pub bandwidth_limit: Option<u64>,
    /// Calls a second that may be made to the PFS (`source.iops_limit`).
    pub iops_limit: Option<u64>,
}
