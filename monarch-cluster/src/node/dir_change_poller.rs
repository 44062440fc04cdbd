//! Changes of the job that no process reports to the agent: listings of directories, whole
//! subtrees, marks in directories that the index does not hold.
//!
//! A changed file is a demand to the agent, which informs the other nodes. Directories turn to
//! Bypass silently; there are few of them, so their words are polled a few times a second.

use monarch_abi::control::ControlMap;
use monarch_abi::segment::Segment;
use monarch_abi::state::Slot;
use monarch_abi::word::Word;
use monarch_storage::sharing::{FileRef, LocalStore, ServedIndex};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Least time between two polls.
const PERIOD: Duration = Duration::from_millis(250);

/// The directories of a segment that are still as they were indexed.
struct Directories {
    slots: Vec<&'static Slot>,
    /// Marks that were reported, where the segment has marks.
    marks: Vec<u64>,
}

/// What has changed since the last poll.
#[derive(Debug, Default)]
pub(super) struct Polled {
    /// Entries.
    pub(super) files: Vec<FileRef>,
    /// Marks, by their numbers.
    pub(super) marks: Vec<FileRef>,
}

/// What was reported already, by segment.
#[derive(Default)]
pub(super) struct DirChangePoller {
    by_segment: HashMap<usize, Directories>,
    /// Ranges that were reported: segment and ids.
    ranges: HashSet<(usize, u32, u32)>,
    last: Option<Instant>,
}

impl Directories {
    fn of(segment: &Segment<'static>) -> Self {
        let is_dir = |s: &&'static Slot| segment.index.record(s.id).is_some_and(monarch_abi::index::Record::is_dir);
        let marks = if segment.state.marks.is_on() { vec![0; monarch_abi::marks::WORDS] } else { Vec::new() };
        Self { slots: segment.state.all().filter(is_dir).collect(), marks }
    }

    /// Takes those that the job has changed since.
    fn changed(&mut self) -> Vec<&'static Slot> {
        let is_changed = |s: &&'static Slot| Word(s.word.load(Ordering::Acquire)).is_changed();
        if !self.slots.iter().any(is_changed) {
            return Vec::new();
        }
        let (changed, rest) = self.slots.drain(..).partition(is_changed);
        self.slots = rest;
        changed
    }
}

impl DirChangePoller {
    /// What has changed since the last poll; nothing within [`PERIOD`] of it.
    pub(super) fn poll(&mut self, store: &dyn LocalStore, now: Instant) -> Polled {
        if self.last.is_some_and(|t| now.saturating_duration_since(t) < PERIOD) {
            return Polled::default();
        }
        self.last = Some(now);
        let served = store.served();
        self.by_segment.retain(|number, _| served.iter().any(|s| s.number == *number));
        let mut polled = Polled::default();
        let changed = &mut polled.files;
        for of in &served {
            let directories = self.by_segment.entry(of.number).or_insert_with(|| Directories::of(&of.segment));
            let index = of.segment.index.header.uuid;
            let file = |slot: &'static Slot| FileRef { index, id: slot.id, fp: slot.fp };
            changed.extend(directories.changed().into_iter().map(file));
            let marked = &mut polled.marks;
            of.segment
                .state
                .marks
                .take_new(&mut directories.marks, |bit| marked.push(FileRef { index, id: bit, fp: 0 }));
            for (from, end) in self.subtrees(store.control(), of) {
                changed.extend((from..end).map(|id| FileRef { index, id, fp: 0 }));
            }
        }
        polled
    }

    /// Ranges of ids that turned to Bypass as a whole and were not reported yet.
    fn subtrees(&mut self, ctl: &ControlMap<'static>, served: &ServedIndex) -> Vec<(u32, u32)> {
        let (number, segment) = (served.number, &served.segment);
        let of = number as u32 + 1;
        let ranges = ctl.ctl.ranges.iter().filter(|r| r.segment.load(Ordering::Acquire) == of);
        let mut found: Vec<(u32, u32)> =
            ranges.map(|r| (r.from.load(Ordering::Relaxed), r.end.load(Ordering::Relaxed))).collect();
        let all = segment.index.len() as u32;
        let given_up = ctl.roots().get(served.root).is_some_and(|r| r.bypassed.load(Ordering::Relaxed) != 0);
        if given_up || segment.state.header.bypassed.load(Ordering::Acquire) == 1 {
            found.push((0, all));
        }
        found.retain(|&(from, end)| self.ranges.insert((number, from, end.min(all))));
        found.into_iter().map(|(from, end)| (from, end.min(all))).collect()
    }
}
