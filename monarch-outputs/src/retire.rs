//! Removes a staging directory in which nothing is pending, so that nothing is lost which a job
//! stages there at that moment.
//!
//! The directory is renamed under both of its locks, after a last look. A process that has it
//! mapped finds [`closed::GONE`] and makes its calls plainly; an agent that has opened it finds
//! another one, or none, at its path.

use crate::errors::OutputsError;
use crate::kept;
use crate::staging::{JournalLock, StagingDir, is_at, lock_journal_of, take_drain_lock};
use monarch_abi::outputs::STATE;
use monarch_abi::outputs::state::{LEN, State, closed};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What is added to the name of a directory that is being removed.
const RETIRED: &str = ".removed";

/// Removes the staging directory at a path unless an agent has it, or `is_pending` says so under
/// its locks. Whether it is gone.
///
/// # Errors
/// [`OutputsError`].
pub fn retire(path: &Path, is_pending: impl FnOnce() -> Result<bool, OutputsError>) -> Result<bool, OutputsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(true),
        dir => dir.map_err(OutputsError::io("open", path))?,
    };
    let _drain_lock = match take_drain_lock(&dir, path) {
        Err(OutputsError::InUse { .. }) => return Ok(false),
        lock => lock?,
    };
    remove(dir.as_fd(), path, |_| is_pending())
}

/// [`retire`] for a directory that this process drains.
///
/// # Errors
/// [`OutputsError`].
pub fn retire_own(
    staging: &StagingDir,
    is_pending: impl FnOnce(&JournalLock) -> Result<bool, OutputsError>,
) -> Result<bool, OutputsError> {
    remove(staging.dir().as_fd(), staging.path(), is_pending)
}

/// With the lock of the drain held.
fn remove(
    dir: BorrowedFd<'_>,
    path: &Path,
    is_pending: impl FnOnce(&JournalLock) -> Result<bool, OutputsError>,
) -> Result<bool, OutputsError> {
    let lock = lock_journal_of(dir, path)?;
    if is_pending(&lock)? || !is_at(dir, path) {
        return Ok(false);
    }
    if !kept::list(path).map_err(OutputsError::io("read", path))?.is_empty() {
        return Ok(false);
    }
    tell(dir).map_err(OutputsError::io("write the state of", path))?;
    let retired = retired_path(path);
    std::fs::rename(path, &retired).map_err(OutputsError::io("rename", path))?;
    drop(lock);
    std::fs::remove_dir_all(&retired).map_err(OutputsError::io("remove", &retired))?;
    Ok(true)
}

/// A name beside it that no staging directory has, and no earlier attempt.
fn retired_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!("{RETIRED}-{}-{:x}", std::process::id(), crate::sys::now_ns()));
    path.with_file_name(name)
}

/// Tells the processes that have the state mapped.
fn tell(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let state = match rustix::fs::openat(dir, STATE, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        state => File::from(state?),
    };
    if rustix::fs::fstat(&state)?.st_size != LEN as i64 {
        return Ok(());
    }
    let at = std::mem::offset_of!(State, closed) as u64;
    state.write_all_at(&closed::GONE.to_ne_bytes(), at).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::RootInfo;

    fn staging() -> (tempfile::TempDir, StagingDir) {
        let tier = tempfile::tempdir().unwrap();
        let info = RootInfo::of(Path::new("/scratch/run"), "tier0", false);
        let staging = StagingDir::attach(&tier.path().join("outputs"), info).unwrap();
        (tier, staging)
    }

    #[test]
    fn a_directory_that_is_drained_or_has_something_pending_stays() {
        let (_tier, staging) = staging();
        let path = staging.path().to_owned();
        assert!(!retire(&path, || Ok(false)).unwrap(), "an agent has it");
        drop(staging);
        assert!(!retire(&path, || Ok(true)).unwrap());
        assert!(path.exists());
        assert!(retire(&path, || Ok(false)).unwrap());
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
        assert!(retire(&path, || Ok(false)).unwrap(), "it was gone");
    }

    #[test]
    fn a_directory_with_a_staged_file_that_no_record_explains_stays() {
        let (_tier, staging) = staging();
        let path = staging.path().to_owned();
        std::fs::create_dir(path.join(kept::KEPT)).unwrap();
        std::fs::write(path.join(kept::KEPT).join("0000000000000007-model.pt"), "weights").unwrap();
        assert!(!retire_own(&staging, |_| Ok(false)).unwrap());
        drop(staging);
        assert!(!retire(&path, || Ok(false)).unwrap());
        std::fs::remove_dir_all(path.join(kept::KEPT)).unwrap();
        assert!(retire(&path, || Ok(false)).unwrap());
    }

    #[test]
    fn processes_that_have_its_state_mapped_are_told() {
        let (_tier, staging) = staging();
        let state = staging.state();
        assert!(retire_own(&staging, |_| Ok(false)).unwrap());
        assert_eq!(state.closed.load(std::sync::atomic::Ordering::Acquire), closed::GONE);
        assert!(!staging.path().exists());
    }

    #[test]
    fn a_new_directory_at_its_path_is_another_one() {
        let (tier, old) = staging();
        std::fs::rename(old.path(), tier.path().join("elsewhere")).unwrap();
        let info = RootInfo::of(Path::new("/scratch/run"), "tier0", false);
        let new = StagingDir::attach(&tier.path().join("outputs"), info).unwrap();
        assert!(!retire_own(&old, |_| Ok(false)).unwrap());
        assert!(new.path().exists());
    }
}
