//! [`AccessTracker`]: takes the opens of readers from shared memory many times a second, and passes
//! them to the policy, the epochs and the trace.
//!
//! One thread does it. It sleeps until a hint comes, or for a time that depends on how many opens
//! there were.

use crate::snapshot::{Directory, Epoch, Traced, Why};
use crate::sync::lock;
use crate::sys::timespec;
use crate::tiering::access::epoch_stats::{Passes, Totals};
use crate::tiering::access::event_merge::{Happened, Unplaced, in_order};
use crate::tiering::access::hint_inbox::{Hint, HintInbox};
use crate::tiering::access::prefetch_evidence::PrefetchEvidence;
use crate::tiering::access::working_sets::WorkingSets;
use crate::tiering::core::context::Context;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::segments::{LiveSegment, Segments};
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::queue::waker::Waker;
use crate::tiering::queue::work_queue::WorkQueue;
use crate::tiering::residency::Residency;
use crate::tiering::residency::eviction::Eviction;
use crate::trace::{TraceError, TraceHeader, TraceWriter};
use monarch_abi::accesses::{LANE, Noted, Opened, Served as From, Tails};
use monarch_abi::control::Counter;
use monarch_abi::demand::file_key;
use monarch_abi::hint::{Header, Kind};
use monarch_abi::sys::futex_wait;
use monarch_policies::{Access, Event, FileKey, Served};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// Opens that are reported under one lock of the policy: demands wait for it.
const BATCH_OPENS: usize = 256;
/// Sleep of the thread when there were no opens.
const IDLE_SLEEP: Duration = Duration::from_millis(250);
/// Sleep while readers are active.
const BUSY_SLEEP: Duration = Duration::from_millis(20);
/// Sleep while they are active and the order is known: files that were read free space for the
/// next.
const ORDERED_SLEEP: Duration = Duration::from_millis(5);
/// Sleep after a lane was half full.
const FLOOD_SLEEP: Duration = Duration::from_millis(2);
/// Sleep while a hint waits for its place among the opens.
const HINT_SLEEP: Duration = Duration::from_millis(1);
/// How long a hint waits for its place, milliseconds: its process may have been killed.
const MAX_PLACE_WAIT_MS: u64 = 200;
/// How long readers count as active after an open.
const ACTIVE_AFTER_OPEN: Duration = Duration::from_secs(2);
/// First stream number of learned orders: those of roots, above all processes.
const FIRST_LEARNED_STREAM: u64 = 1 << 32;

/// The state of the thread that takes opens.
#[derive(Debug, Default)]
pub(crate) struct TrackerState {
    tails: Option<Tails>,
    /// Epochs, by root.
    passes: HashMap<usize, Passes>,
    /// The count of hints at the last look.
    hinted: u32,
    unplaced: Unplaced,
    /// Roots whose order was learned and is expected to repeat.
    learned: HashSet<usize>,
    /// Time of the last open.
    last: Option<Instant>,
    /// The totals at the last look.
    totals: Option<Totals>,
    pub(crate) trace: crate::tiering::access::trace_files::Traces,
    directories: crate::tiering::access::directory_costs::Directories,
}

/// An open as it is reported to the policy.
struct TrackedOpen {
    root: usize,
    access: Access,
    served: From,
}

/// A change of epoch or order that came with an open.
struct EpochChange {
    at: usize,
    /// Number of the epoch of the root that has begun.
    began: Option<u32>,
    /// The order that is expected to repeat.
    order: Option<Vec<FileKey>>,
    /// Whether the order still repeats.
    repeats: bool,
}

/// Takes the opens and hints of readers.
pub(crate) struct AccessTracker {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    waker: Arc<Waker>,
    policy: Arc<PolicyHandle>,
    queue: Arc<WorkQueue>,
    eviction: Arc<Eviction>,
    hint_inbox: Arc<HintInbox>,
    evidence: Arc<PrefetchEvidence>,
    working_sets: Arc<WorkingSets>,
    reading: Mutex<TrackerState>,
}

impl AccessTracker {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        residency: &Residency,
        hint_inbox: &Arc<HintInbox>,
        (evidence, working_sets): (&Arc<PrefetchEvidence>, &Arc<WorkingSets>),
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            waker: queue.waker.clone(),
            policy: policy.clone(),
            queue: queue.work.clone(),
            eviction: residency.eviction.clone(),
            hint_inbox: hint_inbox.clone(),
            evidence: evidence.clone(),
            working_sets: working_sets.clone(),
            reading: Mutex::default(),
        }
    }

    /// Takes opens and hints. Returns how long to sleep until the next time.
    pub(crate) fn drain_accesses(&self) -> Duration {
        let mut reading = lock(&self.reading);
        let log = &self.cx.ctl.ctl.accesses;
        let hinted = self.cx.ctl.ctl.hinted.load(Ordering::SeqCst);
        let tails = reading.tails.get_or_insert_with(|| Tails::new(log));
        let mut noted = Vec::new();
        let lost_before = tails.lost;
        let now = crate::sys::coarse_ms();
        let most = tails.take(log, now, |lane, what| noted.push((lane, what)));
        let lost = tails.lost - lost_before;
        // A process counts an open when it leaves its word: counts since the last look belong to
        // these opens.
        let totals = self.totals();
        let before = reading.totals.replace(totals).unwrap_or(totals);
        // (A hint's file is there before its word, and its word before it is counted.)
        if std::mem::replace(&mut reading.hinted, hinted) != hinted
            || noted.iter().any(|(_, what)| matches!(what, Noted::Hinted(_)))
        {
            reading
                .unplaced
                .extend(self.hint_inbox.take_hints().into_iter().map(|hint| (now + MAX_PLACE_WAIT_MS, hint)));
        }
        let told = in_order(noted, &mut reading.unplaced, now);
        reading.trace.lost(lost);
        if told.is_empty() && reading.unplaced.is_empty() {
            // Readers may be computing: their next open has to be seen soon.
            if reading.last.is_some_and(|last| last.elapsed() < ACTIVE_AFTER_OPEN) {
                return self.soon();
            }
            reading.trace.flush();
            return IDLE_SLEEP;
        }
        reading.last = Some(Instant::now());
        let waits = !reading.unplaced.is_empty();
        self.report_events(&mut reading, told, &before);
        drop(reading);
        if self.policy.lock_hints().has_order() || self.evidence.has_more() {
            self.waker.wake(Lane::Threads);
            self.waker.wake(Lane::Rings);
        }
        if waits {
            HINT_SLEEP
        } else if most as usize > LANE / 2 {
            FLOOD_SLEEP
        } else {
            self.soon()
        }
    }

    /// Sleep while readers are active.
    fn soon(&self) -> Duration {
        if self.policy.lock_hints().has_order() { ORDERED_SLEEP } else { BUSY_SLEEP }
    }

    /// Sleeps for `time`, or until a hint comes.
    pub(crate) fn await_readers(&self, time: Duration) {
        let seen = lock(&self.reading).hinted;
        futex_wait(&self.cx.ctl.ctl.hinted, seen, Some(timespec(time)));
    }

    fn report_events(&self, reading: &mut TrackerState, told: Vec<Happened>, before: &Totals) {
        let mut opens = Vec::new();
        for event in told {
            match event {
                Happened::Opened(lane, opened) => opens.push((lane, opened)),
                Happened::Hinted(hint) => {
                    self.report_opens(reading, &opens, before);
                    opens.clear();
                    self.apply_hint(reading, &hint);
                }
            }
        }
        self.report_opens(reading, &opens, before);
    }

    fn report_opens(&self, reading: &mut TrackerState, opens: &[(usize, Opened)], before: &Totals) {
        let mut last: Option<(usize, LiveSegment)> = None;
        let now = Instant::now();
        for batch in opens.chunks(BATCH_OPENS) {
            let mut told = Vec::with_capacity(batch.len());
            for &(lane, opened) in batch {
                if last.as_ref().is_none_or(|(number, _)| *number != opened.segment) {
                    last = self.segments.segment(opened.segment).map(|live| (opened.segment, live));
                }
                let Some((_, live)) = last.as_ref().filter(|(number, _)| *number == opened.segment) else { continue };
                let Some(record) = live.segment.index.record(opened.id).filter(|r| r.is_file()) else { continue };
                let served = match opened.served {
                    From::Tier => Served::Tier,
                    From::Waited | From::Chunks => Served::Waited,
                    From::Pfs => Served::Pfs,
                };
                let access = Access {
                    file: FileKey(file_key(opened.segment, opened.id)),
                    size: record.size,
                    at: Duration::from_millis(opened.ms),
                    stream: lane as u16,
                    served,
                };
                reading.trace.add(live, opened.id, &access);
                self.evidence.opened(access.file.0);
                let without_copy = opened.served == From::Pfs;
                self.working_sets.opened(opened.segment, opened.id, without_copy, now);
                if matches!(opened.served, From::Tier | From::Waited) && live.segment.state.large(opened.id).is_some() {
                    self.cx.stats.whole_large_bytes.fetch_add(record.size, Ordering::Relaxed);
                }
                let place = (live.root, opened.segment);
                reading.directories.add(place, &live.segment.index, opened.id, record.size, opened.served);
                told.push(TrackedOpen { root: live.root, access, served: opened.served });
            }
            self.eviction.note_opened(
                told.iter().filter(|t| matches!(t.served, From::Tier | From::Waited)).map(|t| t.access.file.0),
            );
            self.report_batch(reading, &told, before);
        }
    }

    fn report_batch(&self, reading: &mut TrackerState, batch: &[TrackedOpen], before: &Totals) {
        // Announced orders take precedence over learned ones, which are of no use without prefetch.
        let learns = self.cx.options.prefetch && self.policy.lock_hints().streams().all(|s| s >= FIRST_LEARNED_STREAM);
        let mut turns = Vec::new();
        for (at, told) in batch.iter().enumerate() {
            let passes = reading.passes.entry(told.root).or_default();
            let began = passes.access(&told.access, told.served, *before);
            let order = if learns { passes.learner.order() } else { None };
            let repeats = passes.learner.repeats();
            if began.is_some() || order.is_some() {
                turns.push(EpochChange { at, began, order, repeats });
            } else if !repeats && reading.learned.remove(&told.root) {
                turns.push(EpochChange { at, began: None, order: None, repeats });
            }
        }
        let mut policy = self.policy.lock_policy();
        let mut hints = self.policy.lock_hints();
        let mut turns = turns.into_iter().peekable();
        for (at, told) in batch.iter().enumerate() {
            while let Some(turn) = turns.next_if(|t| t.at == at) {
                let stream = FIRST_LEARNED_STREAM + told.root as u64;
                if let Some(number) = turn.began {
                    hints.epoch_began(|index| index == told.access.file.index());
                    if self.leads(reading, told.root) {
                        policy.event(&Event::Epoch { number }, &hints);
                    }
                }
                if let Some(order) = turn.order {
                    reading.learned.insert(told.root);
                    hints.announce(stream, order);
                } else if !turn.repeats {
                    hints.forget(stream);
                }
                policy.event(&Event::Hinted, &hints);
            }
            hints.accessed(told.access.file);
            policy.event(&Event::Access(told.access), &hints);
        }
    }

    /// Whether most opens are below this root: its epochs are those of the job.
    fn leads(&self, reading: &TrackerState, root: usize) -> bool {
        let of = |root: usize| reading.passes.get(&root).map_or(0, Passes::opens);
        reading.passes.keys().all(|other| of(*other) <= of(root))
    }

    /// Notes that the job announced the begin of an epoch (with its number, if it gave one), or its
    /// end.
    pub(crate) fn announce_epoch(&self, reading: &mut TrackerState, at: Duration, begins: Option<Option<u32>>) {
        let totals = self.totals();
        for root in 0..self.cx.ctl.roots().len() {
            let passes = reading.passes.entry(root).or_default();
            let Some(number) = begins else {
                passes.end();
                continue;
            };
            let Some(number) = passes.begin(number, at, totals) else { continue };
            self.policy.age_orders(root);
            if self.leads(reading, root) {
                self.policy.notify(&Event::Epoch { number });
            }
        }
    }

    /// The totals; an epoch's figures are their difference.
    fn totals(&self) -> Totals {
        let f = &self.cx.stats;
        Totals {
            waited_us: self.cx.ctl.total(Counter::WaitMicros),
            copied: f.demanded.load(Ordering::Relaxed) + f.prefetched.load(Ordering::Relaxed),
            bytes_copied: f.bytes.load(Ordering::Relaxed),
            why: Why {
                absent: self.cx.ctl.total(Counter::Absent),
                large: self.cx.ctl.total(Counter::Large),
                refused: self.cx.ctl.total(Counter::Refused),
                no_room: self.cx.ctl.total(Counter::NoRoom),
                changed: self.cx.ctl.total(Counter::Changed),
                written: self.cx.ctl.total(Counter::Written),
                deadline: self.cx.ctl.total(Counter::Deadline),
                vanished: self.cx.ctl.total(Counter::Vanished),
            },
        }
    }

    /// The epochs of a root so far.
    #[must_use]
    pub(crate) fn epochs(&self, root: usize) -> Vec<Epoch> {
        let totals = self.totals();
        lock(&self.reading).passes.get(&root).map_or_else(Vec::new, |p| p.all(totals))
    }

    /// The directories below a root that cost the PFS most.
    #[must_use]
    pub(crate) fn directories(&self, root: usize) -> Vec<Directory> {
        lock(&self.reading).directories.most(root)
    }

    /// Notes that the files of a root have new numbers.
    pub(crate) fn renumber(&self, root: usize) {
        if let Some(passes) = lock(&self.reading).passes.get_mut(&root) {
            passes.renumber();
        }
        lock(&self.reading).trace.renumber();
    }

    /// Carries out a hint.
    pub(crate) fn apply_hint(&self, reading: &mut TrackerState, hint: &Hint) {
        let Header { kind, process, value, ms, .. } = hint.header;
        let at = Duration::from_millis(ms);
        tracing::debug!(?kind, process, value, files = hint.files.len(), "hint");
        self.cx.stats.hints.fetch_add(1, Ordering::Relaxed);
        match kind {
            Kind::Order => self.hint_inbox.announced(u64::from(process), &hint.files),
            Kind::Prefetch => {
                let ranges = self.hint_inbox.ranges(&hint.files);
                self.queue.prefetch_ranges(&ranges);
            }
            Kind::Priority => self.hint_inbox.prioritised(&hint.files, value),
            Kind::EpochBegin => self.announce_epoch(reading, at, Some(u32::try_from(value).ok())),
            Kind::EpochEnd => self.announce_epoch(reading, at, None),
        }
    }

    /// Starts a trace of opens in `file`, which messages call `path`. Returns the number that ends
    /// it.
    pub(crate) fn begin_trace(&self, path: &Path, file: File) -> Result<u64, TraceError> {
        // Opens before this belong to no trace.
        self.drain_accesses();
        let root = |r: &monarch_abi::control::Root| {
            PathBuf::from(String::from_utf8_lossy(self.cx.ctl.str(&r.path)).into_owned())
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let header = TraceHeader {
            created_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            policy: self.policy.name().to_owned(),
            capacity: self.cx.tiers.iter().map(|t| t.space.ledger.usage().capacity).sum(),
            roots: self.cx.ctl.roots().iter().map(root).collect(),
        };
        let writer = TraceWriter::behind(path, file, &header)?;
        let begun = Duration::from_millis(crate::sys::coarse_ms());
        Ok(lock(&self.reading).trace.begin(path, writer, begun))
    }

    /// Ends a trace. Returns its totals.
    pub(crate) fn end_trace(&self, id: u64) -> Option<Traced> {
        self.drain_accesses();
        let trace = lock(&self.reading).trace.take(id)?;
        // The lock is free: writing the rest may take long.
        Some(trace.end())
    }
}
