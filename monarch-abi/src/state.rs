//! The writable companion of an index: lookup table with the state words, demand bitmaps, chunks of
//! large files, times of checks and checksums where they are asked for.
//!
//! The table is an array of 64-byte buckets of four 16-byte slots; a slot holds a fingerprint, the
//! state word and the id, so that one cache miss decides a lookup. Collisions go to the next
//! bucket; a bucket with an empty slot ends the search. Slots are filled when the table is built
//! and never move; only the state words change.

use crate::absent::Deciders;
use crate::bitmap::Bitmap;
use crate::chunks::{Large, LargeFile};
use crate::guard::{Guard, Guards};
use crate::index::Index;
use crate::marks::{self, Marks};
use crate::mem::Map;
use core::sync::atomic::{AtomicU32, AtomicU64};
use zerocopy::{FromBytes, IntoBytes};

/// First bytes of a state file.
pub const STATE_MAGIC: u64 = u64::from_le_bytes(*b"MONSTAT1");
/// Where the table starts.
pub const TABLE_OFF: usize = 4096;
/// Id in an empty slot.
pub const NO_ID: u32 = u32::MAX;
/// Slots per bucket.
pub const SLOTS: usize = 4;
/// Most buckets that a lookup visits; building fails (and takes another seed) rather than exceed
/// it.
pub const MAX_PROBES: usize = 4096;

/// Header of a state file. Fields: 26, because this is the byte map of that header.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C)]
pub struct StateHeader {
    /// [`STATE_MAGIC`].
    pub magic: u64,
    /// [`crate::LAYOUT`].
    pub layout: u32,
    /// Not zero: the whole segment is bypassed; [`OPENING`]: not yet open to readers.
    pub bypassed: AtomicU32,
    /// The index this belongs to.
    pub index_uuid: [u8; 16],
    /// Number of buckets.
    pub buckets: u64,
    /// Number of entries of the index.
    pub entries: u64,
    /// Whole length in bytes.
    pub len: u64,
    /// Offset of the demand bitmap, one bit per entry.
    pub bits_off: u64,
    /// Offset of its summary, one bit per word of the bitmap.
    pub summary_off: u64,
    /// Offset of the large files, sorted by id.
    pub large_off: u64,
    /// Number of large files.
    pub large: u64,
    /// Offset of their positions, sorted by inode number.
    pub by_ino_off: u64,
    /// Offset of the bitmaps of their chunks.
    pub chunks_off: u64,
    /// Words of all those bitmaps.
    pub chunk_words: u64,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Offset of the bitmap of entries whose copy in a slower tier was opened, and behind it that
    /// of its summary.
    pub touched_off: u64,
    /// See `touched_off`.
    pub touched_summary_off: u64,
    /// Offset of the times at which entries were last compared with the PFS, milliseconds; 0: they
    /// are not.
    pub checked_off: u64,
    /// Offset of the checksums of copies, by entry; 0: copies are not read before they are opened.
    pub sums_off: u64,
    /// Offset of the pages of their pieces (0: of the whole).
    pub pieces_off: u64,
    /// Milliseconds after which an entry is compared again; [`crate::guard::NEVER_AGAIN`].
    pub revalidate_ms: AtomicU32,
    /// [`crate::guard::LOADED`], [`crate::guard::OTHER_CTIMES`].
    pub flags: u32,
    /// Offset of the words by which directories decide about names that the index lacks
    /// ([`crate::absent`]), by position of the directory; 0: the kernel decides.
    pub deciders_off: u64,
    /// Milliseconds after which such a directory is compared again.
    pub deciders_ms: AtomicU32,
    /// Not zero: a process has begun to compare such directories.
    pub listings_asked: AtomicU32,
    /// Offset of the marks of changes in directories that the index does not hold
    /// ([`crate::marks`]); 0: nothing is asked about these.
    pub marks_off: u64,
}
const _: () = assert!(size_of::<StateHeader>() == 192);
// (The plain fields are written before the file is published.)
crate::mem::pod!(StateHeader);

/// One path: 16 bytes.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C)]
pub struct Slot {
    /// Fingerprint of the path.
    pub fp: u64,
    /// State word; readers wait on it.
    pub word: AtomicU32,
    /// Entry in the index, [`NO_ID`] when empty.
    pub id: u32,
}

const _: () = assert!(size_of::<Large>() == 64);

/// Four slots: one cache line.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C, align(64))]
pub struct Bucket {
    /// The slots; empty ones come last.
    pub slots: [Slot; SLOTS],
}
// (`fp` and `id` are written before the file is published.)
crate::mem::pod!(Bucket);

/// Buckets for `entries` paths: seven tenths full, so that nine lookups of ten touch one bucket.
#[must_use]
pub const fn buckets_for(entries: u64) -> u64 {
    // ceil(entries / (4 * 0.7)), at least one.
    entries * 5 / 14 + 1
}

/// Most entries of an index: slots are named by numbers of 32 bits.
pub const MAX_ENTRIES: u64 = (u32::MAX as u64 / SLOTS as u64 - 1) * 14 / 5;
const _: () = assert!(buckets_for(MAX_ENTRIES) * SLOTS as u64 <= u32::MAX as u64 && MAX_ENTRIES < NO_ID as u64);

/// First bucket of a path: the upper 44 bits of its fingerprint, scaled.
#[must_use]
#[inline]
pub const fn home_bucket(fp44: u64, buckets: u64) -> u64 {
    ((fp44 as u128 * buckets as u128) >> 44) as u64
}

/// [`StateHeader::bypassed`] while the agent enters the changes that were made before the segment
/// appeared.
pub const OPENING: u32 = 2;

/// Where the parts of a state file lie. Fields: 13, because this is the byte map of its parts.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Demand bitmap.
    pub bits: u64,
    /// Its summary.
    pub summary: u64,
    /// Bitmap of what was opened in a slower tier.
    pub touched: u64,
    /// Its summary.
    pub touched_summary: u64,
    /// Large files.
    pub large: u64,
    /// The same by inode number.
    pub by_ino: u64,
    /// Bitmaps of their chunks.
    pub chunks: u64,
    /// Times of checks; 0 where there are none.
    pub checked: u64,
    /// Checksums; 0 where there are none.
    pub sums: u64,
    /// Their pieces.
    pub pieces: u64,
    /// Words of directories; 0 where there are none.
    pub deciders: u64,
    /// Marks of changes; 0 where there are none.
    pub marks: u64,
    /// Length of the file.
    pub len: u64,
}

/// The layout for `entries` paths in `buckets`, of which `large` files have `chunk_words` words of
/// bitmaps together, with these arrays, with words for `deciders` directories, and with marks.
#[must_use]
pub const fn layout_of(
    entries: u64,
    buckets: u64,
    large: u64,
    chunk_words: u64,
    guards: Guards,
    deciders: u64,
    has_marks: bool,
) -> Layout {
    let bits = TABLE_OFF as u64 + buckets * 64;
    let words = entries.div_ceil(64);
    let summary = bits + words.next_multiple_of(8) * 8;
    let touched = summary + words.div_ceil(64).next_multiple_of(8) * 8;
    let touched_summary = touched + words.next_multiple_of(8) * 8;
    let large_off = touched_summary + words.div_ceil(64).next_multiple_of(8) * 8;
    let by_ino = large_off + large * 64;
    let chunks = (by_ino + large * 4).next_multiple_of(64);
    let checked = (chunks + chunk_words * 8).next_multiple_of(64);
    let sums = (checked + if guards.checked { entries * 4 } else { 0 }).next_multiple_of(64);
    let pieces = sums + if guards.sums { entries * 8 } else { 0 };
    let deciders_off = (pieces + if guards.sums { entries * 4 } else { 0 }).next_multiple_of(64);
    let marks_off = (deciders_off + deciders * 4).next_multiple_of(64);
    let len = (marks_off + if has_marks { marks::BYTES } else { 0 }).next_multiple_of(4096);
    let marks = if has_marks { marks_off } else { 0 };
    let deciders = if deciders > 0 { deciders_off } else { 0 };
    let checked = if guards.checked { checked } else { 0 };
    let (sums, pieces) = if guards.sums { (sums, pieces) } else { (0, 0) };
    Layout {
        bits,
        summary,
        touched,
        touched_summary,
        large: large_off,
        by_ino,
        chunks,
        checked,
        sums,
        pieces,
        deciders,
        marks,
        len,
    }
}

/// A mapped state file.
#[derive(Clone, Copy, Debug)]
pub struct StateMap<'a> {
    /// Its header.
    pub header: &'a StateHeader,
    buckets: &'a [Bucket],
    demands: Bitmap<'a>,
    touched: Bitmap<'a>,
    large: &'a [Large],
    by_ino: &'a [u32],
    chunk_words: &'a [AtomicU64],
    /// What is looked at again when a file is opened.
    pub guard: Guard<'a>,
    /// What decides about names that the index lacks.
    pub deciders: Deciders<'a>,
    /// What the job has changed in directories that the index does not hold.
    pub marks: Marks<'a>,
}

impl<'a> StateMap<'a> {
    /// Checks the header, that it belongs to `index`, and the bounds of all parts.
    #[must_use]
    pub fn open(map: Map<'a>, index: &Index<'_>) -> Option<Self> {
        let h: &StateHeader = map.get(0)?;
        let belongs = h.magic == STATE_MAGIC
            && h.layout == crate::LAYOUT
            && h.index_uuid == index.header.uuid
            && h.entries == index.len() as u64
            && h.buckets > 0
            && h.len == map.len() as u64;
        if !belongs {
            return None;
        }
        let words = (h.entries as usize).div_ceil(64);
        let each = |off: u64| if off == 0 { 0 } else { h.entries as usize };
        Some(Self {
            header: h,
            buckets: map.array(TABLE_OFF, h.buckets as usize)?,
            demands: Bitmap {
                bits: map.array(h.bits_off as usize, words)?,
                summary: map.array(h.summary_off as usize, words.div_ceil(64))?,
            },
            touched: Bitmap {
                bits: map.array(h.touched_off as usize, words)?,
                summary: map.array(h.touched_summary_off as usize, words.div_ceil(64))?,
            },
            large: map.array(h.large_off as usize, h.large as usize)?,
            by_ino: map.array(h.by_ino_off as usize, h.large as usize)?,
            chunk_words: map.array(h.chunks_off as usize, h.chunk_words as usize)?,
            guard: Guard {
                revalidate_ms: &h.revalidate_ms,
                flags: h.flags,
                checked: map.array(h.checked_off as usize, each(h.checked_off))?,
                sums: map.array(h.sums_off as usize, each(h.sums_off))?,
                pieces: map.array(h.pieces_off as usize, each(h.sums_off))?,
            },
            deciders: Deciders {
                words: map.array(h.deciders_off as usize, if h.deciders_off == 0 { 0 } else { index.dirs().len() })?,
                interval_ms: &h.deciders_ms,
            },
            marks: Marks::new(map.array(h.marks_off as usize, if h.marks_off == 0 { 0 } else { 2 * marks::WORDS })?),
        })
    }

    /// The large file at a position of the table.
    #[must_use]
    #[inline]
    pub fn large_at(&self, number: u32) -> Option<LargeFile<'a>> {
        LargeFile::new(number, self.large.get(number as usize)?, self.header.chunk, self.chunk_words)
    }

    /// The large file with this entry.
    #[must_use]
    pub fn large(&self, id: u32) -> Option<LargeFile<'a>> {
        let at = self.large.binary_search_by_key(&id, |l| l.id).ok()?;
        self.large_at(u32::try_from(at).ok()?)
    }

    /// The large file with this inode number.
    #[must_use]
    pub fn large_with_ino(&self, ino: u64) -> Option<LargeFile<'a>> {
        let of = |number: &u32| self.large.get(*number as usize).map_or(0, |l| l.ino);
        let at = self.by_ino.binary_search_by_key(&ino, of).ok()?;
        self.large_at(*self.by_ino.get(at)?)
    }

    /// All large files.
    pub fn all_large(&self) -> impl Iterator<Item = LargeFile<'a>> + use<'a> {
        let this = *self;
        (0..u32::try_from(this.large.len()).unwrap_or(u32::MAX)).filter_map(move |number| this.large_at(number))
    }

    /// The slot number `n` (bucket * 4 + position).
    #[must_use]
    #[inline]
    pub fn slot(&self, n: u32) -> Option<&'a Slot> {
        self.buckets.get(n as usize / SLOTS)?.slots.get(n as usize % SLOTS)
    }

    /// The buckets from the home bucket of `fp44` on; the first empty slot ends the search.
    #[inline]
    pub fn probe_buckets(&self, fp44: u64) -> impl Iterator<Item = &'a Bucket> + use<'a> {
        let buckets = self.buckets;
        let mut at = home_bucket(fp44, buckets.len() as u64) as usize;
        let mut left = MAX_PROBES + 1;
        core::iter::from_fn(move || {
            let bucket = buckets.get(at)?;
            left = left.checked_sub(1)?;
            at = if at + 1 == buckets.len() { 0 } else { at + 1 };
            Some(bucket)
        })
    }

    /// All slots from the home bucket of `fp44` to the end of its probe sequence.
    #[inline]
    pub fn probe(&self, fp44: u64) -> impl Iterator<Item = &'a Slot> + use<'a> {
        let buckets = self.buckets;
        let home = home_bucket(fp44, buckets.len() as u64) as usize;
        let mut at = home;
        let mut pos = 0usize;
        let mut visited = 0usize;
        core::iter::from_fn(move || {
            let slot = buckets.get(at)?.slots.get(pos)?;
            if slot.id == NO_ID {
                return None;
            }
            pos += 1;
            if pos == SLOTS {
                pos = 0;
                visited += 1;
                at = if at + 1 == buckets.len() { 0 } else { at + 1 };
                if visited > MAX_PROBES {
                    return None;
                }
            }
            Some(slot)
        })
    }

    /// The table as it is.
    #[must_use]
    pub fn buckets(&self) -> &'a [Bucket] {
        self.buckets
    }

    /// Every slot that is taken.
    pub fn all(&self) -> impl Iterator<Item = &'a Slot> + use<'a> {
        self.buckets.iter().flat_map(|b| &b.slots).filter(|s| s.id != NO_ID)
    }

    /// Marks entry `id` as one whose copy in a slower tier was opened.
    pub fn touch(&self, id: u32) {
        if !self.touched.is_raised(id) {
            self.touched.raise(id);
        }
    }

    /// Takes all entries that were marked so.
    pub fn drain_touched(&self, found: impl FnMut(u32)) {
        self.touched.drain(found);
    }

    /// Marks entry `id` as demanded.
    pub fn raise(&self, id: u32) {
        self.demands.raise(id);
    }

    /// Takes all marked entries, in order of id.
    pub fn drain(&self, found: impl FnMut(u32)) {
        self.demands.drain(found);
    }
}
