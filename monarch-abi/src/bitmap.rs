//! A bitmap in two levels: any process sets marks, the agent takes all at once.

use crate::sync::{AtomicU64, Ordering};

/// A set of numbers as two levels of bits.
#[derive(Clone, Copy, Debug)]
pub struct Bitmap<'a> {
    /// One bit for each number.
    pub bits: &'a [AtomicU64],
    /// One bit for each word of those.
    pub summary: &'a [AtomicU64],
}

impl Bitmap<'_> {
    /// Marks a number: bit first, then summary, so that a scan that sees the summary sees the bit.
    pub fn raise(&self, id: u32) {
        let word = id as usize / 64;
        if let (Some(bits), Some(sum)) = (self.bits.get(word), self.summary.get(word / 64)) {
            bits.fetch_or(1 << (id % 64), Ordering::AcqRel);
            sum.fetch_or(1 << (word % 64), Ordering::AcqRel);
        }
    }

    /// Whether a number is marked.
    #[must_use]
    pub fn is_raised(&self, id: u32) -> bool {
        self.bits.get(id as usize / 64).is_some_and(|bits| bits.load(Ordering::Relaxed) & 1 << (id % 64) != 0)
    }

    /// Takes all marks, in order.
    pub fn drain(&self, mut found: impl FnMut(u32)) {
        for (i, sum) in self.summary.iter().enumerate() {
            if sum.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut words = sum.swap(0, Ordering::AcqRel);
            while words != 0 {
                let w = i * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = self.bits.get(w).map_or(0, |b| b.swap(0, Ordering::AcqRel));
                while bits != 0 {
                    #[expect(clippy::cast_possible_truncation, reason = "ids are 32 bits")]
                    found((w * 64) as u32 + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
        }
    }
}
