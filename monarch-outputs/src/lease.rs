//! Leases on staged files that are being copied, given back as soon as a writer wants to open one.

use crate::sys::{self, LeaseAnswer};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often leases are looked at: the longest that a writer's open waits.
const LEASE_POLL: Duration = Duration::from_millis(2);

/// A staged file under a lease.
#[derive(Debug)]
pub struct LeasedFile {
    /// The file, open for reading.
    pub fd: OwnedFd,
    is_broken: AtomicBool,
}

impl LeasedFile {
    /// Whether nothing has opened the file for writing since the lease was granted.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        !self.is_broken.load(Ordering::Acquire) && (sys::has_lease(self.fd.as_fd()) || self.give_back())
    }

    /// The lease is being broken: it is given back.
    fn give_back(&self) -> bool {
        self.is_broken.store(true, Ordering::Release);
        sys::give_lease(self.fd.as_fd());
        false
    }
}

#[derive(Debug, Default)]
struct Held {
    files: Vec<Arc<LeasedFile>>,
    is_stopping: bool,
}

/// Takes leases, and watches those that are held.
#[derive(Debug, Default)]
pub struct LeaseWatch {
    held: Mutex<Held>,
    changed: Condvar,
}

/// A lease that is held until this is dropped.
#[derive(Debug)]
pub struct HeldLease<'a> {
    watch: &'a LeaseWatch,
    /// The file.
    pub file: Arc<LeasedFile>,
}

impl Drop for HeldLease<'_> {
    fn drop(&mut self) {
        self.watch.lock().files.retain(|file| !Arc::ptr_eq(file, &self.file));
        sys::give_lease(self.file.fd.as_fd());
    }
}

impl LeaseWatch {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a lease on an open file.
    ///
    /// # Errors
    /// What the kernel said instead.
    pub fn take(&self, fd: OwnedFd) -> Result<HeldLease<'_>, LeaseAnswer> {
        match sys::take_lease(fd.as_fd()) {
            LeaseAnswer::Granted => {}
            other => return Err(other),
        }
        let file = Arc::new(LeasedFile { fd, is_broken: AtomicBool::new(false) });
        self.lock().files.push(file.clone());
        self.changed.notify_one();
        Ok(HeldLease { watch: self, file })
    }

    /// Watches leases until [`Self::stop`]; runs in a thread of its own.
    pub fn run(&self) {
        let mut held = self.lock();
        while !held.is_stopping {
            held = if held.files.is_empty() {
                self.changed.wait(held).unwrap_or_else(PoisonError::into_inner)
            } else {
                held.files.iter().for_each(|file| {
                    let _ = file.is_unchanged();
                });
                self.changed.wait_timeout(held, LEASE_POLL).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Ends [`Self::run`].
    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.changed.notify_all();
    }
}

/// Whether nothing has a file open for writing now.
#[must_use]
pub fn is_closed(fd: &OwnedFd) -> LeaseAnswer {
    let answer = sys::take_lease(fd.as_fd());
    if answer == LeaseAnswer::Granted {
        sys::give_lease(fd.as_fd());
    }
    answer
}
