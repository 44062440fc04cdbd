//! Pauses of nodes that did not answer readers: such a node is not asked for a while, a longer one
//! each time. That counts for one life of the node: one that has just come up was not there when it
//! was asked before.
//!
//! When a pause is over, one connection is tried, and not by a reader: if it is accepted the node
//! may be asked again. Only a request that was served makes the next pause a short one.

use std::collections::HashMap;

/// Milliseconds for which a node is not asked after its first failure.
const FIRST_PAUSE_MS: u64 = 1_000;
/// Most milliseconds for which a node is not asked.
const MAX_PAUSE_MS: u64 = 60_000;

/// By node: how often it failed in a row, and until when it is left alone.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    failed: HashMap<u16, Failure>,
}

#[derive(Debug)]
struct Failure {
    life: u64,
    times: u32,
    /// When it failed first since it was blocked.
    since: u64,
    until: u64,
    blocked: bool,
}

impl Evidence {
    /// A request, or a trial, failed in that life of the node (0: nothing was heard of it yet).
    /// Many that fail at once are one failure.
    pub(super) fn failure(&mut self, node: u16, life: u64, now: u64) {
        let first = || Failure { life, times: 0, since: now, until: 0, blocked: false };
        let failure = self.failed.entry(node).or_insert_with(first);
        if failure.life > life {
            // Of a life that is over.
            return;
        }
        if failure.life < life {
            *failure = first();
        }
        if !failure.blocked || failure.until <= now {
            failure.until = now + MAX_PAUSE_MS.min(FIRST_PAUSE_MS << failure.times.min(10));
            failure.times += 1;
            if !failure.blocked {
                failure.since = now;
            }
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

    /// Since when it is not asked, if it is not.
    pub(super) fn blocked_since(&self, node: u16, life: u64) -> Option<u64> {
        self.failed.get(&node).filter(|f| f.blocked && f.life == life).map(|f| f.since)
    }

    /// Whether there is anything to forget.
    pub(super) fn any(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Those to be tried now; a trial without a report is made again after the next pause.
    pub(super) fn due(&mut self, now: u64) -> Vec<u16> {
        let due = self.failed.iter().filter(|(_, f)| f.blocked && f.until <= now);
        let due: Vec<(u16, u64)> = due.map(|(n, f)| (*n, f.life)).collect();
        due.iter().for_each(|(node, life)| self.failure(*node, *life, now));
        due.into_iter().map(|(node, _)| node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Evidence {
        fn blocked(&self, node: u16, life: u64) -> bool {
            self.blocked_since(node, life).is_some()
        }
    }

    #[test]
    fn pauses_grow_and_a_success_ends_them() {
        let mut evidence = Evidence::default();
        evidence.failure(3, 7, 0);
        evidence.failure(3, 7, 10);
        assert!(evidence.blocked(3, 7) && evidence.due(999).is_empty());
        assert_eq!((evidence.due(1_000), evidence.due(1_001)), (vec![3], vec![]));
        assert_eq!((evidence.due(2_999), evidence.due(3_000)), (vec![], vec![3]));
        evidence.reachable(3);
        assert!(!evidence.blocked(3, 7) && evidence.due(99_000).is_empty());
        evidence.failure(3, 7, 100_000);
        assert!(evidence.due(103_999).is_empty(), "it failed before: the pause goes on growing");
        for n in 0..20 {
            evidence.failure(3, 7, 200_000 + n * 100_000);
        }
        assert_eq!((evidence.due(2_159_999), evidence.due(2_160_000)), (vec![], vec![3]));
        evidence.success(3);
        assert!(!evidence.blocked(3, 7));
        evidence.failure(3, 7, 3_000_000);
        evidence.failure(3, 7, 3_001_500);
        assert_eq!((evidence.blocked_since(3, 7), evidence.blocked_since(3, 8)), (Some(3_000_000), None));
    }

    #[test]
    fn one_that_was_not_there_yet_is_not_blamed_when_it_comes() {
        let mut evidence = Evidence::default();
        evidence.failure(3, 0, 10);
        assert!(evidence.blocked(3, 0) && !evidence.blocked(3, 7));
        evidence.failure(3, 7, 20);
        assert!(evidence.blocked(3, 7) && !evidence.blocked(3, 8));
        evidence.failure(3, 0, 30);
        assert!(evidence.blocked(3, 7), "news of an earlier life");
    }
}
