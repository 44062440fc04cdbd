//! TODO

use std::sync::atomic::AtomicU64;

/// Counters for status and report.
#[derive(Debug, Default)]
pub struct Stats {
    /// Copies completed on demand.
    pub demanded: AtomicU64,
    /// Copies completed ahead.
    pub prefetched: AtomicU64,
    /// Bytes copied.
    pub bytes: AtomicU64,
    /// Chunks of large files copied.
    pub chunks: AtomicU64,
    /// Copies adopted from an earlier run.
    pub adopted: AtomicU64,
    /// Those of them whose bytes were read and found right first.
    pub verified: AtomicU64,
    /// Files refused by policy or quota, or for now.
    pub refused: AtomicU64,
    /// Those of them that had just been changed.
    pub unsettled: AtomicU64,
    /// Files found changed.
    pub changed: AtomicU64,
    /// Copies that failed on the PFS side.
    pub source_errors: AtomicU64,
    /// Copies that failed on the tier side.
    pub tier_errors: AtomicU64,
    /// Copies dropped for lack of space.
    pub evicted: AtomicU64,
    /// Copies that made way for others because the policy said so.
    pub replaced: AtomicU64,
    /// Hints of jobs.
    pub hints: AtomicU64,
    /// Copies moved to a slower tier instead of being dropped.
    pub demoted: AtomicU64,
    /// Copies moved to a faster tier because somebody opened them.
    pub promoted: AtomicU64,
    /// Copies that were packed.
    pub packed: AtomicU64,
    /// Copies that were decoded, for a reader or ahead of one.
    pub decoded: AtomicU64,
    /// Those of them that nobody waited for.
    pub decoded_ahead: AtomicU64,
    /// Copies that somebody else removed or damaged.
    pub damaged: AtomicU64,
}
