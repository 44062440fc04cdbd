//! Names that the index lacks: which directory decides about them, and whether its listing may
//! answer in place of the PFS (`dataset.absent`).
//!
//! A path that the index lacks leads through directories that it has. The deepest of them decides:
//! if its listing is held and still the directory's, the name is not there. Each directory has a
//! word in the state file. It says that the kernel answers, that the listing does, or when the
//! directory was last compared with the PFS; the check of one process counts for all of the node.
//! A directory that was found changed is the kernel's for good.

use crate::guard::NEVER_AGAIN;
use core::sync::atomic::{AtomicU32, Ordering};

/// Word of a directory about whose names the kernel is asked.
pub const KERNEL: u32 = 0;
/// Word of a directory that is compared with the PFS before its listing answers.
pub const UNASKED: u32 = 1;
/// Word of a directory whose listing answers.
pub const TRUSTED: u32 = u32::MAX;
/// Bit of all other words, which are times: a process has needed the directory since it was
/// compared last, or compared it itself.
const NEEDED: u32 = 1;
/// The times that can be told from the words above.
const FIRST_TIME: u32 = 2;
const LAST_TIME: u32 = u32::MAX - 3;
/// Shortest interval in which directories are compared ahead of processes.
const MIN_AHEAD_INTERVAL_MS: u32 = 500;

/// A name that the index lacks, and the directory that decides about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// Which root.
    pub root: usize,
    /// Number of its segment.
    pub segment: usize,
    /// Id of the directory in which the name was looked up.
    pub dir: u32,
    /// Bytes of the path, as it was given, from that name to the end.
    pub tail: usize,
    /// Whether something has the name that is no directory, and the path goes on behind it.
    pub below_file: bool,
}

/// The words of all directories of a segment, by their position in the index.
#[derive(Clone, Copy, Debug)]
pub struct Deciders<'a> {
    pub(crate) words: &'a [AtomicU32],
    pub(crate) interval_ms: &'a AtomicU32,
}

/// What is to be done about an absent name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel answers.
    Kernel,
    /// The listing answers: the name is not there.
    NotThere,
    /// The listing answers once the directory was compared with the PFS; its word as it is now.
    Ask(u32),
}

impl Deciders<'_> {
    /// Returns what is to be done about a name in the directory at `position`, at a time of the
    /// monotonic clock in milliseconds.
    #[must_use]
    pub fn verdict(&self, position: usize, now_ms: u32) -> Verdict {
        match self.word(position) {
            KERNEL => Verdict::Kernel,
            TRUSTED => Verdict::NotThere,
            UNASKED => Verdict::Ask(UNASKED),
            at if now_ms.wrapping_sub(at & !NEEDED) < self.interval_ms() => {
                self.note_needed(position, at);
                Verdict::NotThere
            }
            at => Verdict::Ask(at),
        }
    }

    fn note_needed(&self, position: usize, at: u32) {
        if at & NEEDED == 0
            && let Some(word) = self.words.get(position)
        {
            let _ = word.compare_exchange(at, at | NEEDED, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Returns the word of a directory that will have to be compared at this time, if a process
    /// has needed it before or `may_be_needed`.
    #[must_use]
    pub fn due(&self, position: usize, at_ms: u32, may_be_needed: bool) -> Option<u32> {
        match self.word(position) {
            KERNEL | TRUSTED => None,
            UNASKED => may_be_needed.then_some(UNASKED),
            at => {
                let is_old = at_ms.wrapping_sub(at & !NEEDED) >= self.interval_ms();
                (is_old && (may_be_needed || at & NEEDED != 0)).then_some(at)
            }
        }
    }

    /// Notes that the directory was unchanged when the PFS was asked, at this time, by a process
    /// that needs it. `seen` is the word of the verdict: a process that found a change meanwhile
    /// wins.
    pub fn passed(&self, position: usize, seen: u32, asked_ms: u32) {
        self.passed_with(position, seen, asked_ms, NEEDED);
    }

    /// [`Deciders::passed`] of a directory that was compared ahead: from here on it counts as
    /// needed once a process has needed it again.
    pub fn passed_ahead(&self, position: usize, seen: u32, asked_ms: u32) {
        self.passed_with(position, seen, asked_ms, 0);
    }

    fn passed_with(&self, position: usize, seen: u32, asked_ms: u32, needed: u32) {
        let to = match self.interval_ms.load(Ordering::Relaxed) {
            NEVER_AGAIN => TRUSTED,
            _ => (asked_ms & !NEEDED).clamp(FIRST_TIME, LAST_TIME) | needed,
        };
        if let Some(word) = self.words.get(position) {
            let _ = word.compare_exchange(seen, to, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Leaves the names of a directory to the kernel from now on.
    pub fn leave(&self, position: usize) {
        if let Some(word) = self.words.get(position) {
            word.store(KERNEL, Ordering::Release);
        }
    }

    /// Sets the first words, before the segment is published; whether there is room for them.
    pub fn begin(&self, words: &[u32]) -> bool {
        self.words.iter().zip(words).for_each(|(to, &word)| to.store(word, Ordering::Relaxed));
        self.words.len() >= words.len()
    }

    /// Takes over words that trust less than those of now: of a job that asks for more checks.
    pub fn tighten(&self, words: impl IntoIterator<Item = u32>) {
        for (word, asked) in self.words.iter().zip(words) {
            match asked {
                KERNEL => word.store(KERNEL, Ordering::Release),
                UNASKED => {
                    let _ = word.compare_exchange(TRUSTED, UNASKED, Ordering::AcqRel, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }

    /// Sets the time after which a directory is compared again, in milliseconds.
    pub fn set_interval_ms(&self, ms: u32) {
        self.interval_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns the number of directories whose listings answer.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().filter(|w| w.load(Ordering::Relaxed) != KERNEL).count()
    }

    /// Returns the word of the directory at `position`.
    #[must_use]
    pub fn word(&self, position: usize) -> u32 {
        self.words.get(position).map_or(KERNEL, |w| w.load(Ordering::Acquire))
    }

    /// Whether directories may be compared before a process needs them: not where what was compared
    /// is old again at once.
    #[must_use]
    pub fn may_compare_ahead(&self) -> bool {
        self.interval_ms() >= MIN_AHEAD_INTERVAL_MS
    }

    /// The time after which a directory is compared again, in milliseconds: an hour at most,
    /// whatever stands in shared memory.
    #[must_use]
    pub fn interval_ms(&self) -> u32 {
        self.interval_ms.load(Ordering::Relaxed).min(crate::control::MAX_CLOCK_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_answers_for_the_interval_after_a_check_and_never_after_a_change() {
        let words = [const { AtomicU32::new(UNASKED) }; 2];
        let ms = AtomicU32::new(5000);
        let deciders = Deciders { words: &words, interval_ms: &ms };
        assert_eq!(deciders.verdict(0, 7), Verdict::Ask(UNASKED));
        deciders.passed(0, UNASKED, 0);
        assert_eq!(deciders.verdict(0, 2), Verdict::NotThere, "at once");
        assert_eq!((deciders.verdict(0, 5001), deciders.verdict(0, 5002)), (Verdict::NotThere, Verdict::Ask(3)));
        // The clock's 32 bits wrap.
        deciders.passed(0, 3, u32::MAX);
        assert_eq!(deciders.verdict(0, 4000), Verdict::NotThere);
        deciders.leave(0);
        deciders.passed(0, TRUSTED - 1, 4000);
        assert_eq!(
            (deciders.verdict(0, 4000), deciders.verdict(1, 1), deciders.count()),
            (Verdict::Kernel, Verdict::Ask(UNASKED), 1)
        );
        assert_eq!(deciders.verdict(2, 1), Verdict::Kernel, "there is no such directory");
    }

    #[test]
    fn what_was_compared_ahead_is_compared_again_only_if_it_was_needed() {
        let words = [const { AtomicU32::new(UNASKED) }; 2];
        let ms = AtomicU32::new(5000);
        let deciders = Deciders { words: &words, interval_ms: &ms };
        assert_eq!((deciders.due(0, 9, false), deciders.due(0, 9, true)), (None, Some(UNASKED)));
        (0..2).for_each(|position| deciders.passed_ahead(position, UNASKED, 100));
        assert_eq!(deciders.verdict(1, 200), Verdict::NotThere);
        assert_eq!([0, 1].map(|position| deciders.due(position, 6000, false)), [None, Some(101)]);
        assert_eq!(deciders.due(0, 6000, true), Some(100));
        assert!(
            deciders.may_compare_ahead()
                && !Deciders { interval_ms: &AtomicU32::new(0), ..deciders }.may_compare_ahead()
        );
        deciders.passed_ahead(1, 101, 6000);
        assert_eq!(deciders.due(1, 11_000, false), None, "not needed since");
        assert_eq!((deciders.verdict(0, 6000), deciders.verdict(1, 10_999)), (Verdict::Ask(100), Verdict::NotThere));
        assert_eq!([0, 1].map(|position| deciders.due(position, 11_000, false)), [None, Some(6001)]);
    }

    #[test]
    fn a_loaded_index_that_asks_once_is_asked_once() {
        let (words, ms) = ([AtomicU32::new(UNASKED)], AtomicU32::new(NEVER_AGAIN));
        let deciders = Deciders { words: &words, interval_ms: &ms };
        deciders.passed(0, UNASKED, 9);
        assert_eq!(deciders.verdict(0, 100_000_000), Verdict::NotThere);
    }

    #[test]
    fn the_stricter_of_two_jobs_counts() {
        let words = [AtomicU32::new(TRUSTED), AtomicU32::new(70), AtomicU32::new(TRUSTED), AtomicU32::new(KERNEL)];
        let ms = AtomicU32::new(5000);
        let deciders = Deciders { words: &words, interval_ms: &ms };
        deciders.tighten([UNASKED, UNASKED, KERNEL, TRUSTED]);
        let now = [0, 1, 2, 3].map(|at| deciders.verdict(at, 71));
        assert_eq!(now, [Verdict::Ask(UNASKED), Verdict::NotThere, Verdict::Kernel, Verdict::Kernel]);
    }
}
