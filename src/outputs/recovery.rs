//! Publishes what an earlier job has left in a staging directory, without an agent.

use anyhow::Result;
use monarch_core::agent::protocol::OutputStatus;
use monarch_core::outputs::recovery::{self, RecoverReport};
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

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
    progress: &mut dyn FnMut(&OutputStatus) -> ControlFlow<()>,
) -> Result<Recovered> {
    let RecoverReport { root, published, bytes, parts_removed, rest, .. } = recovery::recover(&left.staging, progress)?;
    Ok(Recovered { root, published, bytes, parts_removed, rest })
}

/// Removes part files below a directory that no staging directory of this node claims and that are
/// older than an hour. Returns how many.
///
/// # Errors
/// When the directory cannot be opened.
pub(crate) fn remove_orphans(dir: &Path, staging: &[PathBuf]) -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    Ok(recovery::remove_orphans(dir, staging, now)?)
}
