//! Heads of responses: nothing panics, and what is taken is within its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_core::cluster::wire::head;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((taken, len))) = head::response(bytes) {
        assert!(len <= bytes.len() && len <= head::HEAD_MAX && (100..600).contains(&taken.status));
    }
});
