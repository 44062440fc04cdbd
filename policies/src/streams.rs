//! Streams of accesses as training jobs make them, for tests.

use crate::FileKey;

/// A generator that is good enough to shuffle.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }

    pub(crate) fn shuffle<T>(&mut self, of: &mut [T]) {
        for n in (1..of.len()).rev() {
            of.swap(n, self.below(n as u64 + 1) as usize);
        }
    }

    /// Files `from..to` in random order.
    pub(crate) fn order(&mut self, from: u64, to: u64) -> Vec<FileKey> {
        let mut order: Vec<FileKey> = (from..to).map(FileKey).collect();
        self.shuffle(&mut order);
        order
    }

    /// The order as several workers would read it, each in batches, none further ahead than
    /// `apart`.
    pub(crate) fn jitter(&mut self, order: &mut [FileKey], apart: u64) {
        let mut places: Vec<(u64, FileKey)> =
            order.iter().enumerate().map(|(n, f)| (n as u64 + self.below(apart + 1), *f)).collect();
        places.sort_by_key(|(place, _)| *place);
        order.iter_mut().zip(places).for_each(|(o, (_, f))| *o = f);
    }
}
