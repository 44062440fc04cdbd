//! What readers open: taken from shared memory many times a second, and told to the policy, the
//! epochs, the trace.
//!
//! One thread does it; it sleeps until a hint comes, or for a time that depends on how much there
//! was.

use super::engine_lane::Lane;
use super::epoch_stats::{Passes, Totals};
use super::event_merge::{Happened, Unplaced, in_order};
use super::{LiveSegment, TieringEngine};
use crate::agent::protocol::{Directory, Epoch, Why};
use crate::sync::lock;
use crate::sys::timespec;
use monarch_abi::accesses::{LANE, Noted, Opened, Served as From, Tails};
use monarch_abi::control::Counter;
use monarch_abi::demand::file_key;
use monarch_abi::sys::futex_wait;
use monarch_policies::{Access, Event, FileKey, Served};
use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Opens that are told while the policy is locked: demands wait for it.
const BATCH: usize = 256;
/// How long to sleep when there was nothing, something, and so much that a lane was half full.
const IDLE: Duration = Duration::from_millis(250);
const BUSY: Duration = Duration::from_millis(20);
/// The same where the order is known: what was read makes room for what is read next.
const SOON: Duration = Duration::from_millis(5);
const FLOOD: Duration = Duration::from_millis(2);
/// The same where a hint waits for its place among the opens.
const SHORT: Duration = Duration::from_millis(1);
/// How long it waits: its process may have been killed.
const PLACE_MS: u64 = 200;
/// How long readers are taken to be at work after an open.
const AWAKE: Duration = Duration::from_secs(2);
/// Streams of learned orders are those of roots, above all processes.
const LEARNED: u64 = 1 << 32;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AccessTracker {
    tails: Option<Tails>,
    /// By root.
    passes: HashMap<usize, Passes>,
    /// Hints that were taken so far.
    hinted: u32,
    unplaced: Unplaced,
    /// Roots whose order was learned and is thought to repeat.
    learned: HashSet<usize>,
    /// When something was opened last.
    last: Option<Instant>,
    /// What counted for all epochs at the last look.
    totals: Option<Totals>,
    pub(super) trace: super::trace_files::Traces,
    directories: super::directory_costs::Directories,
}

/// What the policy is told of one open.
struct Told {
    root: usize,
    access: Access,
    served: From,
}

/// What has changed with an open.
struct Turned {
    at: usize,
    /// The epoch of the root that has begun.
    began: Option<u32>,
    /// The order that repeats.
    order: Option<Vec<FileKey>>,
    /// Whether it still does.
    repeats: bool,
}

impl TieringEngine {
    /// Takes what was opened and hinted; how long it is until the next time.
    pub fn drain_accesses(&self) -> Duration {
        let mut reading = lock(&self.access_tracker);
        let log = &self.ctl.ctl.accesses;
        let hinted = self.ctl.ctl.hinted.load(Ordering::SeqCst);
        let tails = reading.tails.get_or_insert_with(|| Tails::new(log));
        let mut noted = Vec::new();
        let lost_before = tails.lost;
        let now = crate::sys::coarse_ms();
        let most = tails.take(log, now, |lane, what| noted.push((lane, what)));
        let lost = tails.lost - lost_before;
        // A process counts an open when it leaves its word: what has been counted since the last
        // look belongs to these.
        let totals = self.totals();
        let before = reading.totals.replace(totals).unwrap_or(totals);
        // (A hint's file is there before its word, and its word before it is counted.)
        if std::mem::replace(&mut reading.hinted, hinted) != hinted
            || noted.iter().any(|(_, what)| matches!(what, Noted::Hinted(_)))
        {
            reading.unplaced.extend(self.take_hints().into_iter().map(|hint| (now + PLACE_MS, hint)));
        }
        let told = in_order(noted, &mut reading.unplaced, now);
        reading.trace.lost(lost);
        if told.is_empty() && reading.unplaced.is_empty() {
            // Readers compute, perhaps: what they open next is to be heard of soon.
            if reading.last.is_some_and(|last| last.elapsed() < AWAKE) {
                return self.soon();
            }
            reading.trace.flush();
            return IDLE;
        }
        reading.last = Some(Instant::now());
        let waits = !reading.unplaced.is_empty();
        self.tell_all(&mut reading, told, &before);
        drop(reading);
        if lock(&self.hints).has_order() {
            self.wake(Lane::Threads);
            self.wake(Lane::Rings);
        }
        if waits {
            SHORT
        } else if most as usize > LANE / 2 {
            FLOOD
        } else {
            self.soon()
        }
    }

    /// How long to sleep while readers are at work.
    fn soon(&self) -> Duration {
        if lock(&self.hints).has_order() { SOON } else { BUSY }
    }

    /// Sleeps so long, or until a hint comes.
    pub fn await_readers(&self, time: Duration) {
        let seen = lock(&self.access_tracker).hinted;
        futex_wait(&self.ctl.ctl.hinted, seen, Some(timespec(time)));
    }

    fn tell_all(&self, reading: &mut AccessTracker, told: Vec<Happened>, before: &Totals) {
        let mut opens = Vec::new();
        for event in told {
            match event {
                Happened::Opened(lane, opened) => opens.push((lane, opened)),
                Happened::Hinted(hint) => {
                    self.tell_opens(reading, &opens, before);
                    opens.clear();
                    self.apply_hint(reading, &hint);
                }
            }
        }
        self.tell_opens(reading, &opens, before);
    }

    fn tell_opens(&self, reading: &mut AccessTracker, opens: &[(usize, Opened)], before: &Totals) {
        let mut last: Option<(usize, LiveSegment)> = None;
        for batch in opens.chunks(BATCH) {
            let mut told = Vec::with_capacity(batch.len());
            for &(lane, opened) in batch {
                if last.as_ref().is_none_or(|(number, _)| *number != opened.segment) {
                    last = self.segment(opened.segment).map(|live| (opened.segment, live));
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
                let place = (live.root, opened.segment);
                reading.directories.add(place, &live.segment.index, opened.id, record.size, opened.served);
                told.push(Told { root: live.root, access, served: opened.served });
            }
            self.note_opened(
                told.iter().filter(|t| matches!(t.served, From::Tier | From::Waited)).map(|t| t.access.file.0),
            );
            self.tell_batch(reading, &told, before);
        }
    }

    fn tell_batch(&self, reading: &mut AccessTracker, batch: &[Told], before: &Totals) {
        // What users announce counts more than what was learned, which is of no use where nothing
        // is fetched ahead.
        let learns = self.options.prefetch && lock(&self.hints).streams().all(|s| s >= LEARNED);
        let mut turns = Vec::new();
        for (at, told) in batch.iter().enumerate() {
            let passes = reading.passes.entry(told.root).or_default();
            let began = passes.access(&told.access, told.served, *before);
            let order = if learns { passes.learner.order() } else { None };
            let repeats = passes.learner.repeats();
            if began.is_some() || order.is_some() {
                turns.push(Turned { at, began, order, repeats });
            } else if !repeats && reading.learned.remove(&told.root) {
                turns.push(Turned { at, began: None, order: None, repeats });
            }
        }
        let mut policy = lock(&self.policy);
        let mut hints = lock(&self.hints);
        let mut turns = turns.into_iter().peekable();
        for (at, told) in batch.iter().enumerate() {
            while let Some(turn) = turns.next_if(|t| t.at == at) {
                let stream = LEARNED + told.root as u64;
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

    /// Whether most of what is read is read below this root: its epochs are those of the job.
    fn leads(&self, reading: &AccessTracker, root: usize) -> bool {
        let of = |root: usize| reading.passes.get(&root).map_or(0, Passes::opens);
        reading.passes.keys().all(|other| of(*other) <= of(root))
    }

    /// The job says that an epoch begins, or has ended.
    pub(super) fn epoch_announced(&self, reading: &mut AccessTracker, at: Duration, begins: Option<Option<u32>>) {
        let totals = self.totals();
        for root in 0..self.ctl.roots().len() {
            let passes = reading.passes.entry(root).or_default();
            let Some(number) = begins else {
                passes.end();
                continue;
            };
            let Some(number) = passes.begin(number, at, totals) else { continue };
            self.age_orders(root);
            if self.leads(reading, root) {
                self.tell(&Event::Epoch { number });
            }
        }
    }

    /// An epoch of a root has begun: orders of its files are an epoch older.
    fn age_orders(&self, root: usize) {
        let live: Vec<bool> = {
            let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
            segments.iter().map(|live| live.as_ref().is_some_and(|live| live.root == root)).collect()
        };
        let is_its = |index: u32| (index as usize).checked_sub(1).and_then(|n| live.get(n)).copied().unwrap_or(false);
        lock(&self.hints).epoch_began(is_its);
    }

    /// The figures of which an epoch's are a difference.
    fn totals(&self) -> Totals {
        let f = &self.stats;
        Totals {
            waited_us: self.ctl.total(Counter::WaitMicros),
            copied: f.demanded.load(Ordering::Relaxed) + f.prefetched.load(Ordering::Relaxed),
            bytes_copied: f.bytes.load(Ordering::Relaxed),
            why: Why {
                absent: self.ctl.total(Counter::Absent),
                large: self.ctl.total(Counter::Large),
                refused: self.ctl.total(Counter::Refused),
                no_room: self.ctl.total(Counter::NoRoom),
                changed: self.ctl.total(Counter::Changed),
                written: self.ctl.total(Counter::Written),
                deadline: self.ctl.total(Counter::Deadline),
                vanished: self.ctl.total(Counter::Vanished),
            },
        }
    }

    /// The epochs of a root so far.
    #[must_use]
    pub fn epochs(&self, root: usize) -> Vec<Epoch> {
        let totals = self.totals();
        lock(&self.access_tracker).passes.get(&root).map_or_else(Vec::new, |p| p.all(totals))
    }

    /// The directories below a root that cost the PFS most.
    #[must_use]
    pub fn directories(&self, root: usize) -> Vec<Directory> {
        lock(&self.access_tracker).directories.most(root)
    }

    /// The files of a root have other numbers from now on.
    pub(super) fn renumber(&self, root: usize) {
        if let Some(passes) = lock(&self.access_tracker).passes.get_mut(&root) {
            passes.renumber();
        }
        lock(&self.access_tracker).trace.renumber();
    }
}
