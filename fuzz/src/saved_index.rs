//! Files of `monarch index build`: loaded, then written to the runtime directory.

use super::input::{Input, patch};
use super::sample::{CHECKS, CHUNKING, Memory, held, sample, scratch};
use super::walk;
use monarch_abi::LAYOUT;
use monarch_abi::chunks::chunks_of;
use monarch_abi::index::{INDEX_MAGIC, IndexHeader};
use monarch_abi::segment::Segment;
use monarch_core::index::{Ages, Built, Released, load, save};
use monarch_core::shm::{IndexBytes, create_segment, segment_names};
use std::mem::offset_of;
use std::time::Duration;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Most chunks of all files; more take too long to write.
const MOST_CHUNKS: u64 = 1 << 20;

/// Index and buckets begin at multiples of this many bytes.
const PAGE: usize = 4096;

thread_local! {
    static DIR: tempfile::TempDir = scratch();
}

/// Loads a saved index, writes its segment, and looks entries up.
pub(crate) fn saved_index(bytes: &[u8]) {
    DIR.with(|dir| {
        let path = dir.path().join("saved");
        let mut input = Input(bytes);
        if input.u8() & 1 == 0 {
            std::fs::write(&path, sealed(input.0)).expect("room for a file");
        } else {
            save(&changed(&mut input), &path).expect("room for a file");
        }
        let Ok(saved) = load(&path) else { return };
        let index = IndexBytes(saved.index()).open().expect("an index, as was checked");
        walk::index(&index);
        let _ = (Released::of(&index), Ages::of(&index).near(Duration::from_secs(1), i64::MAX));
        let files = index.records().iter().filter(|r| r.is_file() && r.size > CHUNKING.threshold);
        let chunks = files.fold(0u64, |sum, r| sum.saturating_add(chunks_of(r.size, CHUNKING.size)));
        if chunks.saturating_mul(saved.buckets().len() as u64 / 64 + 1) > MOST_CHUNKS {
            return;
        }
        let made = create_segment(&held(dir), saved.index(), saved.buckets(), [4; 16], CHUNKING, CHECKS);
        let (segment, ..) = made.expect("a saved index that is taken can be served");
        walk::segment(&segment);
        let (index, state) = segment_names(segment.index.header.uuid, [4; 16]);
        let _ = (std::fs::remove_file(dir.path().join(index)), std::fs::remove_file(dir.path().join(state)));
        forget(&segment);
    });
}

/// A file with the right magic number, version and checksum, of one in which a header of 64 bytes
/// is followed by index and buckets without anything between (as in version 1: inputs stay what
/// they were). Both are smaller than a block.
fn sealed(file: &[u8]) -> Vec<u8> {
    let Some((head, rest)) = file.split_at_checked(64) else { return file.to_vec() };
    let index_len = head[16..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let (index, buckets) = rest.split_at(rest.len().min(usize::try_from(index_len).unwrap_or(usize::MAX)));
    let mut page = head.to_vec();
    page[..8].copy_from_slice(b"MONSAVE1");
    page[8..12].copy_from_slice(&2u32.to_le_bytes());
    page.resize(PAGE, 0);
    let zeros = vec![0; index.len().next_multiple_of(PAGE) - index.len()];
    let mut hash = Xxh3::new();
    hash.update(&page[..32]);
    hash.update(&page[40..]);
    [index, buckets].iter().for_each(|part| hash.update(&xxh3_64(part).to_le_bytes()));
    hash.update(&zeros);
    page[32..40].copy_from_slice(&hash.digest().to_le_bytes());
    [page.as_slice(), index, &zeros, buckets].concat()
}

/// The sample with some changes.
fn changed(input: &mut Input<'_>) -> Built {
    let (mut index, mut buckets) = (sample().built.index.clone(), sample().built.buckets.clone());
    for _ in 0..input.u8() % 16 {
        if input.u8() & 1 == 0 { patch(input, &mut index) } else { patch(input, &mut buckets) }
    }
    let len = index.len() as u64;
    index[offset_of!(IndexHeader, magic)..][..8].copy_from_slice(&INDEX_MAGIC.to_le_bytes());
    index[offset_of!(IndexHeader, layout)..][..4].copy_from_slice(&LAYOUT.to_le_bytes());
    index[offset_of!(IndexHeader, len)..][..8].copy_from_slice(&len.to_le_bytes());
    // At the start of a page, as agents read it.
    assert!(IndexBytes(Memory::of(&index).bytes()).0.len() == index.len());
    Built { index, buckets }
}

/// Unmaps a segment. Processes keep segments mapped forever; a fuzzer would run out of mappings.
fn forget(segment: &Segment<'static>) {
    let (index, state) = (segment.index.header, segment.state.header);
    let (index_len, state_len) = (index.len as usize, state.len as usize);
    // SAFETY: both were mapped by `create_segment` with these lengths, and nothing refers to them
    // any more.
    unsafe {
        let _ = rustix::mm::munmap(std::ptr::from_ref(index).cast_mut().cast(), index_len);
        let _ = rustix::mm::munmap(std::ptr::from_ref(state).cast_mut().cast(), state_len);
    }
}
