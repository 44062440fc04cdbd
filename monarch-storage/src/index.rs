//! The namespace index: scanning a root, building the immutable index and its lookup table, saved
//! index files.
//!
//! A scan is parallel over directories and keeps the PFS's own order of names, because a listing
//! must look as the PFS would give it. Building numbers the entries depth-first, so that a subtree
//! is a range of ids.

mod absent;
mod ages;
mod build;
#[cfg(test)]
mod cut_tests;
mod directory;
mod environments;
mod files;
mod links_out;
mod listed;
mod parts;
mod read_dir;
mod released;
mod sample;
mod saved;
mod saved_blocks;
mod scan;
mod scan_queue;
mod shared_scan;
mod software;
mod table;
#[cfg(test)]
mod tests;
mod verify;

pub use crate::sys::now_ns;
pub use absent::{decider_words, folds_case};
pub use ages::{Ages, Near};
pub use build::{BuildError, Built, build, build_into, try_build};
pub use directory::Directory;
pub use files::each_file;
pub use links_out::{LinksOut, OF_THE_SYSTEM};
pub use listed::{
    DirReader, Listed, MAX_LISTINGS_BYTES, decode as decode_listings, decode_paths, encode as encode_listings,
    encode_paths,
};
pub use parts::IndexTooLarge;
pub use read_dir::ScanProgress;
pub use released::Released;
pub use sample::sample_tree;
pub use saved::{Loaded, SavedError, SavedIndex, load, load_within, save};
pub use scan::{ScanError, ScanOptions, Tree, root_id, scan, scan_with, scan_within};
pub use shared_scan::{MAX_REQUESTS_PER_NODE, ScanHelpers};
pub use software::{Software, is_library};
pub use verify::{Differences, Paths, verify, verify_sample};
