//! Checks when a file is opened, in segments whose job asks for them: when the PFS
//! was last compared with the PFS (`dataset.consistency: close-to-open`), and the checksum of its
//! copy (`dataset.verify_on_open`).
//!
//! Entries of an index that was loaded from a file (`index.trust: verify`) are compared with the
//! PFS before their first use, links and directories included; under `immutable` that is the only
//! time. The agent counts as having looked at what it has copied.
//!
//! Both are arrays by entry in the state file, so that the check of one process counts for all of
//! the node. They are not there where no job needs them: then all that an open sees of this is
//! one test.

use crate::hash::Identity;
use crate::index::Record;
use crate::sum::Sum;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pieces of copies are whole pages.
const PAGE: u64 = 4096;

/// The interval of entries that are compared once, before their first use.
pub const NEVER_AGAIN: u32 = u32::MAX;

/// Flag of a state file: its index was loaded from a file, and nothing of it is believed before it
/// was compared.
pub const LOADED: u32 = 1;
/// Flag of a state file: times of change are other ones on this node than in the index, and are not
/// compared.
pub const OTHER_CTIMES: u32 = 2;

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
    /// [`LOADED`], [`OTHER_CTIMES`].
    pub(crate) flags: u32,
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

    /// Milliseconds after which an entry is checked again, an hour at most; 0: at every open;
    /// [`NEVER_AGAIN`].
    #[must_use]
    pub fn interval_ms(&self) -> u32 {
        match self.revalidate_ms.load(Ordering::Relaxed) {
            NEVER_AGAIN if self.is_loaded() => NEVER_AGAIN,
            ms => ms.min(crate::control::MAX_CLOCK_MS),
        }
    }

    /// Whether the index was loaded from a file, so that each entry is compared before its first
    /// use.
    #[must_use]
    pub const fn is_loaded(&self) -> bool {
        self.flags & LOADED != 0
    }

    /// Whether times of change are not the same on this node as in the index.
    #[must_use]
    pub const fn has_other_ctimes(&self) -> bool {
        self.flags & OTHER_CTIMES != 0
    }

    /// Whether the PFS says of a path what the record says, as far as that can be compared on this
    /// node.
    #[must_use]
    pub const fn is_still(&self, record: &Record, now: &Identity) -> bool {
        let ctime_ns = if self.has_other_ctimes() { record.ctime_ns } else { now.ctime_ns };
        record.is_still(&Identity { ctime_ns, ..*now })
    }

    /// The agent has compared an entry with the PFS: that was the only time, where there is to be
    /// only one.
    pub fn was_compared(&self, id: u32) {
        if let Some(check) = self.last_check(id).filter(|c| c.interval_ms == NEVER_AGAIN) {
            check.passed(1);
        }
    }

    /// The last check of an entry, where entries are checked.
    #[must_use]
    #[inline]
    pub fn last_check(&self, id: u32) -> Option<LastCheck<'a>> {
        let at = self.checked.get(id as usize)?;
        Some(LastCheck { at, interval_ms: self.interval_ms() })
    }

    /// The checksum of an entry's copy, if it is known.
    #[must_use]
    pub fn sum(&self, id: u32) -> Option<Sum> {
        let value = self.sums.get(id as usize)?.load(Ordering::Acquire);
        let piece = u64::from(self.pieces.get(id as usize)?.load(Ordering::Relaxed)) * PAGE;
        (value != 0).then_some(Sum { value, piece })
    }

    /// Stores it, before the entry's word says that there is a copy. (One that comes to 0 by
    /// chance is never known.)
    pub fn note_sum(&self, id: u32, sum: Sum) {
        if let (Some(value), Some(piece)) = (self.sums.get(id as usize), self.pieces.get(id as usize)) {
            piece.store(u32::try_from(sum.piece / PAGE).unwrap_or(0), Ordering::Relaxed);
            value.store(sum.value, Ordering::Release);
        }
    }
}

impl LastCheck<'_> {
    /// Whether it is to be compared again, at a time of the monotonic clock in milliseconds. They
    /// are counted in 32 bits: what was checked last 49 days ago, to the second, passes for
    /// checked.
    #[must_use]
    pub fn is_due(&self, now_ms: u32) -> bool {
        let at = self.at.load(Ordering::Relaxed);
        at == 0 || (self.interval_ms != NEVER_AGAIN && now_ms.wrapping_sub(at) >= self.interval_ms)
    }

    /// Notes that the entry was unchanged when the PFS was asked, at this time. A process that
    /// stores an older time than another one has the next check come sooner.
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
        // The clock's 32 bits wrap.
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
        let guard = Guard { revalidate_ms: &ms, flags: 0, checked: &[], sums: &sums, pieces: &pieces };
        assert!(guard.is_on() && guard.last_check(0).is_none() && guard.sum(1).is_none());
        let sum = Sum { value: 7, piece: 64 << 20 };
        guard.note_sum(1, sum);
        assert_eq!((guard.sum(0), guard.sum(1), guard.sum(2)), (None, Some(sum), None));
    }

    #[test]
    fn entries_of_a_loaded_index_are_compared_once() {
        let (ms, checked) = (AtomicU32::new(NEVER_AGAIN), [const { AtomicU32::new(0) }; 2]);
        let guard = Guard { revalidate_ms: &ms, flags: LOADED, checked: &checked, sums: &[], pieces: &[] };
        let due = |id, now| guard.last_check(id).is_some_and(|c| c.is_due(now));
        assert!(guard.is_on() && due(0, 0) && due(0, u32::MAX));
        guard.last_check(0).into_iter().for_each(|c| c.passed(7));
        guard.was_compared(1);
        assert!([7, 6, 8, 5_000_000, u32::MAX].iter().all(|now| !due(0, *now) && !due(1, *now)));
        // A job that wants to be asked for more often: each interval counts, and what the agent
        // compared at some time does not.
        ms.store(100, Ordering::Relaxed);
        assert!(due(0, 107) && !due(0, 106));
        checked[1].store(0, Ordering::Relaxed);
        guard.was_compared(1);
        assert!(due(1, 2));
    }

    #[test]
    fn an_interval_that_no_job_can_ask_for_is_an_hour() {
        let ms = AtomicU32::new(NEVER_AGAIN);
        let guard = |flags| Guard { revalidate_ms: &ms, flags, checked: &[], sums: &[], pieces: &[] };
        assert_eq!((guard(0).interval_ms(), guard(LOADED).interval_ms()), (3_600_000, NEVER_AGAIN));
        ms.store(NEVER_AGAIN - 1, Ordering::Relaxed);
        assert_eq!(guard(LOADED).interval_ms(), 3_600_000);
    }

    #[test]
    fn times_of_change_of_another_client_are_not_compared() {
        let ms = AtomicU32::new(0);
        let guard = |flags| Guard { revalidate_ms: &ms, flags, checked: &[], sums: &[], pieces: &[] };
        let record = Record { size: 5, mtime_ns: 6, ctime_ns: 7, ino: 8, mode: 0o100_644, ..Record::default() };
        let other = Identity { ctime_ns: 9, ..record.identity() };
        assert!(guard(0).is_still(&record, &record.identity()) && !guard(0).is_still(&record, &other));
        assert!(guard(OTHER_CTIMES).is_still(&record, &other));
        assert!(!guard(OTHER_CTIMES).is_still(&record, &Identity { mtime_ns: 9, ..other }));
    }
}
