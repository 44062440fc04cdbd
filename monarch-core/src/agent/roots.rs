//! The roots of an agent: their jobs, and the state of their indexes.
//!
//! | module | what it does |
//! |---|---|
//! | [`spellings`] | the ways to write a root's path |
//! | [`segments`] | scanning a root (or loading its index), publishing its segment |
//! | [`scan`] | a scan under way |
//! | [`retire`] | taking a segment out of use, files that no segment needs |
//! | [`adopt`] | what an agent that died left |
//! | [`checks`] | what is looked at again when files are opened |
//! | [`shared`] | an index that the nodes of a job have in common |
//! | [`untracked_changes`] | changes that no shim enters into the control block |
//! | [`purge`] | warnings of files that the site will soon remove |
//!
//! The PFS is never asked while the list is locked: it may hang, and `status` and `stop` need the
//! list.

mod adopt;
mod checks;
mod purge;
mod retire;
mod scan;
mod segments;
mod shared;
mod spellings;
mod untracked_changes;

pub(super) use untracked_changes::{Change, UntrackedChanges};

use super::protocol::{RootStatus, Spelling};
use crate::cluster::node::Node;
use crate::config::{Config, Root as RootConfig};
use crate::held_dir::HeldDir;
use crate::index::ScanProgress;
use crate::shm;
use crate::tiering::TieringEngine;
use monarch_abi::control::{ControlMap, MAX_ROOTS};
use spellings::{Seen, Spellings};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pause after a scan that could not begin.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// A root as the agent sees it.
#[derive(Debug)]
struct RootState {
    path: PathBuf,
    state: String,
    /// Of the scan that counts: an earlier one that ends later is known by it.
    progress: Arc<ScanProgress>,
    segment: Option<usize>,
    /// Settings of the job that it was scanned for.
    config: Arc<Config>,
    /// What is looked at again when its files are opened.
    checks: shm::Checks,
    /// Jobs that use it now.
    jobs: usize,
    /// Whether a job used it: once all have gone, its index may be out of date.
    used: bool,
    /// When a scan that could not begin is tried again.
    retry: Option<Instant>,
    /// When a warning of files that will be removed was logged last.
    warned: Option<Instant>,
}

impl RootState {
    fn new(path: PathBuf, config: Arc<Config>) -> Self {
        let (progress, state) = (Arc::default(), "scanning".to_owned());
        let checks = config.dataset.checks();
        Self { path, state, progress, segment: None, config, checks, jobs: 0, used: false, retry: None, warned: None }
    }

    /// Begins again; a scan under way counts no more.
    fn scan_again(&mut self, config: &Arc<Config>) {
        self.progress.cancel.store(true, Ordering::Relaxed);
        let (jobs, used) = (self.jobs, self.used);
        *self = Self { jobs, used, ..Self::new(std::mem::take(&mut self.path), config.clone()) };
    }
}

/// All roots of an agent.
#[derive(Debug)]
pub struct Roots {
    dir: Arc<HeldDir>,
    ctl: ControlMap<'static>,
    tiering: Arc<TieringEngine>,
    seed: u64,
    node: Option<Arc<Node>>,
    list: Mutex<Vec<RootState>>,
    spellings: Spellings,
    untracked: UntrackedChanges,
    stopping: AtomicBool,
}

/// The roots of a job, for as long as it is attached.
#[derive(Debug)]
pub struct Attachment {
    roots: Arc<Roots>,
    numbers: Vec<usize>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut list = self.roots.list();
        for &n in &self.numbers {
            if let Some(r) = list.get_mut(n) {
                r.jobs -= 1;
                if r.jobs == 0 {
                    // Another job may find changed files; it is not to get this index.
                    self.roots.withdraw_offer(&r.path);
                }
                self.roots.tiering.fair_share.set_jobs(n, r.jobs);
            }
        }
    }
}

impl Roots {
    /// Roots of the control block in the runtime directory `dir`, served by `tiering`.
    #[must_use]
    pub fn new(dir: Arc<HeldDir>, ctl: ControlMap<'static>, tiering: Arc<TieringEngine>, seed: u64) -> Self {
        Self {
            spellings: Spellings::new(dir.clone(), ctl),
            dir,
            ctl,
            tiering,
            seed,
            node: None,
            list: Mutex::default(),
            untracked: UntrackedChanges::new(ctl),
            stopping: AtomicBool::new(false),
        }
    }

    /// With other nodes, which share indexes.
    #[must_use]
    pub fn with_node(mut self, node: Option<Arc<Node>>) -> Self {
        self.node = node;
        self
    }

    /// The control block.
    pub(super) const fn control(&self) -> &ControlMap<'static> {
        &self.ctl
    }

    /// Changes that no shim enters into the control block.
    pub(super) const fn untracked(&self) -> &UntrackedChanges {
        &self.untracked
    }

    fn list(&self) -> MutexGuard<'_, Vec<RootState>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a job: adds the roots of its configuration that are not there yet, with the spellings
    /// that lead to them; scans run in the background. A root whose jobs have all gone is
    /// scanned again, unless this job was attached before (`again`). Asks the PFS, which may
    /// hang.
    ///
    /// # Errors
    /// When a root cannot be opened, or there are too many.
    pub fn attach(
        self: &Arc<Self>,
        config: &Arc<Config>,
        spellings: &[Spelling],
        again: bool,
    ) -> io::Result<Attachment> {
        let roots = &config.dataset.roots;
        let look = |path: &Path| {
            std::fs::metadata(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
        };
        let metas: Vec<_> = roots.iter().map(|r| look(&r.real_path)).collect::<io::Result<_>>()?;
        let seen = Seen::all(spellings);
        let mut job = Attachment { roots: self.clone(), numbers: Vec::new() };
        let (mut scans, mut failed) = (Vec::new(), None);
        let mut list = self.list();
        for (root, meta) in roots.iter().zip(&metas) {
            let known = list.iter().position(|r| r.path == root.real_path);
            let number = match known.map_or_else(|| self.add(&mut list, root, meta, config), Ok) {
                Ok(number) => number,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            };
            job.numbers.push(number);
            let Some(r) = list.get_mut(number) else { continue };
            let asked = config.dataset.checks();
            let suits = r.suits(asked);
            let stale = known.is_some() && r.used && r.jobs == 0 && !(again && suits);
            (r.jobs, r.used) = (r.jobs + 1, true);
            self.tiering.fair_share.set_jobs(number, r.jobs);
            if !suits && !stale {
                failed = Some(io::Error::other(r.refusal(asked)));
                break;
            }
            self.tighten(r, asked);
            if stale {
                tracing::info!(root = %r.path.display(), "its jobs have gone; scanning again for a new one");
                r.scan_again(config);
                self.retire(number);
                self.describe(number, meta);
            }
            if stale || known.is_none() {
                scans.push(number);
            }
        }
        self.spellings.enter(&seen, roots);
        drop(list);
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        let kept: Vec<usize> = job.numbers.iter().copied().filter(|n| !scans.contains(n)).collect();
        scans.into_iter().for_each(|number| self.spawn_scan(number));
        self.offer_again(&kept);
        failed.map_or(Ok(job), Err)
    }

    /// A root's place in the control block.
    fn add(
        &self,
        list: &mut Vec<RootState>,
        root: &RootConfig,
        meta: &std::fs::Metadata,
        config: &Arc<Config>,
    ) -> io::Result<usize> {
        let number = list.len();
        let Some(slot) = self.ctl.ctl.roots.get(number) else {
            return Err(io::Error::other(format!("an agent serves at most {MAX_ROOTS} roots")));
        };
        shm::put_str(&self.dir, &self.ctl, &slot.path, crate::tier::bytes(&root.real_path))?;
        self.describe(number, meta);
        self.ctl.ctl.roots_len.store(number as u32 + 1, Ordering::Release);
        list.push(RootState::new(root.real_path.clone(), config.clone()));
        Ok(number)
    }

    /// Enters what lies at a root's path now: it may have been mounted again, or replaced, since
    /// the last job. Whatever the jobs before did to it, the index that is to come is made after
    /// that.
    fn describe(&self, number: usize, meta: &std::fs::Metadata) {
        let Some(slot) = self.ctl.ctl.roots.get(number) else { return };
        slot.dev.store(meta.dev(), Ordering::Relaxed);
        slot.ino.store(meta.ino(), Ordering::Relaxed);
        slot.blksize.store(u32::try_from(meta.blksize()).unwrap_or(4096), Ordering::Relaxed);
        slot.bypassed.store(0, Ordering::Release);
    }

    /// Tries scans again that could not begin.
    pub fn retry(self: &Arc<Self>) {
        let mut due = Vec::new();
        for (number, r) in self.list().iter_mut().enumerate() {
            if r.retry.is_some_and(|at| at <= Instant::now()) {
                let (config, checks) = (r.config.clone(), r.checks);
                r.scan_again(&config);
                r.checks = checks;
                due.push(number);
            }
        }
        due.into_iter().for_each(|number| self.spawn_scan(number));
    }

    /// Scans roots again that are in use; how many. Until that is done they are read from the PFS,
    /// and changes of their jobs are marked as before any scan. Asks the PFS, which may hang.
    ///
    /// # Errors
    /// When a root cannot be looked at, or jobs have changed something there; then none is scanned.
    pub fn refresh(self: &Arc<Self>, paths: &[PathBuf]) -> io::Result<u64> {
        let look = |path: &PathBuf| {
            std::fs::metadata(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
        };
        let metas: Vec<_> = paths.iter().map(look).collect::<io::Result<_>>()?;
        let mut list = self.list();
        let mut scans = Vec::new();
        // What a job writes through a descriptor that it has open would not be known after another
        // scan.
        let changed = |r: &RootState| r.segment.is_some_and(|n| self.is_changed(n));
        let given_up = |n: usize| self.ctl.roots().get(n).is_some_and(|r| r.bypassed.load(Ordering::Relaxed) != 0);
        let found = list.iter().enumerate().find(|(n, r)| paths.contains(&r.path) && (changed(r) || given_up(*n)));
        if let Some((_, r)) = found {
            let path = r.path.display();
            return Err(io::Error::other(format!(
                "jobs that run have changed files below {path}: another scan would not know which; the next job sees all changes"
            )));
        }
        for (path, meta) in paths.iter().zip(&metas) {
            let Some(number) = list.iter().position(|r| r.path == *path) else { continue };
            let Some(r) = list.get_mut(number) else { continue };
            tracing::info!(root = %path.display(), "asked to scan again");
            // Not what was saved.
            let mut config = Config::clone(&r.config);
            config.index.file = None;
            let checks = r.checks;
            r.scan_again(&Arc::new(config));
            r.checks = checks;
            self.retire(number);
            self.describe(number, meta);
            scans.push(number);
        }
        drop(list);
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        let n = scans.len() as u64;
        scans.into_iter().for_each(|number| self.spawn_scan(number));
        Ok(n)
    }

    /// Ends running scans.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        for r in self.list().iter() {
            r.progress.cancel.store(true, Ordering::Relaxed);
        }
    }

    /// For `monarch status`.
    #[must_use]
    pub fn status(&self) -> Vec<RootStatus> {
        // Before the list is locked: they may have to wait.
        let mut epochs: Vec<_> = (0..self.ctl.roots().len()).map(|root| self.tiering.access.epochs(root)).collect();
        let mut directories: Vec<_> = (0..epochs.len()).map(|root| self.tiering.access.directories(root)).collect();
        self.list()
            .iter()
            .zip(self.ctl.roots())
            .enumerate()
            .map(|(number, (r, c))| {
                let live = r.segment.and_then(|n| self.tiering.segments.segment(n));
                let released = r.segment.map(|n| self.tiering.source_facts.released(n)).unwrap_or_default();
                let h = live.as_ref().map(|l| l.segment.index.header);
                let loaded = live.as_ref().is_some_and(|l| l.segment.state.guard.is_loaded());
                RootStatus {
                    epochs: epochs.get_mut(number).map(std::mem::take).unwrap_or_default(),
                    directories: directories.get_mut(number).map(std::mem::take).unwrap_or_default(),
                    path: r.path.clone(),
                    state: r.state.clone(),
                    consistency: shm::Checks { loaded, ..r.checks }.consistency(),
                    verify_on_open: r.checks.verify,
                    jobs: r.jobs,
                    entries: h.map_or_else(|| r.progress.entries.load(Ordering::Relaxed), |h| u64::from(h.entries)),
                    files: h.map_or(0, |h| h.files),
                    bytes: h.map_or(0, |h| h.bytes),
                    index_bytes: h.map_or(0, |h| h.len + live.as_ref().map_or(0, |l| l.segment.state.header.len)),
                    opens: c.opens.load(Ordering::Relaxed),
                    released: released.files,
                    released_bytes: released.bytes,
                    near_purge: r.segment.and_then(|n| self.tiering.source_facts.near_purge(n)),
                    engine: live.as_ref().map_or_else(String::new, |l| self.tiering.lanes.engine_of(l)),
                }
            })
            .collect()
    }
}
