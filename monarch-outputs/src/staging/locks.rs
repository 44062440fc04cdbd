//! The locks of a staging directory: that of its journal, and that of what drains it.

use crate::errors::OutputsError;
use monarch_abi::outputs::JOURNAL;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How the files of a staging directory are opened.
pub(super) const FILE_FLAGS: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The file whose lock the agent holds that drains the directory.
const DRAIN_LOCK: &str = "drain.lock";
/// How long the lock of a staging directory is waited for.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(2);
/// How often it is tried.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Holds the lock of a journal.
#[derive(Debug)]
pub struct JournalLock {
    pub(super) file: File,
}

impl Drop for JournalLock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Takes the lock of the journal in a staging directory.
pub(crate) fn lock_journal_of(dir: BorrowedFd<'_>, path: &Path) -> Result<JournalLock, OutputsError> {
    let fail = || OutputsError::io("lock", &path.join(JOURNAL));
    // A descriptor of its own: locks belong to open files.
    let file = rustix::fs::openat(dir, JOURNAL, FILE_FLAGS, Mode::RUSR | Mode::WUSR).map_err(|e| fail()(e))?;
    let file = File::from(file);
    rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive)).map_err(|e| fail()(e))?;
    Ok(JournalLock { file })
}

/// Whether a directory is (still) what a path leads to.
pub(crate) fn is_at(dir: BorrowedFd<'_>, path: &Path) -> bool {
    let id = |st: rustix::fs::Stat| (st.st_dev, st.st_ino);
    let there = rustix::fs::lstat(path).map(id);
    there.is_ok() && there == rustix::fs::fstat(dir).map(id)
}

/// [`take_drain_lock`], and waits for an agent that was killed and is about to end.
pub(super) fn wait_for_drain_lock(dir: &OwnedFd, path: &Path) -> Result<File, OutputsError> {
    let began = Instant::now();
    loop {
        match take_drain_lock(dir, path) {
            Err(OutputsError::InUse { .. }) if began.elapsed() < MAX_LOCK_WAIT => std::thread::sleep(LOCK_POLL),
            lock => return lock,
        }
    }
}

/// Takes the lock of whoever drains a staging directory.
pub(crate) fn take_drain_lock(dir: &OwnedFd, path: &Path) -> Result<File, OutputsError> {
    let fail = || OutputsError::io("lock", &path.join(DRAIN_LOCK));
    let fd = rustix::fs::openat(dir, DRAIN_LOCK, FILE_FLAGS, Mode::RUSR | Mode::WUSR).map_err(|e| fail()(e))?;
    let file = File::from(fd);
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut text = [0; 16];
            let n = file.read_at(&mut text, 0).unwrap_or(0);
            let pid = std::str::from_utf8(&text[..n]).ok().and_then(|pid| pid.trim().parse().ok()).unwrap_or(0);
            return Err(OutputsError::InUse { path: path.to_owned(), pid });
        }
        Err(e) => return Err(fail()(e)),
    }
    let _ = file.set_len(0);
    let _ = file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0);
    Ok(file)
}
