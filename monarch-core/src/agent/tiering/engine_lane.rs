//! Two lanes for copies: the copiers' own threads, and the rings.
//!
//! A demand for a whole file is always copied by a copier, woken by the reader itself. What is
//! fetched ahead, and chunks of large files, go by the lane of their source, which
//! [`trial`](super::engine_trial) finds out. Whoever comes upon a file of the other lane hands it
//! over, one at a time, and leaves the rest in line.

use super::engine_trial::{Change, Kind};
use super::{LiveSegment, TieringEngine, parts};
use crate::sys::timespec;
use monarch_abi::sys::{futex_wait, futex_wake};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// A copier, one file at a time.
    Threads,
    /// A ring, many at a time.
    Rings,
}

/// What rings sleep on while they have nothing to do. (Readers wake copiers, which must not be a
/// ring.)
#[derive(Debug, Default)]
pub(super) struct RingWaker(AtomicU32);

impl RingWaker {
    /// To be asked before looking for work.
    pub(super) fn heard(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Sleeps unless it was rung since, for so long at most.
    pub(super) fn sleep(&self, heard: u32, patience: Option<Duration>) {
        futex_wait(&self.0, heard, patience.map(timespec));
    }

    pub(super) fn ring(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        futex_wake(&self.0, u32::MAX >> 1);
    }
}

impl Lane {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Threads => Self::Rings,
            Self::Rings => Self::Threads,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Rings => "uring",
        }
    }
}

impl TieringEngine {
    /// The lane of a file that nobody waits for.
    pub(super) fn lane(&self, key: u64) -> Lane {
        if self.comes_from_peer(key) {
            return Lane::Threads;
        }
        // Reading a copy in full is a copier's work: a ring would leave all its other files
        // waiting. (Nor does the queue wait for a root whose copies are being claimed.)
        if self.engines.uring.is_none() || self.orphans.try_lock().map_or(true, |u| u.has_to_verify()) {
            return Lane::Threads;
        }
        parts(key)
            .and_then(|(number, _)| self.segment(number))
            .map_or(Lane::Threads, |live| self.lane_of(&live, Kind::Files))
    }

    /// The lane of what is fetched from the source of a segment.
    pub(super) fn lane_of(&self, live: &LiveSegment, kind: Kind) -> Lane {
        match self.has_choice(live) {
            None => Lane::Threads,
            Some(false) => Lane::Rings,
            Some(true) => live.mount.trial(kind).lane(),
        }
    }

    /// Whether there are rings for a source, and copiers if they are better.
    fn has_choice(&self, live: &LiveSegment) -> Option<bool> {
        (self.engines.uring.is_some() && live.source.root().is_some()).then_some(self.engines.auto)
    }

    /// Something of `bytes` was given out to a lane, of which it could have been the other.
    pub(super) fn given(&self, live: &LiveSegment, kind: Kind, lane: Lane, bytes: u64) {
        if self.has_choice(live) != Some(true) {
            return;
        }
        let processor = || {
            let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec as u32)
        };
        match live.mount.trial(kind).note(lane, bytes, Instant::now(), processor) {
            None => {}
            Some(Change::Turn(lane)) => self.wake(lane),
            Some(Change::Measured(lane, ratios)) => {
                let what = match kind {
                    Kind::Files => "files",
                    Kind::Chunks => "chunks",
                };
                let root = self.ctl.roots().get(live.root).map(|r| String::from_utf8_lossy(self.ctl.str(&r.path)));
                let root = root.unwrap_or_default();
                tracing::info!(%root, what, engine = lane.name(), "copy engine chosen: {ratios}");
                self.wake(lane);
            }
        }
    }

    /// Which engine copies what nobody waits for from the source of a segment, and why.
    pub fn engine_of(&self, live: &LiveSegment) -> String {
        let of = |kind| {
            let trial = live.mount.trial(kind);
            format!("{} ({})", trial.lane().name(), trial.why())
        };
        match self.has_choice(live) {
            None => format!("{}: {}", Lane::Threads.name(), self.engines.why),
            Some(false) => format!("{}: {}", Lane::Rings.name(), self.engines.why),
            Some(true) => format!("files {}, chunks {}", of(Kind::Files), of(Kind::Chunks)),
        }
    }

    /// Wakes who works in a lane.
    pub(super) fn wake(&self, lane: Lane) {
        match lane {
            Lane::Threads => {
                self.ctl.ctl.demand.fetch_add(1, Ordering::SeqCst);
                futex_wake(&self.ctl.ctl.demand, 1);
            }
            Lane::Rings => self.ring_waker.ring(),
        }
    }
}
