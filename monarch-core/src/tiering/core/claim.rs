//! TODO

use crate::tier::Sum;
use monarch_abi::word::Word;

/// Where the copies of an entry lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The tier of one that can be opened.
    pub(crate) plain: Option<usize>,
    /// The tier of one that has to be decoded.
    pub(crate) packed: Option<usize>,
    /// What the bytes of the first must come to, if it is to be verified.
    pub(crate) check: Option<Sum>,
}

impl Claim {
    /// The word of the entry, which had none of them.
    #[must_use]
    pub const fn word(self, was: Word) -> Word {
        match (self.plain, self.packed) {
            (Some(tier), None) => was.resident(tier),
            (Some(tier), Some(_)) => was.resident(tier).marked(),
            (None, Some(tier)) => was.packed(tier),
            (None, None) => was,
        }
    }

    /// Whether it is a copy that is yet to be packed, by its word.
    #[must_use]
    pub const fn is_not_packed_yet(self, word: Word) -> bool {
        self.plain.is_some() && self.packed.is_none() && word.is_marked()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.plain.is_none() && self.packed.is_none()
    }
}
