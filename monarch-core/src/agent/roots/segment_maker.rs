//! Scanning a root (or loading its index) and publishing its segment.

use super::checks;
use super::retirement::Retirement;
use super::root_list::{RootList, RootState};
use super::scan::Scan;
use super::shared_indexes::{SharedIndexes, Theirs};
use super::untracked_changes::UntrackedChanges;

use crate::agent::{mounts, pre_index_changes};
use crate::cluster::index_image::Image;
use crate::config::{Distributed, MountPoints, Trust, mount_points};
use crate::engine::{PfsSource, Source};
use crate::held_dir::HeldDir;
use crate::index::{BuildError, LinksOut, Loaded, ScanOptions, Tree};
use crate::shm;
use crate::tier::ServedRoot;
use crate::tiering::{IdentityScope, TieringEngine, read_permission};
use monarch_abi::control::{ControlMap, MAX_SEGMENTS, SEGMENT_LIVE, SegmentRef};
use monarch_abi::demand::file_key;
use monarch_abi::index::{INDEX_CUT, Record};
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::word::State;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The files of a segment, mapped.
struct Made {
    segment: Segment<'static>,
    state_uuid: [u8; 16],
    /// Whether the index is as new as this job, or is to be taken for that.
    fresh: bool,
    /// Whether it was made by a scan for this job.
    scanned: bool,
    /// The part of an identity that is the same here: all of it, if this node made the index.
    portable: IdentityScope,
    /// Whether the nodes have it in common.
    is_shared: bool,
    /// Mounts before the index was made, by a scan of this node alone.
    mounts: Option<MountPoints>,
}

/// Nice value of a thread that no reader waits for.
const LOWEST_PRIORITY: i32 = 19;
/// Pause after a scan that could not begin.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Makes segments: the index and the state of a root.
#[derive(Debug)]
pub(super) struct SegmentMaker {
    pub(super) dir: Arc<HeldDir>,
    pub(super) ctl: ControlMap<'static>,
    pub(super) tiering: Arc<TieringEngine>,
    /// Seed of path hashes.
    pub(super) seed: u64,
    pub(super) list: Arc<RootList>,
    pub(super) shared: Arc<SharedIndexes>,
    pub(super) retirement: Arc<Retirement>,
    pub(super) untracked: Arc<UntrackedChanges>,
}

impl SegmentMaker {
    /// Makes the segment of a root, on a thread of its own, after its retired ones gave their
    /// copies back.
    pub(super) fn spawn(self: &Arc<Self>, root: usize) {
        let of =
            |r: &RootState| Scan { root, config: r.config.clone(), checks: r.checks, progress: r.progress.clone() };
        let scan = self.list.lock().get(root).map(|r| (of(r), crate::index::root_id(&r.path)));
        let Some((scan, root_id)) = scan else { return };
        let scan = Arc::new(scan);
        // (Before the job begins.)
        self.tiering.access.working_sets.index_begins(root, root_id);
        let (me, mine) = (self.clone(), scan.clone());
        let work = move || {
            me.retirement.give_back_all(root);
            let end = me.make_segment(&mine);
            me.tiering.access.working_sets.index_ended(root);
            me.scanned(&mine, end);
        };
        if let Err(e) = std::thread::Builder::new().name(format!("scan-{root}")).spawn(work) {
            self.scanned(&scan, Err(e));
        }
    }

    /// Takes note of how a scan ended.
    fn scanned(&self, scan: &Scan, end: io::Result<usize>) {
        let mut list = self.list.lock();
        let Some(r) = list.get_mut(scan.root).filter(|r| Arc::ptr_eq(&r.progress, &scan.progress)) else { return };
        match end {
            Ok(number) => {
                r.state = "ready".to_owned();
                r.segment = Some(number);
                // A job may have come since it was published.
                let checks = r.checks;
                r.checks.absent = scan.checks.absent;
                r.tighten(checks, &self.tiering);
            }
            Err(e) => {
                tracing::error!(root = %r.path.display(), error = %e, "no index: the root is read from the PFS");
                r.state = format!("failed: {e}");
                // One that got further would fail again, and cost the PFS as much again.
                if scan.progress.dirs.load(Ordering::Relaxed) == 0 {
                    r.retry = Some(Instant::now() + RETRY_PAUSE);
                }
            }
        }
    }

    /// Scans (or loads) a root and publishes its segment.
    fn make_segment(&self, scan: &Scan) -> io::Result<usize> {
        let started = Instant::now();
        let path = self.list.lock().get(scan.root).map(|r| r.path.clone()).ok_or(io::ErrorKind::NotFound)?;
        let source: Arc<dyn Source> = Arc::new(PfsSource::new(&path)?);
        let made = self.make_files(scan, &path).inspect_err(|_| {
            if self.list.counts(scan) {
                self.shared.withdraw(&path);
            }
        })?;
        let (segment, index_time) = (made.segment, started.elapsed());
        self.note_latency(&*source);
        let mut live = self.tiering.queue.lanes.live(scan.root, segment, source, made.fresh);
        live.portable = made.portable;
        live.prefetched = self.list.lock().get(scan.root).is_none_or(RootState::is_prefetched);
        self.shared.join(&live.segment);
        pre_index_changes::close(&segment);
        let loaded = segment.state.guard.is_loaded();
        checks::begin_absent(&segment, shm::Checks { loaded, ..scan.checks }, &path);
        let number = self.publish(scan, &made).inspect_err(|_| {
            let (index, state) = shm::segment_names(segment.index.header.uuid, made.state_uuid);
            let _ = (self.dir.unlink(index), self.dir.unlink(state));
            if self.list.counts(scan) {
                self.shared.withdraw(&path);
            }
        })?;
        let root = ServedRoot { path: path.clone(), seed: segment.index.header.seed };
        for tier in self.tiering.shared.cx.tiers.iter().filter(|t| t.options.stays) {
            tier.note_root(root.clone());
        }
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        checks::note_sums(&self.tiering, &segment);
        let mut decoded = Vec::new();
        let adopted = if made.fresh { self.claim_copies(number, &made, &mut decoded) } else { 0 };
        self.untracked.open_segment(scan.root, number, &segment);
        self.shared.note_sums(&live);
        self.tiering.add_segment(number, &live);
        self.tiering.access.working_sets.index_ended(scan.root);
        self.tiering.begin_working_set(number, &live, index_time);
        mounts::look(&self.tiering, number, &live, made.mounts.as_ref());
        if made.is_shared {
            self.shared.offer(&self.list, scan.root, &live);
        }
        self.tiering.residency.transient.note_transient(decoded.into_iter());
        self.note_links_out(scan.root, &segment, &path);
        let live = |s: &SegmentRef| s.status.load(Ordering::Acquire) == SEGMENT_LIVE;
        if !self.ctl.segments().get(number).is_some_and(live) {
            // Retired before the tiering engine knew of it.
            self.retirement.give_back(number);
        }
        let pages = move || {
            let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
            shm::use_huge_pages(&segment);
        };
        // (Where the system gives no thread, lookups take a little longer.)
        let _ = std::thread::Builder::new().name("huge-pages".to_owned()).spawn(pages);
        let header = segment.index.header;
        let helped = scan.progress.helped.load(Ordering::Relaxed);
        tracing::info!(root = %path.display(), files = header.files, entries = header.entries, bytes = header.bytes,
            adopted, helped, seconds = started.elapsed().as_secs_f64(), "root ready");
        Ok(number)
    }

    /// Notes the links that lead out of a root, for reports.
    fn note_links_out(&self, root: usize, segment: &Segment<'static>, path: &Path) {
        let others: Vec<_> = self.list.lock().iter().map(|r| r.path.clone()).collect();
        let links_out = LinksOut::of(&segment.index, path, &others);
        if let Some(r) = self.list.lock().get_mut(root) {
            r.links_out = links_out;
        }
    }

    /// Notes how long the PFS takes to answer, for readers that decide before a file was opened.
    fn note_latency(&self, source: &dyn Source) {
        self.tiering.shared.cx.limits.before_scan_call();
        let asked = Instant::now();
        if source.identity(b".").is_ok() {
            let us = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
            let _ = self.ctl.ctl.pfs_latency_us.compare_exchange(0, us, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The files of a segment: of the saved index, if it is one of this root, otherwise of a scan.
    fn make_files(&self, scan: &Scan, path: &Path) -> io::Result<Made> {
        let index = &scan.config.index;
        let state_uuid = crate::sys::random_uuid();
        let source = &scan.config.source;
        let chunking = shm::Chunking { threshold: source.chunk_threshold, size: source.chunk_size };
        // Of an index that is not as new as its job nothing is believed before it was compared.
        let checks = |loaded: bool, portable: IdentityScope| shm::Checks {
            loaded,
            other_ctimes: !portable.ctime,
            ..scan.checks
        };
        let distributed = scan.config.index.distributed == Distributed::Auto;
        let written = |file: shm::Unfinished, index: &[u8], buckets: shm::Buckets<'_>, checks: shm::Checks| {
            // Of a changing or a loaded tree nothing is believed that is not compared.
            let is_believed = !checks.loaded && checks.revalidate.is_none();
            let checks = shm::Checks { on_demand: distributed && is_believed && is_cut(index), ..checks };
            let made = shm::segment_with(&self.dir, (file, index), buckets, state_uuid, chunking, checks);
            made.map(|(segment, ..)| segment).map_err(|e| self.no_room(e))
        };
        let theirs = self.shared.obtain(scan, path).map_err(|e| self.no_room(e))?;
        let is_shared = !matches!(theirs, Theirs::Unfit);
        if let Theirs::Image(image, portable) = theirs {
            let Image { file, index, buckets, fresh } = *image;
            let segment = written(file, &index, shm::Buckets::Bytes(&buckets), checks(!fresh, portable))?;
            return Ok(Made { segment, state_uuid, fresh, scanned: fresh, portable, is_shared, mounts: None });
        }
        let saved = index.file.as_ref().and_then(|file| load(file, path, &self.dir));
        let (fresh, mounts, segment) = match saved {
            Some(Loaded { file, index: bytes, table }) => {
                let fresh = index.trust == Trust::Frozen;
                let checks = checks(!fresh, IdentityScope::default());
                (fresh, None, written(file, &bytes, shm::Buckets::File(table), checks)?)
            }
            None => {
                let mounts = mount_points();
                let options = ScanOptions { threads: index.scan_threads, max_memory: index.max_memory };
                let limits = &self.tiering.shared.cx.limits;
                let helpers = self.shared.scan_helpers(scan, path);
                let tree = crate::index::scan_with(path, options, limits, &scan.progress, helpers.as_ref())
                    .map_err(io::Error::other)?;
                let (file, index, buckets) = self.build(tree)?;
                (
                    true,
                    mounts,
                    written(file, &index, shm::Buckets::Bytes(&buckets), checks(false, IdentityScope::default()))?,
                )
            }
        };
        let scanned = mounts.is_some();
        // (Where other nodes have helped, their mounts decided what was found below a mount here.)
        let mounts = mounts.filter(|_| scan.progress.helped.load(Ordering::Relaxed) == 0);
        Ok(Made { segment, state_uuid, fresh, scanned, portable: IdentityScope::default(), is_shared, mounts })
    }

    /// Builds the index of a scanned tree in the file that processes will map; with its bytes, and
    /// those of the lookup table.
    fn build(&self, tree: Tree) -> io::Result<(shm::Unfinished, memmap2::Mmap, Vec<u8>)> {
        let place = |len: usize| shm::Unfinished::within(&self.dir, len as u64)?.map_to_write();
        let built = crate::index::build_into(tree, self.seed, crate::sys::random_uuid(), place);
        let (file, buckets) = built.map_err(|e| match e {
            BuildError::Place(e) => self.no_room(e),
            e @ BuildError::TooLarge(_) => io::Error::other(e),
        })?;
        crate::sys::give_back_memory();
        let (file, index) = file.written()?;
        Ok((file, index, buckets))
    }

    /// The error for an index without room: where, and what to do about it.
    fn no_room(&self, e: io::Error) -> io::Error {
        if e.kind() != io::ErrorKind::StorageFull {
            return e;
        }
        let dir = self.dir.path().display();
        let why = format!(
            "no room for the index in {dir}; set runtime_dir (MONARCH_RUNTIME_DIR) to a private local directory"
        );
        io::Error::new(e.kind(), why)
    }

    /// Enters a segment into the control block, in place of an earlier one of its root; it becomes
    /// visible with the next generation.
    fn publish(&self, scan: &Scan, made: &Made) -> io::Result<usize> {
        let list = self.list.lock();
        let counts = list.get(scan.root).is_some_and(|r| Arc::ptr_eq(&r.progress, &scan.progress));
        if !counts || self.list.is_stopping() {
            return Err(io::Error::other("the agent is stopping, or the scan was begun anew"));
        }
        let at = self.ctl.ctl.segments_len.load(Ordering::Relaxed) as usize;
        let Some(slot) = self.ctl.ctl.segments.get(at) else {
            return Err(io::Error::other(format!("an agent serves at most {MAX_SEGMENTS} segments in its life")));
        };
        self.retirement.retire(scan.root);
        // A job that came meanwhile may want to be asked for more often.
        let checks = list.get(scan.root).map(|r| r.checks).unwrap_or_default();
        made.segment.state.header.revalidate_ms.store(checks.interval_ms(), Ordering::Relaxed);
        shm::put_uuid(&slot.uuid, made.segment.index.header.uuid);
        shm::put_uuid(&slot.state_uuid, made.state_uuid);
        slot.root.store(scan.root as u32, Ordering::Relaxed);
        slot.status.store(SEGMENT_LIVE, Ordering::Release);
        self.ctl.ctl.segments_len.store(at as u32 + 1, Ordering::Release);
        Ok(at)
    }

    /// Claims the copies that an earlier run or segment left in a tier; how many. Those that were
    /// decoded go into `claimed_decoded`.
    fn claim_copies(&self, number: usize, made: &Made, claimed_decoded: &mut Vec<u64>) -> u64 {
        let segment = &made.segment;
        let mut unclaimed = self.tiering.orphans();
        if unclaimed.is_empty() {
            return 0;
        }
        let (mut keys, mut decoded) = (Vec::new(), Vec::new());
        // (Its checksum is not known: it is copied again when a reader asks for it.)
        let known = |id: u32| !segment.state.guard.which().sums || segment.state.guard.sum(id).is_some();
        // (A file that this user may not read by its mode may be readable by other rules: the PFS
        // is asked, once a reader wants it.)
        let may_read = |r: &Record| read_permission::by_mode(&segment.index, r);
        let fits = |e: &Entry<'_>| e.word().state() == State::Absent && known(e.id) && may_read(e.record);
        for e in segment.files().filter(fits) {
            let Some(claim) = unclaimed.claim(segment, &e, &self.tiering.shared.cx.tiers) else { continue };
            let w = e.word();
            let (absent, to) = (w.state() == State::Absent, claim.word(w));
            if absent && e.slot.word.compare_exchange(w.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let key = file_key(number, e.id);
                keys.push(key);
                decoded.extend(to.is_marked().then_some(key));
            } else {
                unclaimed.put_back(claim, segment.copy_name(&e), e.record.size, &self.tiering.shared.cx.tiers);
            }
        }
        drop(unclaimed);
        // (A root without files is perhaps not mounted.)
        let header = segment.index.header;
        if made.scanned && header.flags & INDEX_CUT == 0 && header.files > 0 {
            self.drop_lost(segment);
        }
        claimed_decoded.append(&mut decoded);
        let n = keys.len() as u64;
        self.tiering.shared.cx.stats.adopted.fetch_add(n, Ordering::Relaxed);
        self.tiering.residency.eviction.note_placed(keys.into_iter());
        crate::sys::give_back_memory();
        n
    }

    /// Drops copies of files that a scan, which reached everything, did not find as they were:
    /// removed, replaced, or not visible to this user any more.
    fn drop_lost(&self, segment: &Segment<'static>) {
        let mut unclaimed = self.tiering.orphans();
        let root = segment.index.header.root_id;
        // (There may be far more files than copies.)
        let mut lost = unclaimed.names_of_root(root);
        if lost.is_empty() {
            return;
        }
        for e in segment.files() {
            lost.remove(&segment.copy_name(&e));
        }
        let dropped = unclaimed.drop_of_root(root, |name| !lost.contains(&name), &self.tiering.shared.cx.tiers);
        drop(unclaimed);
        if dropped > 0 {
            tracing::info!(copies = dropped, "copies of files that the scan did not find as they were are dropped");
        }
    }
}

/// Whether an index does not hold all that its user may see.
fn is_cut(index: &[u8]) -> bool {
    shm::IndexBytes(index).open().is_some_and(|index| index.header.flags & INDEX_CUT != 0)
}

/// A saved index, if it is one of this root and no other user could have written it; read into a
/// file of `dir`.
fn load(file: &Path, root: &Path, dir: &Arc<HeldDir>) -> Option<Loaded> {
    match crate::index::load_within(file, dir) {
        Ok(loaded) => {
            let index = shm::IndexBytes(&loaded.index).open()?;
            if index.header.root_id == crate::index::root_id(root) {
                return Some(loaded);
            }
            tracing::warn!(file = %file.display(), root = %root.display(), "the saved index is of another root; scanning");
            None
        }
        Err(e) => {
            tracing::warn!(error = %e, "the saved index cannot be used; scanning");
            None
        }
    }
}
