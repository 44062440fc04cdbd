//! [`Stats`]: counters of the tiering engine.

use std::sync::atomic::AtomicU64;

/// Counters of the tiering engine since the agent started, for status and report.
///
/// Fields: 27, one per counter of the report.
#[derive(Debug, Default)]
pub struct Stats {
    /// Copies completed for a demand.
    pub demanded: AtomicU64,
    /// Copies completed by prefetch.
    pub prefetched: AtomicU64,
    /// Bytes copied.
    pub bytes: AtomicU64,
    /// Bytes that the PFS sent for copies, those of copies that were not kept included. Copies that
    /// failed on the way are left out.
    pub source_bytes: AtomicU64,
    /// Copies of whole files from the PFS that were completed.
    pub pfs_copies: AtomicU64,
    /// Microseconds that those took, all together, from the open to the end.
    pub pfs_copy_us: AtomicU64,
    /// Jobs that attached to this agent first.
    pub jobs: AtomicU64,
    /// Sizes of large files that readers opened as complete copies: how much of them was read is
    /// not known.
    pub whole_large_bytes: AtomicU64,
    /// Directories that decide about absent names, compared with the PFS ahead of processes.
    pub listing_checks: AtomicU64,
    /// Chunks of large files that were copied.
    pub chunks: AtomicU64,
    /// Copies adopted from an earlier run.
    pub adopted: AtomicU64,
    /// Adopted copies whose bytes were verified first.
    pub verified: AtomicU64,
    /// Copies refused by the policy, for lack of space, or temporarily.
    pub refused: AtomicU64,
    /// Refused copies of files that had been changed recently.
    pub unsettled: AtomicU64,
    /// Files found changed on the PFS.
    pub changed: AtomicU64,
    /// Copies that failed on the PFS side.
    pub source_errors: AtomicU64,
    /// Copies that failed on the tier side.
    pub tier_errors: AtomicU64,
    /// Copies dropped for lack of space.
    pub evicted: AtomicU64,
    /// Copies that the policy replaced by others.
    pub replaced: AtomicU64,
    /// Hints of jobs.
    pub hints: AtomicU64,
    /// Copies moved to a slower tier instead of being dropped.
    pub demoted: AtomicU64,
    /// Copies moved to a faster tier because readers opened them.
    pub promoted: AtomicU64,
    /// Copies that were compressed.
    pub packed: AtomicU64,
    /// Copies that were decompressed, for a reader or ahead of one.
    pub decoded: AtomicU64,
    /// Copies that were decompressed before a reader asked.
    pub decoded_ahead: AtomicU64,
    /// Milliseconds for which prefetch had work but was narrowed or held back, as the job waited
    /// for memory.
    pub memory_pressure_ms: AtomicU64,
    /// Copies that another process removed or damaged.
    pub damaged: AtomicU64,
}
