//! What is looked at again when a file is opened, in segments whose job asks for that: when the PFS was last asked who it is
//! (`dataset.consistency: close-to-open`), and what the bytes of its copy must come to (`dataset.verify_on_open`).
//!
//! Both are arrays by entry in the state file, so that the check of one process counts for all of the node. They are not there
//! where nobody asks for them: then all that an open sees of this is one test.

use crate::sum::Sum;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pieces of copies are whole pages.
const PAGE: u64 = 4096;

/// Which of the arrays there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    /// Times of checks.
    pub checked: bool,
    /// Checksums.
    pub sums: bool,
}

/// The arrays of a segment; empty ones where there are none.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    pub(crate) revalidate_ms: &'a AtomicU32,
    pub(crate) checked: &'a [AtomicU32],
    pub(crate) sums: &'a [AtomicU64],
    pub(crate) pieces: &'a [AtomicU32],
}

/// When an entry was last compared with the PFS.
#[derive(Clone, Copy, Debug)]
pub struct LastCheck<'a> {
    at: &'a AtomicU32,
    interval_ms: u32,
}

impl<'a> Guard<'a> {
    /// Whether anything is looked at again.
    #[must_use]
    #[inline]
    pub const fn is_on(&self) -> bool {
        self.checked.len() | self.sums.len() != 0
    }

    /// Which of the arrays there are.
    #[must_use]
    pub const fn which(&self) -> Guards {
        Guards { checked: !self.checked.is_empty(), sums: !self.sums.is_empty() }
    }

    /// Milliseconds after which an entry is checked again; 0: at every open.
    #[must_use]
    pub fn interval_ms(&self) -> u32 {
        self.revalidate_ms.load(Ordering::Relaxed)
    }

    /// The last check of an entry, where entries are checked.
    #[must_use]
    #[inline]
    pub fn last_check(&self, id: u32) -> Option<LastCheck<'a>> {
        let at = self.checked.get(id as usize)?;
        Some(LastCheck { at, interval_ms: self.interval_ms() })
    }

    /// What the bytes of an entry's copy must come to, if that is known.
    #[must_use]
    pub fn sum(&self, id: u32) -> Option<Sum> {
        let value = self.sums.get(id as usize)?.load(Ordering::Acquire);
        let piece = u64::from(self.pieces.get(id as usize)?.load(Ordering::Relaxed)) * PAGE;
        (value != 0).then_some(Sum { value, piece })
    }

    /// Takes note of it, before the entry's word says that there is a copy. (One that comes to 0 by chance is never known.)
    pub fn note_sum(&self, id: u32, sum: Sum) {
        if let (Some(value), Some(piece)) = (self.sums.get(id as usize), self.pieces.get(id as usize)) {
            piece.store(u32::try_from(sum.piece / PAGE).unwrap_or(0), Ordering::Relaxed);
            value.store(sum.value, Ordering::Release);
        }
    }
}

impl LastCheck<'_> {
    /// Whether it is to be compared again, at a time of the monotonic clock in milliseconds. They are counted in 32 bits: what was
    /// checked last 49 days ago, to the second, passes for checked.
    #[must_use]
    pub fn is_due(&self, now_ms: u32) -> bool {
        let at = self.at.load(Ordering::Relaxed);
        at == 0 || now_ms.wrapping_sub(at) >= self.interval_ms
    }

    /// It was what it is to be when the PFS was asked, at this time. Who stores an older time than another one has the next
    /// check come sooner.
    pub fn passed(&self, asked_ms: u32) {
        self.at.store(asked_ms.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_due_when_their_interval_is_over() {
        let at = AtomicU32::new(0);
        let check = |interval_ms| LastCheck { at: &at, interval_ms };
        assert!(check(5000).is_due(7), "never checked");
        check(5000).passed(0);
        assert!(!check(5000).is_due(5000) && check(5000).is_due(5001));
        assert!(check(0).is_due(1), "at every open");
        // The clock's 32 bits begin anew.
        check(5000).passed(u32::MAX - 10);
        assert!(!check(5000).is_due(4000) && check(5000).is_due(4990));
        // A reader that was slower than the clock of another one: asks once more.
        check(5000).passed(100);
        assert!(check(5000).is_due(99));
    }

    #[test]
    fn a_sum_is_known_once_it_is_noted() {
        let (ms, sums, pieces) =
            (AtomicU32::new(0), [const { AtomicU64::new(0) }; 2], [const { AtomicU32::new(0) }; 2]);
        let guard = Guard { revalidate_ms: &ms, checked: &[], sums: &sums, pieces: &pieces };
        assert!(guard.is_on() && guard.last_check(0).is_none() && guard.sum(1).is_none());
        let sum = Sum { value: 7, piece: 64 << 20 };
        guard.note_sum(1, sum);
        assert_eq!((guard.sum(0), guard.sum(1), guard.sum(2)), (None, Some(sum), None));
    }
}
