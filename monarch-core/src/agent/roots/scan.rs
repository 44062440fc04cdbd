//! A scan that is to be made, or is under way.

use crate::config::Config;
use crate::index::ScanProgress;
use crate::shm;
use std::sync::Arc;

/// A scan: of which root, with which settings. One that was begun anew meanwhile has another
/// `progress`.
pub(super) struct Scan {
    pub(super) root: usize,
    pub(super) config: Arc<Config>,
    /// What its jobs want looked at again.
    pub(super) checks: shm::Checks,
    pub(super) progress: Arc<ScanProgress>,
}
