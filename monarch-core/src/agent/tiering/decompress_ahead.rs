//! Decoding ahead of the readers: which packed copy is decoded before somebody asks for it.
//!
//! Files are taken in the order of the index, on from the one that a reader asked for last: readers
//! in order find theirs decoded. Of a shuffled epoch nobody knows what comes next, unless it is
//! announced (then that order counts); but every file comes once, so those that were read already
//! are passed over until all have been, or until files are asked for again in earnest. One part in
//! eight of the room is left to those who ask.

use super::{Job, TieringEngine, parts};
use crate::sync::lock;
use monarch_abi::demand::file_key;
use monarch_policies::hints::Purpose;
use monarch_policies::{FileKey, RequestSource};
use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Entries that are looked at in one go.
const STEPS: u32 = 512;
/// How long it is taken for granted that there is nothing to decode: at first, and when that was so
/// for a long time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(64);
/// The same at most while readers ask.
const SOON: Duration = Duration::from_secs(4);
/// One part in so many of the room stays free for those who ask.
const SPARE: u64 = 8;
/// Of the files read in a round, one part in so many has to be asked for again for the next round
/// to begin.
const AGAIN: u32 = 8;

/// What was read of a segment since all of it was.
#[derive(Debug, Default)]
struct Round {
    read: Vec<u64>,
    count: u32,
    again: u32,
    cursor: u32,
    /// Entries that were passed over since the last one that was decoded.
    passed: u32,
    rests_until: Option<Instant>,
    /// How long it rested last.
    rested: Duration,
}

impl Round {
    fn has(&self, id: u32) -> bool {
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

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DecompressAhead(HashMap<usize, Round>);

impl TieringEngine {
    /// A reader asked for a file, which had to be decoded, or fetched.
    pub(super) fn was_asked(&self, key: u64) {
        if let Some((number, id)) = parts(key)
            && self.compresses
        {
            lock(&self.decompress_ahead).0.entry(number).or_default().note(id, true, self.packed_files());
        }
    }

    /// How many files lie packed.
    fn packed_files(&self) -> u64 {
        self.tiers.iter().map(|t| t.packed().files).sum()
    }

    /// A segment is gone.
    pub(super) fn forget_round(&self, number: usize) {
        lock(&self.decompress_ahead).0.remove(&number);
    }

    /// A decoded copy was opened.
    pub(super) fn was_read(&self, key: u64) {
        if let Some((number, id)) = parts(key) {
            lock(&self.decompress_ahead).0.entry(number).or_default().note(id, false, self.packed_files());
        }
    }

    /// A packed copy to be decoded now.
    pub(super) fn next_decoding(&self) -> Option<Job<'_>> {
        if !self.options.prefetch || self.stop.load(Ordering::Relaxed) || !self.has_room_ahead() {
            return None;
        }
        if let Some(key) = self.next_packed_in_order() {
            let mut job = Job::new(self, key, RequestSource::Prefetch, false);
            job.decodes = true;
            return Some(job);
        }
        let now = Instant::now();
        let numbers: Vec<usize> = {
            let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
            segments.iter().enumerate().filter(|(_, live)| live.is_some()).map(|(number, _)| number).collect()
        };
        for number in numbers {
            let Some(live) = self.segment(number) else { continue };
            let len = live.segment.index.len() as u32;
            loop {
                let (from, mut ids) = {
                    let mut rounds = lock(&self.decompress_ahead);
                    let round = rounds.0.entry(number).or_default();
                    if round.rests_until.is_some_and(|until| now < until) {
                        break;
                    }
                    if round.passed >= len {
                        round.rested = (round.rested * 2).clamp(PAUSE, LONGEST);
                        (round.passed, round.rests_until) = (0, Some(now + round.rested));
                        break;
                    }
                    let from = if round.cursor < len { round.cursor } else { 0 };
                    let to = len.min(from.saturating_add(STEPS));
                    round.cursor = to;
                    round.passed += to - from;
                    (from, (from..to).filter(|&id| !round.has(id)).collect::<Vec<_>>().into_iter())
                };
                let is_packed = |&id: &u32| {
                    let file = live.segment.index.record(id).is_some_and(monarch_abi::index::Record::is_file);
                    file && live.segment.by_id(id).is_some_and(|e| e.word().packed_in().is_some())
                };
                if let Some(id) = ids.find(is_packed) {
                    let mut rounds = lock(&self.decompress_ahead);
                    let round = rounds.0.entry(number).or_default();
                    // Whoever has been asked for something meanwhile goes on from there.
                    round.rested = Duration::ZERO;
                    if round.cursor >= from && round.passed > 0 {
                        round.cursor = id + 1;
                        round.passed = 0;
                    }
                    let mut job = Job::new(self, file_key(number, id), RequestSource::Prefetch, false);
                    job.decodes = true;
                    return Some(job);
                }
            }
        }
        None
    }

    /// The next packed copy in the known order, if one is known.
    fn next_packed_in_order(&self) -> Option<u64> {
        let mut hints = lock(&self.hints);
        while let Some(FileKey(key)) = hints.upcoming(Purpose::Decode) {
            if self.entry(key).is_some_and(|(_, entry)| entry.word().packed_in().is_some()) {
                return Some(key);
            }
        }
        None
    }

    /// Nothing can be decoded ahead for a while.
    pub(super) fn rest_decoding(&self, key: u64) {
        if let Some((number, _)) = parts(key) {
            lock(&self.decompress_ahead).0.entry(number).or_default().rests_until = Some(Instant::now() + PAUSE);
        }
    }

    /// Whether something may be decoded that nobody has asked for.
    fn has_room_ahead(&self) -> bool {
        self.transient.iter().zip(&self.tiers).any(|(decoded, tier)| {
            tier.for_decoded > 0
                && !tier.suspended()
                && (decoded.free() > tier.for_decoded / SPARE || decoded.has_used())
        })
    }

    /// Upkeep: copies that were opened make room for others.
    pub fn decode_ahead(&self) {
        if self.tiers.iter().all(|t| t.packed().files == 0) {
            return;
        }
        self.drain_touched();
        for (at, tier) in self.tiers.iter().enumerate().filter(|(_, t)| t.for_decoded > 0) {
            // Who asks is not to wait until others have made way.
            let short = (tier.for_decoded / SPARE).saturating_sub(self.kept_for_decoded(at));
            if short > 0 {
                let _ = self.drop_some_decoded(at, short, false);
            }
        }
        let now = Instant::now();
        let rests = |r: &Round| r.rests_until.is_some_and(|until| now < until);
        let all_rest = {
            let rounds = lock(&self.decompress_ahead);
            !rounds.0.is_empty() && rounds.0.values().all(rests)
        };
        if self.options.prefetch && self.has_room_ahead() && !all_rest {
            self.wake(super::engine_lane::Lane::Threads);
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
