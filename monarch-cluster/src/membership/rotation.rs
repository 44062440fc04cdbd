//! The order in which members are probed, and choices by chance.
//!
//! Members come round-robin in an order that is shuffled anew each round (SWIM, section 4.3), so
//! that a member is probed at least once in two rounds. A member that becomes alive is put into the
//! rest of the round at a place by chance.

/// A source of chance that a test can repeat: SplitMix64 (Steele, Lea and Flood 2014).
pub(super) struct Chance(u64);

impl Chance {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`; 0 when `n` is 0.
    pub(super) const fn below(&mut self, n: usize) -> usize {
        // (A job has at most 8,192 members: the bias is below one in 2^50.)
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }

    /// Puts numbers into an order by chance (Fisher and Yates).
    pub(super) fn shuffle(&mut self, all: &mut [u16]) {
        for n in (1..all.len()).rev() {
            all.swap(n, self.below(n + 1));
        }
    }
}

/// The rest of a round of probes.
#[derive(Default)]
pub(super) struct Rotation {
    rest: Vec<u16>,
}

impl Rotation {
    /// Puts a member into the rest of the round.
    pub(super) fn insert(&mut self, member: u16, chance: &mut Chance) {
        let place = chance.below(self.rest.len() + 1);
        self.rest.push(member);
        let last = self.rest.len() - 1;
        self.rest.swap(place, last);
    }

    /// Returns the next member that `counts`; `all` are those of the next round.
    pub(super) fn next(&mut self, all: &[u16], counts: impl Fn(u16) -> bool, chance: &mut Chance) -> Option<u16> {
        while let Some(member) = self.rest.pop() {
            if counts(member) {
                return Some(member);
            }
        }
        self.rest.extend(all);
        chance.shuffle(&mut self.rest);
        self.rest.pop().filter(|member| counts(*member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_comes_once_a_round_in_another_order_each_time() {
        let (mut rotation, mut chance) = (Rotation::default(), Chance::new(7));
        let all: Vec<u16> = (0..50).collect();
        let mut rounds = (0..3).map(|_| (0..50).map(|_| rotation.next(&all, |_| true, &mut chance).unwrap()).collect());
        let (one, two): (Vec<u16>, Vec<u16>) = (rounds.next().unwrap(), rounds.next().unwrap());
        assert_ne!(one, two);
        for mut round in [one, two] {
            round.sort_unstable();
            assert_eq!(round, all);
        }
    }

    #[test]
    fn newcomers_come_in_this_round_and_members_that_do_not_count_are_passed_over() {
        let (mut rotation, mut chance) = (Rotation::default(), Chance::new(7));
        let all: Vec<u16> = (0..10).collect();
        rotation.next(&all, |_| true, &mut chance);
        rotation.insert(77, &mut chance);
        let rest: Vec<u16> = (0..6).filter_map(|_| rotation.next(&all, |m| m > 4, &mut chance)).collect();
        assert!(rest.contains(&77) && rest.iter().all(|m| *m > 4), "{rest:?}");
    }
}
