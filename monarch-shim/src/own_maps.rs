//! Mappings of copies, out of which small reads are answered.
//!
//! A read by chunks opens the file of the copy and closes it again, which costs more than a small
//! read itself. Of files that a process reads in small parts again and again a mapping is kept, and
//! the kernel copies the bytes out of it (`process_vm_readv` of this process): that ends in an
//! error where a load would end in SIGBUS, and needs no descriptor.
//!
//! * An entry is guarded by its version, as by a sequence lock: bytes count only if it is the same
//!   afterwards, so that an address which has become other memory gives no reader its bytes. The
//!   reader also looks at the state of the copy again, as after every read of it.
//! * Where a filter or a limit of addresses says what the process may do, it maps nothing.
//! * A child begins without mappings (`MADV_DONTFORK`) and without entries (`MADV_WIPEONFORK`).
//! * A mapping holds the blocks of a copy that is evicted, which stay charged. It goes when the
//!   descriptor is closed for which it was made, or with the next read that finds another copy.

use crate::large::{Known, NO_PART};
use crate::watched;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use monarch_abi::word::{State, Word};
use monarch_guest::ctx::Ctx;
use monarch_guest::sys;

/// The longest read that is answered out of a mapping: of longer ones the open is a small part.
pub const MAX_BYTES: usize = 16 << 10;
/// Mappings of a process.
const MAX_MAPPINGS: usize = 16;
/// Bytes of all mappings: they bound page tables (a 512th of it) and resident memory.
const MAX_MAPPED_BYTES: u64 = 4 << 30;
/// Small reads of a file, without a mapping, after which one is made.
const MIN_READS: i32 = 16;
/// Small reads more after which it is tried again where there was no room for a mapping.
const READS_BETWEEN_TRIES: i32 = 48;
/// Files whose small reads are counted apart, except for collisions.
const COUNTERS: usize = 64;
/// Requests of other files for its place that an entry outlives without a read.
const MAX_CREDIT: u32 = 15;

/// Bytes of a page, the largest that the kernels of the architecture have.
const PAGE_BYTES: usize = if cfg!(target_arch = "aarch64") { 65536 } else { 4096 };

/// File systems whose mappings show what is written to their files, and which of them are in
/// memory: `f_type` of statfs.
const TMPFS: i64 = 0x0102_1994;
const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;

/// A file of a tier, as the mapping of it is found again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CopyFile {
    /// Address of what it belongs to: an entry of an index, or the window of streamed files. Both
    /// are never unmapped.
    owner: usize,
    /// Number of a partial copy or window.
    file: u64,
    /// The word of a complete copy, otherwise 0.
    word: u32,
}

impl CopyFile {
    /// The file that holds bytes of a large file whose word is `word`.
    #[inline]
    #[must_use]
    pub fn of(ctx: &Ctx, known: &Known, word: Word, file: u64) -> Self {
        let entry = core::ptr::from_ref(known.f.entry.record) as usize;
        if word.state() != State::Partial {
            return Self { owner: entry, file: NO_PART, word: word.0 };
        }
        let is_window = file != known.large.head.part.load(Ordering::Relaxed);
        let owner = if is_window { core::ptr::from_ref(&ctx.map.ctl.stream) as usize } else { entry };
        Self { owner, file, word: 0 }
    }

    /// Which counter of reads it shares.
    const fn counter(&self) -> usize {
        self.owner.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize) >> (usize::BITS - 6)
    }
}

/// A mapping. Empty while `owner` is 0.
#[repr(C, align(64))]
struct Entry {
    /// Odd while the entry is being changed.
    version: AtomicU32,
    /// How many requests for its place it outlives.
    credit: AtomicU32,
    owner: AtomicUsize,
    file: AtomicU64,
    word: AtomicU32,
    /// The descriptor for which it was made.
    fd: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
    /// Not zero: its file system keeps all pages in memory.
    in_memory: AtomicU32,
}

/// All of it, in pages that the kernel clears in a child; zero is "empty" in every field.
#[cfg_attr(not(target_arch = "aarch64"), repr(C, align(4096)))]
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
struct Table {
    entries: [Entry; MAX_MAPPINGS],
    /// Small reads of files without a mapping, by hash.
    reads: [AtomicI32; COUNTERS],
}
const _: () = assert!(size_of::<Table>() == PAGE_BYTES);

// SAFETY: atomics of which zero is a valid value.
static TABLE: Table = unsafe { MaybeUninit::zeroed().assume_init() };

/// Whether this process may read its own memory so: 0 while that is not known. (A child inherits
/// it, as it inherits seccomp filters.)
static ALLOWED: AtomicU32 = AtomicU32::new(0);
const YES: u32 = 1;
const NO: u32 = 2;

/// No mappings in this process from here on: a seccomp filter is about to be installed, which may
/// kill the process for a call that it does not know.
#[cold]
pub fn forbid() {
    ALLOWED.store(NO, Ordering::Relaxed);
}

/// Reads `n` bytes of a file from `off` on out of a mapping of it; `false` if they are not to be
/// had so: then the buffer is undefined.
///
/// # Safety
/// The buffer is the application's; the kernel checks that it can be written.
#[inline]
#[must_use]
pub unsafe fn read(of: CopyFile, ordered: bool, buf: *mut u8, n: usize, off: u64) -> bool {
    let Some(entry) = TABLE.find(of.owner) else { return false };
    let version = entry.version.load(Ordering::Acquire);
    let (start, len) = (entry.start.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed));
    let in_memory = entry.in_memory.load(Ordering::Relaxed) != 0;
    if version & 1 != 0 || entry.key() != of {
        entry.clear_if_stale(of, version);
        return false;
    }
    // Reads in order from a disk are the kernel's, which reads ahead of them.
    let fits = off.checked_add(n as u64).is_some_and(|end| end <= len as u64);
    if !fits || ordered && !in_memory || ALLOWED.load(Ordering::Relaxed) != YES {
        return false;
    }
    // (In a child that shares this memory the number is another one: it is asked for each time.)
    // SAFETY: the kernel checks both addresses.
    let got = unsafe { sys::read_memory(sys::pid(), start + off as usize, buf, n) };
    // What the kernel has copied is older than what is looked at now.
    fence(Ordering::SeqCst);
    if got != n as isize {
        failed(entry, version, got);
        return false;
    }
    if entry.credit.load(Ordering::Relaxed) < MAX_CREDIT {
        entry.credit.store(MAX_CREDIT, Ordering::Relaxed);
    }
    entry.version.load(Ordering::Relaxed) == version
}

/// Nothing, or less than there should be, was read out of a mapping: the file was emptied, its disk
/// fails, or the call is not to be had.
#[cold]
#[inline(never)]
fn failed(entry: &Entry, version: u32, got: isize) {
    if got == -(libc::EPERM as isize) || got == -(libc::ENOSYS as isize) {
        forbid();
    }
    entry.clear(version);
}

/// A small read was answered by `copy`, an open descriptor of this file, for the application's
/// descriptor `fd`: makes a mapping if there have been many.
#[inline]
pub fn has_read(of: CopyFile, fd: c_int, copy: c_int) {
    if ALLOWED.load(Ordering::Relaxed) == NO {
        return;
    }
    let Some(reads) = TABLE.reads.get(of.counter()) else { return };
    let before = reads.load(Ordering::Relaxed);
    reads.store(before.wrapping_add(1), Ordering::Relaxed);
    if before >= MIN_READS {
        let next = if make(of, fd, copy).is_some() { 0 } else { -READS_BETWEEN_TRIES };
        reads.store(next, Ordering::Relaxed);
    }
}

/// Maps a file; `None` if there is to be no mapping of it for now.
#[cold]
#[inline(never)]
fn make(of: CopyFile, fd: c_int, copy: c_int) -> Option<()> {
    if !watched::can_be(fd) || !is_allowed() {
        return None;
    }
    let entry = TABLE.place_for(of)?;
    // (It has one that is not used: for reads in order, for instance.)
    if entry.key() == of {
        return Some(());
    }
    let version = entry.version.load(Ordering::Relaxed);
    let others = TABLE.bytes().saturating_sub(entry.len.load(Ordering::Relaxed) as u64);
    let map = Map::of(copy, MAX_MAPPED_BYTES.saturating_sub(others))?;
    if !entry.lock(version) {
        map.unmap();
        return None;
    }
    entry.empty();
    entry.file.store(of.file, Ordering::Relaxed);
    entry.word.store(of.word, Ordering::Relaxed);
    entry.fd.store(fd as u32, Ordering::Relaxed);
    entry.start.store(map.start, Ordering::Relaxed);
    entry.len.store(map.len, Ordering::Relaxed);
    entry.in_memory.store(map.in_memory.into(), Ordering::Relaxed);
    entry.credit.store(MAX_CREDIT, Ordering::Relaxed);
    entry.owner.store(of.owner, Ordering::Relaxed);
    entry.unlock(version);
    watched::begin(fd);
    Some(())
}

/// A descriptor is being closed: what was mapped for it goes. (By the process that the table is of:
/// in a child of `vfork` the parent's descriptor stays open.)
#[cold]
pub fn closed(fd: c_int) {
    for entry in &TABLE.entries {
        let version = entry.version.load(Ordering::Acquire);
        if entry.owner.load(Ordering::Relaxed) != 0 && entry.fd.load(Ordering::Relaxed) == fd as u32 {
            entry.clear(version);
        }
    }
}

/// Other memory is about to take the place of these addresses (`MAP_FIXED`): what is mapped there
/// is no copy from then on.
#[cold]
pub fn covered(start: usize, len: usize) {
    let end = start.saturating_add(len);
    for entry in &TABLE.entries {
        let version = entry.version.load(Ordering::Acquire);
        let from = entry.start.load(Ordering::Relaxed);
        if from < end && start < from.saturating_add(entry.len.load(Ordering::Relaxed)) {
            entry.clear(version);
        }
    }
}

/// Asks, once, whether this process may have such mappings.
fn is_allowed() -> bool {
    if ALLOWED.load(Ordering::Relaxed) == 0 {
        let table = (&raw const TABLE).cast_mut().cast();
        let allowed = !sys::has_seccomp_filter() && sys::advise(table, PAGE_BYTES, libc::MADV_WIPEONFORK);
        // (Another thread may have forbidden it meanwhile.)
        let answer = if allowed { YES } else { NO };
        let _ = ALLOWED.compare_exchange(0, answer, Ordering::Relaxed, Ordering::Relaxed);
    }
    // What the application may map is its own where it is bounded.
    ALLOWED.load(Ordering::Relaxed) == YES && !sys::has_address_limit()
}

impl Table {
    /// The entry of a file, or of the window.
    #[inline]
    fn find(&self, owner: usize) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.owner.load(Ordering::Relaxed) == owner)
    }

    /// The entry that a new mapping takes: that of the same owner, an empty one, or one without
    /// credit. All others lose some.
    fn place_for(&self, of: CopyFile) -> Option<&Entry> {
        let free = || self.find(of.owner).or_else(|| self.find(0));
        free().or_else(|| {
            let spent = self.entries.iter().find(|entry| entry.credit.load(Ordering::Relaxed) == 0);
            for entry in &self.entries {
                let credit = entry.credit.load(Ordering::Relaxed);
                entry.credit.store(credit.saturating_sub(1), Ordering::Relaxed);
            }
            spent
        })
    }

    fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.len.load(Ordering::Relaxed) as u64).sum()
    }
}

impl Entry {
    #[inline]
    fn key(&self) -> CopyFile {
        CopyFile {
            owner: self.owner.load(Ordering::Relaxed),
            file: self.file.load(Ordering::Relaxed),
            word: self.word.load(Ordering::Relaxed),
        }
    }

    /// Takes the entry for a change, if it still has this version and no other thread changes it. A
    /// thread that ends meanwhile leaves an entry of no use.
    fn lock(&self, version: u32) -> bool {
        let free = version & 1 == 0;
        let locked =
            free && self.version.compare_exchange(version, version | 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // What is mapped changes after each reader can see this.
        fence(Ordering::SeqCst);
        locked
    }

    fn unlock(&self, before: u32) {
        self.version.store(before.wrapping_add(2), Ordering::Release);
    }

    /// Gives back what is mapped. The entry is locked.
    fn empty(&self) {
        let (start, len) = (self.start.swap(0, Ordering::Relaxed), self.len.swap(0, Ordering::Relaxed));
        self.owner.store(0, Ordering::Relaxed);
        self.credit.store(0, Ordering::Relaxed);
        if len != 0 {
            sys::unmap(start as *mut u8, len);
        }
    }

    /// Empties the entry, if it still has this version.
    #[cold]
    #[inline(never)]
    fn clear(&self, version: u32) {
        if self.lock(version) {
            self.empty();
            self.unlock(version);
        }
    }

    /// Empties the entry, seen with this version, if its owner has another file by now.
    #[cold]
    #[inline(never)]
    fn clear_if_stale(&self, of: CopyFile, version: u32) {
        let key = self.key();
        if key.owner == of.owner && key != of {
            self.clear(version);
        }
    }
}

/// A mapping that was just made.
struct Map {
    start: usize,
    len: usize,
    in_memory: bool,
}

impl Map {
    fn unmap(&self) {
        sys::unmap(self.start as *mut u8, self.len);
    }

    /// Maps all of an open copy, if that is at most `most` bytes.
    fn of(copy: c_int, most: u64) -> Option<Self> {
        let in_memory = match sys::file_system(copy)? {
            TMPFS => true,
            EXT4 | XFS => false,
            _ => return None,
        };
        let size = u64::try_from(sys::fstat_local(copy)?.st_size).ok().filter(|&size| size > 0 && size <= most)?;
        let len = usize::try_from(size).ok()?;
        // (Under `mlockall(MCL_FUTURE)` the kernel reads in what is mapped readable.)
        let start = sys::map(len, libc::PROT_NONE, libc::MAP_SHARED, copy)?;
        let map = Self { start: start as usize, len, in_memory };
        sys::unlock(start, len);
        let advice = [libc::MADV_DONTFORK, libc::MADV_DONTDUMP, libc::MADV_RANDOM];
        if advice.iter().all(|&advice| sys::advise(start, len, advice)) && sys::make_readable(start, len) {
            return Some(map);
        }
        map.unmap();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    const BYTES: usize = 64 << 10;

    /// A file in memory whose bytes all are `byte`, and what a reader calls it.
    fn copy(owner: usize, byte: u8) -> (File, CopyFile) {
        let path = format!("/dev/shm/monarch-own-maps-{}-{owner}-{byte}", std::process::id());
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all_at(&[byte; BYTES], 0).unwrap();
        (file, CopyFile { owner, file: u64::from(byte), word: 0 })
    }

    fn read_some(of: CopyFile, off: u64) -> Option<[u8; 100]> {
        let mut out = [0; 100];
        // SAFETY: a buffer as long as said.
        unsafe { read(of, false, out.as_mut_ptr(), out.len(), off) }.then_some(out)
    }

    fn make_for(of: CopyFile, file: &File) -> Option<()> {
        make(of, file.as_raw_fd(), file.as_raw_fd())
    }

    #[test]
    fn bytes_come_out_of_a_mapping_until_it_goes() {
        let (file, of) = copy(1, 1);
        assert_eq!(read_some(of, 0), None, "there is none");
        for _ in 0..=MIN_READS {
            has_read(of, file.as_raw_fd(), file.as_raw_fd());
        }
        assert_eq!(read_some(of, 1000), Some([1; 100]));
        file.write_all_at(&[2; 100], 1000).unwrap();
        assert_eq!(read_some(of, 1000), Some([2; 100]), "a slot is overwritten in place");
        assert_eq!(read_some(of, BYTES as u64 - 99), None, "behind the end");
        assert_eq!(read_some(of, u64::MAX), None);
        assert_eq!(read_some(CopyFile { file: 9, ..of }, 0), None, "another copy of the same file");
        assert_eq!(read_some(of, 0), None, "which has taken the mapping away");
        make_for(of, &file).unwrap();
        closed(file.as_raw_fd());
        assert_eq!(read_some(of, 0), None, "closed");
    }

    #[test]
    fn a_file_that_was_emptied_is_an_error_and_no_signal() {
        let (file, of) = copy(2, 1);
        make_for(of, &file).unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(read_some(of, 0), Some([1; 100]));
        assert_eq!(read_some(of, 4050), None, "only a part of it is there");
        assert_eq!(read_some(of, 0), None, "the mapping has gone");
    }

    #[test]
    fn memory_that_takes_the_place_of_a_mapping_is_no_copy() {
        let (file, of) = copy(3, 1);
        make_for(of, &file).unwrap();
        let start = TABLE.find(3).unwrap().start.load(Ordering::Relaxed);
        covered(start + BYTES, 4096);
        assert!(read_some(of, 0).is_some(), "what lies behind it");
        covered(start + BYTES - 4096, 4096);
        assert_eq!(read_some(of, 0), None);
    }

    #[test]
    fn more_than_the_bound_is_not_mapped() {
        let (file, of) = copy(4, 1);
        file.set_len(MAX_MAPPED_BYTES + 1).unwrap();
        assert!(make_for(of, &file).is_none());
    }

    /// Other threads map other files, and memory of their own, at the addresses of the mapping that
    /// a reader has just found.
    #[test]
    fn a_reader_never_gets_the_bytes_of_another_file() {
        let files: Vec<_> = (1..5).map(|byte| copy(5, byte)).collect();
        let is_over = AtomicU32::new(0);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for n in 0..20_000 {
                    let (file, of) = &files[n % files.len()];
                    let _ = make_for(*of, file);
                    if n % 7 == 0 {
                        closed(file.as_raw_fd());
                        std::hint::black_box(vec![9u8; BYTES + 4096]);
                    }
                }
                is_over.store(1, Ordering::Relaxed);
            });
            for first in 0..2 {
                let (files, is_over) = (&files, &is_over);
                threads.spawn(move || {
                    let (mut n, mut good) = (first, 0);
                    while is_over.load(Ordering::Relaxed) == 0 || n < 1000 {
                        let (_, of) = files[n % files.len()];
                        // (Not `read_some`, which takes the mapping of another file away.)
                        if TABLE.find(5).is_some_and(|entry| entry.key() == of)
                            && let Some(bytes) = read_some(of, (n * 64 % (BYTES - 100)) as u64)
                        {
                            assert_eq!(bytes, [of.file as u8; 100]);
                            good += 1;
                        }
                        n += 1;
                    }
                    std::hint::black_box(good);
                });
            }
        });
    }
}
