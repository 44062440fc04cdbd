//! The list of an agent's roots.
//!
//! The PFS is never asked while the list is locked: it may hang, and `status` and `stop` need the
//! list.

use super::checks;
use super::scan::Scan;
use crate::config::Config;
use crate::index::LinksOut;
use crate::index::ScanProgress;
use crate::shm;
use crate::tiering::TieringEngine;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A root as the agent sees it.
#[derive(Debug)]
pub(super) struct RootState {
    pub(super) path: PathBuf,
    pub(super) state: String,
    /// Of the scan that counts: an earlier one that ends later is known by it.
    pub(super) progress: Arc<ScanProgress>,
    pub(super) segment: Option<usize>,
    /// Settings of the job that it was scanned for.
    pub(super) config: Arc<Config>,
    /// Checks when its files are opened.
    pub(super) checks: shm::Checks,
    /// Jobs that use it now.
    pub(super) jobs: usize,
    /// Whether a job used it: once all have gone, its index may be out of date.
    pub(super) used: bool,
    /// When a scan that could not begin is tried again.
    pub(super) retry: Option<Instant>,
    /// When a warning of files that will be removed was logged last.
    pub(super) warned: Option<Instant>,
    /// Links that lead out of it, and into no other root.
    pub(super) links_out: Option<LinksOut>,
}

impl RootState {
    /// A root that is about to be scanned for a job with this configuration.
    pub(super) fn new(path: PathBuf, config: Arc<Config>) -> Self {
        let (progress, state) = (Arc::default(), "scanning".to_owned());
        let checks = config.dataset.checks();
        Self {
            path,
            state,
            progress,
            segment: None,
            config,
            checks,
            jobs: 0,
            used: false,
            retry: None,
            warned: None,
            links_out: None,
        }
    }

    /// Whether its files are prefetched: it is more than a directory that links lead to.
    pub(super) fn is_prefetched(&self) -> bool {
        !self.config.dataset.roots.iter().any(|root| root.real_path == self.path && root.only_on_demand)
    }

    /// The root whose links lead to this one.
    pub(super) fn followed_from(&self) -> Option<&Path> {
        let own = self.config.dataset.roots.iter().find(|root| root.real_path == self.path)?;
        own.followed_from.as_deref()
    }

    /// Begins again; a scan under way counts no more.
    pub(super) fn scan_again(&mut self, config: &Arc<Config>) {
        self.progress.cancel.store(true, Ordering::Relaxed);
        let (jobs, used) = (self.jobs, self.used);
        *self = Self { jobs, used, ..Self::new(std::mem::take(&mut self.path), config.clone()) };
    }

    /// Whether a job with these checks can use the root as it is served.
    pub(super) fn suits(&self, asked: shm::Checks) -> bool {
        checks::covers(self.checks, asked)
    }

    /// Why a job with these checks cannot use it.
    pub(super) fn refusal(&self, asked: shm::Checks) -> String {
        format!(
            "another job of yours reads {} with {}, this job asks for {}; give both the same, or let the other one end first",
            self.path.display(),
            checks::words(self.checks),
            checks::words(asked)
        )
    }

    /// Takes the checks of a further job into account.
    pub(super) fn tighten(&mut self, asked: shm::Checks, tiering: &TieringEngine) {
        let before = self.checks;
        self.checks = checks::stricter(before, asked);
        let live = self.segment.and_then(|n| tiering.shared.segments.segment(n));
        if let Some(live) = live {
            live.segment.state.header.revalidate_ms.store(self.checks.interval_ms(), Ordering::Relaxed);
            if before.absent != self.checks.absent {
                checks::tighten_absent(&live.segment, self.checks);
            }
        }
    }
}

/// All roots by number, and whether the agent ends.
#[derive(Debug, Default)]
pub(super) struct RootList {
    roots: Mutex<Vec<RootState>>,
    stopping: AtomicBool,
}

impl RootList {
    /// The roots, locked.
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<RootState>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no later scan of the root was begun.
    pub(super) fn counts(&self, scan: &Scan) -> bool {
        self.lock().get(scan.root).is_some_and(|r| Arc::ptr_eq(&r.progress, &scan.progress))
    }

    /// Ends running scans, and lets no other begin.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        for r in self.lock().iter() {
            r.progress.cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Whether [`RootList::stop`] was called.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
