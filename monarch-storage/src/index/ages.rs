//! When the files of a root were last read, as far as the PFS knows: for sites that remove files
//! which are not read.
//!
//! A histogram by the hour, made from the access times of the scan. A file that the agent reads
//! counts as read now, once, where the mount keeps access times. A file that is served from a copy
//! does not, as the PFS does not see that.

use crate::parts_of::Cut;
use monarch_abi::index::Index;
use std::collections::BTreeMap;
use std::time::Duration;

const HOUR_NS: i64 = 3600 * 1_000_000_000;

/// A histogram of the last accesses to files.
#[derive(Clone, Debug, Default)]
pub struct Ages {
    /// Files by the hour of their last access.
    hours: BTreeMap<i64, u64>,
    /// A bit for each entry that was read since the scan.
    read: Vec<u64>,
}

/// Files that will soon be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Near {
    /// Their number.
    pub files: u64,
    /// The time since the oldest access.
    pub oldest: Duration,
}

impl Ages {
    /// The histogram of all files of an index. An access time of 0 stands for none.
    #[must_use]
    pub fn of(index: &Index<'_>) -> Self {
        Self::with(index, Cut::for_machine())
    }

    pub(super) fn with(index: &Index<'_>, cut: Cut) -> Self {
        let parts = cut.each(index.len(), |part| {
            let mut hours = BTreeMap::<i64, u64>::new();
            for r in index.records_of(part).iter().filter(|r| r.is_file() && r.atime_ns > 0) {
                *hours.entry(r.atime_ns / HOUR_NS).or_default() += 1;
            }
            hours
        });
        let mut hours = BTreeMap::<i64, u64>::new();
        parts.into_iter().flatten().for_each(|(hour, files)| *hours.entry(hour).or_default() += files);
        Self { hours, read: vec![0; index.len().div_ceil(64)] }
    }

    /// Notes that the file with this id, whose last access was at `atime_ns`, is read at `now_ns`;
    /// both in nanoseconds since the epoch.
    pub fn note(&mut self, id: u32, atime_ns: i64, now_ns: i64) {
        let Some(bits) = self.read.get_mut(id as usize / 64) else { return };
        let bit = 1 << (id % 64);
        if *bits & bit != 0 || atime_ns <= 0 {
            return;
        }
        *bits |= bit;
        if let Some(n) = self.hours.get_mut(&(atime_ns / HOUR_NS)) {
            *n = n.saturating_sub(1);
        }
        *self.hours.entry(now_ns / HOUR_NS).or_default() += 1;
    }

    /// The files whose last access is at least four fifths of `limit` ago.
    #[must_use]
    pub fn near(&self, limit: Duration, now_ns: i64) -> Option<Near> {
        let limit = i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX);
        // An access counts as one at the end of its hour: no file is taken for older than it is.
        let last = now_ns.saturating_sub(limit / 5 * 4) / HOUR_NS - 1;
        let old = self.hours.range(..=last).filter(|(_, n)| **n > 0);
        let (mut files, mut first) = (0, None);
        for (hour, n) in old {
            first.get_or_insert(*hour);
            files += n;
        }
        let oldest = now_ns.saturating_sub(first?.saturating_add(1).saturating_mul(HOUR_NS));
        Some(Near { files, oldest: Duration::from_nanos(u64::try_from(oldest).unwrap_or(0)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Tree, build};
    use crate::shm::IndexBytes;

    const DAY: Duration = Duration::from_hours(24);
    const NOW: i64 = 1_800_000_000 * 1_000_000_000;

    /// Files that were last read this number of days ago.
    fn files(days: &[u32]) -> Ages {
        let mut tree = Tree::synthetic(1, days.len() as u32);
        for (r, d) in tree.entries_mut(1).iter_mut().zip(days) {
            r.atime_ns = NOW - (DAY * *d).as_nanos() as i64;
        }
        let built = build(tree, 1, [1; 16]);
        Ages::of(&IndexBytes(&built.index).open().expect("index"))
    }

    #[test]
    fn files_near_the_age_at_which_they_are_removed_are_counted() {
        let ages = files(&[1, 5, 20, 23, 25, 25, 29]);
        let near = ages.near(DAY * 30, NOW).expect("three files of more than 24 days");
        assert_eq!(near.files, 3);
        assert!((DAY * 28..=DAY * 29).contains(&near.oldest), "{near:?}");
        assert_eq!(ages.near(DAY * 90, NOW), None);
        let later = NOW + (DAY * 5).as_nanos() as i64;
        assert_eq!(ages.near(DAY * 30, later).expect("older by now").files, 5);
    }

    #[test]
    fn a_file_that_was_read_is_young_again() {
        let mut ages = files(&[29, 28, 1]);
        let at = |days: u32| NOW - (DAY * days).as_nanos() as i64;
        // Ids: root, directory, then the files. Twice counts once.
        ages.note(2, at(29), NOW);
        ages.note(2, at(29), NOW);
        let near = ages.near(DAY * 30, NOW).expect("one");
        assert_eq!(near.files, 1);
        assert!(near.oldest < DAY * 29, "{near:?}");
        ages.note(3, at(28), NOW);
        ages.note(4_000_000, at(28), NOW);
        assert_eq!(ages.near(DAY * 30, NOW), None);
    }

    #[test]
    fn a_file_system_without_access_times_is_not_old() {
        let mut tree = Tree::synthetic(1, 3);
        tree.entries_mut(1).iter_mut().for_each(|r| r.atime_ns = 0);
        let built = build(tree, 1, [1; 16]);
        let ages = Ages::of(&IndexBytes(&built.index).open().expect("index"));
        assert_eq!(ages.near(DAY, NOW), None);
    }
}
