//! Random numbers that follow from a seed alone, on any machine: SplitMix64 (Steele, Lea, Flood,
//! OOPSLA 2014). Good enough to shuffle, and small enough not to need a dependency whose sequence
//! may change with a version.

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// A sequence of its own for each purpose (such as an epoch) of a seed.
    pub(super) fn new(seed: u64, purpose: u64) -> Self {
        let mut rng = Self(seed ^ purpose.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        rng.next();
        rng
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below another one. (The bias of a product is below 2^-32 for what fits into 32
    /// bits.)
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// Fisher and Yates.
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
