//! An index in a message to another node: packed in blocks, each block and the whole with a
//! checksum.
//!
//! ```text
//! 0   magic "MONIMG01"            8
//! 8   length of the index         8
//! 16  length of the buckets       8
//! 24  flags (1: as new as the job) 4     zero 4
//! 32  XXH3-64 of index, buckets   8
//! 40  blocks: packed length 4, raw length 4, packed bytes (lz4; as they are where that is not shorter)
//! ```
//!
//! Index and buckets follow each other in the raw bytes, in blocks of 4 MiB. What a peer sends is
//! believed no further than its checksum goes: lengths are bounded before anything is allocated,
//! and the index is looked over before it is used. It is unpacked into the file that processes will
//! map: each page that is touched for the first time costs more than all else.

use monarch_abi::segment::Segment;
use monarch_abi::state::{Bucket, NO_ID};
use monarch_abi::word::{State, Word};
use monarch_storage::held_dir::HeldDir;
use monarch_storage::shm::{IndexBytes, Unfinished};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use xxhash_rust::xxh3::Xxh3;

const MAGIC: [u8; 8] = *b"MONIMG01";
const HEADER_BYTES: usize = 40;
const BLOCK_BYTES: usize = 4 << 20;
const FLAG_FRESH: u32 = 1;

/// An index as another node sent it.
#[derive(Debug)]
pub struct Image {
    /// The file of the index, which has no name yet.
    pub file: Unfinished,
    /// Its bytes.
    pub index: memmap2::Mmap,
    /// Bytes of the lookup table.
    pub buckets: Vec<u8>,
    /// Whether it is as new as the job.
    pub fresh: bool,
}

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not an image, or one of another version.
    #[error("this is not an index; do all nodes run the same version of Monarch?")]
    Magic,
    /// It is larger than an index may be here.
    #[error("the index takes {0} bytes, more than index.max_memory allows here")]
    TooLarge(u64),
    /// Cut short, or damaged on the way.
    #[error("the index was damaged on the way: {0}")]
    Damaged(&'static str),
    /// There is no place for it here.
    #[error(transparent)]
    Place(#[from] io::Error),
}

/// The lookup table of a segment for a node that has no copies yet. Files that the job has changed
/// are still read from the PFS.
#[must_use]
pub fn table_at_first(segment: &Segment<'_>) -> Vec<u8> {
    let buckets = segment.state.buckets();
    let mut out = Vec::with_capacity(size_of_val(buckets));
    for slot in buckets.iter().flat_map(|b| &b.slots) {
        let word = Word(slot.word.load(Ordering::Acquire));
        let at_first = match word.state() {
            _ if slot.id == NO_ID => word,
            State::Link | State::NonFile => word,
            State::Bypass => Word(State::Absent as u32).left(),
            _ => Word(State::Absent as u32),
        };
        out.extend_from_slice(&slot.fp.to_le_bytes());
        out.extend_from_slice(&at_first.0.to_le_bytes());
        out.extend_from_slice(&slot.id.to_le_bytes());
    }
    out
}

/// Packs an index.
#[must_use]
pub fn pack(index: &[u8], buckets: &[u8], fresh: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + (index.len() + buckets.len()) / 2);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&(index.len() as u64).to_le_bytes());
    out.extend_from_slice(&(buckets.len() as u64).to_le_bytes());
    out.extend_from_slice(&u64::from(if fresh { FLAG_FRESH } else { 0 }).to_le_bytes());
    out.extend_from_slice(&checksum(index, buckets).to_le_bytes());
    let mut packed = vec![0; lz4_flex::block::get_maximum_output_size(BLOCK_BYTES)];
    for raw in index.chunks(BLOCK_BYTES).chain(buckets.chunks(BLOCK_BYTES)) {
        let n = lz4_flex::block::compress_into(raw, &mut packed).unwrap_or(raw.len());
        let bytes = if n < raw.len() { packed.get(..n).unwrap_or(raw) } else { raw };
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(&(raw.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
    }
    out
}

/// Unpacks an index of at most `most` bytes into a file in `dir`.
///
/// # Errors
/// See [`ImageError`].
pub fn unpack(bytes: &[u8], most: u64, dir: &Arc<HeldDir>) -> Result<Image, ImageError> {
    let (head, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(ImageError::Magic)?;
    let number = |at: usize| head.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    if head[..8] != MAGIC {
        return Err(ImageError::Magic);
    }
    let (index, buckets) = (number(8), number(16));
    let all = index.saturating_add(buckets);
    // (An lz4 block is at most 255 times as long as what it was packed into.)
    if all > most || all / 255 > bytes.len() as u64 {
        return Err(ImageError::TooLarge(all));
    }
    if index == 0 {
        return Err(ImageError::Damaged(MALFORMED));
    }
    let file = Unfinished::within(dir, index)?;
    let mut table = Vec::with_capacity(buckets as usize);
    let mut blocks = Blocks { rest, raw: Vec::new(), sum: Xxh3::new() };
    blocks.unpack(index, |raw, at| file.write(raw, at))?;
    blocks.unpack(buckets, |raw, _| {
        table.extend_from_slice(raw);
        Ok(())
    })?;
    if !blocks.rest.is_empty() {
        return Err(ImageError::Damaged("there is more than there should be"));
    }
    if blocks.sum.digest() != number(32) {
        return Err(ImageError::Damaged("its checksum does not match"));
    }
    let map = file.map()?;
    match IndexBytes(&map).open() {
        Some(i) if i.header.buckets.checked_mul(size_of::<Bucket>() as u64) == Some(buckets) && i.is_sound() => {
            Ok(Image { file, index: map, buckets: table, fresh: number(24) as u32 & FLAG_FRESH != 0 })
        }
        _ => Err(ImageError::Damaged(MALFORMED)),
    }
}

/// What is wrong with an image whose parts do not fit together.
const MALFORMED: &str = "it does not make sense";

/// Blocks yet to be unpacked.
struct Blocks<'a> {
    rest: &'a [u8],
    /// The block that was unpacked last.
    raw: Vec<u8>,
    /// Checksum of all that was unpacked.
    sum: Xxh3,
}

impl Blocks<'_> {
    /// Unpacks the blocks of the next `len` bytes, one by one, each with its offset.
    fn unpack(&mut self, len: u64, mut put: impl FnMut(&[u8], u64) -> io::Result<()>) -> Result<(), ImageError> {
        let short = || ImageError::Damaged("it was cut short");
        let mut at = 0;
        while at < len {
            let (head, rest) = self.rest.split_first_chunk::<8>().ok_or_else(short)?;
            let number = |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
            let (packed, raw) = (number(0) as usize, number(4) as usize);
            let (bytes, rest) = rest.split_at_checked(packed).ok_or_else(short)?;
            if raw == 0 || raw > BLOCK_BYTES || raw as u64 > len - at || packed > raw {
                return Err(ImageError::Damaged("a block has an impossible length"));
            }
            self.raw.resize(raw, 0);
            if packed == raw {
                self.raw.copy_from_slice(bytes);
            } else if !lz4_flex::block::decompress_into(bytes, &mut self.raw).is_ok_and(|n| n == raw) {
                return Err(ImageError::Damaged("a block cannot be unpacked"));
            }
            self.sum.update(&self.raw);
            put(&self.raw, at)?;
            self.rest = rest;
            at += raw as u64;
        }
        Ok(())
    }
}

fn checksum(index: &[u8], buckets: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(index);
    hash.update(buckets);
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn built() -> (Vec<u8>, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..300 {
            std::fs::write(dir.path().join(format!("file-{n:05}")), [0; 10]).unwrap();
        }
        let tree = monarch_storage::index::scan(
            dir.path(),
            monarch_storage::index::ScanOptions { threads: 1, max_memory: 1 << 30 },
            &monarch_storage::index::ScanProgress::default(),
        )
        .unwrap();
        let built = monarch_storage::index::build(tree, 7, [3; 16]);
        (built.index, built.buckets)
    }

    fn held(dir: &tempfile::TempDir) -> Arc<HeldDir> {
        Arc::new(HeldDir::at(dir.path()).unwrap())
    }

    #[test]
    fn an_index_comes_back_as_it_was() {
        let (index, buckets) = built();
        let dir = tempfile::tempdir().unwrap();
        for fresh in [true, false] {
            let packed = pack(&index, &buckets, fresh);
            assert!(packed.len() < index.len() + buckets.len());
            let image = unpack(&packed, 1 << 30, &held(&dir)).unwrap();
            assert!(image.index[..] == index && image.buckets == buckets && image.fresh == fresh);
        }
        let packed = pack(&index, &buckets, true);
        assert!(matches!(unpack(&packed, 1000, &held(&dir)), Err(ImageError::TooLarge(_))));
        // None of them was given a name.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let gone = held(&dir);
        drop(dir);
        assert!(
            matches!(unpack(&packed, 1 << 30, &gone), Err(ImageError::Place(e)) if e.kind() == io::ErrorKind::NotFound)
        );
    }

    #[test]
    fn one_that_is_cut_or_changed_is_refused() {
        let (index, buckets) = built();
        let dir = tempfile::tempdir().unwrap();
        let unpack = |bytes: &[u8]| unpack(bytes, 1 << 30, &held(&dir));
        let packed = pack(&index, &buckets, true);
        for at in (0..packed.len()).step_by(7).chain(packed.len() - 40..packed.len()) {
            assert!(unpack(&packed[..at]).is_err(), "cut at {at}");
        }
        for at in (0..24).chain(32..packed.len()).step_by(5) {
            let mut changed = packed.clone();
            changed[at] ^= 0x10;
            // (There are several ways to pack the same bytes.)
            let same = |i: Image| i.index[..] == index && i.buckets == buckets && i.fresh;
            assert!(unpack(&changed).map_or(true, same), "changed at {at}");
        }
        let mut longer = packed;
        longer.push(0);
        assert!(matches!(unpack(&longer), Err(ImageError::Damaged("there is more than there should be"))));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    proptest! {
        #[test]
        fn nothing_that_is_sent_does_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&MAGIC);
            }
            let dir = tempfile::tempdir().unwrap();
            let _ = unpack(&bytes, 1 << 20, &held(&dir));
            prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}
