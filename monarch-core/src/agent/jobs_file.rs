//! The file beside a runtime directory that every job of its agent holds a shared lock on
//! ([`super::client::job_lock`]).

use crate::held_dir::HeldDir;
use rustix::fs::{FlockOperation, Mode, OFlags};

/// Its name, for the agent with this key.
pub(super) fn name(key: &str) -> String {
    format!("{key}.jobs")
}

/// Removes that of the agent whose runtime directory this was, unless a job holds it.
pub(super) fn remove(dir: &HeldDir) {
    let Some((private, key)) = dir.parent() else { return };
    let name = name(&key.to_string_lossy());
    let Ok(lock) = private.open_file(name.as_str(), OFlags::RDWR, Mode::empty()) else { return };
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
        let _ = private.unlink(name.as_str());
    }
}
