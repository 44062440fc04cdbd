//! The members that were heard last: they are reachable.
//!
//! A few nodes that are cut off from many spread what they find out among themselves with these.
//! Members by chance would nearly all be on the other side.

use super::rotation::Chance;
use std::collections::VecDeque;

/// Members that are remembered.
const MAX_SENDERS: usize = 8;

/// The members that were heard last, the latest first.
#[derive(Default)]
pub(super) struct RecentSenders(VecDeque<u16>);

impl RecentSenders {
    /// A member was heard.
    pub(super) fn note(&mut self, member: u16) {
        if !self.0.contains(&member) {
            self.0.truncate(MAX_SENDERS - 1);
            self.0.push_front(member);
        }
    }

    /// Returns one of them, or none in half of the cases, so that all members get news in the end.
    pub(super) fn choose(&self, chance: &mut Chance) -> Option<u16> {
        self.0.get(chance.below(2 * self.0.len())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_senders_are_chosen_in_half_of_the_cases() {
        let (mut recent, mut chance) = (RecentSenders::default(), Chance::new(1));
        assert_eq!(recent.choose(&mut chance), None);
        (0..100).for_each(|n| recent.note(n / 2));
        let chosen: Vec<u16> = (0..1_000).filter_map(|_| recent.choose(&mut chance)).collect();
        assert!((400..600).contains(&chosen.len()) && (42..50).all(|n| chosen.contains(&n)));
        assert!(chosen.iter().all(|n| *n >= 42));
    }
}
