//! [`DecodeRounds`]: which files of each segment readers have read in this round.
//!
//! A round is a pass over all files of a segment that are compressed. `DecompressAhead` skips files
//! that were read in it. A round ends when all files were read, or when enough of them are
//! requested again.

use crate::sync::lock;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::parts;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Pause of decompression ahead in a segment after there was no space for it.
const NO_SPACE_PAUSE: Duration = Duration::from_secs(1);

/// Upper bound of that pause while readers request files.
const MAX_ACTIVE_PAUSE: Duration = Duration::from_secs(4);
/// The next round begins once one file in this many that were read is requested again.
const REPEATS_DIVISOR: u32 = 8;

/// The round of one segment.
#[derive(Debug, Default)]
pub(crate) struct Round {
    read: Vec<u64>,
    count: u32,
    again: u32,
    pub(crate) cursor: u32,
    /// Entries skipped since the last one that was decompressed.
    pub(crate) passed: u32,
    pub(crate) rests_until: Option<Instant>,
    /// Length of the last pause.
    pub(crate) rested: Duration,
}

impl Round {
    /// Whether a file was read in this round.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.read.get(id as usize / 64).is_some_and(|w| w & 1 << (id % 64) != 0)
    }

    /// Notes that a file was read; `packed` files are compressed. With `asked` it had to be
    /// decompressed for the reader, which may read those behind it next.
    fn note(&mut self, id: u32, asked: bool, packed: u64) {
        let known = self.has(id);
        if !known {
            let at = id as usize / 64;
            if self.read.len() <= at {
                self.read.resize(at + 1, 0);
            }
            self.read[at] |= 1 << (id % 64);
            self.count += 1;
        }
        if !asked {
            return;
        }
        self.cursor = id + 1;
        self.passed = 0;
        // A reader is active: files compressed since then are looked for soon.
        self.rested = Duration::ZERO;
        self.rests_until = self.rests_until.map(|until| until.min(Instant::now() + MAX_ACTIVE_PAUSE));
        if known {
            self.again += 1;
            if self.again > self.count / REPEATS_DIVISOR || u64::from(self.count) >= packed {
                self.restart(id, packed);
            }
        }
    }

    /// Begins the next round with this file.
    fn restart(&mut self, id: u32, packed: u64) {
        self.read.fill(0);
        (self.count, self.again, self.passed) = (0, 0, 0);
        (self.rests_until, self.rested) = (None, Duration::ZERO);
        self.note(id, false, packed);
    }
}

/// The rounds of all segments.
pub(crate) struct DecodeRounds {
    cx: Arc<Context>,
    rounds: Mutex<HashMap<usize, Round>>,
}

impl DecodeRounds {
    pub(crate) fn new(cx: &Arc<Context>) -> Self {
        Self { cx: cx.clone(), rounds: Mutex::default() }
    }

    /// Locks all rounds, by segment number.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<usize, Round>> {
        lock(&self.rounds)
    }

    /// Notes that a reader requested a file, which had to be decompressed or fetched.
    pub(crate) fn was_asked(&self, key: u64) {
        if let Some((number, id)) = parts(key)
            && self.cx.compresses
        {
            lock(&self.rounds).entry(number).or_default().note(id, true, self.cx.packed_files());
        }
    }

    /// Notes that a transient copy was opened.
    pub(crate) fn was_read(&self, key: u64) {
        if let Some((number, id)) = parts(key) {
            lock(&self.rounds).entry(number).or_default().note(id, false, self.cx.packed_files());
        }
    }

    /// Forgets the round of a segment that is gone.
    pub(crate) fn forget_round(&self, number: usize) {
        lock(&self.rounds).remove(&number);
    }

    /// Suspends decompression ahead in the segment of a file.
    pub(crate) fn suspend_decoding(&self, key: u64) {
        if let Some((number, _)) = parts(key) {
            lock(&self.rounds).entry(number).or_default().rests_until = Some(Instant::now() + NO_SPACE_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ends_when_files_are_asked_for_again() {
        let mut r = Round::default();
        (0..100).for_each(|id| r.note(id, true, 1000));
        assert_eq!((r.count, r.cursor), (100, 100));
        // Some are read twice in an epoch.
        (0..12).for_each(|id| r.note(id, true, 1000));
        assert!(r.has(99) && r.again == 12);
        // Opened again without having been decompressed: says nothing.
        (20..60).for_each(|id| r.note(id, false, 1000));
        assert!(r.has(99));
        r.note(70, true, 1000);
        assert!(!r.has(99) && r.has(70) && r.count == 1 && r.cursor == 71);
        // All of them were read: the first one that is requested again begins the next round.
        (0..100).for_each(|id| r.note(id, true, 100));
        assert!(r.has(99));
        r.note(3, true, 100);
        assert!(!r.has(99) && r.has(3));
    }

    #[test]
    fn a_reader_that_asks_shortens_a_pause() {
        let until = Instant::now() + Duration::from_secs(60);
        let mut r = Round { rests_until: Some(until), rested: Duration::from_secs(64), ..Round::default() };
        r.note(1, false, 1000);
        assert_eq!((r.rests_until, r.rested), (Some(until), Duration::from_secs(64)));
        r.note(2, true, 1000);
        assert!(r.rests_until.is_some_and(|until| until <= Instant::now() + MAX_ACTIVE_PAUSE));
        assert_eq!((r.rested, r.cursor), (Duration::ZERO, 3));
    }
}
