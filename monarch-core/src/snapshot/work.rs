//! Which entries a request concerns, and how many files and bytes it reached.

use serde::{Deserialize, Serialize};

/// Entries of a segment: a directory's subtree is a range of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Number of the segment in the control block.
    pub segment: usize,
    /// First id.
    pub from: u32,
    /// First id behind the range.
    pub end: u32,
}

/// Files that a request reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    /// Adds a file of `bytes` bytes.
    pub const fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Size of a trace, and its errors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// Opens that were written.
    pub opens: u64,
    /// Opens that were lost: there were too many at a time.
    pub lost: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Why it ends early, if it does.
    pub failed: Option<String>,
}
