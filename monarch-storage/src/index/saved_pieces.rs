//! [`SavedPieces`]: reads a saved index in pieces, and sums them up.
//!
//! A thread reads and sums, another one writes what was read: the two take about as long. A large
//! index that the page cache does not have is read past it, where the file system allows that: its
//! bytes are copied once instead of twice, and take their memory once. Whatever fails there is read
//! through the page cache.

use rustix::fs::OFlags;
use std::fs::File;
use std::io::Result;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{channel, sync_channel};
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are read at a time, a multiple of all sizes of blocks.
const PIECE_BYTES: u64 = 2 << 20;
/// Pieces that are read before they are written.
const PIECES_AHEAD: usize = 4;
/// Bytes of a file from which on it may be read past the page cache. Smaller ones are worth keeping
/// there for the next job.
const MIN_DIRECT_BYTES: u64 = 1 << 30;

/// The bytes of a file from `from` to `end`, piece by piece.
#[derive(Debug)]
pub(super) struct SavedPieces<'a> {
    file: &'a File,
    from: u64,
    end: u64,
    /// Whether the file is read past the page cache.
    is_direct: bool,
}

/// Memory for a piece, which begins with a page.
type Piece = memmap2::MmapMut;

impl<'a> SavedPieces<'a> {
    /// The bytes `from..end` of a file.
    pub(super) fn new(file: &'a File, from: u64, end: u64) -> Self {
        // (Where pages are larger there are fewer: then such a file counts as not cached.)
        let pages = end / 4096;
        let is_cached = || crate::sys::cached_pages(file.as_fd(), 0, end).is_ok_and(|cached| cached > pages / 2);
        Self::with(file, from, end, end >= MIN_DIRECT_BYTES && !is_cached())
    }

    fn with(file: &'a File, from: u64, end: u64, is_direct: bool) -> Self {
        let mut new = Self { file, from, end, is_direct: false };
        new.is_direct = is_direct && new.set_direct(true);
        new
    }

    /// Turns reading past the page cache on or off; whether that was done.
    fn set_direct(&self, is_on: bool) -> bool {
        let direct = if is_on { OFlags::DIRECT } else { OFlags::empty() };
        let flags = rustix::fs::fcntl_getfl(self.file).map(|flags| flags.difference(OFlags::DIRECT) | direct);
        flags.and_then(|flags| rustix::fs::fcntl_setfl(self.file, flags)).is_ok()
    }

    /// Reads all pieces, adds their bytes to a checksum, and hands them to `put` with their offsets
    /// behind `from`.
    ///
    /// # Errors
    /// What the kernel or `put` said; `UnexpectedEof` when the file has become shorter.
    pub(super) fn read(mut self, mut hash: Xxh3, mut put: impl FnMut(&[u8], u64) -> Result<()>) -> Result<Xxh3> {
        let starts = || (0..self.end.div_ceil(PIECE_BYTES)).map(|n| n * PIECE_BYTES);
        let (starts, from, end) = (starts(), self.from, self.end);
        let part = |at: u64| (from.saturating_sub(at).min(PIECE_BYTES) as usize, (end - at).min(PIECE_BYTES) as usize);
        let mut fetch = |piece: &mut Piece, at: u64| {
            let (first, last) = part(at);
            self.fill(piece, at, last)?;
            hash.update(piece.get(first..last).unwrap_or_default());
            Ok(())
        };
        let mut write = |piece: &Piece, at: u64| {
            let (first, last) = part(at);
            put(piece.get(first..last).unwrap_or_default(), (at + first as u64).saturating_sub(from))
        };
        let has_helper = std::thread::scope(|s| {
            let (to_write, full) = sync_channel::<Result<(Piece, u64)>>(PIECES_AHEAD);
            let (give_back, empty) = channel::<Piece>();
            for _ in 0..PIECES_AHEAD {
                let _ = give_back.send(Piece::map_anon(PIECE_BYTES as usize)?);
            }
            let reader = {
                let (mut starts, fetch) = (starts.clone(), &mut fetch);
                move || {
                    // (The thread that writes has ended on an error when it gives none back.)
                    while let Some(at) = starts.next()
                        && let Ok(mut piece) = empty.recv()
                    {
                        let done = fetch(&mut piece, at);
                        let has_failed = done.is_err();
                        if to_write.send(done.map(|()| (piece, at))).is_err() || has_failed {
                            return;
                        }
                    }
                }
            };
            if std::thread::Builder::new().name("index".to_owned()).spawn_scoped(s, reader).is_err() {
                return Result::Ok(false);
            }
            for piece in full {
                let (piece, at) = piece?;
                write(&piece, at)?;
                let _ = give_back.send(piece);
            }
            Ok(true)
        })?;
        if !has_helper {
            // (The system gives no thread.)
            let mut piece = Piece::map_anon(PIECE_BYTES as usize)?;
            for at in starts {
                fetch(&mut piece, at)?;
                write(&piece, at)?;
            }
        }
        Ok(hash)
    }

    /// Reads the first `len` bytes of a piece.
    fn fill(&mut self, piece: &mut Piece, at: u64, len: usize) -> Result<()> {
        if self.is_direct {
            // (Lengths are those of blocks; the last piece ends with the file.)
            if self.file.read_at(piece, at).is_ok_and(|read| read >= len) {
                return Ok(());
            }
            self.is_direct = false;
            self.set_direct(false);
        }
        self.file.read_exact_at(piece.get_mut(..len).unwrap_or_default(), at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: SavedPieces<'_>) -> Result<(Vec<u8>, u64)> {
        let mut found = Vec::new();
        let hash = pieces.read(Xxh3::new(), |bytes, at| {
            assert_eq!(at, found.len() as u64);
            found.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok((found, hash.digest()))
    }

    #[test]
    fn all_bytes_come_in_order_through_the_page_cache_and_past_it() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory on a disk");
        for len in [65, 4096, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 4095] {
            let bytes: Vec<u8> = (0..len).map(|n| ((n * n) >> 7) as u8).collect();
            let path = dir.path().join(len.to_string());
            std::fs::write(&path, &bytes).expect("write");
            let file = File::open(&path).expect("open");
            for (from, is_direct) in [(0, false), (64, false), (64, true)] {
                let (found, sum) = read(SavedPieces::with(&file, from, len, is_direct)).expect("read");
                assert!(found == bytes[from as usize..], "{len} bytes from {from}");
                assert_eq!(sum, xxhash_rust::xxh3::xxh3_64(&found));
            }
            let short = SavedPieces::with(&file, 0, len + 1, true);
            assert_eq!(read(short).expect_err("one is missing").kind(), std::io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn an_error_of_the_writer_ends_the_reader() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(20 * PIECE_BYTES).expect("length");
        let mut calls = 0;
        let failed = SavedPieces::with(&file, 0, 20 * PIECE_BYTES, false).read(Xxh3::new(), |_, _| {
            calls += 1;
            if calls == 3 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        });
        assert_eq!(
            (failed.map(|hash| hash.digest()).expect_err("it fails").kind(), calls),
            (std::io::ErrorKind::StorageFull, 3)
        );
    }
}
