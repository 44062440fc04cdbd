//! Which files readers open, for the agent: rings of single words, one store for each open.
//!
//! Epochs, the order of training and what a policy may drop follow from the opens, and hits do not
//! go through the agent. So each open leaves a word in the lane of its process. The agent takes the
//! words many times a second; where it does not keep up, the oldest are overwritten, and it learns
//! how many. A process that is killed between taking a place and writing to it leaves an empty
//! word, which is skipped after a while. Only decisions about speed rest on these words.
//!
//! A hint leaves a word, too, once its file is there ([`crate::hint`]): the clock of the opens
//! stands still for milliseconds, and opens before a hint must not be taken for opens after it.
//!
//! ```text
//! 63        43 42 41 40        32 31     0
//! | time, ms  | served| segment+1 |  id   |   an open
//! | time, ms  |   0   |    511    |  tag  |   a hint
//! ```

use core::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// Lanes; a process uses one, so that its order is kept.
pub const LANES: usize = 32;
/// Words of a lane.
pub const LANE: usize = 4096;
/// Milliseconds are counted modulo this.
const CLOCK_WRAP_MS: u64 = 1 << 21;
/// What stands in the place of a segment where a hint is meant.
pub(crate) const HINT: u64 = 0x1ff;
/// Time after which the writer of an empty place counts as dead, milliseconds.
const WRITER_TIMEOUT_MS: u64 = 100;

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

/// A hint that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hinted {
    /// Which: see [`crate::hint::Header::tag`].
    pub tag: u32,
    /// When: as of opens.
    pub ms: u64,
}

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// A file was opened.
    Opened(Opened),
    /// A hint was given.
    Hinted(Hinted),
}

impl Opened {
    #[inline]
    const fn word(self) -> u64 {
        (self.ms % CLOCK_WRAP_MS) << 43 | (self.served as u64) << 41 | (self.segment as u64 + 1) << 32 | self.id as u64
    }
}

impl Hinted {
    const fn word(self) -> u64 {
        (self.ms % CLOCK_WRAP_MS) << 43 | HINT << 32 | self.tag as u64
    }
}

impl Noted {
    /// What a word says that was written a moment before `now_ms`; `None` if it is empty.
    fn of(word: u64, now_ms: u64) -> Option<Self> {
        // (A clock that is read a little later may be ahead by a tick.)
        let ahead = now_ms + 1000;
        let ago = (ahead % CLOCK_WRAP_MS + CLOCK_WRAP_MS - (word >> 43)) % CLOCK_WRAP_MS;
        let ms = ahead.saturating_sub(ago);
        let place = (word >> 32) & 0x1ff;
        if place == HINT {
            return Some(Self::Hinted(Hinted { tag: word as u32, ms }));
        }
        let segment = usize::try_from(place).ok()?.checked_sub(1)?;
        let served = match (word >> 41) & 3 {
            0 => Served::Tier,
            1 => Served::Waited,
            2 => Served::Pfs,
            _ => Served::Chunks,
        };
        Some(Self::Opened(Opened { segment, id: word as u32, served, ms }))
    }
}

/// One lane.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C, align(128))]
struct Lane {
    /// Words ever written.
    head: AtomicU64,
    reserved: [AtomicU64; 15],
    words: [AtomicU64; LANE],
}

/// All lanes; part of the control block.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C, align(128))]
pub struct Accesses {
    lanes: [Lane; LANES],
}

impl Accesses {
    /// Notes an open by a process.
    #[inline]
    pub fn note(&self, process: u32, opened: Opened) {
        self.write(process, opened.word());
    }

    /// Notes that a process has given a hint, whose file is there.
    pub fn note_hint(&self, process: u32, hinted: Hinted) {
        self.write(process, hinted.word());
    }

    #[inline]
    fn write(&self, process: u32, what: u64) {
        if let Some(lane) = self.lanes.get(process as usize % LANES) {
            let at = lane.head.fetch_add(1, Ordering::Relaxed) as usize % LANE;
            if let Some(word) = lane.words.get(at) {
                word.store(what, Ordering::Release);
            }
        }
    }
}

/// How far the agent has read; it is the only reader.
#[derive(Debug)]
pub struct Tails {
    /// By lane: words taken, and since when the one at that place has been empty.
    lanes: [(u64, Option<u64>); LANES],
    /// Opens that were overwritten before they were read.
    pub lost: u64,
}

impl Tails {
    /// From now on: what was written before is passed over.
    #[must_use]
    pub fn new(log: &Accesses) -> Self {
        let mut lanes = [(0, None); LANES];
        for (tail, lane) in lanes.iter_mut().zip(&log.lanes) {
            tail.0 = lane.head.load(Ordering::Acquire);
        }
        Self { lanes, lost: 0 }
    }

    /// Takes all that was written, lane by lane, in order within each; the most that a lane had.
    pub fn take(&mut self, log: &Accesses, now_ms: u64, mut found: impl FnMut(usize, Noted)) -> u64 {
        let mut most = 0;
        for (number, (lane, (tail, empty_since))) in log.lanes.iter().zip(&mut self.lanes).enumerate() {
            let head = lane.head.load(Ordering::Acquire);
            // A process may have written anything there: then the lane is followed from where it
            // says that it is.
            if head < *tail {
                (*tail, *empty_since) = (head, None);
            }
            most = most.max(head - *tail);
            let oldest = head.saturating_sub(LANE as u64);
            if *tail < oldest {
                self.lost = self.lost.saturating_add(oldest - *tail);
                (*tail, *empty_since) = (oldest, None);
            }
            // The process that took an empty place is about to write, unless it was killed; opens
            // of other processes are not lost for its sake.
            let hurry = head - *tail > LANE as u64 / 2;
            while *tail < head {
                let word = lane.words.get(*tail as usize % LANE).map_or(0, |w| w.swap(0, Ordering::AcqRel));
                match Noted::of(word, now_ms) {
                    Some(noted) => found(number, noted),
                    None if !hurry && now_ms.saturating_sub(*empty_since.get_or_insert(now_ms)) < WRITER_TIMEOUT_MS => {
                        break;
                    }
                    None => {}
                }
                (*tail, *empty_since) = (*tail + 1, None);
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
        tails.take(log, now, |lane, noted| match noted {
            Noted::Opened(o) => all.push((lane, o)),
            Noted::Hinted(h) => panic!("{h:?}"),
        });
        all
    }

    #[test]
    fn what_was_noted_comes_out_in_order_with_its_time() {
        let log = log();
        let mut tails = Tails::new(log);
        let now = 5 * CLOCK_WRAP_MS + 3;
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
    #[cfg_attr(miri, ignore = "thousands of words of a megabyte: minutes")]
    fn what_was_overwritten_is_counted_and_the_rest_is_read() {
        let log = log();
        let mut tails = Tails::new(log);
        (0..LANE as u32 + 10).for_each(|i| log.note(0, opened(i, 1)));
        let got = taken(&mut tails, log, 1);
        assert_eq!((got.len(), tails.lost), (LANE, 10));
        assert_eq!((got[0].1.id, got[LANE - 1].1.id), (10, LANE as u32 + 9));
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of words of a megabyte: minutes")]
    fn a_process_killed_before_it_wrote_holds_up_nobody_for_long() {
        let log = log();
        let mut tails = Tails::new(log);
        log.note(0, opened(1, 1));
        log.lanes[0].head.fetch_add(1, Ordering::Relaxed);
        log.note(0, opened(2, 1));
        let ids = |got: Vec<(usize, Opened)>| got.iter().map(|o| o.1.id).collect::<Vec<_>>();
        assert_eq!(ids(taken(&mut tails, log, 1)), [1]);
        // (However often one looks meanwhile.)
        (1..=WRITER_TIMEOUT_MS).for_each(|now| assert!(taken(&mut tails, log, now).is_empty()));
        assert_eq!(ids(taken(&mut tails, log, WRITER_TIMEOUT_MS + 1)), [2]);
        assert!(taken(&mut tails, log, WRITER_TIMEOUT_MS + 1).is_empty());
        // Another one, in a lane that fills up.
        log.lanes[0].head.fetch_add(1, Ordering::Relaxed);
        (0..LANE as u32 / 2).for_each(|i| log.note(0, opened(i, 1)));
        assert_eq!(taken(&mut tails, log, WRITER_TIMEOUT_MS + 1).len(), LANE / 2);
        assert_eq!(tails.lost, 0);
    }

    /// The agent stopped, or never heard of an open of that lane again.
    #[test]
    fn a_lane_whose_count_was_overwritten_is_followed_from_there() {
        let log = log();
        let mut tails = Tails::new(log);
        log.note(0, opened(1, 1));
        assert_eq!(taken(&mut tails, log, 1).len(), 1);
        for count in [0, u64::MAX, 0] {
            log.lanes[0].head.store(count, Ordering::Relaxed);
            taken(&mut tails, log, 2);
        }
        log.note(0, opened(7, 1));
        let ids: Vec<u32> = taken(&mut tails, log, 2).iter().map(|o| o.1.id).collect();
        assert_eq!(ids, [7]);
    }

    #[test]
    fn a_ring_whose_head_somebody_has_written_over_goes_on() {
        let log = log();
        let mut tails = Tails::new(log);
        (0..5).for_each(|i| log.note(0, opened(i, 1)));
        assert_eq!(taken(&mut tails, log, 1).len(), 5);
        log.lanes[0].head.store(u64::MAX - 3, Ordering::Relaxed);
        taken(&mut tails, log, 1 + WRITER_TIMEOUT_MS);
        taken(&mut tails, log, 2 + 2 * WRITER_TIMEOUT_MS);
        log.lanes[0].head.store(2, Ordering::Relaxed);
        assert!(taken(&mut tails, log, 3).is_empty());
        log.note(0, opened(9, 3));
        assert_eq!(taken(&mut tails, log, 3), [(0, opened(9, 3))]);
    }

    #[test]
    fn a_late_writer_is_read_the_next_time() {
        let log = log();
        let mut tails = Tails::new(log);
        log.lanes[3].head.fetch_add(1, Ordering::Relaxed);
        (1..9).for_each(|now| assert!(taken(&mut tails, log, now).is_empty()));
        log.lanes[3].words[0].store(opened(7, 1).word(), Ordering::Release);
        assert_eq!(taken(&mut tails, log, 9)[0].1.id, 7);
    }

    #[test]
    fn hints_have_their_place_among_the_opens_of_their_process() {
        let log = log();
        let mut tails = Tails::new(log);
        log.note(5, opened(1, 7));
        log.note_hint(5, Hinted { tag: u32::MAX, ms: 7 });
        log.note(5, opened(2, 7));
        let mut all = Vec::new();
        tails.take(log, 8, |_, noted| all.push(noted));
        let hint = Noted::Hinted(Hinted { tag: u32::MAX, ms: 7 });
        assert_eq!(all, [Noted::Opened(opened(1, 7)), hint, Noted::Opened(opened(2, 7))]);
    }
}
