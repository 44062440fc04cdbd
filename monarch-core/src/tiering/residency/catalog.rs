//! [`Catalog`]: the resident copies in the order in which they were placed, and the cursor of the
//! audit.
//!
//! Keys of copies that are gone stay listed until `Eviction::tidy`: the state word of a file
//! decides.

use std::collections::{HashSet, VecDeque};

/// Copies that one round of the audit looks at, besides those opened last.
const AUDIT_COPIES_PER_ROUND: usize = 128;
/// Copies opened last that every round looks at: about a millisecond of `fstatat`.
const MAX_OPENED: usize = 1024;
/// While no copy is placed or opened, one round in so many looks at any.
const IDLE_ROUNDS: u32 = 4;

/// The resident copies in the order in which they were placed. Some may be gone: their state words
/// tell.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    keys: VecDeque<u64>,
    /// Index at which the next round of the audit begins.
    audited: usize,
    /// The copies that readers opened last.
    opened: Opened,
    /// Rounds of the audit since a copy was placed or opened.
    idle_rounds: u32,
}

/// At most [`MAX_OPENED`] distinct copies that readers opened. A new one replaces the one noted
/// first, which is noted again by its next open.
#[derive(Debug, Default)]
struct Opened {
    keys: VecDeque<u64>,
    members: HashSet<u64>,
}

impl Opened {
    fn add(&mut self, key: u64) {
        if !self.members.insert(key) {
            return;
        }
        self.keys.push_back(key);
        if self.keys.len() > MAX_OPENED
            && let Some(first) = self.keys.pop_front()
        {
            self.members.remove(&first);
        }
    }
}

impl Catalog {
    /// Adds copies that were placed in this order.
    pub(crate) fn extend(&mut self, keys: impl Iterator<Item = u64>) {
        self.keys.extend(keys);
        self.idle_rounds = 0;
    }

    /// Removes the copy that was placed last from the list.
    pub(crate) fn pop_last(&mut self) -> Option<u64> {
        self.keys.pop_back()
    }

    /// Takes all keys, if there are more than `many`.
    pub(crate) fn take_above(&mut self, many: usize) -> Option<VecDeque<u64>> {
        (self.keys.len() > many).then(|| std::mem::take(&mut self.keys))
    }

    /// Puts keys back before those that were added meanwhile.
    pub(crate) fn put_first(&mut self, mut keys: VecDeque<u64>) {
        keys.append(&mut self.keys);
        self.keys = keys;
    }

    /// Notes a copy that a reader opened.
    pub(crate) fn note_opened(&mut self, key: u64) {
        self.opened.add(key);
        self.idle_rounds = 0;
    }

    /// Adds a copy that was placed now.
    pub(crate) fn add(&mut self, key: u64) {
        self.keys.push_back(key);
        self.idle_rounds = 0;
    }

    /// At most `most` keys, spread evenly, and the number of all keys.
    pub(crate) fn sample(&self, most: usize) -> (Vec<u64>, usize) {
        let step = self.keys.len().div_ceil(most.max(1)).max(1);
        (self.keys.iter().step_by(step).copied().collect(), self.keys.len())
    }

    /// At most `most` keys for which `wanted` holds, the one placed last first.
    pub(crate) fn last_of(&self, wanted: impl Fn(u64) -> bool, most: usize) -> Vec<u64> {
        self.keys.iter().rev().copied().filter(|key| wanted(*key)).take(most).collect()
    }

    /// The keys of the next round of the audit: the next ones in turn, and those of the copies that
    /// were opened last. While nothing is placed or opened, most rounds have none.
    pub(crate) fn next_audit(&mut self) -> Vec<u64> {
        let idle_rounds = self.idle_rounds;
        self.idle_rounds = idle_rounds.wrapping_add(1);
        if !idle_rounds.is_multiple_of(IDLE_ROUNDS) {
            return Vec::new();
        }
        let n = self.keys.len().min(AUDIT_COPIES_PER_ROUND);
        let from = if self.audited < self.keys.len() { self.audited } else { 0 };
        self.audited = from + n;
        let next = self.keys.iter().cycle().skip(from).take(n);
        next.filter(|key| !self.opened.members.contains(key)).chain(&self.opened.keys).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_last_is_looked_at_in_each_round() {
        let mut catalog = Catalog::default();
        (0..100_000).for_each(|key| catalog.add(key));
        for _ in 0..3 {
            (50_000..50_100).for_each(|key| catalog.note_opened(key));
            let round = catalog.next_audit();
            assert_eq!(round.len(), AUDIT_COPIES_PER_ROUND + 100);
            assert!((50_000..50_100).all(|key| round.contains(&key)));
        }
        // Further opens push the first ones out, and no copy is looked at twice in a round.
        (0..2 * MAX_OPENED as u64).for_each(|key| catalog.note_opened(key));
        let round = catalog.next_audit();
        assert_eq!(round.iter().collect::<HashSet<_>>().len(), round.len());
        assert!(!round.contains(&50_000) && round.contains(&(2 * MAX_OPENED as u64 - 1)));
    }

    #[test]
    fn a_sample_is_spread_and_the_last_placed_come_first() {
        let mut catalog = Catalog::default();
        catalog.extend(0..100);
        assert_eq!(catalog.sample(10), ((0..100).step_by(10).collect(), 100));
        assert_eq!(catalog.sample(1000).0.len(), 100);
        assert_eq!(catalog.last_of(|key| key % 2 == 0, 3), [98, 96, 94]);
        assert!(catalog.take_above(100).is_none());
        let keys = catalog.take_above(99).unwrap();
        catalog.add(7);
        catalog.put_first(keys);
        assert_eq!([catalog.pop_last(), catalog.pop_last()], [Some(7), Some(99)], "added meanwhile");
    }

    #[test]
    fn every_copy_is_audited_in_turn() {
        let mut catalog = Catalog::default();
        catalog.extend(0..3 * AUDIT_COPIES_PER_ROUND as u64);
        let rounds: HashSet<u64> = (0..3 * IDLE_ROUNDS).flat_map(|_| catalog.next_audit()).collect();
        assert_eq!(rounds.len(), 3 * AUDIT_COPIES_PER_ROUND);
    }

    #[test]
    fn while_nothing_happens_few_rounds_look_at_copies() {
        let mut catalog = Catalog::default();
        (0..10_000).for_each(|key| catalog.add(key));
        let looked: Vec<bool> = (0..9).map(|_| !catalog.next_audit().is_empty()).collect();
        assert_eq!(looked, [true, false, false, false, true, false, false, false, true]);
        catalog.note_opened(7);
        assert!(catalog.next_audit().contains(&7), "at once");
    }
}
