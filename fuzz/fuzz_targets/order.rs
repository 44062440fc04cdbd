//! See `monarch_fuzz::TARGETS`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| monarch_fuzz::run("order", bytes));
