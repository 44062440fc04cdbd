//! Counts roughly how often files were opened of late: a count-min sketch of 4-bit counters that
//! age.

use crate::FileKey;
use crate::keys::{mix, seeded};

/// Opens per file after which all counters are halved.
const OPENS_A_FILE: u64 = 10;
const FILES_A_WORD: u64 = 4;
const MIN_WORDS: u64 = 1 << 12;
/// 128 MiB: data sets of more than 67 million files share counters.
const MAX_WORDS: u64 = 1 << 24;

/// A counter: four bits of a word.
#[derive(Clone, Copy)]
struct Counter {
    word: usize,
    shift: u32,
}

/// The sketch.
///
/// Four hashes name four counters of a file; an open increments the smallest of them (conservative
/// update: the others are too high already, by collisions), and the smallest is the count. After
/// [`OPENS_A_FILE`] opens per file all counters are halved (TinyLFU, section 3.3), so that files
/// that were popular once are forgotten. Counts stop at 15, which is enough within one period.
///
/// Sixteen counters share a word; there is a word for every four files, rounded up to a power of
/// two: 2 to 4 bytes a file.
#[derive(Debug)]
pub(super) struct Sketch {
    words: Vec<u64>,
    seed: u64,
    opens: u64,
}

impl Sketch {
    pub(super) fn new(seed: u64) -> Self {
        Self { words: vec![0; MIN_WORDS as usize], seed, opens: 0 }
    }

    /// Resizes it for a data set. Counts are lost if the size changes.
    pub(super) fn fit(&mut self, files: u64) {
        let words = (files / FILES_A_WORD).clamp(MIN_WORDS, MAX_WORDS).next_power_of_two() as usize;
        if words != self.words.len() {
            self.words = vec![0; words];
            self.opens = 0;
        }
    }

    /// The four counters of a file.
    fn counters(&self, file: FileKey) -> [Counter; 4] {
        let mut h = seeded(file.0, self.seed);
        std::array::from_fn(|_| {
            h = mix(h.wrapping_add(1));
            // The number of words is a power of two. The four highest bits, which no index uses,
            // choose within the word.
            Counter { word: h as usize & (self.words.len() - 1), shift: 4 * (h >> 60) as u32 }
        })
    }

    fn get(&self, counter: Counter) -> u8 {
        (self.words[counter.word] >> counter.shift & 15) as u8
    }

    pub(super) fn count(&self, file: FileKey) -> u8 {
        self.counters(file).map(|c| self.get(c)).into_iter().min().unwrap_or(0)
    }

    pub(super) fn add(&mut self, file: FileKey) {
        let (counters, least) = (self.counters(file), self.count(file));
        if least < 15 {
            for c in counters {
                // Compared for each counter: two of the four may be the same counter.
                if self.get(c) == least {
                    self.words[c.word] += 1 << c.shift;
                }
            }
        }
        self.opens += 1;
        if self.opens >= OPENS_A_FILE * FILES_A_WORD * self.words.len() as u64 {
            self.age();
        }
    }

    fn age(&mut self) {
        self.words.iter_mut().for_each(|w| *w = *w >> 1 & 0x7777_7777_7777_7777);
        self.opens /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_never_too_low_rarely_too_high_and_stop_at_fifteen() {
        let mut s = Sketch::new(3);
        for n in 0..10_000u64 {
            (0..=n % 4).for_each(|_| s.add(FileKey(n)));
        }
        let excess = |n: u64| i32::from(s.count(FileKey(n))) - (n % 4) as i32 - 1;
        assert!((0..10_000).all(|n| excess(n) >= 0));
        assert!((0..10_000).filter(|n| excess(*n) > 0).count() < 500);
        (0..100).for_each(|_| s.add(FileKey(1 << 40)));
        assert_eq!(s.count(FileKey(1 << 40)), 15);
    }

    #[test]
    fn counts_halve_with_time_and_go_with_a_new_size() {
        let mut s = Sketch::new(3);
        (0..12).for_each(|_| s.add(FileKey(1)));
        s.age();
        assert_eq!(s.count(FileKey(1)), 6);
        s.fit(1 << 20);
        assert_eq!((s.words.len(), s.count(FileKey(1))), (1 << 18, 0));
        s.fit(u64::MAX);
        assert_eq!(s.words.len(), 1 << 24);
    }
}
