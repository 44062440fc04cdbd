//! Chunks: which parts of a large file lie in a tier while its copy is being made.
//!
//! A state file holds one [`Large`] per file above the threshold, sorted by id, with two bitmaps
//! each: chunks that are *present* in the partial copy, and chunks that are *wanted* by a reader. A
//! reader serves itself from present chunks and looks again afterwards ([`DropSnapshot`]). Chunks
//! of streamed files lie in a window ([`crate::stream`]) instead: the agent removes their tag,
//! counts the drop, and only then takes the bytes away.
//!
//! Every process of the job can write to the state file, so a present bit is not believed alone. A
//! word of that bitmap has 32 of them and a 32-bit check (`sealed`) over the bits, the number of
//! the partial copy, the chunk size and the position. Any change of the bits alone, or of the check
//! alone, is noticed for certain, any other with all but one chance in 2^32. A word that does not
//! fit says that none of its chunks is there; the agent writes it again when one is asked for.

use crate::control::Stream;
use crate::mem::Pod;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::word::{State, Word};

/// A file above the threshold: one cache line. Fields: 13, because this is the byte map of that
/// line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Large {
    /// Inode number on the PFS.
    pub ino: u64,
    /// Its entry: the first name of the inode.
    pub id: u32,
    /// Slot of that entry.
    pub slot: u32,
    /// First word of its present chunks; those of the wanted ones follow.
    pub bits: u64,
    /// Number of chunks.
    pub chunks: u32,
    /// How many chunks a sequential reader requests before it needs them.
    pub ahead: AtomicU32,
    /// Name of the partial copy, as a number.
    pub part: AtomicU64,
    /// Futex word: goes up whenever something was achieved.
    pub tick: AtomicU32,
    /// How often a chunk was dropped.
    pub drops: AtomicU32,
    /// How many PFS calls are under way for it.
    pub in_pfs: AtomicU32,
    /// One of [`WHOLE`] and [`STREAMED`].
    pub mode: AtomicU32,
    /// What processes ask for that read the file past the shim: [`REST`] and [`PAGED`].
    pub rest: AtomicU32,
    /// The chunk that the last reader in order reads, or [`READ_TO_END`]. (Only of what is
    /// [`STREAMED`].)
    pub reading: AtomicU32,
}
const _: () =
    assert!(3 * size_of::<u64>() + 10 * size_of::<u32>() == 64, "the fields fill the line: there is no padding");
// SAFETY: repr(C), integers and atomics, no padding; plain fields are written before the file is
// published.
unsafe impl Pod for Large {}

/// [`Large::mode`]: there is room for all chunks, and all will be there in the end.
pub const WHOLE: u32 = 0;
/// [`Large::mode`]: the file is streamed; only sequential readers request chunks.
pub const STREAMED: u32 = 1;

/// [`Large::reading`]: that reader is at the end.
pub const READ_TO_END: u32 = u32::MAX;

/// [`Large::rest`]: the copy is to be completed, for readers to come.
pub const REST: u32 = 1;
/// [`Large::rest`]: a process reads the file of the PFS through the page cache, by a mapping or a
/// stream. The copy is read through the page cache, too, so that each byte leaves the PFS once.
pub const PAGED: u32 = 2;

impl Large {
    /// The bytes of an entry, as the maker of a state file writes them.
    #[must_use]
    pub const fn to_bytes(ino: u64, id: u32, slot: u32, bits: u64, chunks: u32) -> [u8; 64] {
        let mut out = [0; 64];
        let mut at = 0;
        while at < 8 {
            out[at] = ino.to_le_bytes()[at];
            out[16 + at] = bits.to_le_bytes()[at];
            at += 1;
        }
        at = 0;
        while at < 4 {
            out[8 + at] = id.to_le_bytes()[at];
            out[12 + at] = slot.to_le_bytes()[at];
            out[24 + at] = chunks.to_le_bytes()[at];
            at += 1;
        }
        out
    }
}

/// Number of chunks of a file.
#[must_use]
#[inline]
pub const fn chunks_of(size: u64, chunk: u64) -> u64 {
    if chunk == 0 { 0 } else { size.div_ceil(chunk) }
}

/// Words of one bitmap.
#[must_use]
#[inline]
pub const fn words_of(chunks: u32) -> usize {
    (chunks as usize).div_ceil(64)
}

/// Chunks that a word of the bitmap of present chunks speaks of.
const PER_WORD: u32 = 32;

/// Words of the bitmap of present chunks.
#[must_use]
#[inline]
pub const fn present_words_of(chunks: u32) -> usize {
    chunks.div_ceil(PER_WORD) as usize
}

/// Words of both bitmaps of a file.
#[must_use]
#[inline]
pub const fn bitmap_words_of(chunks: u32) -> usize {
    present_words_of(chunks) + words_of(chunks)
}

/// A word of present chunks: the bits, and above them their check. The check is a bijection of the
/// bits (the finalizer of MurmurHash3), so that no other bits have it.
#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
const fn sealed(key: u64, bits: u32) -> u64 {
    let mut check = bits ^ key as u32;
    check = (check ^ check >> 16).wrapping_mul(0x85eb_ca6b);
    check = (check ^ check >> 13).wrapping_mul(0xc2b2_ae35);
    check ^= check >> 16;
    ((check ^ (key >> 32) as u32) as u64) << 32 | bits as u64
}

/// Mixes a number into a key (a round of SplitMix64).
pub(crate) const fn mixed(key: u64, number: u64) -> u64 {
    let mut z = (key ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A large file with its bitmaps.
///
/// Methods: 26, because shim and agent each ask for chunks, for copies of them and for the window.
#[derive(Clone, Copy, Debug)]
pub struct LargeFile<'a> {
    /// Position in the table.
    pub number: u32,
    /// The entry.
    pub head: &'a Large,
    /// Bytes of a chunk; the last one may be shorter.
    pub chunk: u64,
    present: &'a [AtomicU64],
    wanted: &'a [AtomicU64],
    /// The window in which chunks of it may be, where the caller uses it.
    stream: Option<&'a Stream>,
}

/// Where bytes of a partial copy lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the file.
    pub file: u64,
    /// Where in that file the first byte is.
    pub off: u64,
    /// Up to where, in the large file, the bytes lie side by side there.
    pub until: u64,
}

fn is_set(bits: &[AtomicU64], chunk: u32) -> bool {
    bits.get(chunk as usize / 64).is_some_and(|w| w.load(Ordering::Acquire) & 1 << (chunk % 64) != 0)
}

/// Sets a bit; whether it was not set.
fn set(bits: &[AtomicU64], chunk: u32) -> bool {
    let bit = 1 << (chunk % 64);
    bits.get(chunk as usize / 64).is_some_and(|w| w.fetch_or(bit, Ordering::AcqRel) & bit == 0)
}

impl<'a> LargeFile<'a> {
    /// From the parts of a state file; `None` when they do not fit.
    #[must_use]
    pub fn new(number: u32, head: &'a Large, chunk: u64, words: &'a [AtomicU64]) -> Option<Self> {
        if chunk == 0 {
            return None;
        }
        let from = usize::try_from(head.bits).ok()?;
        let middle = from.checked_add(present_words_of(head.chunks))?;
        let present = words.get(from..middle)?;
        let wanted = words.get(middle..middle.checked_add(words_of(head.chunks))?)?;
        Some(Self { number, head, chunk, present, wanted, stream: None })
    }

    /// The same file, whose chunks in the window of streamed files count as present, too.
    #[must_use]
    pub const fn streamed_through(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Which chunk holds the byte at `off`.
    #[must_use]
    #[inline]
    pub fn at(&self, off: u64) -> u32 {
        off.checked_div(self.chunk).and_then(|c| u32::try_from(c).ok()).unwrap_or(u32::MAX)
    }

    /// What the check of a word of present chunks depends on beside the bits.
    fn key(&self, word: usize) -> u64 {
        let position = u64::from(self.number) << 32 | word as u64;
        mixed(mixed(self.head.part.load(Ordering::Acquire), self.chunk), position)
    }

    /// The bits of a word of present chunks; none if its check does not fit.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half of a word")]
    fn checked(&self, at: usize, word: u64) -> u32 {
        let bits = word as u32;
        if bits != 0 && sealed(self.key(at), bits) == word { bits } else { 0 }
    }

    /// Changes the bits of a word of present chunks. What does not fit its check is not carried
    /// over.
    fn change(&self, chunk: u32, to: impl Fn(u32) -> u32) {
        let at = (chunk / PER_WORD) as usize;
        let Some(word) = self.present.get(at) else { return };
        let next = |w: u64| Some(sealed(self.key(at), to(self.checked(at, w))));
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// Whether a chunk is in the file of the partial copy.
    #[inline]
    fn is_in_part(&self, chunk: u32) -> bool {
        let at = (chunk / PER_WORD) as usize;
        let bits = self.present.get(at).map_or(0, |w| self.checked(at, w.load(Ordering::Acquire)));
        bits & 1 << (chunk % PER_WORD) != 0
    }

    /// The window's file and the offset there, of a chunk that is in the window.
    fn in_window(&self, chunk: u32) -> Option<(u64, u64)> {
        let stream = self.stream.filter(|_| self.is_streamed())?;
        stream.find(self.head.part.load(Ordering::Acquire), chunk)
    }

    /// Whether a chunk is in the partial copy.
    #[must_use]
    #[inline]
    pub fn has(&self, chunk: u32) -> bool {
        self.is_in_part(chunk) || self.in_window(chunk).is_some()
    }

    /// Where the bytes from `at` on lie, up to `end` at most; `None` when the first of them is not
    /// in the partial copy. The answer counts only if a snapshot that was taken before still holds.
    #[must_use]
    pub fn place(&self, at: u64, end: u64) -> Option<Place> {
        let until = self.until(at, end, |chunk| self.is_in_part(chunk));
        if until > at {
            return Some(Place { file: self.head.part.load(Ordering::Acquire), off: at, until });
        }
        let chunk = self.at(at);
        let (file, off) = self.in_window(chunk).filter(|_| at < end)?;
        let until = self.end_of(chunk).min(end);
        let inside = at.checked_sub(u64::from(chunk).saturating_mul(self.chunk))?;
        (until > at).then_some(Place { file, off: off.checked_add(inside)?, until })
    }

    /// Where a chunk ends, if the file does not end before.
    fn end_of(&self, chunk: u32) -> u64 {
        (u64::from(chunk) + 1).saturating_mul(self.chunk)
    }

    /// Up to where the bytes from `at` on are in the partial copy, at most up to `end`.
    #[must_use]
    pub fn present_until(&self, at: u64, end: u64) -> u64 {
        self.until(at, end, |chunk| self.has(chunk))
    }

    /// Up to where all chunks from `at` on are as asked, at most up to `end`.
    fn until(&self, at: u64, end: u64, is_so: impl Fn(u32) -> bool) -> u64 {
        let mut to = at;
        while to < end && is_so(self.at(to)) {
            let next = self.end_of(self.at(to)).min(end);
            // Behind the last chunk that can be numbered.
            if next <= to {
                break;
            }
            to = next;
        }
        to
    }

    /// Number of chunks: never more than there are bits, whatever another process has written there
    /// since.
    #[must_use]
    #[inline]
    pub fn chunks(&self) -> u32 {
        let bits = u32::try_from(self.present.len().saturating_mul(PER_WORD as usize)).unwrap_or(u32::MAX);
        self.head.chunks.min(bits)
    }

    /// Number of chunks in the partial copy, as far as the words fit their checks: for estimates.
    #[must_use]
    pub fn count(&self) -> u32 {
        if self.stream.is_some() && self.is_streamed() {
            return (0..self.chunks()).map(|chunk| u32::from(self.has(chunk))).sum();
        }
        let bits = |(at, w): (usize, &AtomicU64)| self.checked(at, w.load(Ordering::Relaxed)).count_ones();
        self.present.iter().enumerate().map(bits).sum()
    }

    /// The bytes of a chunk have been written: readers may have them.
    pub fn arrived(&self, chunk: u32) {
        self.change(chunk, |bits| bits | 1 << (chunk % PER_WORD));
        self.ticked();
    }

    /// Wakes waiting readers after progress.
    pub fn ticked(&self) {
        self.head.tick.fetch_add(1, Ordering::AcqRel);
        crate::sys::futex_wake(&self.head.tick, u32::MAX >> 1);
    }

    /// Chunks are about to be taken out of the window: their tags are gone, and their bytes follow.
    /// (The file may have another partial copy by now.)
    pub fn count_drop(&self) {
        self.head.drops.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// No chunk is there: a partial copy begins, under another name.
    pub fn begin(&self, part: u64, mode: u32) {
        self.present.iter().for_each(|w| w.store(0, Ordering::Release));
        self.head.drops.fetch_add(1, Ordering::AcqRel);
        self.head.in_pfs.store(0, Ordering::Relaxed);
        self.head.reading.store(0, Ordering::Relaxed);
        self.head.mode.store(mode, Ordering::Relaxed);
        self.head.part.store(part, Ordering::Release);
    }

    /// Requests a chunk; whether it was not requested before.
    #[must_use]
    pub fn want(&self, chunk: u32) -> bool {
        set(self.wanted, chunk)
    }

    /// Whether a chunk was asked for and the agent has not taken note yet.
    #[must_use]
    pub fn is_wanted(&self, chunk: u32) -> bool {
        is_set(self.wanted, chunk)
    }

    /// Takes what was asked for, in order. There may be bits behind that of the last chunk: they
    /// ask for nothing.
    pub fn take_wanted(&self, mut found: impl FnMut(u32)) {
        let chunks = self.chunks();
        for (i, word) in self.wanted.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                #[expect(clippy::cast_possible_truncation, reason = "chunks are 32 bits")]
                let chunk = (i * 64) as u32 + bits.trailing_zeros();
                if chunk < chunks {
                    found(chunk);
                }
                bits &= bits - 1;
            }
        }
    }

    /// Asks for the rest: [`REST`] and [`PAGED`]. Whether any of it was not asked for before.
    #[must_use]
    pub fn ask_rest(&self, what: u32) -> bool {
        self.head.rest.fetch_or(what, Ordering::AcqRel) & what != what
    }

    /// Whether only sequential readers request chunks.
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        self.head.mode.load(Ordering::Relaxed) == STREAMED
    }

    /// A reader in order of what is streamed is at this byte of a file of `size` bytes.
    #[inline]
    pub fn has_come_to(&self, at: u64, size: u64) {
        let chunk = if at >= size { READ_TO_END } else { self.at(at) };
        if self.is_streamed() && self.head.reading.load(Ordering::Relaxed) != chunk {
            self.head.reading.store(chunk, Ordering::Relaxed);
        }
    }

    /// Takes a look before bytes of the partial copy are read.
    #[must_use]
    #[inline]
    pub fn drop_snapshot(&self, word: Word) -> DropSnapshot {
        DropSnapshot { word, drops: self.head.drops.load(Ordering::Acquire) }
    }
}

/// What a reader saw before it read bytes of a copy, which count only if it sees the same
/// afterwards, or before it asked for a chunk.
#[derive(Clone, Copy, Debug)]
pub struct DropSnapshot {
    pub(crate) word: Word,
    pub(crate) drops: u32,
}

impl DropSnapshot {
    /// Whether nothing was taken away in between.
    #[must_use]
    #[inline]
    pub fn still_holds(&self, file: &LargeFile<'_>, word: &AtomicU32) -> bool {
        // What the kernel has copied is older than what is looked at now.
        fence(Ordering::SeqCst);
        let now = Word(word.load(Ordering::Acquire));
        let same_copy = now == self.word || (self.word.state() == State::Partial && now == self.word.completed());
        same_copy && file.head.drops.load(Ordering::Acquire) == self.drops
    }
}
