//! Maps by file, and reproducible random numbers.
//!
//! Keys are small numbers that the agent makes, so that no attacker can choose them to collide: one
//! multiplicative mix serves as hash, several times cheaper than the standard library's. It has no
//! random start, which would make the order of iteration, and with it decisions, differ from run to
//! run. The mix is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); the generator is
//! SplitMix64 itself.

use crate::FileKey;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by file.
pub(crate) type KeyMap<V> = HashMap<FileKey, V, KeyHash>;
/// The hasher of such maps.
pub(crate) type KeyHash = BuildHasherDefault<Mix>;

/// Removes the files of an index from a map, and frees its memory if they were most of it.
pub(crate) fn forget_index<V>(map: &mut KeyMap<V>, index: u32) {
    map.retain(|file, _| file.index() != index);
    if map.len() < map.capacity() / 4 {
        map.shrink_to_fit();
    }
}

/// A bijection of 64-bit words each of whose output bits depends on all input bits.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of a word under a seed.
pub(crate) fn seeded(word: u64, seed: u64) -> u64 {
    mix(mix(word.wrapping_add(GOLDEN)) ^ mix(seed))
}

/// The hasher: mixes one 64-bit word.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }

    fn write_u64(&mut self, x: u64) {
        self.0 = mix(self.0.wrapping_add(GOLDEN) ^ x);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A seeded generator.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `n`, 0 where `n` is 0 (multiply-shift; its bias is below n / 2^64).
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_even_and_repeat_with_the_seed() {
        let draw = |seed| {
            let mut c = Chance::new(seed);
            (0..10_000).map(|_| c.below(10)).collect::<Vec<_>>()
        };
        let mut counts = [0; 10];
        draw(7).into_iter().for_each(|n| counts[n] += 1);
        assert!(counts.iter().all(|n| (900..1100).contains(n)), "{counts:?}");
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(Chance::new(1).below(0), 0);
    }
}
