//! Lists of nodes, as launchers and users write them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use monarch_core::cluster::discovery::{MAX_NAMES, parse_hostlist, parse_nodes};

fuzz_target!(|text: &str| {
    for parsed in [parse_hostlist(text), parse_nodes(text)].into_iter().flatten() {
        assert!(parsed.len() <= MAX_NAMES && parsed.iter().all(|name| !name.is_empty()));
    }
});
