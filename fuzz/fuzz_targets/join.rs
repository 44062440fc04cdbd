//! Answers to a newcomer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_core::cluster::node::is_welcome;

fuzz_target!(|bytes: &[u8]| {
    let _ = is_welcome(bytes);
});
