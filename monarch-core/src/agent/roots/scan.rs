//! A scan that is to be made, or is under way.

use crate::config::Config;
use crate::index::ScanProgress;
use crate::shm;
use std::sync::Arc;

/// A scan of a root, with its settings. A scan of the same root that was begun meanwhile has
/// another `progress`.
pub(super) struct Scan {
    pub(super) root: usize,
    pub(super) config: Arc<Config>,
    /// Checks that its jobs want.
    pub(super) checks: shm::Checks,
    pub(super) progress: Arc<ScanProgress>,
}
