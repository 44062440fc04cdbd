//! Whether prefetching runs, and what holds it up.

use serde::{Deserialize, Serialize};

/// State of prefetching.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Ahead {
    /// There is nothing to prefetch.
    #[default]
    Idle,
    /// It runs as configured.
    Running,
    /// The PFS answers slowly (`source.backoff`).
    Slowed {
        /// The usual number of files at a time is divided by this.
        divisor: usize,
        /// How long opens take now, microseconds.
        opens_us: u64,
        /// How long they took at best.
        best_us: u64,
    },
    /// The PFS answers with errors: one file at a time is tried.
    PfsFails {
        /// Seconds until the next try.
        next_try_s: u64,
    },
    /// No tier takes copies at present.
    TiersRest,
    /// The job waits for memory (`prefetch.max_memory_pressure`).
    MemoryPressure {
        /// Share of the time in which a task waits for it, in percent.
        percent: u32,
        /// Whether nothing is prefetched, as all tiers take memory; otherwise one file at a time
        /// is.
        stopped: bool,
    },
}
