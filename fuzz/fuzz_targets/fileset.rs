//! Sets of files that nodes tell each other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_core::cluster::residency::fileset::{decode, encode};

fuzz_target!(|input: (u32, &[u8])| {
    let (files, bytes) = input;
    let files = files % (1 << 20);
    if let Ok(sets) = decode(bytes, |_| Some(files)) {
        let mut again = Vec::new();
        for (index, ids) in &sets {
            assert!(ids.windows(2).all(|w| w[0] < w[1]) && ids.iter().all(|id| *id < files));
            encode(index, ids, &mut again);
        }
        assert_eq!(decode(&again, |_| Some(files)).unwrap(), sets);
    }
});
