//! [`ListingChecks`]: compares the directories that decide about absent names with the PFS, side by
//! side, when a process begins to.
//!
//! A process that finds the last comparison of a directory too old compares it itself, and goes on
//! to the next: an import of PyTorch needs 216 of them, one after the other. The first such process
//! of an interval also asks the agent, which compares the others that processes have needed so far,
//! and those of the files that the last job opened first, many at a time. So each is compared once
//! per interval, as without the agent, and nobody waits for most of them.

use crate::sync::lock;
use crate::tiering::access::working_sets::WorkingSets;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::{LiveSegment, Segments};
use crate::tiering::core::shared::Shared;
use monarch_abi::demand;
use monarch_abi::index::Dir;
use monarch_abi::resolve::Found;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Directories that are compared at a time.
const CHECKS_IN_FLIGHT: usize = 16;
/// Directories for each thread beyond the first.
const CHECKS_PER_THREAD: usize = 4;
/// Most directories that are compared ahead in an interval.
const MOST_CHECKS: usize = 4096;
const STACK_BYTES: usize = 128 << 10;

/// Compares directories ahead of processes.
pub(crate) struct ListingChecks {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    working_sets: Arc<WorkingSets>,
}

/// A directory that is compared: its id, its place among all directories, and what its word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    id: u32,
    position: usize,
    seen: u32,
}

impl ListingChecks {
    pub(crate) fn new(shared: &Shared, working_sets: &Arc<WorkingSets>) -> Self {
        Self { cx: shared.cx.clone(), segments: shared.segments.clone(), working_sets: working_sets.clone() }
    }

    /// Compares what processes have asked for since the last time.
    pub(crate) fn run_asked(&self) {
        for (number, live) in self.segments.served() {
            if live.segment.state.header.listings_asked.swap(0, Ordering::AcqRel) != 0 {
                let due = self.due(number, &live, crate::sys::coarse_ms() as u32);
                self.check(number, &live, due);
            }
        }
    }

    /// The directories that will have to be compared before half an interval is over.
    fn due(&self, number: usize, live: &LiveSegment, now_ms: u32) -> VecDeque<Due> {
        let segment = &live.segment;
        let deciders = segment.state.deciders;
        let soon = now_ms.wrapping_add(deciders.interval_ms() / 2);
        let of_files = self.working_sets.directories(number, live, Instant::now());
        let due = |(position, dir): (usize, &Dir)| {
            let seen = deciders.due(position, soon, of_files.contains(&dir.id))?;
            Some(Due { id: dir.id, position, seen })
        };
        segment.index.dirs().iter().enumerate().filter_map(due).take(MOST_CHECKS).collect()
    }

    fn check(&self, number: usize, live: &LiveSegment, due: VecDeque<Due>) {
        let threads = due.len().div_ceil(CHECKS_PER_THREAD).min(CHECKS_IN_FLIGHT);
        let line = Mutex::new(due);
        let work = || {
            loop {
                let Some(next) = lock(&line).pop_front() else { return };
                self.compare(number, live, next);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                let thread = std::thread::Builder::new().name("listings".to_owned()).stack_size(STACK_BYTES);
                if thread.spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
    }

    /// Compares one, as the preload library does.
    fn compare(&self, number: usize, live: &LiveSegment, due: Due) {
        let segment = &live.segment;
        let (Some(record), Some(entry)) = (segment.index.record(due.id), segment.by_id(due.id)) else { return };
        let Some(path) = segment.index.path_of(due.id) else { return };
        let rel = if path.get().is_empty() { b"." } else { path.get() };
        self.cx.limits.before_scan_call();
        // Before the question: a change after it is found when the interval from here on is over.
        let now_ms = crate::sys::coarse_ms() as u32;
        // (A process has compared it meanwhile.)
        if segment.state.deciders.word(due.position) != due.seen {
            return;
        }
        self.cx.stats.listing_checks.fetch_add(1, Ordering::Relaxed);
        match live.source.identity(rel) {
            Ok(is) if segment.state.guard.is_still(record, &is) => {
                segment.state.deciders.passed_ahead(due.position, due.seen, now_ms);
            }
            Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Ok(_) | Err(_) => {
                segment.state.deciders.leave(due.position);
                demand::leave(&self.cx.ctl, &Found { root: live.root, number, segment, entry });
            }
        }
    }
}
