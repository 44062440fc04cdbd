//! Where what jobs write is staged, and how it is copied to the PFS.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A directory on the PFS below which files that a job creates are kept in a tier of the node until
/// the agent has published them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRoot {
    /// The directory as it was given: absolute, without `.`, `..` and trailing slash. Never `/`.
    pub path: PathBuf,
    /// The same with every symbolic link followed.
    pub real_path: PathBuf,
    /// Other absolute spellings that lead to the same directory. Default: none.
    #[serde(default)]
    pub aliases: Vec<PathBuf>,
    /// Name of the tier that holds the staged files: one of `Config::tiers`. Default: the first on
    /// a disk; with `volatile` the first.
    pub tier: String,
    /// Whether the tier may be in memory. Default false.
    #[serde(default)]
    pub volatile: bool,
    /// What `fsync` waits for. Default: local.
    #[serde(default)]
    pub fsync: OutputSync,
    /// Patterns of file names that are not staged (`monarch_abi::outputs::through`). Their lengths,
    /// each with one byte more, are at most `monarch_abi::outputs::state::MAX_PATTERNS` together.
    pub through: Vec<String>,
    /// Most bytes that are not published. Default: half of the tier's capacity; at least 1 MiB.
    pub max_pending: u64,
    /// How long a call waits for another node to publish what it asks for. Default 60 s.
    pub peer_wait: Duration,
}

/// The default of [`OutputRoot::through`]: files that are appended to, shared between writers, or
/// locked.
pub(in super::super) const THROUGH: [&str; 12] = [
    "*.log",
    "*.out",
    "*.err",
    "*.csv",
    "*.jsonl",
    "events.out.tfevents.*",
    "*.db*",
    "*.sqlite*",
    "*-journal",
    "*-wal",
    "*.lock*",
    "*.pid",
];

/// What `fsync` of a staged file waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputSync {
    /// The file is on the tier's disk.
    #[default]
    Local,
    /// The file, if it is closed, and all entries before it are published.
    Publish,
}

/// How what jobs write is copied to the PFS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Bytes a second written to the PFS by this node, on average over a second. Default `None`: no
    /// limit; at least 1 MiB/s.
    pub bandwidth_limit: Option<u64>,
}
