//! [`TieringOptions`]: the settings of the tiering engine.

use crate::config::{Direct, Extent};
use std::time::Duration;

/// Settings that the tiering engine takes from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct TieringOptions {
    /// Maximum number of copies in flight from the PFS.
    pub max_inflight: usize,
    /// The same while readers wait for small files.
    pub max_demands: usize,
    /// Files that were changed more recently than this are not copied.
    pub min_file_age: Duration,
    /// Whether files are copied before a reader opens them.
    pub prefetch: bool,
    /// Which files of a data set.
    pub ahead: Extent,
    /// Whether the files that jobs open first are kept for the next job.
    pub working_sets: bool,
    /// Whether prefetching slows down when the PFS does.
    pub backoff: bool,
    /// Share of the time in which a task of the job waits for memory, above which prefetch is
    /// narrowed; `None` never.
    pub max_memory_pressure: Option<f64>,
    /// Which files of the PFS are read past the page cache.
    pub direct: Direct,
    /// Transient copies take all the space that other copies leave, and at least this part of each
    /// tier. `None`: they take the part that is reserved for them.
    pub elastic: Option<f64>,
    /// Maximum number of files in flight from peers. They are counted apart from copies from the
    /// PFS, as those must never wait for these.
    pub remote: usize,
}
