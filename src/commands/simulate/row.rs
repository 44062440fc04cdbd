//! A result: a policy on some nodes, beside its bounds.

use monarch_policies::sim::{EpochFigures, Outcome};
use serde_json::{Value, json};
use std::time::Duration;

/// Bounds that a result is compared with.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    /// Least bytes from the PFS, by epoch (Belady).
    pub(super) pfs_bytes: Vec<u64>,
    /// Least bytes from the PFS in all epochs but the first, whatever was fetched before.
    pub(super) later: u64,
    /// Hits of a cache that never changes: its share of what the node reads.
    pub(super) static_share: f64,
}

impl Bound {
    /// Least bytes of all epochs.
    pub(super) fn total(&self) -> u64 {
        self.pfs_bytes.iter().sum()
    }
}

/// The result of a policy with a capacity on a number of nodes.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) policy: String,
    /// The capacity as it was given.
    pub(super) label: String,
    pub(super) capacities: Vec<u64>,
    pub(super) nodes: u32,
    pub(super) outcome: Outcome,
    pub(super) bound: Bound,
    /// Throughput per node beside that of the fewest nodes.
    pub(super) scaling: f64,
}

impl Row {
    /// Time of a later epoch.
    pub(super) fn later_time(&self) -> Duration {
        self.outcome.later().time / u32::try_from(self.outcome.later_epochs()).unwrap_or(u32::MAX)
    }

    /// Bytes from the PFS in an epoch without copies.
    pub(super) fn uncached_bytes(&self) -> u64 {
        self.bound.pfs_bytes.first().copied().unwrap_or(0)
    }

    /// Bytes from the PFS in a later epoch.
    pub(super) fn later_bytes(&self) -> u64 {
        self.outcome.later().pfs_bytes() / self.outcome.later_epochs()
    }

    /// Least bytes from the PFS in a later epoch.
    pub(super) fn later_bound(&self) -> u64 {
        self.bound.later / self.outcome.later_epochs()
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "policy": self.policy,
            "capacity": self.label,
            "capacity_bytes": self.capacities,
            "nodes": self.nodes,
            "epochs": self.outcome.epochs.iter().map(figures).collect::<Vec<_>>(),
            "total": figures(&self.outcome.total()),
            "later": figures(&self.outcome.later()),
            "later_epochs": self.outcome.later_epochs(),
            "scaling_efficiency": self.scaling,
            "most_used_bytes": self.outcome.most_used,
            "bound": {
                "belady_pfs_bytes": self.bound.pfs_bytes,
                "belady_pfs_bytes_total": self.bound.total(),
                "belady_pfs_bytes_later": self.bound.later,
                "static_hit_share": self.bound.static_share,
            },
            "events": self.outcome.events,
        })
    }
}

fn figures(e: &EpochFigures) -> Value {
    json!({
        "time_s": e.time.as_secs_f64(),
        "ideal_s": e.ideal.as_secs_f64(),
        "compute_s": e.compute.as_secs_f64(),
        "stall_s": e.stall.as_secs_f64(),
        "stall_of_compute": e.stall_ratio(),
        "sync_wait_s": e.sync_wait.as_secs_f64(),
        "efficiency": e.efficiency(),
        "accesses": e.accesses,
        "hits": e.hits,
        "waits": e.waits,
        "pfs_opens": e.direct,
        "hit_ratio": e.hit_ratio(),
        "pfs_metadata_calls": e.metadata_calls,
        "pfs_read_calls": e.read_calls,
        "pfs_bytes": e.pfs_bytes(),
        "pfs_bytes_to_tiers": e.bytes_copied,
        "pfs_bytes_to_readers": e.bytes_direct,
        "prefetched": e.prefetched,
        "evicted": e.evicted,
    })
}
