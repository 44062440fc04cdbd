//! What the command line and the agent say to each other: one JSON object a line over a Unix socket.
//!
//! An `attach` lasts as long as its connection; when the last one is gone, the agent ends after a short while.

use crate::config::Config;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Serve a job with this configuration.
    Attach {
        /// The resolved configuration.
        config: Box<Config>,
        /// The spellings of its roots, and where they lead for the job.
        #[serde(default)]
        spellings: Vec<Spelling>,
        /// Process that runs the job.
        pid: u32,
        /// Whether it was attached before, to an agent that has gone.
        #[serde(default)]
        again: bool,
    },
    /// Say how things are.
    Status,
    /// Copy what lies in these ranges in the background, behind what readers wait for.
    Prefetch {
        /// Which entries.
        ranges: Vec<Range>,
    },
    /// Drop the copies of what lies in these ranges.
    Evict {
        /// Which entries.
        ranges: Vec<Range>,
        /// Also those of an earlier job that no file of this one's roots has claimed.
        unclaimed: bool,
    },
    /// The job of this connection has ended, and no other follows on this node: an agent without jobs need not wait for one.
    Leave,
    /// End now.
    Stop,
}

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

/// What a request came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    pub(super) const fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// A way to write the path of a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spelling {
    /// The path.
    pub path: PathBuf,
    /// The same with every symbolic link followed; `None` when it leads nowhere.
    pub real: Option<PathBuf>,
}

/// A reply.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The job is served.
    Attached {
        /// The control block that the shim maps.
        control: PathBuf,
    },
    /// How things are.
    Status(Box<Status>),
    /// It was done, or begun.
    Tally(Tally),
    /// The agent ends.
    Stopping,
    /// It did not work.
    Error {
        /// Why, and what to do.
        message: String,
    },
}

/// How things are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Version of the agent.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// How often an agent was started on this control block.
    pub incarnation: u32,
    /// Its runtime directory.
    pub runtime_dir: PathBuf,
    /// Jobs attached now.
    pub jobs: usize,
    /// Copy engine for what is fetched ahead: `uring`, `threads`, or `auto` when each root has its own.
    pub engine: String,
    /// Why that one.
    #[serde(default)]
    pub engine_why: String,
    /// Policy in use.
    pub policy: String,
    /// The roots.
    pub roots: Vec<RootStatus>,
    /// The tiers.
    pub tiers: Vec<TierStatus>,
    /// Counters of all processes since the control block was made, by name.
    pub counters: BTreeMap<String, u64>,
    /// Counters of this agent since it started, by name.
    pub agent: BTreeMap<String, u64>,
}

/// How a root is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RootStatus {
    /// Its real path.
    pub path: PathBuf,
    /// `scanning`, `ready`, `failed: ...`.
    pub state: String,
    /// Jobs that use it now.
    #[serde(default)]
    pub jobs: usize,
    /// Entries in the index (so far).
    pub entries: u64,
    /// Regular files.
    pub files: u64,
    /// Bytes of regular files.
    pub bytes: u64,
    /// Memory of the index, bytes.
    pub index_bytes: u64,
    /// Opens below it by the jobs.
    pub opens: u64,
    /// Copy engine for what is fetched ahead, and why that one; empty until the root is ready.
    #[serde(default)]
    pub engine: String,
}

/// How a tier is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TierStatus {
    /// Its name.
    pub name: String,
    /// Directory of its copies.
    pub path: PathBuf,
    /// Quota in bytes.
    pub capacity: u64,
    /// Bytes used.
    pub used: u64,
    /// Bytes promised to copies being written.
    pub reserved: u64,
    /// Copies.
    pub files: u64,
    /// Whether it rests after an error.
    pub resting: bool,
}
