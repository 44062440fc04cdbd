//! The table of large files of a state file.

use crate::parts_of::in_parts;
use monarch_abi::chunks::{Large, bitmap_words_of, chunks_of};
use monarch_abi::index::{Index, Record};
use monarch_abi::state::{NO_ID, Slot};
use monarch_abi::word::{State, Word};

/// Words of all bitmaps of chunks in a state file: 64 MiB, enough for 1 PiB of chunks of 4 MiB.
const MAX_CHUNK_WORDS: u64 = 8 << 20;

/// The large files of an index, as a state file holds them.
pub(super) struct LargeTable {
    /// The files, by id.
    pub(super) files: Vec<[u8; size_of::<Large>()]>,
    /// Their positions by inode number.
    pub(super) by_ino: Vec<u32>,
    /// Words of all bitmaps.
    pub(super) words: u64,
}

impl LargeTable {
    /// Finds the files of more than `threshold` bytes in an index and its lookup table; their
    /// chunks have `chunk` bytes. Further names of a hard-linked inode are left out.
    pub(super) fn of(index: &Index<'_>, buckets: &[u8], threshold: u64, chunk: u64) -> Self {
        // First a pass in the order of the records: the table is in the order of the hashes, and
        // most files are small.
        let is_large = |r: &Record| r.is_file() && r.size > threshold;
        let marks: Vec<u64> = in_parts((index.len() as u32).div_ceil(64), |words| {
            let mark = |word: u32| {
                let ids = word * 64..word.saturating_add(1).saturating_mul(64).min(index.len() as u32);
                let large = ids.filter(|&id| index.record(id).is_some_and(is_large));
                large.fold(0u64, |bits, id| bits | 1 << (id % 64))
            };
            words.map(mark).collect::<Vec<_>>()
        })
        .concat();
        let marked = |id: u32| marks.get(id as usize / 64).is_some_and(|m| m & 1 << (id % 64) != 0);
        let mut found: Vec<(u32, u32, u64, u64)> = Vec::new();
        let slots = if marks.iter().all(|&m| m == 0) { &[][..] } else { buckets };
        for (n, slot) in slots.chunks_exact(size_of::<Slot>()).enumerate() {
            let field = |at: usize| {
                slot.get(at..at + 4).and_then(<[u8]>::first_chunk).map_or(NO_ID, |b| u32::from_le_bytes(*b))
            };
            let (word, id) = (Word(field(8)), field(12));
            let record =
                Some(id).filter(|&id| marked(id) && word.state() != State::Link).and_then(|id| index.record(id));
            found.extend(record.map(|r| (id, n as u32, r.ino, chunks_of(r.size, chunk))));
        }
        found.sort_unstable();
        // A file with too many chunks, as sparse ones may have, is left to the PFS, like any other
        // file that no tier takes.
        let mut room = MAX_CHUNK_WORDS;
        found.retain(|f| {
            let words = u32::try_from(f.3).ok().map(|chunks| bitmap_words_of(chunks) as u64);
            words.and_then(|words| room.checked_sub(words)).inspect(|left| room = *left).is_some()
        });
        let (mut files, mut words) = (Vec::with_capacity(found.len()), 0);
        for &(id, slot, ino, chunks) in &found {
            files.push(Large::to_bytes(ino, id, slot, words, chunks as u32));
            words += bitmap_words_of(chunks as u32) as u64;
        }
        let mut by_ino: Vec<u32> = (0..found.len() as u32).collect();
        by_ino.sort_by_key(|&at| found[at as usize].2);
        Self { files, by_ino, words }
    }
}
