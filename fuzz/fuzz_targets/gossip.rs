//! Messages of gossip as they come out of their seal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_core::cluster::membership::is_message;

fuzz_target!(|bytes: &[u8]| {
    let _ = is_message(bytes);
});
