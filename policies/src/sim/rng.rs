//! Random numbers that follow from a seed alone, on any machine: a sequence of [`Chance`] for each
//! purpose, and shuffles.

use crate::keys::Chance;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Rng(Chance);

impl Rng {
    /// A sequence for one purpose (such as an epoch) of a seed.
    pub(super) fn new(seed: u64, purpose: u64) -> Self {
        let mut chance = Chance::new(seed ^ purpose.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        chance.next();
        Self(chance)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0.below(end)
    }

    /// Shuffles after Fisher and Yates.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = self.below(at + 1);
            items.swap(at, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // The first numbers of its authors' program for the seed 0: the sequence leaves out one.
        let mut rng = Rng::new(0, 0);
        assert_eq!([rng.0.next(), rng.0.next()], [0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

    #[test]
    fn a_shuffle_is_a_permutation_that_the_seed_determines() {
        let shuffled = |seed, purpose| {
            let mut v: Vec<u32> = (0..1000).collect();
            Rng::new(seed, purpose).shuffle(&mut v);
            v
        };
        assert_eq!(shuffled(1, 2), shuffled(1, 2));
        assert_ne!(shuffled(1, 2), shuffled(1, 3));
        assert_ne!(shuffled(1, 2), shuffled(2, 2));
        let mut sorted = shuffled(1, 2);
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..1000));
    }
}
