//! The roots of an agent: their jobs, and the state of their indexes.
//!
//! | module | what it does |
//! |---|---|
//! | [`root_list`] | the list itself |
//! | [`spellings`] | the ways to write a root's path |
//! | [`segment_maker`] | scanning a root (or loading its index), publishing its segment |
//! | [`scan`] | a scan under way |
//! | [`retirement`] | taking a segment out of use, files that no segment needs |
//! | [`adoption`] | what an agent that died left |
//! | [`checks`] | checks when files are opened |
//! | [`shared_indexes`] | indexes that the nodes of a job have in common |
//! | [`untracked_changes`] | changes that no shim enters into the control block |
//!
//! The PFS is never asked while the list is locked: it may hang, and `status` and `stop` need the
//! list.

mod adoption;
mod checks;
mod retirement;
mod root_list;
mod scan;
mod segment_maker;
mod shared_indexes;
mod spellings;
mod untracked_changes;

pub(super) use untracked_changes::{Change, UntrackedChanges};

use super::protocol::{RootStatus, Spelling};
use crate::cluster::node::Node;
use crate::config::{Config, Root as RootConfig};
use crate::held_dir::HeldDir;
use crate::shm;
use crate::tiering::TieringEngine;
use adoption::Adoption;
use monarch_abi::control::{ControlMap, MAX_ROOTS};
use retirement::Retirement;
use root_list::{RootList, RootState};
use segment_maker::SegmentMaker;
use shared_indexes::SharedIndexes;
use spellings::{Seen, Spellings};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Least time between two warnings about files of a root that the site will remove.
const WARN_PERIOD: Duration = Duration::from_hours(24);

/// All roots of an agent.
#[derive(Debug)]
pub struct Roots {
    dir: Arc<HeldDir>,
    ctl: ControlMap<'static>,
    tiering: Arc<TieringEngine>,
    list: Arc<RootList>,
    spellings: Spellings,
    shared: Arc<SharedIndexes>,
    untracked: Arc<UntrackedChanges>,
    retirement: Arc<Retirement>,
    maker: Arc<SegmentMaker>,
}

/// The roots of a job, for as long as it is attached.
#[derive(Debug)]
pub struct Attachment {
    roots: Arc<Roots>,
    numbers: Vec<usize>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut list = self.roots.list.lock();
        for &n in &self.numbers {
            if let Some(r) = list.get_mut(n) {
                r.jobs -= 1;
                if r.jobs == 0 {
                    // Another job may find changed files; it is not to get this index.
                    self.roots.shared.withdraw(&r.path);
                }
                self.roots.tiering.placement.fair_share.set_jobs(n, r.jobs);
            }
        }
    }
}

impl Roots {
    /// Roots of the control block in the runtime directory `dir`, served by `tiering`; their
    /// indexes are shared by `node`. `seed` is that of path hashes.
    #[must_use]
    pub fn new(
        dir: &Arc<HeldDir>,
        ctl: ControlMap<'static>,
        tiering: &Arc<TieringEngine>,
        seed: u64,
        node: Option<Arc<Node>>,
    ) -> Self {
        let list = Arc::<RootList>::default();
        let shared = Arc::new(SharedIndexes::new(dir.clone(), tiering.clone(), node));
        let untracked = Arc::new(UntrackedChanges::new(ctl));
        let retirement = Retirement::new(dir.clone(), ctl, tiering.clone(), list.clone(), shared.clone());
        let retirement = Arc::new(retirement);
        let maker = SegmentMaker {
            dir: dir.clone(),
            ctl,
            tiering: tiering.clone(),
            seed,
            list: list.clone(),
            shared: shared.clone(),
            retirement: retirement.clone(),
            untracked: untracked.clone(),
        };
        Self {
            spellings: Spellings::new(dir.clone(), ctl),
            dir: dir.clone(),
            ctl,
            tiering: tiering.clone(),
            list,
            shared,
            untracked,
            retirement,
            maker: Arc::new(maker),
        }
    }

    /// Takes over the roots and segments of an agent that died.
    pub fn adopt(&self, config: &Config) {
        let Self { dir, ctl, tiering, list, shared, untracked, retirement, maker, .. } = self;
        Adoption { dir, ctl, tiering, list, shared, untracked, retirement, maker }.run(config);
    }

    /// Removes files of segments that a killed agent left. Only while no scan runs.
    pub fn remove_leftovers(&self) {
        self.retirement.remove_leftovers();
    }

    /// The control block.
    pub(super) const fn control(&self) -> &ControlMap<'static> {
        &self.ctl
    }

    /// Changes that no shim enters into the control block.
    pub(super) fn untracked(&self) -> &UntrackedChanges {
        &self.untracked
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
        let mut list = self.list.lock();
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
            self.tiering.placement.fair_share.set_jobs(number, r.jobs);
            if !suits && !stale {
                failed = Some(io::Error::other(r.refusal(asked)));
                break;
            }
            r.tighten(asked, &self.tiering);
            if stale {
                tracing::info!(root = %r.path.display(), "its jobs have gone; scanning again for a new one");
                r.scan_again(config);
                self.retirement.retire(number);
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
        scans.into_iter().for_each(|number| self.maker.spawn(number));
        self.shared.offer_again(&self.list, &kept);
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
    pub fn retry(&self) {
        let mut due = Vec::new();
        for (number, r) in self.list.lock().iter_mut().enumerate() {
            if r.retry.is_some_and(|at| at <= Instant::now()) {
                let (config, checks) = (r.config.clone(), r.checks);
                r.scan_again(&config);
                r.checks = checks;
                due.push(number);
            }
        }
        due.into_iter().for_each(|number| self.maker.spawn(number));
    }

    /// Scans roots again that are in use; how many. Until that is done they are read from the PFS,
    /// and changes of their jobs are marked as before any scan. Asks the PFS, which may hang.
    ///
    /// # Errors
    /// When a root cannot be looked at, or jobs have changed something there; then none is scanned.
    pub fn refresh(&self, paths: &[PathBuf]) -> io::Result<u64> {
        let look = |path: &PathBuf| {
            std::fs::metadata(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
        };
        let metas: Vec<_> = paths.iter().map(look).collect::<io::Result<_>>()?;
        let mut list = self.list.lock();
        let mut scans = Vec::new();
        // What a job writes through a descriptor that it has open would not be known after another
        // scan.
        let changed = |r: &RootState| r.segment.is_some_and(|n| self.retirement.is_changed(n));
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
            self.retirement.retire(number);
            self.describe(number, meta);
            scans.push(number);
        }
        drop(list);
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        let n = scans.len() as u64;
        scans.into_iter().for_each(|number| self.maker.spawn(number));
        Ok(n)
    }

    /// Warns once a day of files of each root that the site will soon remove, because no job reads
    /// them on the PFS: served from copies, they look unused there. Nothing is done about it: to
    /// touch them would be to get round the site's rules.
    pub fn warn_of_purges(&self) {
        for r in self.list.lock().iter_mut() {
            if r.warned.is_some_and(|at| at.elapsed() < WARN_PERIOD) {
                continue;
            }
            let Some(near) = r.segment.and_then(|n| self.tiering.shared.source_facts.near_purge(n)) else { continue };
            tracing::warn!(root = %r.path.display(), "{near}");
            r.warned = Some(Instant::now());
        }
    }

    /// Ends running scans.
    pub fn stop(&self) {
        self.list.stop();
    }

    /// State of all roots.
    #[must_use]
    pub fn status(&self) -> Vec<RootStatus> {
        // Before the list is locked: they may have to wait.
        let mut epochs: Vec<_> =
            (0..self.ctl.roots().len()).map(|root| self.tiering.access.tracker.epochs(root)).collect();
        let mut directories: Vec<_> =
            (0..epochs.len()).map(|root| self.tiering.access.tracker.directories(root)).collect();
        self.list
            .lock()
            .iter()
            .zip(self.ctl.roots())
            .enumerate()
            .map(|(number, (r, c))| {
                let live = r.segment.and_then(|n| self.tiering.shared.segments.segment(n));
                let released = r.segment.map(|n| self.tiering.shared.source_facts.released(n)).unwrap_or_default();
                let software = r.segment.map(|n| self.tiering.shared.source_facts.software(n)).unwrap_or_default();
                let set = r.segment.map(|n| self.tiering.access.working_sets.figures(n)).unwrap_or_default();
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
                    links_out: r.links_out.as_ref().map_or(0, |out| out.links),
                    links_out_dir: r.links_out.as_ref().map(|out| out.dir.clone()),
                    followed_from: r.followed_from().map(Path::to_owned),
                    only_on_demand: !r.is_prefetched(),
                    released: released.files,
                    released_bytes: released.bytes,
                    software: software.files,
                    software_bytes: software.bytes,
                    libraries: software.libraries,
                    working_set: set.files,
                    working_set_bytes: set.bytes,
                    working_set_noted: set.noted,
                    near_purge: r.segment.and_then(|n| self.tiering.shared.source_facts.near_purge(n)),
                    engine: live.as_ref().map_or_else(String::new, |l| self.tiering.queue.lanes.engine_of(l)),
                }
            })
            .collect()
    }
}
