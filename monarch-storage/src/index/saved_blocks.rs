//! [`SavedBlocks`]: reads the blocks of a saved index, and sums them up.
//!
//! Several threads read, each a block of its own: a disk gives more to several readers, and one of
//! them sums while others wait for it. A large index that the page cache does not have is read past
//! it, where the file system allows that: its bytes are not copied, and take their memory once.
//! Whatever fails there is read through the page cache.

use crate::shm::Block;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Result;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::Xxh3;

/// Threads that read: memory and disk are the bounds, not processors.
const THREADS: usize = 4;
/// Bytes that are read at a time, and summed while they are in a processor's cache. A multiple of
/// all sizes of blocks of disks.
const PIECE_BYTES: usize = 1 << 20;
/// Multiples of this many bytes can be read past the page cache.
const DIRECT_BYTES: usize = 4096;
/// Bytes of a file from which on it may be read past the page cache. Smaller ones are worth keeping
/// there for the next job.
const MIN_DIRECT_BYTES: u64 = 1 << 30;

/// Memory for a block.
pub(super) trait Room<'a>: Send {
    /// Takes the memory.
    ///
    /// # Errors
    /// There is none.
    fn take(self) -> Result<&'a mut [u8]>;
}

impl<'a> Room<'a> for &'a mut [u8] {
    fn take(self) -> Result<&'a mut [u8]> {
        Ok(self)
    }
}

impl<'a> Room<'a> for Block<'a> {
    fn take(self) -> Result<&'a mut [u8]> {
        Block::take(self)
    }
}

/// A block that is to be read: its offset in the file, how many bytes of its room come before it,
/// and the room.
pub(super) type Wanted<R> = (u64, usize, R);

/// A file that is read in blocks.
#[derive(Debug)]
pub(super) struct SavedBlocks<'a> {
    file: &'a File,
    /// The file once more, to be read past the page cache.
    direct: Option<File>,
    /// Whether nothing has failed there yet.
    is_direct: AtomicBool,
}

impl<'a> SavedBlocks<'a> {
    /// A file with this number of bytes.
    pub(super) fn of(file: &'a File, len: u64) -> Self {
        // (Where pages are larger there are fewer: then such a file counts as not cached.)
        let pages = len / 4096;
        let is_cached = || crate::sys::cached_pages(file.as_fd(), 0, len).is_ok_and(|cached| cached > pages / 2);
        Self::with(file, len >= MIN_DIRECT_BYTES && !is_cached())
    }

    fn with(file: &'a File, is_direct: bool) -> Self {
        let again = || {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).ok().map(File::from)
        };
        Self { file, direct: is_direct.then(again).flatten(), is_direct: AtomicBool::new(true) }
    }

    /// Reads all blocks into their rooms: the XXH3-64 of each, in order.
    ///
    /// # Errors
    /// What the kernel or a room said; `UnexpectedEof` when the file has become shorter.
    pub(super) fn read<'r, R: Room<'r>>(&self, blocks: Vec<Wanted<R>>) -> Result<Vec<u64>> {
        let threads = blocks.len().min(THREADS);
        let mut sums = vec![0; blocks.len()];
        let left = Mutex::new(sums.iter_mut().zip(blocks));
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let has_failed = AtomicBool::new(false);
        let work = || {
            while !has_failed.load(Ordering::Relaxed)
                && let Some((sum, block)) = next()
            {
                *sum = self.read_block(block).inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?;
            }
            Result::Ok(())
        };
        std::thread::scope(|s| {
            let spawn = |_| std::thread::Builder::new().name("index".to_owned()).spawn_scoped(s, work);
            // (Where the system gives no thread, fewer do it.)
            let others: Vec<_> = (1..threads).map_while(|n| spawn(n).ok()).collect();
            let own = work();
            let join = |other: std::thread::ScopedJoinHandle<'_, Result<()>>| match other.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            others.into_iter().map(join).fold(own, Result::and)
        })?;
        Ok(sums)
    }

    fn read_block<'r>(&self, (at, skipped, room): Wanted<impl Room<'r>>) -> Result<u64> {
        let mut hash = Xxh3::new();
        let bytes = room.take()?.get_mut(skipped..).unwrap_or_default();
        for (at, piece) in (at..).step_by(PIECE_BYTES).zip(bytes.chunks_mut(PIECE_BYTES)) {
            self.fill(piece, at)?;
            hash.update(piece);
        }
        Ok(hash.digest())
    }

    fn fill(&self, piece: &mut [u8], at: u64) -> Result<()> {
        let mut filled = 0;
        if let Some(direct) = self.direct.as_ref().filter(|_| self.is_direct.load(Ordering::Relaxed)) {
            let (whole, _) = piece.split_at_mut(piece.len() / DIRECT_BYTES * DIRECT_BYTES);
            if direct.read_at(whole, at).is_ok_and(|read| read == whole.len()) {
                filled = whole.len();
            } else {
                self.is_direct.store(false, Ordering::Relaxed);
            }
        }
        self.file.read_exact_at(piece.get_mut(filled..).unwrap_or_default(), at + filled as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    const LEN: usize = 3 * PIECE_BYTES + 4095;

    /// Reads a file in blocks of these lengths: the bytes, and whether it was read past the page
    /// cache to its end.
    fn read(file: &File, lens: &[usize], is_direct: bool) -> Result<(Vec<u8>, bool)> {
        let total: usize = lens.iter().sum();
        let mut room = memmap2::MmapMut::map_anon(total.max(1))?;
        let (mut at, mut rest, mut blocks) = (0, &mut room[..total], Vec::new());
        for &len in lens {
            let (block, after) = rest.split_at_mut(len);
            blocks.push((at, 0, block));
            (at, rest) = (at + len as u64, after);
        }
        let of = SavedBlocks::with(file, is_direct);
        let sums = of.read(blocks)?;
        let mut rest = &room[..total];
        for (sum, &len) in sums.iter().zip(lens) {
            let (block, after) = rest.split_at(len);
            assert_eq!(*sum, xxh3_64(block));
            rest = after;
        }
        assert_eq!(sums.len(), lens.len());
        Ok((room[..total].to_vec(), of.direct.is_some() && of.is_direct.load(Ordering::Relaxed)))
    }

    #[test]
    fn all_bytes_come_through_the_page_cache_and_past_it() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory on a disk");
        let bytes: Vec<u8> = (0..LEN).map(|n| ((n * n) >> 7) as u8).collect();
        let path = dir.path().join("file");
        std::fs::write(&path, &bytes).expect("write");
        let file = File::open(&path).expect("open");
        let can = OFlags::RDONLY | OFlags::DIRECT;
        let has_direct = rustix::fs::open(&path, can, Mode::empty()).is_ok();
        for lens in [&[LEN][..], &[4096, LEN - 4096], &[8192, PIECE_BYTES, 0, 4096, 100], &[4096; 20]] {
            let wanted = &bytes[..lens.iter().sum()];
            assert!(read(&file, lens, false).expect("read") == (wanted.to_vec(), false));
            assert!(read(&file, lens, true).expect("read") == (wanted.to_vec(), has_direct));
        }
        let short = read(&file, &[LEN, 1], true).expect_err("one is missing");
        assert_eq!(short.kind(), std::io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn offsets_that_no_disk_takes_are_read_through_the_page_cache() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory on a disk");
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; LEN]).expect("write");
        let file = File::open(&path).expect("open");
        // (Some file systems do that themselves.)
        assert!(read(&file, &[3, 8192], true).expect("read").0 == vec![7; 8195]);
    }

    /// Room that a full memory does not give.
    struct Full<'a>(Option<&'a mut [u8]>);

    impl<'a> Room<'a> for Full<'a> {
        fn take(self) -> Result<&'a mut [u8]> {
            self.0.ok_or_else(|| std::io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn an_error_of_one_thread_is_that_of_all() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(100 * 4096).expect("length");
        for full in [0, 50, 99] {
            let mut room = vec![0u8; 100 * 4096];
            let rooms = room.chunks_mut(4096).enumerate();
            let blocks = rooms.map(|(n, r)| (n as u64 * 4096, 0, Full((n != full).then_some(r)))).collect();
            let failed = SavedBlocks::with(&file, false).read(blocks).expect_err("it fails");
            assert_eq!(failed.kind(), std::io::ErrorKind::StorageFull);
        }
    }
}
