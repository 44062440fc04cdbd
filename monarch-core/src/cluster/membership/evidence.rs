//! What readers come upon: a node that does not answer them is not asked for a while, a longer one each time.
//!
//! When a pause is over, one connection is tried, and not by a reader: if it is accepted the node may be asked again. Only a request that
//! was served makes the next pause a short one.

use std::collections::HashMap;

const FIRST: u64 = 1_000;
const LONGEST: u64 = 60_000;

/// By node: how often it failed in a row, and until when it is left alone.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    failed: HashMap<u16, Failure>,
}

#[derive(Debug)]
struct Failure {
    times: u32,
    until: u64,
    blocked: bool,
}

impl Evidence {
    /// A request, or a trial, failed. Many that fail at once are one failure.
    pub(super) fn failure(&mut self, node: u16, now: u64) {
        let failure = self.failed.entry(node).or_insert(Failure { times: 0, until: 0, blocked: false });
        if !failure.blocked || failure.until <= now {
            failure.until = now + LONGEST.min(FIRST << failure.times.min(10));
            failure.times += 1;
            failure.blocked = true;
        }
    }

    /// A request was served, or a new life began.
    pub(super) fn success(&mut self, node: u16) {
        self.failed.remove(&node);
    }

    /// A trial went well.
    pub(super) fn reachable(&mut self, node: u16) {
        if let Some(failure) = self.failed.get_mut(&node) {
            failure.blocked = false;
        }
    }

    pub(super) fn blocked(&self, node: u16) -> bool {
        self.failed.get(&node).is_some_and(|f| f.blocked)
    }

    /// Whether there is anything to forget.
    pub(super) fn any(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Those to be tried now; a trial that nobody reports on is made again after the next pause.
    pub(super) fn due(&mut self, now: u64) -> Vec<u16> {
        let due: Vec<u16> = self.failed.iter().filter(|(_, f)| f.blocked && f.until <= now).map(|(n, _)| *n).collect();
        due.iter().for_each(|node| self.failure(*node, now));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_a_success_ends_them() {
        let mut evidence = Evidence::default();
        evidence.failure(3, 0);
        evidence.failure(3, 10);
        assert!(evidence.blocked(3) && evidence.due(999).is_empty());
        assert_eq!((evidence.due(1_000), evidence.due(1_001)), (vec![3], vec![]));
        assert_eq!((evidence.due(2_999), evidence.due(3_000)), (vec![], vec![3]));
        evidence.reachable(3);
        assert!(!evidence.blocked(3) && evidence.due(99_000).is_empty());
        evidence.failure(3, 100_000);
        assert!(evidence.due(103_999).is_empty(), "it failed before: the pause goes on growing");
        for n in 0..20 {
            evidence.failure(3, 200_000 + n * 100_000);
        }
        assert_eq!((evidence.due(2_159_999), evidence.due(2_160_000)), (vec![], vec![3]));
        evidence.success(3);
        assert!(!evidence.blocked(3));
    }
}
