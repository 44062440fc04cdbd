//! When other nodes may have written something, as far as the records of this one say.

use std::collections::BTreeSet;
use std::ops::Bound;

/// The records of a node between which other nodes may have written something.
#[derive(Debug, Default)]
pub(super) struct OtherNodes {
    pub(super) last_news: u32,
    /// Records just before which they may.
    pub(super) before: BTreeSet<u64>,
}

impl OtherNodes {
    /// A record was read.
    pub(super) fn record(&mut self, seq: u64, node_news: u32) {
        if std::mem::replace(&mut self.last_news, node_news) != node_news {
            self.before.insert(seq);
        }
    }

    /// Whether they may have written something between two records.
    pub(super) fn wrote_between(&self, from: u64, to: u64) -> bool {
        from < to && self.before.range((Bound::Excluded(from), Bound::Included(to))).next().is_some()
    }

    /// Nothing before a record matters any more.
    pub(super) fn forget_before(&mut self, seq: u64) {
        if self.before.first().is_some_and(|&first| first < seq) {
            self.before = self.before.split_off(&seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_write_stands_before_the_next_record() {
        let mut others = OtherNodes::default();
        [0, 0, 1, 1, 2].into_iter().zip(1..).for_each(|(news, seq)| others.record(seq, news));
        let between = |others: &OtherNodes| {
            [(1, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 4)].map(|(a, b)| others.wrote_between(a, b))
        };
        assert_eq!(between(&others), [false, true, true, false, true, false]);
        others.forget_before(4);
        assert_eq!(between(&others), [false, false, false, false, true, false]);
    }
}
