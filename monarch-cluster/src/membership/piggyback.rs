//! News that ride along on datagrams, each a bounded number of times.
//!
//! A news that was sent `1.5 log2(n)` times by each node that has it reaches all of `n` nodes with
//! a probability above one in a million (Demers et al. 1987; SWIM, section 4.1). Those that were
//! sent least come first. While there are more news than a few datagrams hold, hearing a news again
//! counts as sending it: others pass it on already.

use super::record::Record;
use std::collections::VecDeque;

/// News beyond which those that are heard again are sent less often.
const CROWDED: usize = 64;
/// Most records in one datagram: their number has one byte.
const MAX_RECORDS: usize = 255;

/// Members whose news are to be passed on.
#[derive(Default)]
pub(super) struct Piggyback {
    queue: VecDeque<u16>,
    /// By member: how often its news are sent yet.
    sends_left: Vec<u8>,
}

/// Returns how often each node passes a news on among `nodes` nodes.
pub(super) fn transmissions(nodes: usize) -> u8 {
    (3 * (nodes + 1).ilog2() / 2 + 2) as u8
}

impl Piggyback {
    /// The news of a member changed: they are sent `times` times.
    pub(super) fn put(&mut self, member: u16, times: u8) {
        let at = usize::from(member);
        if self.sends_left.len() <= at {
            self.sends_left.resize(at + 1, 0);
        }
        if std::mem::replace(&mut self.sends_left[at], times) == 0 {
            self.queue.push_front(member);
        }
    }

    /// The news of a member came from another node again.
    pub(super) fn heard(&mut self, member: u16) {
        if self.queue.len() > CROWDED
            && let Some(left) = self.sends_left.get_mut(usize::from(member))
        {
            *left = left.saturating_sub(1);
        }
    }

    /// How many news wait.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Takes news that fit into `room` bytes beside `taken` other records.
    pub(super) fn take(
        &mut self,
        mut room: usize,
        taken: usize,
        record: impl Fn(u16) -> Option<Record>,
    ) -> Vec<Record> {
        let (mut out, mut again) = (Vec::new(), Vec::new());
        while taken + out.len() < MAX_RECORDS
            && let Some(member) = self.queue.pop_front()
        {
            let left = &mut self.sends_left[usize::from(member)];
            let Some(news) = (if *left > 0 { record(member) } else { None }) else {
                // There is nothing to tell: its next news are new ones.
                *left = 0;
                continue;
            };
            let Some(rest) = room.checked_sub(news.wire_len()) else {
                self.queue.push_front(member);
                break;
            };
            room = rest;
            *left -= 1;
            if *left > 0 {
                again.push(member);
            }
            out.push(news);
        }
        self.queue.extend(again);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Incarnation, Status};
    use super::*;

    fn news(member: u16) -> Option<Record> {
        let incarnation = Incarnation { life: 1, refutations: 0 };
        Some(Record { key: u64::from(member), incarnation, status: Status::Alive, age_s: 0, contact: None })
    }

    fn keys(sent: &[Record]) -> Vec<u64> {
        sent.iter().map(|record| record.key).collect()
    }

    #[test]
    fn each_news_is_sent_as_often_as_it_should_and_the_newest_first() {
        let mut piggyback = Piggyback::default();
        piggyback.put(1, 2);
        piggyback.put(2, 2);
        let one = news(1).unwrap().wire_len();
        assert_eq!(keys(&piggyback.take(one, 0, news)), [2]);
        piggyback.put(3, 1);
        assert_eq!(keys(&piggyback.take(2 * one, 0, news)), [3, 1]);
        assert_eq!(keys(&piggyback.take(1_000, 0, news)), [2, 1]);
        assert_eq!((piggyback.take(1_000, 0, news), piggyback.len()), (vec![], 0));
    }

    #[test]
    fn a_news_that_changes_while_it_waits_is_sent_as_often_as_a_new_one() {
        let mut piggyback = Piggyback::default();
        piggyback.put(1, 2);
        piggyback.take(1_000, 0, news);
        piggyback.put(1, 3);
        let sent = (0..9).filter(|_| !piggyback.take(1_000, 0, news).is_empty()).count();
        assert_eq!(sent, 3);
    }

    #[test]
    fn of_many_news_those_that_others_pass_on_are_not_sent() {
        let mut piggyback = Piggyback::default();
        (0..100).for_each(|member| piggyback.put(member, 1));
        piggyback.heard(99);
        assert_eq!(keys(&piggyback.take(30, 0, news)), [98]);
    }

    #[test]
    fn a_member_of_which_nothing_is_told_is_passed_on_again_when_it_changes() {
        let mut piggyback = Piggyback::default();
        piggyback.put(1, 3);
        assert!(piggyback.take(1_000, 0, |_| None).is_empty());
        piggyback.put(1, 3);
        assert_eq!(keys(&piggyback.take(1_000, 0, news)), [1]);
    }

    #[test]
    fn more_nodes_need_more_transmissions() {
        assert_eq!([2, 16, 1_000].map(transmissions), [3, 8, 15]);
    }
}
