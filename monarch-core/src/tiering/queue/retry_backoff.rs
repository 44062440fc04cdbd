//! [`RetryBackoff`]: files that are refused until a pause ends, and how often each has failed.
//!
//! Both are bounded by [`MAX_TRACKED_FILES`]. A file that does not fit stays Refused until a walk
//! over all words finds it.

use monarch_abi::word::Word;
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

/// Files that are tracked in each of the two tables.
const MAX_TRACKED_FILES: usize = 1 << 16;
/// Pause after the first failure of a file; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause, unless the attempt itself took long.
const MAX_PAUSE: Duration = Duration::from_secs(600);
/// The pause is at least this many times as long as the attempt took: an attempt that fails takes
/// at most one part in 31 of the time.
const PAUSE_PER_ATTEMPT: u32 = 30;
/// Pause before the walk that finds the files that were not tracked.
const WALK_DELAY: Duration = Duration::from_secs(60);

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
        if self.paused.len() < MAX_TRACKED_FILES {
            self.paused.push(Reverse((Instant::now() + pause, key, word.0)));
        } else {
            self.walk_at.get_or_insert_with(|| Instant::now() + WALK_DELAY);
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
        let room = self.failures.len() < MAX_TRACKED_FILES;
        let before = match self.failures.entry(key) {
            Entry::Vacant(e) if room => *e.insert(0),
            Entry::Vacant(_) => u32::MAX,
            Entry::Occupied(mut e) => {
                *e.get_mut() += 1;
                *e.get()
            }
        };
        let doubled = FIRST_PAUSE.saturating_mul(1u32.checked_shl(before.min(31)).unwrap_or(u32::MAX));
        doubled.min(MAX_PAUSE).max(took.saturating_mul(PAUSE_PER_ATTEMPT))
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
        let mut backoff = RetryBackoff::default();
        let pauses: Vec<u64> = (0..9).map(|_| backoff.failed(1, Duration::ZERO).as_secs()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(
            backoff.failed(2, Duration::from_secs(900)).as_secs(),
            27_000,
            "an hour's read is not repeated at once"
        );
        backoff.worked(1);
        assert_eq!(backoff.failed(1, Duration::ZERO).as_secs(), 5);
        backoff.forget(|key| key == 2);
        assert!(backoff.has_failed(1) && !backoff.has_failed(2));
    }

    #[test]
    fn ten_million_failures_take_no_more_memory_than_a_few() {
        let mut backoff = RetryBackoff::default();
        for key in 0..MAX_TRACKED_FILES as u64 + 10 {
            let pause = backoff.failed(key, Duration::ZERO);
            backoff.add(pause, (key, Word(0)));
        }
        assert_eq!((backoff.paused.len(), backoff.failures.len()), (MAX_TRACKED_FILES, MAX_TRACKED_FILES));
        assert!(!backoff.walk_due(Instant::now()) && backoff.walk_due(Instant::now() + WALK_DELAY));
        assert!(!backoff.walk_due(Instant::now() + WALK_DELAY), "one walk");
    }

    #[test]
    fn a_file_is_due_when_its_pause_is_over_and_the_shortest_pause_first() {
        let (mut backoff, start) = (RetryBackoff::default(), Instant::now());
        backoff.add(Duration::from_secs(60), (1, Word(5)));
        backoff.add(Duration::from_secs(10), (2, Word(6)));
        assert_eq!(backoff.due(start + Duration::from_secs(9)), None);
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!([backoff.due(later), backoff.due(later)], [Some((2, Word(6))), Some((1, Word(5)))]);
        assert!(backoff.due(later).is_none() && backoff.is_empty());
    }
}
