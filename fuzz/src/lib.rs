//! Bodies of the fuzz targets.
//!
//! Each target is a function of the bytes that the fuzzer makes. The functions need no nightly
//! compiler: the programs in `fuzz_targets/` call them, and so does the test `fuzz_corpus` of
//! `monarch-core`, which replays `corpus/`. A target panics when an answer breaks a rule; the
//! program that runs it detects everything else (a fault, a hang).

mod config;
mod handshake;
mod hints;
mod input;
mod network;
mod nodes;
mod packed;
mod sample;
mod saved_index;
mod shared_memory;
mod socket;
mod tier_log;
mod trace;
mod walk;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets, by name.
pub const TARGETS: [(&str, Target); 27] = [
    ("account", nodes::account),
    ("authorization", network::authorization),
    ("batch", nodes::batch),
    ("complaint", network::complaint),
    ("config", config::config),
    ("datagram", nodes::datagram),
    ("fileset", network::fileset),
    ("gossip", network::gossip),
    ("handshake", handshake::handshake),
    ("heads", nodes::heads),
    ("hints", hints::hints),
    ("hostlist", network::hostlist),
    ("image", network::image),
    ("index", network::index),
    ("join", network::join),
    ("listings", network::listings),
    ("order", nodes::order),
    ("packed", packed::packed),
    ("range", network::range),
    ("receipts", nodes::receipts),
    ("request", network::request),
    ("response", network::response),
    ("saved_index", saved_index::saved_index),
    ("shared_memory", shared_memory::shared_memory),
    ("socket", socket::socket),
    ("tier_log", tier_log::tier_log),
    ("trace", trace::trace),
];

/// Runs one target on one input.
///
/// # Panics
/// When there is no target of this name, and when the input breaks a rule of the target.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    let (_, target) = target.unwrap_or_else(|| panic!("no fuzz target {name}"));
    target(bytes);
}
