//! Two lanes for copies: the copiers' own threads, and the rings.
//!
//! A demand that somebody waits for is always copied by a copier, woken by the reader itself. What is fetched ahead, and
//! demands for files so large that their readers do not wait, go by the lane of their source. Whoever comes upon a file of the
//! other lane hands it over, one at a time, and leaves the rest in line.

use super::{Driver, Live, parts};
use crate::config::Direct;
use crate::engine::Source;
use monarch_abi::sys::{futex_wait, futex_wake};
use std::sync::atomic::{AtomicU32, Ordering};

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// A copier, one file at a time.
    Threads,
    /// A ring, many at a time.
    Rings,
}

/// What rings sleep on while they have nothing to do. (Readers wake copiers, which must not be a ring.)
#[derive(Debug, Default)]
pub(super) struct Bell(AtomicU32);

impl Bell {
    /// To be asked before looking for work.
    pub(super) fn heard(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Sleeps unless it was rung since.
    pub(super) fn sleep(&self, heard: u32) {
        futex_wait(&self.0, heard, None);
    }

    pub(super) fn ring(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        futex_wake(&self.0, u32::MAX >> 1);
    }
}

impl Driver {
    /// The lane of a file that nobody waits for.
    pub(super) fn lane(&self, key: u64) -> Lane {
        if self.engines.uring.is_none() {
            return Lane::Threads;
        }
        parts(key)
            .and_then(|(number, _)| self.segment(number))
            .map_or(Lane::Threads, |live| self.lane_of(&*live.source))
    }

    /// The lane of a source. Where it is to be chosen, rings copy from file systems on which reads need no thread of the
    /// kernel; elsewhere each call occupies one anyhow, and our own spare the way there and back (docs/PERFORMANCE.md).
    fn lane_of(&self, source: &dyn Source) -> Lane {
        let wanted = !self.engines.auto || source.keeps_nowait();
        if wanted && self.engines.uring.is_some() && source.root().is_some() { Lane::Rings } else { Lane::Threads }
    }

    /// The lane of a large file's chunks. Where it is to be chosen, rings get them if they are read past the page cache from a
    /// local disk: that spares the processor most. Otherwise copiers are faster (docs/PERFORMANCE.md).
    pub(super) fn lane_of_chunks(&self, key: u64) -> Lane {
        if self.engines.auto && self.options.direct != Direct::Yes { Lane::Threads } else { self.lane(key) }
    }

    /// Which engine copies what nobody waits for from the source of a segment, and why.
    pub fn engine_of(&self, live: &Live) -> String {
        let name = match self.lane_of(&*live.source) {
            Lane::Rings => "uring",
            Lane::Threads => "threads",
        };
        let why = match (self.engines.auto, live.source.keeps_nowait()) {
            (false, _) => &self.engines.why,
            (true, true) => "reads of its file system need not block",
            (true, false) => "reads of its file system may block",
        };
        format!("{name}: {why}")
    }

    /// Wakes who works in a lane.
    pub(super) fn wake(&self, lane: Lane) {
        match lane {
            Lane::Threads => {
                self.ctl.ctl.demand.fetch_add(1, Ordering::SeqCst);
                futex_wake(&self.ctl.ctl.demand, 1);
            }
            Lane::Rings => self.bell.ring(),
        }
    }
}
