//! TODO

use crate::config::Direct;
use std::time::Duration;

/// What the tiering engine needs to know from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct TieringOptions {
    /// Most copies at a time.
    pub max_inflight: usize,
    /// Files changed less than this ago are not copied.
    pub settle: Duration,
    /// Whether files are fetched before anybody asks.
    pub prefetch: bool,
    /// Whether prefetching slows down when the PFS does.
    pub backoff: bool,
    /// What of the PFS is read past the page cache.
    pub direct: Direct,
    /// Copies that make way first take whatever room others leave, and at least this part of each
    /// tier. `None`: what is kept for them.
    pub elastic: Option<f64>,
    /// Most files at a time that come from other nodes, beside the copies from the PFS: those must
    /// never wait for these.
    pub remote: usize,
}
