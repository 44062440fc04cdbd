//! The namespace index: scanning a root, building the immutable index and its lookup table, saved index files.
//!
//! A scan is parallel over directories and keeps the PFS's own order of names, because a listing must look as the PFS
//! would give it. Building numbers the entries depth-first, so that a subtree is a range of ids.

mod build;
mod saved;
mod scan;
#[cfg(test)]
mod tests;
mod verify;

pub(crate) use build::now_ns;
pub use build::{Built, build};
pub use saved::{SavedError, SavedIndex, load, save};
pub(crate) use scan::open_beneath;
pub use scan::{ScanError, ScanOptions, ScanProgress, Tree, root_id, scan};
pub use verify::{Differences, Paths, verify, verify_sample};
