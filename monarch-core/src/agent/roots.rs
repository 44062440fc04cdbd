//! Roots: adding them to the control block, scanning, publishing segments, adopting what an earlier agent left.

use super::driver::{Driver, Live};
use super::early;
use super::protocol::RootStatus;
use crate::config::{Config, Root as RootConfig, Trust};
use crate::engine::{PfsSource, Source};
use crate::index::{ScanOptions, ScanProgress};
use crate::shm;
use monarch_abi::control::{ControlMap, MAX_ROOTS, MAX_SEGMENTS, MAX_SPELLINGS, SEGMENT_LIVE, SEGMENT_RETIRED};
use monarch_abi::demand::file_key;
use monarch_abi::segment::Segment;
use monarch_abi::sys::futex_wake;
use monarch_abi::word::State;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A root as the agent sees it.
#[derive(Debug)]
struct RootState {
    path: PathBuf,
    state: String,
    progress: Arc<ScanProgress>,
    segment: Option<usize>,
}

/// All roots of an agent.
#[derive(Debug)]
pub struct Roots {
    dir: PathBuf,
    control: PathBuf,
    ctl: ControlMap<'static>,
    driver: Arc<Driver>,
    seed: u64,
    list: Mutex<Vec<RootState>>,
    stopping: AtomicBool,
}

impl Roots {
    /// Roots of the control block at `control`, served by `driver`.
    #[must_use]
    pub fn new(control: PathBuf, ctl: ControlMap<'static>, driver: Arc<Driver>, seed: u64) -> Self {
        let dir = control.parent().map_or_else(PathBuf::new, Path::to_owned);
        Self { dir, control, ctl, driver, seed, list: Mutex::default(), stopping: AtomicBool::new(false) }
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<RootState>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the roots of a configuration that are not there yet; scans run in the background.
    ///
    /// # Errors
    /// When a table of the control block is full, or a root cannot be opened.
    pub fn attach(self: &Arc<Self>, config: &Config) -> io::Result<()> {
        for root in &config.dataset.roots {
            let known = self.list().iter().position(|r| r.path == root.real_path);
            let number = match known {
                Some(n) => n,
                None => self.add(root)?,
            };
            self.add_spellings(number, root)?;
            self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
            if known.is_none() {
                self.spawn_scan(number, config.clone());
            }
        }
        Ok(())
    }

    /// A root's place in the control block.
    fn add(&self, root: &RootConfig) -> io::Result<usize> {
        let mut list = self.list();
        let number = list.len();
        let Some(slot) = self.ctl.ctl.roots.get(number) else {
            return Err(io::Error::other(format!("an agent serves at most {MAX_ROOTS} roots")));
        };
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(&root.real_path)?;
        shm::put_str(&self.control, &self.ctl, &slot.path, crate::tier::bytes(&root.real_path))?;
        slot.dev.store(meta.dev(), Ordering::Relaxed);
        slot.ino.store(meta.ino(), Ordering::Relaxed);
        slot.blksize.store(u32::try_from(meta.blksize()).unwrap_or(4096), Ordering::Relaxed);
        self.ctl.ctl.roots_len.store(number as u32 + 1, Ordering::Release);
        list.push(RootState {
            path: root.real_path.clone(),
            state: "scanning".to_owned(),
            progress: Arc::default(),
            segment: None,
        });
        Ok(number)
    }

    /// All ways to write a root's path that are not known yet.
    fn add_spellings(&self, number: usize, root: &RootConfig) -> io::Result<()> {
        for path in [&root.real_path, &root.path].into_iter().chain(&root.aliases) {
            let text = crate::tier::bytes(path);
            // An alias may lead to a place below the root; elsewhere it is none.
            let sub = match path.canonicalize() {
                Ok(real) => match real.strip_prefix(&root.real_path) {
                    Ok(sub) => sub.to_owned(),
                    Err(_) => continue,
                },
                Err(_) => PathBuf::new(),
            };
            let known = self.ctl.spellings().iter().any(|s| self.ctl.str(&s.path) == text);
            if known {
                continue;
            }
            let at = self.ctl.ctl.spellings_len.load(Ordering::Relaxed) as usize;
            let Some(slot) = self.ctl.ctl.spellings.get(at) else {
                return Err(io::Error::other(format!("an agent knows at most {MAX_SPELLINGS} spellings of roots")));
            };
            shm::put_str(&self.control, &self.ctl, &slot.path, text)?;
            shm::put_str(&self.control, &self.ctl, &slot.sub, crate::tier::bytes(&sub))?;
            slot.root.store(number as u32, Ordering::Relaxed);
            self.ctl.ctl.spellings_len.store(at as u32 + 1, Ordering::Release);
        }
        Ok(())
    }

    fn spawn_scan(self: &Arc<Self>, number: usize, config: Config) {
        let me = self.clone();
        let spawned = std::thread::Builder::new().name(format!("scan-{number}")).spawn(move || {
            let end = me.make_segment(number, &config);
            let mut list = me.list();
            if let Some(r) = list.get_mut(number) {
                match end {
                    Ok(seg) => {
                        r.state = "ready".to_owned();
                        r.segment = Some(seg);
                    }
                    Err(e) => {
                        tracing::error!(root = %r.path.display(), error = %e, "no index: the root is read from the PFS");
                        r.state = format!("failed: {e}");
                    }
                }
            }
        });
        if let Err(e) = spawned {
            tracing::error!(error = %e, "cannot start the scan");
        }
    }

    /// Scans (or loads) a root and publishes its segment.
    fn make_segment(&self, number: usize, config: &Config) -> io::Result<usize> {
        let (path, progress) = {
            let list = self.list();
            let r = list.get(number).ok_or(io::ErrorKind::NotFound)?;
            (r.path.clone(), r.progress.clone())
        };
        let started = std::time::Instant::now();
        let state_uuid = crate::sys::random_uuid();
        let loaded = config.index.file.as_ref().and_then(|file| self.load(file, &path));
        let (segment, fresh, lens) = match loaded {
            Some(saved) => {
                let (s, a, b) = shm::create_segment(&self.dir, saved.index(), saved.buckets(), state_uuid)?;
                (s, config.index.trust == Trust::Frozen, (a, b))
            }
            None => {
                let options = ScanOptions { threads: config.index.scan_threads, max_memory: config.index.max_memory };
                let tree = crate::index::scan(&path, options, &progress).map_err(io::Error::other)?;
                let built = crate::index::build(tree, self.seed, crate::sys::random_uuid());
                let (s, a, b) = shm::create_segment(&self.dir, &built.index, &built.buckets, state_uuid)?;
                (s, true, (a, b))
            }
        };
        if self.stopping.load(Ordering::Relaxed) {
            return Err(io::Error::other("the agent is stopping"));
        }
        let source: Arc<dyn Source> = Arc::new(PfsSource::new(&path)?);
        early::close(&segment);
        let seg = self.publish(number, &segment, state_uuid, lens)?;
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        let adopted = if fresh { self.claim_copies(seg, &segment) } else { 0 };
        early::open(&self.ctl, number, seg, &segment);
        self.driver.add_segment(seg, Live { segment, source, fresh });
        let header = segment.index.header;
        tracing::info!(root = %path.display(), files = header.files, entries = header.entries, bytes = header.bytes,
            adopted, seconds = started.elapsed().as_secs_f64(), "root ready");
        Ok(seg)
    }

    /// A saved index, if it is one of this root.
    fn load(&self, file: &Path, root: &Path) -> Option<crate::index::SavedIndex> {
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
                tracing::warn!(error = %e, "scanning instead");
                None
            }
        }
    }

    /// Enters a segment into the control block; it becomes visible with the next generation.
    fn publish(
        &self,
        root: usize,
        segment: &Segment<'static>,
        state_uuid: [u8; 16],
        lens: (u64, u64),
    ) -> io::Result<usize> {
        let _serial = self.list();
        let at = self.ctl.ctl.segments_len.load(Ordering::Relaxed) as usize;
        let Some(slot) = self.ctl.ctl.segments.get(at) else {
            return Err(io::Error::other(format!("an agent serves at most {MAX_SEGMENTS} segments in its life")));
        };
        for old in self.ctl.segments() {
            if old.root.load(Ordering::Relaxed) as usize == root {
                old.status.store(SEGMENT_RETIRED, Ordering::Release);
            }
        }
        put_uuid(&slot.uuid, segment.index.header.uuid);
        put_uuid(&slot.state_uuid, state_uuid);
        slot.root.store(root as u32, Ordering::Relaxed);
        slot.index_len.store(lens.0, Ordering::Relaxed);
        slot.state_len.store(lens.1, Ordering::Relaxed);
        slot.status.store(SEGMENT_LIVE, Ordering::Release);
        self.ctl.ctl.segments_len.store(at as u32 + 1, Ordering::Release);
        Ok(at)
    }

    /// Turns entries Resident whose copies an earlier run left in a tier.
    fn claim_copies(&self, number: usize, segment: &Segment<'static>) -> u64 {
        let mut unclaimed = self.driver.unclaimed();
        if unclaimed.is_empty() {
            return 0;
        }
        let mut keys = Vec::new();
        for e in segment.files().filter(|e| e.word().state() == State::Absent) {
            let Some(tier) = unclaimed.claim(segment, &e, &self.driver.tiers) else { continue };
            let w = e.word();
            let absent = w.state() == State::Absent;
            if absent
                && e.slot.word.compare_exchange(w.0, w.resident(tier).0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                keys.push(file_key(number, e.id));
            } else {
                unclaimed.put_back(tier, segment.copy_name(&e), &self.driver.tiers);
            }
        }
        drop(unclaimed);
        let n = keys.len() as u64;
        self.driver.figures.adopted.fetch_add(n, Ordering::Relaxed);
        self.driver.note_placed(keys.into_iter());
        n
    }

    /// Takes over the roots and segments of an agent that died.
    pub fn adopt(self: &Arc<Self>, config: &Config) {
        let bytes_path = |b: &[u8]| PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b));
        for root in self.ctl.roots() {
            self.list().push(RootState {
                path: bytes_path(self.ctl.str(&root.path)),
                state: "scanning".to_owned(),
                progress: Arc::default(),
                segment: None,
            });
        }
        for (at, s) in self.ctl.segments().iter().enumerate() {
            if s.status.load(Ordering::Acquire) != SEGMENT_LIVE {
                continue;
            }
            let number = s.root.load(Ordering::Relaxed) as usize;
            match self.adopt_segment(at, number, config, get_uuid(&s.uuid), get_uuid(&s.state_uuid)) {
                Ok(kept) => tracing::info!(segment = at, kept, "segment taken over"),
                Err(e) => {
                    tracing::warn!(segment = at, error = %e, "segment lost; scanning again");
                    s.status.store(SEGMENT_RETIRED, Ordering::Release);
                }
            }
        }
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        let lost: Vec<usize> =
            self.list().iter().enumerate().filter(|(_, r)| r.segment.is_none()).map(|(n, _)| n).collect();
        for number in lost {
            self.spawn_scan(number, config.clone());
        }
    }

    fn adopt_segment(
        &self,
        at: usize,
        root: usize,
        config: &Config,
        uuid: [u8; 16],
        state: [u8; 16],
    ) -> io::Result<u64> {
        let segment = shm::open_segment(&self.dir, uuid, state)?;
        let path = self.list().get(root).map(|r| r.path.clone()).ok_or(io::ErrorKind::NotFound)?;
        let source: Arc<dyn Source> = Arc::new(PfsSource::new(&path)?);
        let mut unclaimed = self.driver.unclaimed();
        let mut keys = Vec::new();
        for e in segment.files() {
            let w = e.word();
            let to = match w.state() {
                State::Wanted | State::Fetching | State::Refused => w.next(State::Absent),
                State::Resident => match unclaimed.claim(&segment, &e, &self.driver.tiers) {
                    Some(tier) => w.resident(tier),
                    None => w.next(State::Absent),
                },
                _ => continue,
            };
            if to.state() == State::Resident {
                keys.push(file_key(at, e.id));
            }
            if to != w && e.slot.word.compare_exchange(w.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                futex_wake(&e.slot.word, u32::MAX >> 1);
            }
        }
        drop(unclaimed);
        let kept = keys.len() as u64;
        self.driver.note_placed(keys.into_iter());
        // Where an agent died while it opened the segment.
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        early::open(&self.ctl, root, at, &segment);
        // A loaded index was perhaps not checked to its end.
        let fresh = config.index.file.is_none() || config.index.trust == Trust::Frozen;
        self.driver.add_segment(at, Live { segment, source, fresh });
        if let Some(r) = self.list().get_mut(root) {
            r.state = "ready".to_owned();
            r.segment = Some(at);
        }
        Ok(kept)
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
        self.list()
            .iter()
            .zip(self.ctl.roots())
            .map(|(r, c)| {
                let live = r.segment.and_then(|n| self.driver.segment(n));
                let h = live.as_ref().map(|l| l.segment.index.header);
                RootStatus {
                    path: r.path.clone(),
                    state: r.state.clone(),
                    entries: h.map_or_else(|| r.progress.entries.load(Ordering::Relaxed), |h| u64::from(h.entries)),
                    files: h.map_or(0, |h| h.files),
                    bytes: h.map_or(0, |h| h.bytes),
                    index_bytes: h.map_or(0, |h| h.len + live.as_ref().map_or(0, |l| l.segment.state.header.len)),
                    opens: c.opens.load(Ordering::Relaxed),
                }
            })
            .collect()
    }
}

fn put_uuid(to: &[std::sync::atomic::AtomicU64; 2], uuid: [u8; 16]) {
    for (half, bytes) in to.iter().zip(uuid.chunks_exact(8)) {
        half.store(bytes.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)), Ordering::Relaxed);
    }
}

fn get_uuid(from: &[std::sync::atomic::AtomicU64; 2]) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&from[0].load(Ordering::Relaxed).to_le_bytes());
    out[8..].copy_from_slice(&from[1].load(Ordering::Relaxed).to_le_bytes());
    out
}
