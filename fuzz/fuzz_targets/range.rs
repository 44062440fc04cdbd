//! Values of `Range`, against files of any length: the first 8 bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_core::cluster::wire::ByteRange;

fuzz_target!(|input: (u64, &str)| {
    let (len, value) = input;
    if let Ok(Some(range)) = ByteRange::parse(value)
        && let Some(part) = range.resolve(len)
    {
        assert!(part.start < part.end && part.end <= len);
    }
});
