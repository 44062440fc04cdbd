//! Changes of the job that nobody tells the agent of: listings of directories, whole subtrees.
//!
//! A changed file is a demand to the agent, which tells the other nodes. Directories turn to Bypass
//! silently; there are few of them, so their words are looked at a few times a second.

use super::{FileRef, Node, lock};
use crate::tiering::{LiveSegment, TieringEngine};
use monarch_abi::state::Slot;
use monarch_abi::word::Word;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often they are looked at.
const PERIOD: Duration = Duration::from_millis(250);

/// The directories of a segment that are still as they were indexed.
struct Directories {
    slots: Vec<&'static Slot>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Looks {
    by_segment: HashMap<usize, Directories>,
    /// Ranges that were told: segment and ids.
    ranges: HashSet<(usize, u32, u32)>,
    last: Option<Instant>,
}

impl Directories {
    fn of(live: &LiveSegment) -> Self {
        let is_dir =
            |s: &&'static Slot| live.segment.index.record(s.id).is_some_and(monarch_abi::index::Record::is_dir);
        Self { slots: live.segment.state.all().filter(is_dir).collect() }
    }

    /// Those that the job has changed since.
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

impl Looks {
    /// Has what has changed told to the other nodes.
    pub(super) fn look(&mut self, node: &Node) {
        if self.last.is_some_and(|t| t.elapsed() < PERIOD) {
            return;
        }
        self.last = Some(Instant::now());
        let Some(tiering) = node.tiering() else { return };
        let served = tiering.segments.served();
        self.by_segment.retain(|number, _| served.iter().any(|(n, _)| n == number));
        for (number, live) in &served {
            let directories = self.by_segment.entry(*number).or_insert_with(|| Directories::of(live));
            let index = live.segment.index.header.uuid;
            let of = |slot: &'static Slot| FileRef { index, id: slot.id, fp: slot.fp };
            let mut news: Vec<FileRef> = directories.changed().into_iter().map(of).collect();
            for (from, end) in self.subtrees(tiering, *number, live) {
                news.extend((from..end).map(|id| FileRef { index, id, fp: 0 }));
            }
            lock(&node.changed).append(&mut news);
        }
    }

    /// Ranges of ids that turned to Bypass as a whole and were not told yet.
    fn subtrees(&mut self, tiering: &TieringEngine, number: usize, live: &LiveSegment) -> Vec<(u32, u32)> {
        let of = number as u32 + 1;
        let ranges = tiering.cx.ctl.ctl.ranges.iter().filter(|r| r.segment.load(Ordering::Acquire) == of);
        let mut found: Vec<(u32, u32)> =
            ranges.map(|r| (r.from.load(Ordering::Relaxed), r.end.load(Ordering::Relaxed))).collect();
        let all = live.segment.index.len() as u32;
        let given_up = tiering.cx.ctl.roots().get(live.root()).is_some_and(|r| r.bypassed.load(Ordering::Relaxed) != 0);
        if given_up || live.segment.state.header.bypassed.load(Ordering::Acquire) == 1 {
            found.push((0, all));
        }
        found.retain(|&(from, end)| self.ranges.insert((number, from, end.min(all))));
        found.into_iter().map(|(from, end)| (from, end.min(all))).collect()
    }
}
