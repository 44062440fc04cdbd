//! Which job counts in which group of the control block's counters.
//!
//! Groups are given in turn: processes that outlive their job keep its group, and a group is best
//! not given again soon. Group 0 is never given.

use monarch_abi::control::COUNTER_GROUPS;
use std::sync::{Arc, Mutex, PoisonError};

/// The groups of an agent.
#[derive(Clone, Debug, Default)]
pub(super) struct CounterGroups(Arc<Mutex<Groups>>);

#[derive(Debug, Default)]
struct Groups {
    taken: [bool; COUNTER_GROUPS],
    last: usize,
}

impl CounterGroups {
    /// Gives a group to a job: the one that it had at an earlier agent (`former`, 0: none) if that
    /// is free. `None` when all are taken.
    pub(super) fn take(&self, former: usize) -> Option<CounterGroup> {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |group: &usize| *group > 0 && groups.taken.get(*group).is_some_and(|taken| !taken);
        let next = (1..COUNTER_GROUPS).map(|n| 1 + (groups.last + n - 1) % (COUNTER_GROUPS - 1));
        let number = Some(former).filter(is_free).or_else(|| next.clone().find(is_free))?;
        *groups.taken.get_mut(number)? = true;
        groups.last = number;
        drop(groups);
        Some(CounterGroup { number, all: self.clone() })
    }
}

/// The group of a job, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct CounterGroup {
    /// Its number in the control block.
    pub(super) number: usize,
    all: CounterGroups,
}

impl Drop for CounterGroup {
    fn drop(&mut self) {
        let mut groups = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = groups.taken.get_mut(self.number) {
            *taken = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_given_in_turn_and_a_job_that_comes_again_gets_its_own() {
        let groups = CounterGroups::default();
        let number = |former| groups.take(former).map(|g| g.number);
        let given: Vec<usize> = (0..17).filter_map(|_| number(0)).collect();
        assert_eq!(given, (1..COUNTER_GROUPS).chain([1, 2]).collect::<Vec<_>>());
        let held = groups.take(7).unwrap();
        assert_eq!(held.number, 7);
        assert_ne!(number(7), Some(7), "another job has it");
        assert!(number(99).is_some_and(|n| (1..COUNTER_GROUPS).contains(&n)), "not a group: any other is given");
    }

    #[test]
    fn a_job_too_many_gets_none_until_one_ends() {
        let groups = CounterGroups::default();
        let mut all: Vec<_> = (1..COUNTER_GROUPS).map(|_| groups.take(0).unwrap()).collect();
        assert!(groups.take(0).is_none() && groups.take(3).is_none());
        let number = all.remove(4).number;
        assert_eq!(groups.take(0).unwrap().number, number);
    }
}
