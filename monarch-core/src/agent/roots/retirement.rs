//! Taking a segment out of use, and files of the runtime directory that no segment needs any more.
//!
//! Readers keep their mapping of a retired segment, so its words are turned to Refused for good:
//! nothing is fetched or asked for there. Copies lose their owner; the segment that comes next
//! claims those whose file is still the same.

use super::root_list::RootList;
use super::shared_indexes::SharedIndexes;
use crate::held_dir::HeldDir;
use crate::shm;
use crate::tiering::TieringEngine;
use monarch_abi::control::{ControlMap, SEGMENT_LIVE, SEGMENT_RETIRED, SegmentRef};
use monarch_abi::segment::Segment;
use monarch_abi::sys::futex_wake;
use monarch_abi::word::{Refusal, State, Word};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long copies under way for a retired segment are waited for: they are of use to the next one.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two passes over a retired segment.
const DRAIN_PAUSE: Duration = Duration::from_millis(20);

/// Retires segments of the control block.
#[derive(Debug)]
pub(super) struct Retirement {
    dir: Arc<HeldDir>,
    ctl: ControlMap<'static>,
    tiering: Arc<TieringEngine>,
    list: Arc<RootList>,
    shared: Arc<SharedIndexes>,
}

impl Retirement {
    /// Segments of `ctl`, whose files are in `dir`.
    pub(super) const fn new(
        dir: Arc<HeldDir>,
        ctl: ControlMap<'static>,
        tiering: Arc<TieringEngine>,
        list: Arc<RootList>,
        shared: Arc<SharedIndexes>,
    ) -> Self {
        Self { dir, ctl, tiering, list, shared }
    }

    /// Retires the segments of a root. Takes effect with the next generation.
    pub(super) fn retire(&self, root: usize) {
        for s in self.ctl.segments().iter().filter(|s| s.root.load(Ordering::Relaxed) as usize == root) {
            if s.status.swap(SEGMENT_RETIRED, Ordering::AcqRel) == SEGMENT_LIVE {
                self.remove_files(s);
            }
        }
    }

    /// Takes the copies of a root's retired segments back.
    pub(super) fn give_back_all(&self, root: usize) {
        for (number, s) in self.ctl.segments().iter().enumerate() {
            let retired = s.status.load(Ordering::Acquire) == SEGMENT_RETIRED;
            if retired && s.root.load(Ordering::Relaxed) as usize == root {
                self.give_back(number);
            }
        }
    }

    /// Takes the copies of a retired segment back and ends all work on it.
    pub(super) fn give_back(&self, number: usize) {
        let Some(live) = self.tiering.shared.segments.segment(number) else { return };
        let start = Instant::now();
        while self.withdraw(&live.segment) > 0 && start.elapsed() < DRAIN_TIMEOUT {
            if self.list.is_stopping() {
                return;
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
        // Files of which only a part was there: their words say something else now.
        self.tiering.fetching.fetches.maintain();
        self.tiering.remove_segment(number);
        // Those that came in between; a later reader sees that it is not served any more.
        self.withdraw(&live.segment);
        self.shared.leave(&live);
    }

    /// Whether jobs have changed something below a root, by its segment.
    pub(super) fn is_changed(&self, number: usize) -> bool {
        let Some(live) = self.tiering.shared.segments.segment(number) else { return false };
        let of = number as u32 + 1;
        let range = self.ctl.ctl.ranges.iter().any(|r| r.segment.load(Ordering::Acquire) == of);
        let whole = live.segment.state.header.bypassed.load(Ordering::Acquire) != 0;
        range || whole || live.segment.state.all().any(|slot| Word(slot.word.load(Ordering::Acquire)).is_changed())
    }

    /// One pass over a retired segment; how many copies are still under way.
    fn withdraw(&self, segment: &Segment<'static>) -> usize {
        let mut under_way = 0;
        for e in segment.files() {
            let w = e.word();
            match w.state() {
                State::Fetching => under_way += 1,
                State::Bypass | State::Link | State::NonFile => {}
                _ => {
                    // Another generation, so that a second try that was planned finds another word.
                    let to = w.refused(Refusal::Dropped);
                    if e.slot.word.compare_exchange(w.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                        under_way += 1;
                        continue;
                    }
                    futex_wake(&e.slot.word, u32::MAX >> 1);
                    self.tiering.residency.eviction.leave_orphaned(w, segment.copy_name(&e), e.record.size);
                }
            }
        }
        under_way
    }

    fn remove_files(&self, s: &SegmentRef) {
        for name in files(s) {
            let _ = self.dir.unlink(name);
        }
    }

    /// Removes files of segments that an agent left which was killed while it wrote them, or before
    /// it removed them. Only while no scan runs.
    pub(super) fn remove_leftovers(&self) {
        let live = self.ctl.segments().iter().filter(|s| s.status.load(Ordering::Acquire) == SEGMENT_LIVE);
        let needed: HashSet<String> = live.flat_map(files).collect();
        for name in self.dir.names().unwrap_or_default() {
            let Ok(name) = name.to_str() else { continue };
            let ours = [".idx", ".st", ".new"].iter().any(|end| name.ends_with(end));
            if ours && !needed.contains(name) {
                let _ = self.dir.unlink(name);
            }
        }
    }
}

/// Names of the files of a segment.
fn files(s: &SegmentRef) -> [String; 2] {
    let (index, state) = shm::segment_names(shm::get_uuid(&s.uuid), shm::get_uuid(&s.state_uuid));
    [index, state]
}
