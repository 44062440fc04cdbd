//! Space of the tier's disk that is allocated ahead of the agent's own files, and of the records
//! that processes append: they can be written when others have filled the disk, and what is
//! published then frees space.
//!
//! A reserve file is given up when that is not enough.

use crate::staging::StagingDir;
use monarch_abi::outputs::JOURNAL;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering;

/// Bytes ahead of the journal: some 20,000 records.
const JOURNAL_BYTES: u64 = 4 << 20;
/// Bytes ahead of the agent's log: some 10,000 entries.
pub const LOG_BYTES: u64 = 1 << 20;
/// Bytes of the reserve file.
const RESERVE_BYTES: u64 = 1 << 20;
/// Fewest bytes that are worth an allocation.
const MIN_BYTES: u64 = 64 << 10;
/// The share of the disk that any of these may take.
const DISK_SHARE: u64 = 64;
/// The reserve file.
const RESERVE: &str = "reserve";

/// Allocates space behind byte `end` of a file, when less than half of `bytes` is left there. Less
/// than that where the disk has no more.
pub fn keep_ahead(file: impl AsFd, end: u64, bytes: u64) {
    let Ok(st) = rustix::fs::fstat(&file) else { return };
    let allocated = st.st_blocks as u64 * 512;
    let mut want = bytes;
    while want >= MIN_BYTES && allocated < end + want / 2 {
        match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, end, want) {
            Err(Errno::NOSPC | Errno::DQUOT) => want /= 2,
            _ => return,
        }
    }
}

/// Allocates space for the records of processes, and the reserve, as far as the disk has room.
pub fn keep_for(staging: &StagingDir) {
    let Ok(disk) = staging.disk_space() else { return };
    let share = |bytes: u64| bytes.min(disk.total / DISK_SHARE);
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(journal) = rustix::fs::openat(staging.dir(), JOURNAL, flags, Mode::empty()) {
        keep_ahead(&journal, staging.state().tail.load(Ordering::Acquire), share(JOURNAL_BYTES));
    }
    let reserve = share(RESERVE_BYTES);
    if disk.for_files() > 2 * reserve && rustix::fs::statat(staging.dir(), RESERVE, AtFlags::SYMLINK_NOFOLLOW).is_err()
    {
        let made = rustix::fs::openat(staging.dir(), RESERVE, flags | OFlags::CREATE, Mode::RUSR | Mode::WUSR);
        // (Where it cannot be allocated there is none.)
        if made.and_then(|made| rustix::fs::fallocate(&made, FallocateFlags::empty(), 0, reserve)).is_err() {
            drop_reserve(staging.dir());
        }
    }
}

/// Gives up the reserve; whether there was one.
pub fn drop_reserve(staging: &OwnedFd) -> bool {
    rustix::fs::unlinkat(staging, RESERVE, AtFlags::empty()).is_ok()
}

/// Writes to a file of the agent; where the disk has no space, once more without the reserve.
///
/// # Errors
/// What the kernel said.
pub fn with_reserve<T>(staging: &OwnedFd, mut write: impl FnMut() -> Result<T>) -> Result<T> {
    match write() {
        Err(Errno::NOSPC | Errno::DQUOT) if drop_reserve(staging) => write(),
        end => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::RootInfo;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    fn staging() -> (tempfile::TempDir, StagingDir) {
        let tier = tempfile::tempdir().unwrap();
        let info = RootInfo::of(Path::new("/scratch/run"), "tier0", false);
        let staging = StagingDir::attach(&tier.path().join("outputs"), info).unwrap();
        (tier, staging)
    }

    #[test]
    fn space_is_allocated_ahead_of_the_journal_and_again_after_it_was_cut() {
        let (_tier, staging) = staging();
        let meta = || std::fs::metadata(staging.path().join(JOURNAL)).unwrap();
        keep_for(&staging);
        let ahead = meta().blocks() * 512;
        assert!(ahead >= MIN_BYTES && meta().len() == 0, "{ahead} bytes");
        keep_for(&staging);
        assert_eq!(meta().blocks() * 512, ahead, "there is enough");
        let lock = staging.lock_journal().unwrap();
        staging.truncate_journal(&lock).unwrap();
        drop(lock);
        keep_for(&staging);
        assert!(meta().blocks() * 512 >= ahead / 2);
    }

    #[test]
    fn the_reserve_is_given_up_for_a_write_that_finds_no_space_and_made_again() {
        let (_tier, staging) = staging();
        let reserve = staging.path().join(RESERVE);
        keep_for(&staging);
        assert!(std::fs::metadata(&reserve).unwrap().blocks() > 0);
        let mut tries = 0;
        let end = with_reserve(staging.dir(), || {
            tries += 1;
            if reserve.exists() { Err(Errno::NOSPC) } else { Ok(tries) }
        });
        assert_eq!(end, Ok(2));
        assert_eq!(with_reserve(staging.dir(), || Err::<(), _>(Errno::NOSPC)), Err(Errno::NOSPC));
        keep_for(&staging);
        assert!(reserve.exists());
    }
}
