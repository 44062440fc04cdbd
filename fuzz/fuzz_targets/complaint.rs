//! Complaints of damaged copies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_core::cluster::node::{decode_complaints, encode_complaints};

fuzz_target!(|bytes: &[u8]| {
    if let Some(complaints) = decode_complaints(bytes) {
        assert!(complaints.iter().all(|c| c.range.start < c.range.end));
        assert_eq!(encode_complaints(&complaints), bytes);
    }
});
