//! The namespace index: scanning a root, building the immutable index and its lookup table, saved
//! index files.
//!
//! A scan is parallel over directories and keeps the PFS's own order of names, because a listing
//! must look as the PFS would give it. Building numbers the entries depth-first, so that a subtree
//! is a range of ids.

mod absent;
mod ages;
mod build;
mod environments;
mod files;
mod links_out;
mod released;
mod sample;
mod saved;
mod scan;
mod software;
#[cfg(test)]
mod tests;
mod verify;

pub use crate::sys::now_ns;
pub use absent::{decider_words, folds_case};
pub use ages::{Ages, Near};
pub use build::{Built, build};
pub use files::each_file;
pub use links_out::{LinksOut, OF_THE_SYSTEM};
pub use released::Released;
pub use sample::sample_tree;
pub use saved::{Loaded, SavedError, SavedIndex, load, load_within, save};
pub use scan::{ScanError, ScanOptions, ScanProgress, Tree, root_id, scan, scan_within};
pub use software::{Software, is_library};
pub use verify::{Differences, Paths, verify, verify_sample};
