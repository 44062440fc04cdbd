//! Which files readers open, told to the agent: rings of single words, one store for each open.
//!
//! Epochs, the order of training, what a policy may drop: all that follows from what is opened, and hits ask nobody. So each open leaves a word
//! in the lane of its process. The agent takes the words away many times a second; where it does not keep up, or does not run, the oldest are
//! overwritten, and it learns how many. A process that is killed between taking a place and writing to it leaves an empty word, which is passed
//! over. Nothing is promised beyond that: what rests on it are decisions about speed.
//!
//! ```text
//! 63        43 42 41 40        32 31     0
//! | time, ms  | served| segment+1 |  id   |
//! ```

use core::sync::atomic::{AtomicU64, Ordering};

/// Lanes; a process uses one, so that its order is kept.
pub const LANES: usize = 32;
/// Words of a lane.
pub const LANE: usize = 4096;
/// Milliseconds are counted modulo this.
const TIME: u64 = 1 << 21;

/// From where an open was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Served {
    /// From a copy that was there.
    Tier = 0,
    /// From a copy that it waited for.
    Waited = 1,
    /// From the PFS.
    Pfs = 2,
    /// Chunk by chunk, while the copy of a large file is being made.
    Chunks = 3,
}

/// One open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Number of the segment.
    pub segment: usize,
    /// Entry in it.
    pub id: u32,
    /// From where.
    pub served: Served,
    /// When: milliseconds of the coarse monotonic clock.
    pub ms: u64,
}

impl Opened {
    #[inline]
    const fn word(self) -> u64 {
        (self.ms % TIME) << 43 | (self.served as u64) << 41 | (self.segment as u64 + 1) << 32 | self.id as u64
    }

    /// What a word says that was written a moment before `now_ms`; `None` if it is empty.
    fn of(word: u64, now_ms: u64) -> Option<Self> {
        let segment = usize::try_from((word >> 32) & 0x1ff).ok()?.checked_sub(1)?;
        let served = match (word >> 41) & 3 {
            0 => Served::Tier,
            1 => Served::Waited,
            2 => Served::Pfs,
            _ => Served::Chunks,
        };
        // (A clock that is read a little later may be ahead by a tick.)
        let ahead = now_ms + 1000;
        let ago = (ahead % TIME + TIME - (word >> 43)) % TIME;
        Some(Self { segment, id: word as u32, served, ms: ahead.saturating_sub(ago) })
    }
}

/// One lane.
#[derive(Debug)]
#[repr(C, align(128))]
struct Lane {
    /// Words ever written.
    head: AtomicU64,
    reserved: [AtomicU64; 15],
    words: [AtomicU64; LANE],
}

/// All lanes; part of the control block.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Accesses {
    lanes: [Lane; LANES],
}

impl Accesses {
    /// Notes an open by a process.
    #[inline]
    pub fn note(&self, process: u32, opened: Opened) {
        if let Some(lane) = self.lanes.get(process as usize % LANES) {
            let at = lane.head.fetch_add(1, Ordering::Relaxed) as usize % LANE;
            if let Some(word) = lane.words.get(at) {
                word.store(opened.word(), Ordering::Release);
            }
        }
    }
}

/// How far somebody has read; there is one reader.
#[derive(Debug)]
pub struct Tails {
    /// By lane: words taken, and whether the one at that place was empty the last time.
    lanes: [(u64, bool); LANES],
    /// Opens that were overwritten before they were read.
    pub lost: u64,
}

impl Tails {
    /// From now on: what was written before is passed over.
    #[must_use]
    pub fn new(log: &Accesses) -> Self {
        let mut lanes = [(0, false); LANES];
        for (tail, lane) in lanes.iter_mut().zip(&log.lanes) {
            tail.0 = lane.head.load(Ordering::Acquire);
        }
        Self { lanes, lost: 0 }
    }

    /// Takes all that was written, lane by lane, in order within each; the most that a lane had.
    pub fn take(&mut self, log: &Accesses, now_ms: u64, mut found: impl FnMut(usize, Opened)) -> u64 {
        let mut most = 0;
        for (number, (lane, (tail, was_empty))) in log.lanes.iter().zip(&mut self.lanes).enumerate() {
            let head = lane.head.load(Ordering::Acquire);
            most = most.max(head.saturating_sub(*tail));
            let oldest = head.saturating_sub(LANE as u64);
            if *tail < oldest {
                self.lost += oldest - *tail;
                (*tail, *was_empty) = (oldest, false);
            }
            while *tail < head {
                let word = lane.words.get(*tail as usize % LANE).map_or(0, |w| w.swap(0, Ordering::AcqRel));
                match Opened::of(word, now_ms) {
                    Some(opened) => found(number, opened),
                    // Whoever took the place is about to write; if not by the next time, it never will.
                    None if !*was_empty => {
                        *was_empty = true;
                        break;
                    }
                    None => {}
                }
                (*tail, *was_empty) = (*tail + 1, false);
            }
        }
        most
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn log() -> &'static Accesses {
        let layout = std::alloc::Layout::new::<Accesses>();
        // SAFETY: zeroes are a valid value: atomics only.
        unsafe { &*std::alloc::alloc_zeroed(layout).cast::<Accesses>() }
    }

    fn opened(id: u32, ms: u64) -> Opened {
        Opened { segment: 255, id, served: Served::Chunks, ms }
    }

    fn taken(tails: &mut Tails, log: &Accesses, now: u64) -> Vec<(usize, Opened)> {
        let mut all = Vec::new();
        tails.take(log, now, |lane, o| all.push((lane, o)));
        all
    }

    #[test]
    fn what_was_noted_comes_out_in_order_with_its_time() {
        let log = log();
        let mut tails = Tails::new(log);
        let now = 5 * TIME + 3;
        for (i, ago) in [70_000, 9, 4, 0].into_iter().enumerate() {
            log.note(33, opened(i as u32 * 1_000_000_000, now - ago));
        }
        log.note(2, opened(u32::MAX, now));
        let got = taken(&mut tails, log, now);
        assert_eq!(got.len(), 5);
        assert_eq!(got[0], (1, opened(0, now - 70_000)));
        assert_eq!(got[3], (1, opened(3_000_000_000, now)));
        assert_eq!(got[4], (2, opened(u32::MAX, now)));
        assert!(taken(&mut tails, log, now).is_empty());
    }

    #[test]
    fn what_was_overwritten_is_counted_and_the_rest_is_read() {
        let log = log();
        let mut tails = Tails::new(log);
        (0..LANE as u32 + 10).for_each(|i| log.note(0, opened(i, 1)));
        let got = taken(&mut tails, log, 1);
        assert_eq!((got.len(), tails.lost), (LANE, 10));
        assert_eq!((got[0].1.id, got[LANE - 1].1.id), (10, LANE as u32 + 9));
    }

    #[test]
    fn a_process_killed_before_it_wrote_holds_up_nobody_for_long() {
        let log = log();
        let mut tails = Tails::new(log);
        log.note(0, opened(1, 1));
        log.lanes[0].head.fetch_add(1, Ordering::Relaxed);
        log.note(0, opened(2, 1));
        let ids = |got: Vec<(usize, Opened)>| got.iter().map(|o| o.1.id).collect::<Vec<_>>();
        assert_eq!(ids(taken(&mut tails, log, 1)), [1]);
        assert_eq!(ids(taken(&mut tails, log, 1)), [2]);
        assert!(ids(taken(&mut tails, log, 1)).is_empty());
    }

    #[test]
    fn a_late_writer_is_read_the_next_time() {
        let log = log();
        let mut tails = Tails::new(log);
        log.lanes[3].head.fetch_add(1, Ordering::Relaxed);
        assert!(taken(&mut tails, log, 1).is_empty());
        log.lanes[3].words[0].store(opened(7, 1).word(), Ordering::Release);
        assert_eq!(taken(&mut tails, log, 1)[0].1.id, 7);
    }
}
