//! Directories of part files that were opened a moment ago.
//!
//! Only for calls that name a part file: its name is unlike any other's, so that in a directory
//! that was replaced since, the call fails, and is repeated from the output root. A directory
//! that others rename meanwhile takes its part files along, and gets the files, as it would from a
//! process that has it open.

use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Directories that are kept.
const MAX_DIRS: usize = 16;
/// How long one is kept.
const MAX_AGE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Dir {
    path: Vec<u8>,
    fd: Arc<OwnedFd>,
    opened: Instant,
}

/// The directories, the newest last.
#[derive(Debug, Default)]
pub(super) struct RecentDirs(Mutex<VecDeque<Dir>>);

impl RecentDirs {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Dir>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of a path, if it was opened a moment ago.
    pub(super) fn get(&self, path: &[u8]) -> Option<Arc<OwnedFd>> {
        let dirs = self.lock();
        dirs.iter().find(|dir| dir.path == path && dir.opened.elapsed() < MAX_AGE).map(|dir| dir.fd.clone())
    }

    /// Keeps a directory that was opened just now.
    pub(super) fn put(&self, path: &[u8], fd: &Arc<OwnedFd>) {
        let mut dirs = self.lock();
        dirs.retain(|dir| dir.path != path && dir.opened.elapsed() < MAX_AGE);
        if dirs.len() == MAX_DIRS {
            dirs.pop_front();
        }
        dirs.push_back(Dir { path: path.to_vec(), fd: fd.clone(), opened: Instant::now() });
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_directories_are_kept_each_once() {
        let fd = || Arc::new(OwnedFd::from(std::fs::File::open("/").unwrap()));
        let dirs = RecentDirs::default();
        for name in 0..40_u8 {
            dirs.put(&[name], &fd());
        }
        assert!(dirs.get(&[39]).is_some() && dirs.get(&[24]).is_some() && dirs.get(&[23]).is_none());
        let newer = fd();
        dirs.put(&[39], &newer);
        assert!(Arc::ptr_eq(&dirs.get(&[39]).unwrap(), &newer));
        assert_eq!(dirs.lock().len(), MAX_DIRS);
        dirs.clear();
        assert!(dirs.get(&[39]).is_none());
    }
}
