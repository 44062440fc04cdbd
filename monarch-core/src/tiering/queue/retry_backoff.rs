//! [`RetryBackoff`]: files that are refused until a pause ends, and how often each has failed.
//!
//! Both are bounded by [`MOST`]. A file that does not fit stays Refused until a walk
//! over all words finds it.

use monarch_abi::word::Word;
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

/// Files that are tracked in each of the two tables.
const MOST: usize = 1 << 16;
/// Pause after the first failure of a file; each further one doubles it.
const FIRST: Duration = Duration::from_secs(5);
/// The longest pause, unless the attempt itself took long.
const LONGEST: Duration = Duration::from_secs(600);
/// The pause is at least this many times as long as the attempt took: an attempt that fails takes
/// at most one part in 31 of the time.
const SHARE: u32 = 30;
/// Pause before the walk that finds the files that were not tracked.
const WALK: Duration = Duration::from_secs(60);

/// A file that is Refused until its pause ends: its key and the word that says so.
pub(crate) type Paused = (u64, Word);

/// Files that are refused until a pause ends, and how often each has failed.
#[derive(Debug, Default)]
pub(crate) struct RetryBackoff {
    paused: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    failures: HashMap<u64, u32>,
    walk_at: Option<Instant>,
}

impl RetryBackoff {
    /// Adds a file that becomes due after `pause`.
    pub(crate) fn add(&mut self, pause: Duration, (key, word): Paused) {
        if self.paused.len() < MOST {
            self.paused.push(Reverse((Instant::now() + pause, key, word.0)));
        } else {
            self.walk_at.get_or_insert_with(|| Instant::now() + WALK);
        }
    }

    /// Number of tracked files whose pause has not ended.
    pub(crate) fn paused(&self) -> usize {
        self.paused.len()
    }

    /// Whether no file waits for the end of its pause, tracked or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.paused.is_empty() && self.walk_at.is_none()
    }

    /// Takes a file whose pause is over.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Paused> {
        let Reverse((at, key, word)) = *self.paused.peek()?;
        if at > now {
            return None;
        }
        self.paused.pop();
        Some((key, Word(word)))
    }

    /// Whether a walk over all words is due. Returns `true` once.
    pub(crate) fn walk_due(&mut self, now: Instant) -> bool {
        self.walk_at.take_if(|at| *at <= now).is_some()
    }

    /// Notes an attempt that failed after `took`. Returns the pause before the next one.
    pub(crate) fn failed(&mut self, key: u64, took: Duration) -> Duration {
        let room = self.failures.len() < MOST;
        let before = match self.failures.entry(key) {
            Entry::Vacant(e) if room => *e.insert(0),
            Entry::Vacant(_) => u32::MAX,
            Entry::Occupied(mut e) => {
                *e.get_mut() += 1;
                *e.get()
            }
        };
        let doubled = FIRST.saturating_mul(1u32.checked_shl(before.min(31)).unwrap_or(u32::MAX));
        doubled.min(LONGEST).max(took.saturating_mul(SHARE))
    }

    /// Whether the last attempt at the file failed.
    pub(crate) fn has_failed(&self, key: u64) -> bool {
        self.failures.contains_key(&key)
    }

    /// Forgets the failures of all files of an index that is no longer served.
    pub(crate) fn forget(&mut self, is_of_it: impl Fn(u64) -> bool) {
        self.failures.retain(|key, _| !is_of_it(*key));
    }

    /// Forgets the failures of a file.
    pub(crate) fn worked(&mut self, key: u64) {
        self.failures.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_with_every_failure_up_to_ten_minutes() {
        let mut later = RetryBackoff::default();
        let pauses: Vec<u64> = (0..9).map(|_| later.failed(1, Duration::ZERO).as_secs()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(
            later.failed(2, Duration::from_secs(900)).as_secs(),
            27_000,
            "an hour's read is not repeated at once"
        );
        later.worked(1);
        assert_eq!(later.failed(1, Duration::ZERO).as_secs(), 5);
        later.forget(|key| key == 2);
        assert!(later.has_failed(1) && !later.has_failed(2));
    }

    #[test]
    fn ten_million_failures_take_no_more_memory_than_a_few() {
        let mut later = RetryBackoff::default();
        for key in 0..MOST as u64 + 10 {
            let pause = later.failed(key, Duration::ZERO);
            later.add(pause, (key, Word(0)));
        }
        assert_eq!((later.paused.len(), later.failures.len()), (MOST, MOST));
        assert!(!later.walk_due(Instant::now()) && later.walk_due(Instant::now() + WALK));
        assert!(!later.walk_due(Instant::now() + WALK), "one walk");
    }
}
