//! Files by what has become of their copies.

use super::work::Tally;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Files by what has become of their copies. Every file of the ranges is in one group. The fields
/// are those of one JSON object: so they stay flat.
///
/// Fields: 14, one per key of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// All files.
    pub all: Tally,
    /// With a complete copy.
    pub resident: Tally,
    /// In line, or being copied.
    pub under_way: Tally,
    /// Bytes that are there of large files being copied.
    pub chunks: u64,
    /// No tier has room for them.
    pub no_room: Tally,
    /// Their copies had to go for lack of room; tried again after a while.
    pub dropped: Tally,
    /// Changed a moment ago: copied once `dataset.min_file_age` has passed.
    pub unsettled: Tally,
    /// The PFS or the tier failed; tried again after pauses that grow.
    pub failing: Tally,
    /// Read from the PFS: changed since they were indexed, gone, or not readable.
    #[serde(alias = "left")]
    pub bypassed: Tally,
    /// Released to tape: copied only when they are asked for by their own names.
    pub on_tape: Tally,
    /// Owned by other nodes of the job, which have or fetch them.
    #[serde(default, alias = "elsewhere")]
    pub owned_by_peers: Tally,
    /// Of what has no copy yet: what there is room for, if that was asked.
    pub fits: Tally,
    /// Whether a root was scanned again since the ranges were found: they mean nothing any more.
    #[serde(default)]
    pub retired: bool,
    /// Some of `failing` and `bypassed`, and why.
    pub trouble: Vec<Trouble>,
}

/// A file that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Its path.
    #[serde(serialize_with = "crate::shown::serial::path")]
    pub path: PathBuf,
    /// What happened.
    pub why: String,
}
