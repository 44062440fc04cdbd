//! An output root that the job makes again, or moves another directory to.

use crate::staging::StagingDir;
use crate::target::OutputTarget;
use monarch_abi::outputs::state::State;
use std::sync::atomic::Ordering;

/// Where the job has made the output root, or moved a directory there, that is the root from
/// now on. All that came before is published: the job has waited for it.
pub(super) fn follow_root(staging: &StagingDir, target: &dyn OutputTarget) {
    let state = staging.state();
    let changes = state.root_changes.load(Ordering::Acquire);
    if state.root_seen.load(Ordering::Acquire) == changes {
        return;
    }
    match target.follow().and_then(|()| target.stat(b"")) {
        Ok(root) => {
            state.root_dev.store(root.dev, Ordering::Relaxed);
            state.root_ino.store(root.ino, Ordering::Relaxed);
        }
        Err(e) => tracing::warn!("the output root {} cannot be opened again: {e}", staging.info().root),
    }
    state.root_seen.store(changes, Ordering::Release);
    staging.map().notify_processes();
}

/// Whether the job has made another output root that is not followed yet.
pub(super) fn has_another_root(state: &State) -> bool {
    state.root_seen.load(Ordering::Acquire) != state.root_changes.load(Ordering::Acquire)
}
