//! Indexes as they come from another node.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_core::cluster::image::unpack;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    // Past the magic number.
    if bytes.len() >= 8 {
        bytes[..8].copy_from_slice(b"MONIMG01");
    }
    if let Ok(image) = unpack(&bytes, 1 << 20, &held()) {
        assert!(image.index.len() + image.buckets.len() <= 1 << 20);
    }
});

/// The directory for what is unpacked.
fn held() -> std::sync::Arc<monarch_core::held_dir::HeldDir> {
    let dir = monarch_core::held_dir::HeldDir::at(&std::env::temp_dir());
    std::sync::Arc::new(dir.expect("temporary directory"))
}
