//! [`ListingChecks`]: compares the directories that decide about absent names with the PFS, side by
//! side, when a process begins to.
//!
//! A process that finds the last comparison of a directory too old compares it itself, and goes on
//! to the next: an import of PyTorch needs 216 of them, one after the other. The first such process
//! of an interval also asks the agent. It compares, many at a time, the others that processes have
//! needed since they were compared last and, while a job starts, those of the files that the last
//! job opened first. So each is compared about once per interval, as without the agent, and no
//! process waits for most of them.

use crate::sync::lock;
use crate::tiering::access::working_sets::WorkingSets;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::{LiveSegment, Segments};
use crate::tiering::core::shared::Shared;
use monarch_abi::control::Spelling;
use monarch_abi::demand;
use monarch_abi::index::Dir;
use monarch_abi::resolve::Found;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
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
    is_running: AtomicBool,
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
        let (cx, segments) = (shared.cx.clone(), shared.segments.clone());
        Self { cx, segments, working_sets: working_sets.clone(), is_running: AtomicBool::new(false) }
    }

    /// Begins to compare what processes have asked for since the last time, on a thread of its own:
    /// the PFS may hang.
    pub(crate) fn begin_asked(self: &Arc<Self>) {
        let asked = |live: &LiveSegment| live.segment.state.header.listings_asked.load(Ordering::Acquire) != 0;
        if !self.segments.read().iter().flatten().any(asked) || self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.clone();
        let work = move || {
            for (number, live) in me.segments.served() {
                if live.segment.state.header.listings_asked.swap(0, Ordering::AcqRel) != 0 {
                    let due = me.due(number, &live, crate::sys::coarse_ms() as u32);
                    me.check(number, &live, due);
                }
            }
            me.is_running.store(false, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("listings".to_owned()).stack_size(STACK_BYTES);
        if thread.spawn(work).is_err() {
            self.is_running.store(false, Ordering::Release);
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

    /// Compares directories, unless a path of the root leads elsewhere by now: what lies below the
    /// directory that the agent holds says nothing then.
    fn check(&self, number: usize, live: &LiveSegment, due: VecDeque<Due>) {
        if due.is_empty() || !self.leads_there(live) {
            return;
        }
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

    /// Whether all paths that lead to the root as a whole lead to the directory that the agent
    /// holds.
    fn leads_there(&self, live: &LiveSegment) -> bool {
        let ctl = &self.cx.ctl;
        let Some(root) = ctl.roots().get(live.root) else { return false };
        let place = (root.dev.load(Ordering::Relaxed), root.ino.load(Ordering::Relaxed));
        let of_root =
            |s: &&Spelling| s.root.load(Ordering::Relaxed) as usize == live.root && ctl.str(&s.sub).is_empty();
        ctl.spellings().iter().filter(of_root).all(|spelling| {
            self.cx.limits.before_scan_call();
            let path = Path::new(OsStr::from_bytes(ctl.str(&spelling.path)));
            std::fs::metadata(path).is_ok_and(|is| (is.dev(), is.ino()) == place)
        })
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
