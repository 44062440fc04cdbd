//! What readers read of each segment since they read all of it.

use crate::sync::lock;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::parts;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long nothing of a segment is decoded ahead after there was no room for it.
const PAUSE: Duration = Duration::from_secs(1);

/// The same at most while readers ask.
const SOON: Duration = Duration::from_secs(4);
/// Of the files read in a round, one part in so many has to be asked for again for the next round
/// to begin.
const AGAIN: u32 = 8;

/// What was read of a segment since all of it was.
#[derive(Debug, Default)]
pub(crate) struct Round {
    read: Vec<u64>,
    count: u32,
    again: u32,
    pub(crate) cursor: u32,
    /// Entries that were passed over since the last one that was decoded.
    pub(crate) passed: u32,
    pub(crate) rests_until: Option<Instant>,
    /// How long it rested last.
    pub(crate) rested: Duration,
}

impl Round {
    pub(crate) fn has(&self, id: u32) -> bool {
        self.read.get(id as usize / 64).is_some_and(|w| w & 1 << (id % 64) != 0)
    }

    /// A file was read, one of so many that lie packed. With `asked` it had to be decoded for that,
    /// and the next ones are perhaps those behind it.
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
        // Somebody reads: what was packed since is looked for soon.
        self.rested = Duration::ZERO;
        self.rests_until = self.rests_until.map(|until| until.min(Instant::now() + SOON));
        if known {
            self.again += 1;
            if self.again > self.count / AGAIN || u64::from(self.count) >= packed {
                self.begin_anew(id, packed);
            }
        }
    }

    /// All have been read, or so it seems: the next round has begun with this one.
    fn begin_anew(&mut self, id: u32, packed: u64) {
        self.read.fill(0);
        (self.count, self.again, self.passed) = (0, 0, 0);
        (self.rests_until, self.rested) = (None, Duration::ZERO);
        self.note(id, false, packed);
    }
}

/// What readers read of each segment since they read all of it.
pub(crate) struct DecodeRounds {
    cx: Arc<Context>,
    rounds: Mutex<HashMap<usize, Round>>,
}

impl DecodeRounds {
    /// All rounds, by segment, for a moment.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<usize, Round>> {
        lock(&self.rounds)
    }

    pub(crate) fn new(cx: &Arc<Context>) -> Self {
        Self { cx: cx.clone(), rounds: Mutex::default() }
    }

    /// A reader asked for a file, which had to be decoded, or fetched.
    pub(crate) fn was_asked(&self, key: u64) {
        if let Some((number, id)) = parts(key)
            && self.cx.compresses
        {
            lock(&self.rounds).entry(number).or_default().note(id, true, self.cx.packed_files());
        }
    }

    /// A decoded copy was opened.
    pub(crate) fn was_read(&self, key: u64) {
        if let Some((number, id)) = parts(key) {
            lock(&self.rounds).entry(number).or_default().note(id, false, self.cx.packed_files());
        }
    }

    /// A segment is gone.
    pub(crate) fn forget_round(&self, number: usize) {
        lock(&self.rounds).remove(&number);
    }

    /// Nothing can be decoded ahead for a while.
    pub(crate) fn rest_decoding(&self, key: u64) {
        if let Some((number, _)) = parts(key) {
            lock(&self.rounds).entry(number).or_default().rests_until = Some(Instant::now() + PAUSE);
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
        // Opened again without having been decoded: says nothing.
        (20..60).for_each(|id| r.note(id, false, 1000));
        assert!(r.has(99));
        r.note(70, true, 1000);
        assert!(!r.has(99) && r.has(70) && r.count == 1 && r.cursor == 71);
        // All of them were read: the first one that comes again begins the next round.
        (0..100).for_each(|id| r.note(id, true, 100));
        assert!(r.has(99));
        r.note(3, true, 100);
        assert!(!r.has(99) && r.has(3));
    }
}
