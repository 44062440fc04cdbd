//! What is pending below the output roots, for commands, reports and metrics: plain data.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Most pending entries that a status names.
pub const MAX_NAMED_ENTRIES: usize = 100;

/// The state of an output root on this node. The fields are those of one JSON object, which
/// programs of users read: so they stay flat.
///
/// Fields: 22, one per key of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputStatus {
    /// The output root, its real path.
    pub path: PathBuf,
    /// The staging directory.
    pub staging: PathBuf,
    /// The tier that holds it.
    pub tier: String,
    /// Whether what is pending there is lost with the node: a tier in memory.
    pub is_volatile: bool,
    /// Entries that are not published: files, deletions, symbolic links.
    pub pending: u64,
    /// Bytes of the files among them.
    pub pending_bytes: u64,
    /// Staged files that a process has open for writing.
    pub open: u64,
    /// Age of the oldest entry that is not published, in milliseconds.
    pub oldest_ms: Option<u64>,
    /// Age of the staged file that has been open for the longest time, in milliseconds.
    pub oldest_open_ms: Option<u64>,
    /// Files published since the agent started.
    pub published: u64,
    /// Their bytes.
    pub published_bytes: u64,
    /// Bytes a second at which files were copied to the PFS lately.
    pub rate: u64,
    /// How long creates have waited for space, in milliseconds, since the agent started.
    pub waited_ms: u64,
    /// Files that went through to the PFS because there was no space.
    pub no_space: u64,
    /// Bytes of clean copies: published files that are kept.
    pub clean_bytes: u64,
    /// The nodes that have to publish before the first entry here.
    #[serde(default)]
    pub waits_for: Vec<String>,
    /// Why nothing is published at the moment: the error, the file, what to do.
    pub held: Option<String>,
    /// Whether that is an error which does not pass by itself. Where the PFS refuses what is
    /// pending, as with a full quota, creates below the root give it, too.
    #[serde(default)]
    pub is_refused: bool,
    /// How long processes had the staged files open that were closed, all together, in
    /// milliseconds: the time in which the job wrote them.
    #[serde(default)]
    pub open_ms: u64,
    /// How long it took to copy files to the PFS, in milliseconds: the time in which at least one
    /// was being copied.
    #[serde(default)]
    pub copy_ms: u64,
    /// What the agent had to do otherwise than the job would expect: files of killed processes,
    /// files that others had changed meanwhile.
    pub notes: Vec<String>,
    /// The oldest pending entries, at most [`MAX_NAMED_ENTRIES`].
    pub entries: Vec<PendingEntry>,
}

/// An entry that is not published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEntry {
    /// Its path below the output root. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// What it is waiting for.
    pub state: PendingState,
    /// Bytes of the file; 0 for deletions and links.
    pub bytes: u64,
    /// Bytes copied so far.
    pub copied: u64,
    /// How long it has been pending, in milliseconds.
    pub age_ms: u64,
    /// Why it was not published at the last attempt.
    pub why: Option<String>,
}

/// What a pending entry waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PendingState {
    /// A process has the file open for writing.
    Open,
    /// The file waits to be copied.
    Waiting,
    /// The file is being copied to the PFS.
    Copying,
    /// Complete on the PFS under its part file's name; earlier entries are not published yet.
    Copied,
    /// The PFS gave an error; it is tried again.
    Retrying,
    /// A file, link or name is to be removed on the PFS.
    Removal,
    /// A symbolic link is to be made on the PFS.
    Symlink,
    /// The record of the file is lost: it is kept on the node until a person decides.
    Kept,
}

impl OutputStatus {
    /// Whether anything is not published.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        self.pending > 0 || self.open > 0
    }
}
