//! [`Claim`]: the tiers that hold the copies of an entry.

use crate::tier::Sum;
use monarch_abi::word::Word;

/// The tiers that hold the copies of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Tier of the copy that readers can open.
    pub(crate) plain: Option<usize>,
    /// Tier of the compressed copy.
    pub(crate) packed: Option<usize>,
    /// Checksum that the plain copy must have, if it is to be verified.
    pub(crate) check: Option<Sum>,
}

impl Claim {
    /// The state word of the entry with these copies; `was` is its word without copies.
    #[must_use]
    pub const fn word(self, was: Word) -> Word {
        match (self.plain, self.packed) {
            (Some(tier), None) => was.resident(tier),
            (Some(tier), Some(_)) => was.resident(tier).marked(),
            (None, Some(tier)) => was.packed(tier),
            (None, None) => was,
        }
    }

    /// Whether `word` announces a compressed copy that has not been written yet.
    #[must_use]
    pub const fn awaits_compression(self, word: Word) -> bool {
        self.plain.is_some() && self.packed.is_none() && word.is_marked()
    }

    /// Whether the entry has no copy.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.plain.is_none() && self.packed.is_none()
    }
}
