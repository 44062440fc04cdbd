//! Checksums of copies: of the bytes, or of the pieces in which they came.

use crate::scratch::Scratch;
use crate::xxh3::Xxh3;

/// The checksum of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The checksum, XXH3-64.
    pub value: u64,
    /// Bytes of the pieces whose checksums it is the checksum of; 0: it is that of the bytes
    /// themselves.
    pub piece: u64,
}

impl Sum {
    /// That of a copy that was not made in pieces.
    #[must_use]
    pub const fn whole(value: u64) -> Self {
        Self { value, piece: 0 }
    }

    /// That of a copy whose pieces of `piece` bytes have these checksums.
    #[must_use]
    pub fn of_pieces(sums: &[u64], piece: u64) -> Self {
        let mut hash = Xxh3::new();
        sums.iter().for_each(|sum| hash.update(&sum.to_le_bytes()));
        Self { value: hash.digest(), piece }
    }
}

/// A checksum in the making. Allocates nothing; it takes a few kilobytes.
pub struct Summing {
    piece: u64,
    hash: Xxh3,
    /// Of the pieces' checksums.
    outer: Xxh3,
    /// Bytes so far.
    pub bytes: u64,
}

impl Summing {
    /// One of pieces of this many bytes, or (0) of the whole.
    #[must_use]
    pub const fn new(piece: u64) -> Self {
        Self { piece, hash: Xxh3::new(), outer: Xxh3::new(), bytes: 0 }
    }

    /// The same in scratch memory, for callers with little stack; `None` when there is no memory.
    #[must_use]
    pub fn in_scratch(room: &mut Scratch, piece: u64) -> Option<&mut Self> {
        const { assert!(size_of::<Self>() <= crate::scratch::BLOCK_BYTES) };
        let at = room.bytes()?.as_mut_ptr().cast::<Self>();
        // SAFETY: a block is aligned to a page and large enough; it lives as long as the borrow.
        // Every pattern of bits is a value, and what is used of it is set below.
        let new = unsafe {
            at.write_bytes(0, 1);
            &mut *at
        };
        new.piece = piece;
        new.hash.reset();
        new.outer.reset();
        Some(new)
    }

    /// The bytes that come next.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = self.bytes.checked_rem(self.piece).map_or(u64::MAX, |done| self.piece - done);
            let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let (now, rest) = bytes.split_at(n);
            self.hash.update(now);
            self.bytes += n as u64;
            bytes = rest;
            if self.bytes.checked_rem(self.piece) == Some(0) {
                self.end_piece();
            }
        }
    }

    fn end_piece(&mut self) {
        self.outer.update(&self.hash.digest().to_le_bytes());
        self.hash.reset();
    }

    /// The checksum of all of them.
    #[must_use]
    pub fn end(&mut self) -> Sum {
        match self.bytes.checked_rem(self.piece) {
            None => return Sum::whole(self.hash.digest()),
            Some(0) => {}
            Some(_) => self.end_piece(),
        }
        Sum { value: self.outer.digest(), piece: self.piece }
    }
}
