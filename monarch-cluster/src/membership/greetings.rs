//! Greetings: how a node announces itself, and how nodes that lost each other meet again.
//!
//! * At its start a node greets each node of the list once, [`START_BURST`] a tick.
//! * From then on it greets those that are expected, suspect or down in turn, and never gives up on
//!   one that is in the list.
//! * A node sends at most one greeting in [`MIN_PAUSE_MS`]. The more nodes greet, and the fewer are
//!   sought, the longer the pause: a node that is down gets about 20 greetings a second from all
//!   nodes together.

use super::rotation::{Chance, Rotation};
use super::table::Table;

/// Most greetings in one tick during the first round.
const START_BURST: usize = 64;
/// Least milliseconds between two greetings after the first round.
const MIN_PAUSE_MS: u64 = 250;
/// Milliseconds between two greetings that a node which is down gets from all others together.
const PAUSE_AT_TARGET_MS: u64 = 50;

/// The nodes that are to be greeted.
#[derive(Default)]
pub(super) struct Greetings {
    /// Members of the list that were not greeted yet.
    first_round: Option<Vec<u16>>,
    rotation: Rotation,
    last_at: u64,
    /// A part of the pause in 256ths, by chance: nodes do not greet in step.
    jitter: u64,
}

impl Greetings {
    /// The members to greet now.
    pub(super) fn due(&mut self, table: &Table, now: u64, chance: &mut Chance) -> Vec<u16> {
        let is_sought = |n: u16| table.get(n).is_sought(now) && table.get(n).contact.gossip.is_some();
        let first = self.first_round.get_or_insert_with(|| {
            let mut all = table.absent().to_vec();
            chance.shuffle(&mut all);
            all
        });
        if !first.is_empty() {
            self.last_at = now;
            let rest = first.len().saturating_sub(START_BURST);
            return first.split_off(rest).into_iter().filter(|n| is_sought(*n)).collect();
        }
        let waited = now.saturating_sub(self.last_at);
        if waited < MIN_PAUSE_MS || table.absent().is_empty() {
            return Vec::new();
        }
        let sought: Vec<u16> = table.absent().iter().copied().filter(|n| is_sought(*n)).collect();
        if sought.is_empty() {
            return Vec::new();
        }
        let pause = table.alive().len() as u64 * PAUSE_AT_TARGET_MS / sought.len() as u64;
        if waited < pause * (192 + self.jitter) / 256 {
            return Vec::new();
        }
        self.last_at = now;
        self.jitter = chance.below(128) as u64;
        self.rotation.next(&sought, |n| !table.get(n).is_alive() && is_sought(n), chance).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::Peer;
    use super::*;
    use std::net::SocketAddr;

    fn table(nodes: u16) -> Table {
        let at = |n: u16| SocketAddr::from(([10, 0, 0, 1], 1_000 + n));
        let me = Peer { name: "me".into(), incarnation: 5, gossip: Some(at(0)), files: None };
        let mut table = Table::new(&me, 0, 1_000);
        (1..=nodes).for_each(|n| table.expect(&format!("n{n}"), Some(at(n))));
        table
    }

    #[test]
    fn each_node_of_the_list_is_greeted_once_at_the_start_and_then_in_turn_for_ever() {
        let (table, mut chance, mut greetings) = (table(150), Chance::new(1), Greetings::default());
        let mut first: Vec<u16> = Vec::new();
        let bursts = [0, 100, 200].map(|now| {
            let due = greetings.due(&table, now, &mut chance);
            first.extend(&due);
            due.len()
        });
        first.sort_unstable();
        assert_eq!((bursts, first), ([64, 64, 22], (1..=150).collect()));
        let day = 86_400_000;
        let due = (day..day + 60_000).step_by(100).map(|now| greetings.due(&table, now, &mut chance).len());
        assert!((150..=240).contains(&due.sum::<usize>()));
    }

    #[test]
    fn one_whose_address_is_not_known_is_greeted_when_it_is() {
        let (mut table, mut chance, mut greetings) = (table(0), Chance::new(1), Greetings::default());
        table.expect("lost", None);
        assert!((0..20).all(|tick| greetings.due(&table, 100 * tick, &mut chance).is_empty()));
        table.locate("lost", SocketAddr::from(([10, 0, 0, 1], 7)));
        assert_eq!(greetings.due(&table, 2_000, &mut chance), [1]);
    }
}
