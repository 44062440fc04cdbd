//! Checksums of copies: of the bytes, or of the pieces in which they came.

use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io;
use xxhash_rust::xxh3::Xxh3;

/// What the bytes of a copy come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The checksum, XXH3-64.
    pub value: u64,
    /// Bytes of the pieces whose checksums it is the checksum of; 0: it is that of the bytes themselves.
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

    /// Whether the first `size` bytes of a file have this checksum, and it has no more.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn fits(&self, file: impl AsFd, size: u64) -> io::Result<bool> {
        let mut buf = vec![0; AT_ONCE.min(usize::try_from(size).unwrap_or(AT_ONCE) + 1)];
        let mut summing = Summing::new(self.piece);
        loop {
            let got = match rustix::io::pread(&file, &mut *buf, summing.bytes) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if got == 0 {
                return Ok(summing.bytes == size && summing.end() == *self);
            }
            summing.update(&buf[..got]);
            if summing.bytes > size {
                return Ok(false);
            }
        }
    }
}

/// Bytes that are read at a time.
pub(crate) const AT_ONCE: usize = 1 << 20;

/// A checksum in the making.
pub(crate) struct Summing {
    piece: u64,
    hash: Xxh3,
    /// Of the pieces' checksums.
    outer: Xxh3,
    pub(crate) bytes: u64,
}

impl Summing {
    /// One of pieces of this many bytes, or of the whole.
    pub(crate) fn new(piece: u64) -> Self {
        Self { piece, hash: Xxh3::new(), outer: Xxh3::new(), bytes: 0 }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = if self.piece == 0 { u64::MAX } else { self.piece - self.bytes % self.piece };
            let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let (now, rest) = bytes.split_at(n);
            self.hash.update(now);
            self.bytes += n as u64;
            bytes = rest;
            if self.piece > 0 && self.bytes.is_multiple_of(self.piece) {
                self.end_piece();
            }
        }
    }

    fn end_piece(&mut self) {
        self.outer.update(&self.hash.digest().to_le_bytes());
        self.hash.reset();
    }

    pub(crate) fn end(&mut self) -> Sum {
        if self.piece == 0 {
            return Sum::whole(self.hash.digest());
        }
        if !self.bytes.is_multiple_of(self.piece) {
            self.end_piece();
        }
        Sum { value: self.outer.digest(), piece: self.piece }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use xxhash_rust::xxh3::xxh3_64;

    #[test]
    fn sums_of_whole_files_and_of_pieces() {
        let bytes: Vec<u8> = (0..3_000_001u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let size = bytes.len() as u64;
        for piece in [4096, 1 << 20, 4 << 20] {
            let sums: Vec<u64> = bytes.chunks(piece).map(xxh3_64).collect();
            let sum = Sum::of_pieces(&sums, piece as u64);
            assert!(sum.fits(&file, size).unwrap() && !sum.fits(&file, size - 1).unwrap(), "{piece}");
            assert!(!sum.fits(&file, size + 1).unwrap() && !Sum::whole(sum.value).fits(&file, size).unwrap());
        }
        let sum = Sum::whole(xxh3_64(&bytes));
        assert!(sum.fits(&file, size).unwrap() && !sum.fits(&file, size + 1).unwrap());
        file.write_all_at(&[bytes[2_000_000] ^ 1], 2_000_000).unwrap();
        assert!(!sum.fits(&file, size).unwrap());
        assert!(Sum::whole(xxh3_64(b"")).fits(tempfile::tempfile().unwrap(), 0).unwrap());
    }
}
