//! TODO

use std::collections::{HashSet, VecDeque};

/// Copies looked at in one round of the audit, besides those that were opened last.
const AUDIT: usize = 128;
/// Copies opened last that are looked at in each round: about a millisecond's worth of `fstatat`.
const MAX_OPENED: usize = 1024;

/// Resident copies in the order they were placed. Some may have gone meanwhile: their words tell.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    keys: VecDeque<u64>,
    /// Where the audit goes on.
    audited: usize,
    /// The copies that readers opened last, which the audit looks at in every round.
    opened: Opened,
}

/// [`MAX_OPENED`] distinct copies that readers opened: the first of them goes for a new one, and
/// comes back with its next open.
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
    /// Adds copies, placed in this order.
    pub(crate) fn extend(&mut self, keys: impl Iterator<Item = u64>) {
        self.keys.extend(keys);
    }

    /// Takes the copy out that was placed last.
    pub(crate) fn pop_last(&mut self) -> Option<u64> {
        self.keys.pop_back()
    }

    /// Takes all out, if there are more than `many`.
    pub(crate) fn take_above(&mut self, many: usize) -> Option<VecDeque<u64>> {
        (self.keys.len() > many).then(|| std::mem::take(&mut self.keys))
    }

    /// Puts copies back before those that were added meanwhile.
    pub(crate) fn put_first(&mut self, mut keys: VecDeque<u64>) {
        keys.append(&mut self.keys);
        self.keys = keys;
    }

    /// Notes a copy that a reader opened.
    pub(crate) fn note_opened(&mut self, key: u64) {
        self.opened.add(key);
    }

    pub(crate) fn add(&mut self, key: u64) {
        self.keys.push_back(key);
    }

    /// So many of them, spread evenly, and how many there are.
    pub(crate) fn sample(&self, most: usize) -> (Vec<u64>, usize) {
        let step = self.keys.len().div_ceil(most.max(1)).max(1);
        (self.keys.iter().step_by(step).copied().collect(), self.keys.len())
    }

    /// Those placed last that are wanted, last first, so many at most.
    pub(crate) fn last_of(&self, wanted: impl Fn(u64) -> bool, most: usize) -> Vec<u64> {
        self.keys.iter().rev().copied().filter(|key| wanted(*key)).take(most).collect()
    }

    /// The next copies to be looked at, round and round, and those that were opened last.
    pub(crate) fn some(&mut self) -> Vec<u64> {
        let n = self.keys.len().min(AUDIT);
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
        let mut placed = Catalog::default();
        (0..100_000).for_each(|key| placed.add(key));
        (50_000..50_100).for_each(|key| placed.opened.add(key));
        for _ in 0..3 {
            let round = placed.some();
            assert_eq!(round.len(), AUDIT + 100);
            assert!((50_000..50_100).all(|key| round.contains(&key)));
        }
        // More of them push the first ones out, and no copy is looked at twice in a round.
        (0..2 * MAX_OPENED as u64).for_each(|key| placed.opened.add(key));
        let round = placed.some();
        assert_eq!(round.iter().collect::<HashSet<_>>().len(), round.len());
        assert!(!round.contains(&50_000) && round.contains(&(2 * MAX_OPENED as u64 - 1)));
    }
}
