//! [`Filling`]: a file of shared memory that is filled through a mapping, in huge pages where the
//! kernel has them at hand.
//!
//! What is read from a disk straight into huge pages takes a quarter of the processor time that it
//! takes with small ones, and later lookups find it in huge pages. Where memory is fragmented the
//! kernel has to move what lies there, and a huge page costs more than 512 small ones. Then it is
//! asked for some now and again only.

use super::{MADV_COLLAPSE, Unfinished};
use monarch_abi::mem::{HUGE_PAGE_BYTES, MIN_HUGE_BYTES};
use rustix::fs::FallocateFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::time::ClockId;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Bytes of a block: what one thread fills at a time. A multiple of a huge page.
pub const BLOCK_BYTES: usize = 64 << 20;
/// Processor time of this thread that small pages for a block take, microseconds: about 1 ms for
/// each huge page. (Huge ones that are at hand take 0.2 ms.)
const SMALL_PAGES_US: i64 = 30_000;
/// Blocks with small pages after one whose huge pages took longer.
const PAUSE_BLOCKS: u32 = 8;
/// See madvise(2). (Not in each C library that is supported.)
const MADV_POPULATE_WRITE: libc::c_int = 23;

/// A file without a name that is being filled.
#[derive(Debug)]
pub struct Filling {
    file: Unfinished,
    map: AlignedMap,
    huge: HugePages,
    /// Bytes that have taken their memory.
    taken: AtomicUsize,
}

impl Filling {
    /// Makes the file `len` bytes long. They take no memory yet.
    pub(super) fn of(file: Unfinished, len: usize) -> io::Result<Self> {
        file.file.set_len(len as u64)?;
        let map = AlignedMap::of(&file.file, len)?;
        Ok(Self { file, map, huge: HugePages::new(len), taken: AtomicUsize::new(0) })
    }

    /// Its blocks, in order: [`BLOCK_BYTES`] each, the last one what is left.
    pub fn blocks(&mut self) -> Vec<Block<'_>> {
        let (file, huge, taken) = (&self.file.file, &self.huge, &self.taken);
        let at = (0..).step_by(BLOCK_BYTES);
        at.zip(self.map.parts()).map(|(at, room)| Block { file, huge, taken, at, room }).collect()
    }

    /// The file, and its bytes, which are not written to any more.
    ///
    /// # Errors
    /// What the kernel said, `ENOSPC` when a block has taken no memory and there is none left.
    pub fn filled(self) -> io::Result<(Unfinished, FilledBytes)> {
        if self.taken.into_inner() < self.map.len {
            self.file.allocate(self.map.len as u64)?;
        }
        Ok((self.file, FilledBytes(self.map)))
    }
}

/// A block of a file that has no memory yet.
#[derive(Debug)]
pub struct Block<'a> {
    file: &'a File,
    huge: &'a HugePages,
    taken: &'a AtomicUsize,
    at: u64,
    room: Room<'a>,
}

impl<'a> Block<'a> {
    /// Takes its memory: the bytes to fill.
    ///
    /// # Errors
    /// What the kernel said, `ENOSPC` when shared memory is full.
    pub fn take(self) -> io::Result<&'a mut [u8]> {
        self.huge.make(self.file, self.at, &self.room);
        // SAFETY: advice about mapped memory that changes none of its bytes.
        let is_there = unsafe { libc::madvise(self.room.at.cast(), self.room.len, MADV_POPULATE_WRITE) } == 0;
        if !is_there {
            // Linux before 5.14, or no memory: this says which error that is.
            rustix::fs::fallocate(self.file, FallocateFlags::empty(), self.at, self.room.len as u64)?;
        }
        self.taken.fetch_add(self.room.len, Ordering::Relaxed);
        // SAFETY: a part of the mapping that no other block has, whose memory was allocated just
        // now; the mapping is borrowed for 'a.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.room.at, self.room.len) })
    }
}

/// Mapped bytes of a block.
#[derive(Debug)]
struct Room<'a> {
    at: *mut u8,
    len: usize,
    map: std::marker::PhantomData<&'a mut AlignedMap>,
}

// SAFETY: as of a mutable slice of bytes.
unsafe impl Send for Room<'_> {}

/// Has the kernel make huge pages for what is to be filled, as long as that is cheap.
#[derive(Debug)]
struct HugePages {
    /// Whether the kernel may have some.
    is_possible: AtomicBool,
    /// Blocks for which it is not asked next.
    pause: AtomicU32,
}

impl HugePages {
    const fn new(len: usize) -> Self {
        Self { is_possible: AtomicBool::new(len >= MIN_HUGE_BYTES), pause: AtomicU32::new(0) }
    }

    /// Makes those of a block, or as many of them as the kernel has.
    fn make(&self, file: &File, at: u64, room: &Room<'_>) {
        let len = room.len / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if len == 0 || !self.may_ask() {
            return;
        }
        let start = processor_us();
        // (The kernel moves what is there: a page of each.)
        let first_pages = (0..len).step_by(HUGE_PAGE_BYTES);
        let mut begun = first_pages.map(|of| rustix::fs::fallocate(file, FallocateFlags::empty(), at + of as u64, 1));
        let error = if begun.all(|done| done.is_ok()) {
            // SAFETY: advice about mapped memory that changes none of its bytes.
            let failed = unsafe { libc::madvise(room.at.cast(), len, MADV_COLLAPSE) } != 0;
            failed.then(|| io::Error::last_os_error().raw_os_error()).flatten()
        } else {
            Some(libc::ENOSPC)
        };
        self.note(processor_us() - start, error);
    }

    /// Whether the kernel is to be asked for the huge pages of another block.
    fn may_ask(&self) -> bool {
        let paused = |left: u32| left.checked_sub(1);
        self.is_possible.load(Ordering::Relaxed)
            && self.pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paused).is_err()
    }

    /// Notes what those of a block have cost, and with which error the kernel made fewer.
    fn note(&self, us: i64, error: Option<i32>) {
        if error == Some(libc::EINVAL) {
            // Linux before 6.1, or a system that forbids it.
            self.is_possible.store(false, Ordering::Relaxed);
        } else if us > SMALL_PAGES_US || error.is_some() {
            self.pause.store(PAUSE_BLOCKS, Ordering::Relaxed);
        }
    }
}

/// Processor time of this thread, microseconds.
fn processor_us() -> i64 {
    let t = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec * 1_000_000 + t.tv_nsec / 1000
}

/// Bytes of a file that was filled. Unmapped when dropped.
#[derive(Debug)]
pub struct FilledBytes(AlignedMap);

impl Deref for FilledBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the whole mapping of a file all of whose bytes are allocated, and which is not
        // written to any more.
        unsafe { std::slice::from_raw_parts(self.0.at, self.0.len) }
    }
}

/// A shared mapping that begins at a multiple of a huge page. Unmapped when dropped.
#[derive(Debug)]
struct AlignedMap {
    at: *mut u8,
    len: usize,
    reserved: *mut core::ffi::c_void,
}

// SAFETY: it owns its memory, and hands out its bytes by the rules of borrowing.
unsafe impl Send for AlignedMap {}
// SAFETY: as above.
unsafe impl Sync for AlignedMap {}

impl AlignedMap {
    /// Maps the first `len` bytes of a file.
    fn of(file: impl AsFd, len: usize) -> io::Result<Self> {
        let reserved_len = len.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let (none, reserve) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address that the kernel picks.
        let reserved = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), reserved_len, none, reserve) }?;
        let offset = reserved.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: within what was reserved just now.
        let at = unsafe { reserved.byte_add(offset) };
        let map = Self { at: at.cast(), len, reserved };
        let (both, fixed) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: replaces a part of what was reserved just now; no reference leads there yet.
        unsafe {
            rustix::mm::mmap(at, len, both, fixed, file, 0)?;
            let _ = rustix::mm::madvise(at, len, Advice::LinuxDontDump);
        }
        Ok(map)
    }

    /// Its bytes, cut into blocks.
    fn parts(&mut self) -> impl Iterator<Item = Room<'_>> {
        let (start, len) = (self.at, self.len);
        (0..len).step_by(BLOCK_BYTES).map(move |from| Room {
            at: start.wrapping_add(from),
            len: (len - from).min(BLOCK_BYTES),
            map: std::marker::PhantomData,
        })
    }
}

impl Drop for AlignedMap {
    fn drop(&mut self) {
        // SAFETY: the whole of what was reserved for it, to which no reference is left.
        let _ = unsafe { rustix::mm::munmap(self.reserved, self.len + HUGE_PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held_dir::HeldDir;
    use std::sync::Arc;

    #[test]
    fn what_was_filled_is_in_the_file_and_all_of_it_has_memory() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let held = Arc::new(HeldDir::at(dir.path()).expect("directory"));
        for len in [1, 4096, MIN_HUGE_BYTES + 4097, BLOCK_BYTES + 3, 2 * BLOCK_BYTES] {
            let mut filling = Unfinished::empty(&held).and_then(|file| file.map_to_fill(len as u64)).expect("mapped");
            let blocks = filling.blocks();
            assert_eq!(blocks.len(), len.div_ceil(BLOCK_BYTES));
            for (n, block) in blocks.into_iter().enumerate() {
                let room = block.take().expect("room");
                room.fill(n as u8 + 1);
                assert!(room.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
            }
            let (file, bytes) = filling.filled().expect("filled");
            let meta = file.file.metadata().expect("metadata");
            assert_eq!((meta.len(), bytes.len()), (len as u64, len));
            assert!(std::os::unix::fs::MetadataExt::blocks(&meta) * 512 >= len as u64);
            assert!(bytes.iter().enumerate().all(|(at, &b)| b == (at / BLOCK_BYTES) as u8 + 1));
        }
    }

    /// What the kernel gave for each block that it was asked for: microseconds, and an error.
    fn asked(huge: &HugePages, blocks: usize, gives: (i64, Option<i32>)) -> usize {
        let asks = (0..blocks).filter(|_| {
            let may = huge.may_ask();
            if may {
                huge.note(gives.0, gives.1);
            }
            may
        });
        asks.count()
    }

    #[test]
    fn huge_pages_that_cost_more_than_small_ones_are_asked_for_now_and_again() {
        let huge = HugePages::new(BLOCK_BYTES);
        assert_eq!(asked(&huge, 100, (SMALL_PAGES_US / 4, None)), 100, "cheap ones");
        assert_eq!(asked(&huge, 90, (SMALL_PAGES_US * 4, None)), 10, "costly ones");
        assert_eq!(asked(&huge, 82, (100, Some(libc::ENOMEM))), 10, "none");
        assert_eq!(asked(&huge, 100, (100, None)), 92, "cheap ones again");
        assert_eq!(asked(&huge, 100, (100, Some(libc::EINVAL))), 1, "never any");
        assert_eq!(asked(&HugePages::new(MIN_HUGE_BYTES - 1), 100, (0, None)), 0, "too small");
    }

    /// A file system of this size, for as long as the test runs; `None` where it cannot be mounted.
    struct Tmpfs(tempfile::TempDir);

    impl Tmpfs {
        fn of(bytes: usize) -> Option<Self> {
            let dir = tempfile::tempdir().expect("a directory");
            let options = format!("size={bytes}");
            let mount = std::process::Command::new("mount")
                .args(["-t", "tmpfs", "-o", &options, "none"])
                .arg(dir.path())
                .status();
            mount.is_ok_and(|done| done.success()).then(|| Self(dir))
        }
    }

    impl Drop for Tmpfs {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
        }
    }

    #[test]
    fn a_block_without_memory_is_an_error_and_no_signal() {
        let Some(full) = Tmpfs::of(BLOCK_BYTES + (8 << 20)) else { return };
        let held = Arc::new(HeldDir::at(full.0.path()).expect("directory"));
        let file = Unfinished::empty(&held).expect("a file");
        let mut filling = file.map_to_fill(3 * BLOCK_BYTES as u64).expect("mapped");
        let taken = filling.blocks().into_iter().map(|block| block.take().map(|room| room.fill(1)));
        let kinds: Vec<_> = taken.map(|taken| taken.err().map(|e| e.kind())).collect();
        assert_eq!(kinds, [None, Some(io::ErrorKind::StorageFull), Some(io::ErrorKind::StorageFull)]);
        assert_eq!(filling.filled().expect_err("there is no room").kind(), io::ErrorKind::StorageFull);
    }
}
