//! Traffic counters of a node for status and report.

use crate::sync::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests and bytes between this node and one other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    /// Requests that the other one answered with bytes. Each file of a batch counts as one.
    pub received: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Requests of the other one that were answered with bytes, counted in the same way.
    pub sent: u64,
    /// Bytes of those.
    pub sent_bytes: u64,
    /// Requests that the other one did not answer, or not with what was asked for.
    pub failed: u64,
}

/// Counters since the agent started.
#[derive(Debug, Default)]
pub struct TrafficStats {
    /// Answers whose bytes did not have their tag.
    pub damaged: AtomicU64,
    /// Bytes of large files that this node passed on, instead of the node that was asked for them.
    pub relayed_bytes: AtomicU64,
    /// Requests for several small files that other nodes answered.
    pub batches: AtomicU64,
    /// Files that came in those answers.
    pub batched_files: AtomicU64,
    /// Reports of other nodes of bytes from here that arrived damaged, which were looked into.
    pub complaints: AtomicU64,
    /// Copies of this node that were found damaged: before they were sent, or after a report.
    pub found_damaged: AtomicU64,
    /// Files that this node's job changed, announced to the other nodes.
    pub told: AtomicU64,
    by_node: Mutex<HashMap<u16, Traffic>>,
}

impl TrafficStats {
    fn with(&self, node: u16, change: impl FnOnce(&mut Traffic)) {
        change(lock(&self.by_node).entry(node).or_default());
    }

    /// Bytes came from a node.
    pub(super) fn received(&self, from: u16, bytes: u64) {
        self.with(from, |t| (t.received, t.received_bytes) = (t.received + 1, t.received_bytes + bytes));
    }

    /// Bytes went to a node.
    pub(super) fn sent(&self, to: u16, bytes: u64) {
        self.with(to, |t| (t.sent, t.sent_bytes) = (t.sent + 1, t.sent_bytes + bytes));
    }

    /// A node did not answer as it should.
    pub(super) fn failed(&self, node: u16) {
        self.with(node, |t| t.failed += 1);
    }

    /// Requests and bytes between this node and another one.
    #[must_use]
    pub fn of(&self, node: u16) -> Traffic {
        lock(&self.by_node).get(&node).copied().unwrap_or_default()
    }

    /// Damaged answers so far.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }
}
