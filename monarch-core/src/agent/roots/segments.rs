//! Scanning a root (or loading its index) and publishing its segment.

use super::shared::Theirs;
use super::{RETRY, RootState, Roots};

use crate::agent::driver::Portable;
use crate::agent::{early, mounts};
use crate::cluster::image::Image;
use crate::config::{Config, MountPoints, Trust, mount_points};
use crate::engine::{PfsSource, Source};
use crate::index::{ScanOptions, ScanProgress};
use crate::shm;
use monarch_abi::control::{MAX_SEGMENTS, SEGMENT_LIVE, SegmentRef};
use monarch_abi::demand::file_key;
use monarch_abi::segment::Segment;
use monarch_abi::word::State;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The files of a segment, mapped.
struct Made {
    segment: Segment<'static>,
    state_uuid: [u8; 16],
    /// Whether the index is as new as this job.
    fresh: bool,
    /// What of the index is the same here: all of it, if this node made it.
    portable: Portable,
    /// Whether the nodes have it in common.
    is_shared: bool,
    /// What was mounted before it was made by a scan of this node.
    mounts: Option<MountPoints>,
}

/// A scan: of which root, with which settings. One that was begun anew meanwhile has another `progress`.
pub(super) struct Scan {
    root: usize,
    pub(super) config: Arc<Config>,
    /// What its jobs want looked at again.
    checks: shm::Checks,
    pub(super) progress: Arc<ScanProgress>,
}

impl Roots {
    /// Makes the segment of a root, on a thread of its own, after its retired ones gave their copies back.
    pub(super) fn spawn_scan(self: &Arc<Self>, root: usize) {
        let of =
            |r: &RootState| Scan { root, config: r.config.clone(), checks: r.checks, progress: r.progress.clone() };
        let scan = self.list().get(root).map(of);
        let Some(scan) = scan.map(Arc::new) else { return };
        let (me, mine) = (self.clone(), scan.clone());
        let work = move || {
            me.give_back_all(root);
            let end = me.make_segment(&mine);
            me.scanned(&mine, end);
        };
        if let Err(e) = std::thread::Builder::new().name(format!("scan-{root}")).spawn(work) {
            self.scanned(&scan, Err(e));
        }
    }

    /// Takes note of how a scan ended.
    fn scanned(&self, scan: &Scan, end: io::Result<usize>) {
        let mut list = self.list();
        let Some(r) = list.get_mut(scan.root).filter(|r| Arc::ptr_eq(&r.progress, &scan.progress)) else { return };
        match end {
            Ok(number) => {
                r.state = "ready".to_owned();
                r.segment = Some(number);
                // A job may have come since it was published.
                let checks = r.checks;
                self.tighten(r, checks);
            }
            Err(e) => {
                tracing::error!(root = %r.path.display(), error = %e, "no index: the root is read from the PFS");
                r.state = format!("failed: {e}");
                // One that got further would fail again, and cost the PFS as much again.
                if scan.progress.dirs.load(Ordering::Relaxed) == 0 {
                    r.retry = Some(Instant::now() + RETRY);
                }
            }
        }
    }

    /// Scans (or loads) a root and publishes its segment.
    fn make_segment(&self, scan: &Scan) -> io::Result<usize> {
        let started = Instant::now();
        let path = self.list().get(scan.root).map(|r| r.path.clone()).ok_or(io::ErrorKind::NotFound)?;
        let source: Arc<dyn Source> = Arc::new(PfsSource::new(&path)?);
        let made = self.make_files(scan, &path).inspect_err(|_| {
            if self.counts(scan) {
                self.withdraw_offer(&path);
            }
        })?;
        let segment = made.segment;
        let mut live = self.driver.live(scan.root, segment, source, made.fresh);
        live.portable = made.portable;
        if let Some(node) = &self.node {
            node.join(&live);
        }
        early::close(&segment);
        let number = self.publish(scan, &made).inspect_err(|_| {
            let (index, state) = shm::segment_paths(&self.dir, segment.index.header.uuid, made.state_uuid);
            let _ = (std::fs::remove_file(index), std::fs::remove_file(state));
            if self.counts(scan) {
                self.withdraw_offer(&path);
            }
        })?;
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        self.note_sums(&segment);
        let mut decoded = Vec::new();
        let adopted = if made.fresh { self.claim_copies(number, &segment, &mut decoded) } else { 0 };
        self.open_segment(scan.root, number, &segment);
        self.note_sums_of(&live);
        self.driver.add_segment(number, &live);
        mounts::look(&self.driver, number, &live, made.mounts.as_ref());
        if made.is_shared {
            self.offer(scan.root, &live);
        }
        self.driver.note_decoded(decoded.into_iter());
        let live = |s: &SegmentRef| s.status.load(Ordering::Acquire) == SEGMENT_LIVE;
        if !self.ctl.segments().get(number).is_some_and(live) {
            // Retired before the driver knew of it.
            self.give_back(number);
        }
        let header = segment.index.header;
        tracing::info!(root = %path.display(), files = header.files, entries = header.entries, bytes = header.bytes,
            adopted, seconds = started.elapsed().as_secs_f64(), "root ready");
        Ok(number)
    }

    /// Whether a scan was not begun anew.
    fn counts(&self, scan: &Scan) -> bool {
        self.list().get(scan.root).is_some_and(|r| Arc::ptr_eq(&r.progress, &scan.progress))
    }

    /// The files of a segment: of the saved index, if it is one of this root, otherwise of a scan.
    fn make_files(&self, scan: &Scan, path: &Path) -> io::Result<Made> {
        let index = &scan.config.index;
        let state_uuid = crate::sys::random_uuid();
        let source = &scan.config.source;
        let chunking = shm::Chunking { threshold: source.chunk_threshold, size: source.chunk_size };
        let create = |index: &[u8], buckets: &[u8]| {
            shm::create_segment(&self.dir, index, buckets, state_uuid, chunking, scan.checks)
                .map_err(|e| self.no_room(e))
        };
        let theirs = self.others_index(scan, path).map_err(|e| self.no_room(e))?;
        let is_shared = !matches!(theirs, Theirs::Unfit);
        if let Theirs::Image(image, portable) = theirs {
            let Image { file, index, buckets, fresh } = *image;
            let made = shm::segment_with(&self.dir, (file, &index), &buckets, state_uuid, chunking, scan.checks);
            let (segment, ..) = made.map_err(|e| self.no_room(e))?;
            return Ok(Made { segment, state_uuid, fresh, portable, is_shared, mounts: None });
        }
        let saved = index.file.as_ref().and_then(|file| load(file, path));
        let (fresh, mounts, (segment, ..)) = match saved {
            Some(saved) => {
                let made = create(saved.index(), saved.buckets())?;
                (index.trust == Trust::Frozen, None, made)
            }
            None => {
                let mounts = mount_points();
                let options = ScanOptions { threads: index.scan_threads, max_memory: index.max_memory };
                let limits = self.driver.limits();
                let tree =
                    crate::index::scan_within(path, options, limits, &scan.progress).map_err(io::Error::other)?;
                let built = crate::index::build(tree, self.seed, crate::sys::random_uuid());
                (true, mounts, create(&built.index, &built.buckets)?)
            }
        };
        Ok(Made { segment, state_uuid, fresh, portable: Portable::default(), is_shared, mounts })
    }

    /// Says where there is no room for an index, and what to do about it.
    fn no_room(&self, e: io::Error) -> io::Error {
        if e.kind() != io::ErrorKind::StorageFull {
            return e;
        }
        let dir = self.dir.display();
        let why = format!(
            "no room for the index in {dir}; set runtime_dir (MONARCH_RUNTIME_DIR) to a private local directory"
        );
        io::Error::new(e.kind(), why)
    }

    /// Enters a segment into the control block, in place of an earlier one of its root; it becomes visible with the next
    /// generation.
    fn publish(&self, scan: &Scan, made: &Made) -> io::Result<usize> {
        let list = self.list();
        let counts = list.get(scan.root).is_some_and(|r| Arc::ptr_eq(&r.progress, &scan.progress));
        if !counts || self.stopping.load(Ordering::Relaxed) {
            return Err(io::Error::other("the agent is stopping, or the scan was begun anew"));
        }
        let at = self.ctl.ctl.segments_len.load(Ordering::Relaxed) as usize;
        let Some(slot) = self.ctl.ctl.segments.get(at) else {
            return Err(io::Error::other(format!("an agent serves at most {MAX_SEGMENTS} segments in its life")));
        };
        self.retire(scan.root);
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

    /// Claims the copies that an earlier run or segment left in a tier; those that were decoded are told.
    fn claim_copies(&self, number: usize, segment: &Segment<'static>, claimed_decoded: &mut Vec<u64>) -> u64 {
        let mut unclaimed = self.driver.unclaimed();
        if unclaimed.is_empty() {
            return 0;
        }
        let (mut keys, mut decoded) = (Vec::new(), Vec::new());
        // (What it must come to is not known: whoever asks for it has it copied anew.)
        let known = |id: u32| !segment.state.guard.which().sums || segment.state.guard.sum(id).is_some();
        for e in segment.files().filter(|e| e.word().state() == State::Absent && known(e.id)) {
            let Some(claim) = unclaimed.claim(segment, &e, &self.driver.tiers) else { continue };
            let w = e.word();
            let (absent, to) = (w.state() == State::Absent, claim.word(w));
            if absent && e.slot.word.compare_exchange(w.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let key = file_key(number, e.id);
                keys.push(key);
                decoded.extend(to.is_marked().then_some(key));
            } else {
                unclaimed.put_back(claim, segment.copy_name(&e), e.record.size, &self.driver.tiers);
            }
        }
        drop(unclaimed);
        claimed_decoded.append(&mut decoded);
        let n = keys.len() as u64;
        self.driver.figures.adopted.fetch_add(n, Ordering::Relaxed);
        self.driver.note_placed(keys.into_iter());
        crate::sys::give_back_memory();
        n
    }
}

/// A saved index, if it is one of this root.
fn load(file: &Path, root: &Path) -> Option<crate::index::SavedIndex> {
    match crate::index::load(file) {
        Ok(saved) => {
            let index = shm::IndexBytes(saved.index()).open()?;
            if index.header.root_id == crate::index::root_id(root) {
                return Some(saved);
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
