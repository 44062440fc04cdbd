//! Indexes whose checksum is right: what an agent and its readers look at once one has come.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_abi::index::{INDEX_MAGIC, IndexHeader};
use monarch_abi::state::Bucket;
use monarch_core::cluster::image::{pack, unpack};
use monarch_core::shm::IndexBytes;
use std::mem::offset_of;

fuzz_target!(|input: (Vec<u8>, u8)| {
    let (mut index, buckets) = input;
    let buckets = vec![0; usize::from(buckets) * size_of::<Bucket>()];
    // What is compared with a number that a fuzzer would have to guess.
    let len = index.len() as u64;
    let known: [(usize, &[u8]); 4] = [
        (offset_of!(IndexHeader, magic), &INDEX_MAGIC.to_le_bytes()),
        (offset_of!(IndexHeader, layout), &monarch_abi::LAYOUT.to_le_bytes()),
        (offset_of!(IndexHeader, len), &len.to_le_bytes()),
        (offset_of!(IndexHeader, buckets), &((buckets.len() / size_of::<Bucket>()) as u64).to_le_bytes()),
    ];
    for (at, bytes) in known {
        let Some(place) = index.get_mut(at..at + bytes.len()) else { return };
        place.copy_from_slice(bytes);
    }
    let Ok(image) = unpack(&pack(&index, &buckets, true), 1 << 20, &held()) else { return };
    let Some(index) = IndexBytes(&image.index).open() else { panic!("it was opened before") };
    let mut path = [0; monarch_abi::PATH_MAX];
    for id in 0..index.len() as u32 + 2 {
        let Some(record) = index.record(id) else { continue };
        let _ = (record.identity(), index.path(id, &mut path), index.name(record), index.link_target(record));
        let _ = (index.owner(record), index.btime_ns(id), index.parent_of(id));
        if let Some(dir) = index.dir(record) {
            let _ = index.children(dir, 0).count();
        }
    }
});

/// The directory for what is unpacked.
fn held() -> std::sync::Arc<monarch_core::held_dir::HeldDir> {
    let dir = monarch_core::held_dir::HeldDir::at(&std::env::temp_dir());
    std::sync::Arc::new(dir.expect("temporary directory"))
}
