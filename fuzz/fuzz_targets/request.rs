//! Heads of requests: nothing panics, what is taken is within its bounds, and more bytes behind it change nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_core::cluster::wire::{head, path};

fuzz_target!(|bytes: &[u8]| {
    let Ok(Some((taken, len))) = head::request(bytes) else { return };
    assert!(len <= bytes.len() && len <= head::HEAD_MAX && taken.body <= head::BODY_MAX);
    assert!(path::split(&taken.path).is_some() && !taken.path.contains("/../"));
    assert_eq!(head::request(&bytes[..len]), Ok(Some((taken, len))));
});
