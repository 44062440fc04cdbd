//! State of an agent, its roots, tiers and output roots at one moment.

use super::epochs::{Directory, Epoch};
use super::load::Load;
use super::prefetch::Ahead;
use crate::cluster::node::PeerStatus;
use crate::tier::PackedUsage;
use monarch_outputs::status::OutputStatus;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// State of an agent. The fields are those of one JSON object, which programs of users read: so
/// they stay flat.
///
/// Fields: 23, one per key of the object.
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
    /// Copy engine of prefetches: `uring`, `threads`, or `auto` when each root has its
    /// own.
    pub engine: String,
    /// Why that one.
    #[serde(default)]
    pub engine_why: String,
    /// Policy in use.
    pub policy: String,
    /// Nodes that share their copies, this one among them; 1 where none do.
    #[serde(default)]
    pub nodes: usize,
    /// Why this node shares with none of the others that its job names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_because: Option<String>,
    /// State of prefetching.
    #[serde(default)]
    pub prefetch: Ahead,
    /// Queues, files in flight, calls to the PFS.
    #[serde(default)]
    pub load: Load,
    /// The other nodes as this one sees them, and the traffic with them.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
    /// Where its metrics are.
    #[serde(default)]
    pub metrics: MetricsStatus,
    /// Opens at the PFS, by how long they took.
    #[serde(default)]
    pub pfs_opens: Vec<Opens>,
    /// The roots.
    pub roots: Vec<RootStatus>,
    /// The tiers.
    pub tiers: Vec<TierStatus>,
    /// The output roots.
    #[serde(default)]
    pub outputs: Vec<OutputStatus>,
    /// Directories that the index does not hold; `None` where processes do not ask for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<NamesStatus>,
    /// Counters of all processes since the control block was made, by name.
    pub counters: BTreeMap<String, u64>,
    /// Counters of the job that asks; `None` when no job asks, or it has none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_counters: Option<JobCounters>,
    /// Counters of this agent since it started, by name.
    pub agent: BTreeMap<String, u64>,
}

/// Counters of a job, beside others that share its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCounters {
    /// Counters of its processes, and of earlier jobs that counted in the same place, by name.
    pub own: BTreeMap<String, u64>,
    /// Opens below the roots by processes whose job is not known.
    pub unassigned_opens: u64,
}

/// Opens at the PFS, by how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Opens {
    /// Longest of them, in seconds; shorter ones are in the entries before. `None`: no bound.
    pub up_to_s: Option<f64>,
    /// Number of opens.
    pub opens: u64,
}

/// Directories that the index does not hold (`index.distributed`), and the questions of processes
/// about them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamesStatus {
    /// Directories that this node holds for all nodes of the job.
    pub held: u64,
    /// The memory that they take.
    pub held_bytes: u64,
    /// Directories that other nodes hold, of which this one has a copy.
    pub cached: u64,
    /// The memory that these take.
    pub cached_bytes: u64,
    /// Directories that this node has read from the PFS.
    pub read: u64,
    /// Questions of processes.
    pub asked: u64,
    /// Those that were answered. The PFS was asked for the others.
    pub answered: u64,
    /// Whether changes of the job have left all of them to the PFS.
    pub closed: bool,
}

/// Where an agent's metrics are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsStatus {
    /// The page that Prometheus reads.
    pub url: Option<String>,
    /// Whether another agent of this user serves that page.
    #[serde(default)]
    pub shared: bool,
    /// The file that node_exporter reads.
    pub textfile: Option<PathBuf>,
    /// Why one of them is missing.
    pub trouble: Option<String>,
}

/// State of a root; flat, as [`Status`].
///
/// Fields: 26, one per key of the object.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RootStatus {
    /// Its real path.
    pub path: PathBuf,
    /// `scanning`, `ready`, `failed: ...`.
    pub state: String,
    /// Consistency that is promised when other nodes change its files.
    #[serde(default)]
    pub consistency: String,
    /// Whether copies are read and compared with their checksums when they are opened.
    #[serde(default)]
    pub verify_on_open: bool,
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
    /// Passes over its files, as far as they can be told apart.
    #[serde(default)]
    pub epochs: Vec<Epoch>,
    /// Copy engine for what is fetched ahead, and why that one; empty until the root is ready.
    #[serde(default)]
    pub engine: String,
    /// Links that lead out of it, and into no other root: read from the PFS.
    #[serde(default)]
    pub links_out: u64,
    /// The innermost directory that holds what they lead to.
    #[serde(default)]
    pub links_out_dir: Option<PathBuf>,
    /// The root whose links lead to this one, which no user named.
    #[serde(default)]
    pub followed_from: Option<PathBuf>,
    /// Whether its files are copied only when they are opened.
    #[serde(default)]
    pub only_on_demand: bool,
    /// Files that look as if they were on tape: they are fetched on demand only.
    #[serde(default)]
    pub released: u64,
    /// Their bytes.
    #[serde(default)]
    pub released_bytes: u64,
    /// Files of software: copied when jobs open them, not ahead.
    #[serde(default)]
    pub software: u64,
    /// Their bytes.
    #[serde(default)]
    pub software_bytes: u64,
    /// How many of them are shared libraries, by their names.
    #[serde(default)]
    pub libraries: u64,
    /// Files without a copy that the jobs before opened first, and that are fetched first.
    #[serde(default)]
    pub working_set: u64,
    /// Their bytes.
    #[serde(default)]
    pub working_set_bytes: u64,
    /// Files that its jobs have opened first, noted for the next job.
    #[serde(default)]
    pub working_set_noted: u64,
    /// Files that the site will soon remove, if `source.purge_age` says when it does.
    #[serde(default)]
    pub near_purge: Option<NearPurge>,
    /// The directories below it that cost the PFS most, or from which most was read, first.
    #[serde(default)]
    pub directories: Vec<Directory>,
}

/// Files that the site will soon remove, because no program has read them on the PFS for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearPurge {
    /// Files for which four fifths of `purge_days` have passed.
    pub files: u64,
    /// Days since the first of them was read.
    pub oldest_days: u64,
    /// Days after which the site removes a file.
    pub purge_days: u64,
}

/// State of a tier.
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
    /// Those of them that are packed.
    #[serde(default)]
    pub packed: PackedUsage,
    /// Whether it takes no copies for a while, after an error.
    pub resting: bool,
}
