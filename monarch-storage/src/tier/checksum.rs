//! Checksums of copies: of the bytes, or of the pieces in which they were written.

use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io;

pub use monarch_abi::sum::{Sum, Summing};

/// Compares a file with a checksum.
pub trait Fits {
    /// Whether a file has exactly `size` bytes, and they have this checksum.
    ///
    /// # Errors
    /// What the kernel said.
    fn fits(&self, file: impl AsFd, size: u64) -> io::Result<bool>;
}

impl Fits for Sum {
    fn fits(&self, file: impl AsFd, size: u64) -> io::Result<bool> {
        let mut buf = vec![0; READ_BYTES.min(usize::try_from(size).unwrap_or(READ_BYTES) + 1)];
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

/// Bytes of a copy that are read at a time.
pub const READ_BYTES: usize = 1 << 20;

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
