//! [`WorkingSets`]: notes which files the jobs of a root open first, keeps the list in a tier, and
//! has the files on it fetched first for the next job.
//!
//! A job's list ends after [`RECORD_TIME`], or with [`working_set::MAX_FILES`]. It is written every
//! few seconds while it grows, and when the jobs of the root have gone, so that an agent that is
//! killed loses the last seconds at most.

use crate::snapshot::Range;
use crate::sync::lock;
use crate::tiering::access::prefetch_evidence::PrefetchEvidence;
use crate::tiering::core::context::Context;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::{LiveSegment, Segments, parts};
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::SourceFacts;
use crate::tiering::queue::Queue;
use crate::tiering::queue::waker::Waker;
use crate::tiering::queue::work_queue::WorkQueue;
use crate::working_set::{self, JobOpens, WorkingSet};
use monarch_abi::demand::file_key;
use monarch_abi::index::Record;
use monarch_abi::mapping::library_faults;
use monarch_abi::word::State;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the opens of a job are noted, from its first one on.
const RECORD_TIME: Duration = Duration::from_secs(300);
/// How long a job starts, from its first open on: its imports.
const START_TIME: Duration = Duration::from_secs(60);
/// Pause between two writes of a list that grows.
const SAVE_PAUSE: Duration = Duration::from_secs(2);
/// The same for a list of more than [`LONG_LIST`] files.
const LONG_SAVE_PAUSE: Duration = Duration::from_secs(20);
const LONG_LIST: usize = 8192;
/// Files of at most this size, bytes, are fetched before larger ones: they are many, and a reader
/// waits for each.
const SMALL_FILE: u64 = 1 << 20;

/// An index that took longer than this is not waited for.
const LONGEST_HELD_INDEX: Duration = Duration::from_secs(2);
/// Times that the faults of libraries have to take of the time of an index that is waited for.
const MIN_HOLD_GAIN: u64 = 3;
/// What is waited for an index beyond twice the time that the last one took.
const HOLD_MARGIN: Duration = Duration::from_millis(250);

/// The jobs of a root, for as long as its segment is served.
#[derive(Debug, Default)]
struct Noted {
    /// The set before these jobs.
    kept: WorkingSet,
    /// Files opened first, in order, each once; and their number when they were last saved.
    order: Vec<u32>,
    seen: HashSet<u32>,
    /// Those that were fetched since they were opened twice without a copy.
    asked: HashSet<u32>,
    saved: usize,
    saved_at: Option<Instant>,
    /// Time of the first open.
    began: Option<Instant>,
    /// Files of the set before that are fetched for these jobs, and their bytes.
    fetched: (u64, u64),
    /// Number of data files of the root.
    data_files: u64,
    /// How long its index took, in hundredths of a second.
    index_time_cs: u16,
}

/// The working set of a root, for status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetFigures {
    /// Files that the last jobs opened first and that are fetched for the jobs of now.
    pub(crate) files: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Files noted for the next job.
    pub(crate) noted: u64,
}

/// Notes, keeps and fetches working sets.
pub(crate) struct WorkingSets {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    source_facts: Arc<SourceFacts>,
    peers: Arc<PeerLink>,
    queue: Arc<WorkQueue>,
    waker: Arc<Waker>,
    evidence: Arc<PrefetchEvidence>,
    noted: Mutex<BTreeMap<usize, Noted>>,
    /// The sets of all roots as they are kept; locked while they are written.
    kept: Mutex<Option<Vec<WorkingSet>>>,
}

impl WorkingSets {
    pub(crate) fn new(shared: &Shared, queue: &Queue, evidence: &Arc<PrefetchEvidence>) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            source_facts: shared.source_facts.clone(),
            peers: shared.peers.clone(),
            queue: queue.work.clone(),
            waker: queue.waker.clone(),
            evidence: evidence.clone(),
            noted: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// The set of a root that earlier jobs have left; empty if there is none.
    pub(crate) fn kept(&self, root: u64) -> WorkingSet {
        let none = WorkingSet { root, ..WorkingSet::default() };
        if !self.cx.options.working_sets {
            return none;
        }
        let mut kept = lock(&self.kept);
        let sets = kept.get_or_insert_with(|| {
            // The slowest tier, which is the largest and survives a reboot first.
            let mut kept = self.cx.tiers.iter().rev().filter(|t| t.options.stays);
            let found = kept.find_map(|t| Some(t.working_sets()).filter(|sets| !sets.is_empty()));
            found.unwrap_or_default()
        });
        sets.iter().find(|set| set.root == root).cloned().unwrap_or(none)
    }

    /// The index of a root is about to be made. Where the last one took a moment, the audit library
    /// waits for this one: a library that a process maps from the PFS is read there page by page.
    pub(crate) fn index_begins(&self, root: usize, root_id: u64) {
        let set = self.kept(root_id);
        let last = Duration::from_millis(u64::from(set.index_time_cs) * 10);
        if set.files.is_empty() || last.is_zero() || last > LONGEST_HELD_INDEX {
            return;
        }
        let until_ms = crate::sys::coarse_ms() + (last * 2 + HOLD_MARGIN).as_millis() as u64;
        let ctl = self.cx.ctl.ctl;
        ctl.held_until_ms.fetch_max(until_ms, Ordering::Relaxed);
        ctl.held_roots.fetch_or(root_bit(root), Ordering::Release);
    }

    /// The index of a root is there, or will not be.
    pub(crate) fn index_ended(&self, root: usize) {
        self.cx.ctl.ctl.held_roots.fetch_and(!root_bit(root), Ordering::Release);
    }

    /// Notes the opens of the jobs of a new segment, whose index took `index_time` to be made, and
    /// fetches the files that the jobs before opened first.
    pub(crate) fn begin(&self, number: usize, live: &LiveSegment, kept: WorkingSet, index_time: Duration) {
        if !self.cx.options.working_sets {
            return;
        }
        let header = live.segment.index.header;
        let data_files = header.files.saturating_sub(self.source_facts.software(number).files);
        let keys = if self.cx.options.prefetch { self.likely(number, live, &kept) } else { Vec::new() };
        let size = |key: &u64| parts(*key).and_then(|(_, id)| live.segment.index.record(id)).map_or(0, |r| r.size);
        let fetched = (keys.len() as u64, keys.iter().map(size).sum::<u64>());
        if fetched.0 > 0 {
            let (files, bytes) = fetched;
            tracing::info!(segment = number, files, bytes, "files that the last job opened first are fetched first");
        }
        let index_time_cs = u16::try_from(index_time.as_millis() / 10).unwrap_or(u16::MAX).max(1);
        lock(&self.noted).insert(number, Noted { kept, fetched, data_files, index_time_cs, ..Noted::default() });
        if !keys.is_empty() {
            self.queue.lines().first.extend(keys);
            self.waker.wake_all();
        }
    }

    /// The files of a set that a job is likely to open and that have no copy: small ones first,
    /// then larger ones, each in the order of the last job.
    fn likely(&self, number: usize, live: &LiveSegment, set: &WorkingSet) -> Vec<u64> {
        let software = self.source_facts.software(number);
        let released = self.source_facts.released(number);
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for file in &set.files {
            // (Files that are gone are skipped, changed ones are fetched as they are now.)
            let Some(entry) = live.segment.lookup(&file.path) else { continue };
            let record = entry.record;
            let is_wanted = record.is_file() && !released.holds(record) && entry.word().state() == State::Absent;
            if is_wanted && file.is_likely(software.holds(entry.id)) {
                if record.size <= SMALL_FILE { &mut small } else { &mut large }.push(file_key(number, entry.id));
            }
        }
        small.append(&mut large);
        small
    }

    /// The directories of the files that the jobs of a segment, and those before, opened first:
    /// while a job starts.
    pub(crate) fn directories(&self, number: usize, live: &LiveSegment, now: Instant) -> HashSet<u32> {
        let is_starting = |of: &&Noted| of.began.is_none_or(|at| now.saturating_duration_since(at) < START_TIME);
        let noted = lock(&self.noted);
        let Some(of) = noted.get(&number).filter(is_starting) else { return HashSet::new() };
        let before = of.kept.files.iter().filter_map(|file| Some(live.segment.lookup(&file.path)?.id));
        let index = &live.segment.index;
        let parent = |id: u32| index.dirs().get(index.parent_of(id)?).map(|dir| dir.id);
        of.order.iter().copied().chain(before).filter_map(parent).collect()
    }

    /// Notes the open of a file; `without_copy`: of the PFS's file. A library that a process maps
    /// from there is fetched for further processes once there is a second one.
    pub(crate) fn opened(&self, number: usize, id: u32, without_copy: bool, now: Instant) {
        let mut noted = lock(&self.noted);
        let Some(of) = noted.get_mut(&number) else { return };
        if without_copy && self.cx.options.prefetch && of.seen.contains(&id) && of.asked.insert(id) {
            self.fetch_again_opened(number, id);
        }
        let began = *of.began.get_or_insert(now);
        let is_over = now.saturating_duration_since(began) > RECORD_TIME || of.order.len() >= working_set::MAX_FILES;
        if !is_over && of.seen.insert(id) {
            of.order.push(id);
        }
    }

    fn fetch_again_opened(&self, number: usize, id: u32) {
        let Some(live) = self.segments.segment(number) else { return };
        let is_free = live.segment.by_id(id).is_some_and(|e| e.word().state() == State::Absent);
        if is_free && self.source_facts.software(number).holds(id) {
            self.queue.lines().first.push_back(file_key(number, id));
            self.waker.wake_all();
        }
    }

    /// Writes the lists that have grown, some seconds after they were written last.
    pub(crate) fn save_grown(&self, now: Instant) {
        let is_due = |of: &Noted| {
            let pause = if of.order.len() > LONG_LIST { LONG_SAVE_PAUSE } else { SAVE_PAUSE };
            let since = of.saved_at.or(of.began);
            of.order.len() > of.saved && since.is_some_and(|at| now.saturating_duration_since(at) >= pause)
        };
        let due: Vec<usize> = lock(&self.noted).iter().filter(|(_, of)| is_due(of)).map(|(&n, _)| n).collect();
        due.into_iter().for_each(|number| self.save(number, now));
    }

    /// Writes the list of a segment, and forgets it: its jobs have gone.
    pub(crate) fn end(&self, number: usize) {
        self.save(number, Instant::now());
        lock(&self.noted).remove(&number);
    }

    /// Writes all lists: the agent ends.
    pub(crate) fn save_all(&self) {
        let all: Vec<usize> = lock(&self.noted).keys().copied().collect();
        all.into_iter().for_each(|number| self.save(number, Instant::now()));
    }

    /// Forgets the sets of roots whose copies were all evicted by a user, those of the jobs of now
    /// included; all sets, if `all` copies were.
    pub(crate) fn forget_evicted(&self, ranges: &[Range], all: bool) {
        let is_whole = |r: &&Range| {
            let len = self.segments.segment(r.segment).map(|live| live.segment.index.len() as u32);
            r.from == 0 && len.is_some_and(|len| r.end >= len)
        };
        let mut roots = HashSet::new();
        {
            let mut noted = lock(&self.noted);
            for r in ranges.iter().filter(is_whole) {
                roots.extend(noted.remove(&r.segment).map(|of| of.kept.root));
            }
        }
        let mut kept = lock(&self.kept);
        let sets = kept.get_or_insert_default();
        let before = sets.len();
        sets.retain(|set| !all && !roots.contains(&set.root));
        if sets.len() < before || all {
            self.write(sets);
        }
    }

    /// The figures of a segment.
    pub(crate) fn figures(&self, number: usize) -> SetFigures {
        let noted = lock(&self.noted);
        let Some(of) = noted.get(&number) else { return SetFigures::default() };
        SetFigures { files: of.fetched.0, bytes: of.fetched.1, noted: of.order.len() as u64 }
    }

    fn save(&self, number: usize, now: Instant) {
        let Some(live) = self.segments.segment(number) else { return };
        let data = self.evidence.opened_files(number);
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let set = {
            let mut noted = lock(&self.noted);
            let Some(of) = noted.get_mut(&number).filter(|of| !of.order.is_empty()) else { return };
            (of.saved, of.saved_at) = (of.order.len(), Some(now));
            let paths = of.order.iter().filter_map(|&id| rel(&live, id)).collect();
            // (Nodes share a data set: how much of it this node opens says little.)
            let data = data.filter(|_| self.peers.get().is_none()).map(|opened| (opened, of.data_files));
            let index_time_cs = if self.is_worth_a_hold(&live, of) { of.index_time_cs } else { 0 };
            of.kept.after(&JobOpens { paths, data, index_time_cs }, at)
        };
        let mut kept = lock(&self.kept);
        let sets = kept.get_or_insert_default();
        working_set::put(sets, set);
        self.write(sets);
    }

    /// Whether the next job gains by a wait for the index: the page faults of the large libraries
    /// that this one opened would have taken several times as long.
    fn is_worth_a_hold(&self, live: &LiveSegment, of: &Noted) -> bool {
        let index = &live.segment.index;
        let is_library = |r: &&Record| index.name(r).is_some_and(|name| name.windows(3).any(|part| part == b".so"));
        let libraries = of.order.iter().filter_map(|&id| index.record(id)).filter(is_library);
        let faults: u64 = libraries.filter(|r| r.size > SMALL_FILE).map(|r| library_faults(r.size)).sum();
        let latency_us = self.cx.ctl.ctl.pfs_latency_us.load(Ordering::Relaxed);
        faults.saturating_mul(latency_us) > u64::from(of.index_time_cs) * 10_000 * MIN_HOLD_GAIN
    }

    /// Writes all sets into the slowest tier that takes them.
    fn write(&self, sets: &[WorkingSet]) {
        let mut tiers = self.cx.tiers.iter().rev().filter(|t| t.options.stays && !t.space.suspended());
        if !tiers.any(|t| t.keep_working_sets(sets)) {
            tracing::debug!("no tier keeps working sets for the next job");
        }
    }
}

/// The bit of a root among all; none beyond the words of the control block.
fn root_bit(root: usize) -> u32 {
    u32::try_from(root).ok().and_then(|root| 1u32.checked_shl(root)).unwrap_or(0)
}

/// The path of an entry below its root.
fn rel(live: &LiveSegment, id: u32) -> Option<Vec<u8>> {
    let mut buf = [0u8; monarch_abi::PATH_MAX];
    let len = live.segment.index.path(id, &mut buf)?;
    buf.get(..len).map(<[u8]>::to_vec)
}
