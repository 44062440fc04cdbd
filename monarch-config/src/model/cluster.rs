//! Nodes that share copies, as meant.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nodes that share copies and the index. Fields: 21, because each is a key of the section
/// `cluster`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// How the nodes of the job are found. Default: none, this node alone.
    pub discovery: Discovery,
    /// Under `static`: the nodes as they were written, each a name, an address or several names in
    /// Slurm's brackets. Otherwise empty.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Under `dns`: the name whose addresses are the nodes. Otherwise `None`.
    #[serde(default)]
    pub dns: Option<String>,
    /// The nodes that are expected, as they were found by the command: names or addresses, all
    /// different. Empty: this node alone.
    pub members: Vec<String>,
    /// Which of them this node is.
    pub me: usize,
    /// How many nodes are expected: as many as `members`, unless those are `partial`. 0: this node
    /// alone.
    #[serde(default)]
    pub expected: usize,
    /// Whether `members` are only the first node and this one (torchrun names no more): the other
    /// nodes join through the first.
    #[serde(default)]
    pub partial: bool,
    /// Which copies a node keeps of files that another one owns. Default: hybrid.
    pub placement: Spread,
    /// The interface, subnet (`10.0.0.0/8`) or address to listen on. Default `None`: the address
    /// that this node's own name among the members leads to. Never all addresses.
    pub listen: Option<String>,
    /// TCP port for data and UDP port for gossip, the same on all nodes. Default `None`: derived
    /// from the secret and the members, 20000 to 29999.
    pub port: Option<u16>,
    /// File with the secret that nodes prove to each other, owned by the user and mode 0600; made
    /// when missing. Default `None`: `$XDG_CONFIG_HOME/monarch/cluster-secret`. The
    /// environment's `MONARCH_CLUSTER_SECRET` goes first.
    pub secret_file: Option<PathBuf>,
    /// Which secret the keys between the nodes of a job are derived from, besides the user's. The
    /// environment's `MONARCH_CLUSTER_JOB_SECRET` goes first. Default: none.
    #[serde(default)]
    pub job_secret: JobSecretSource,
    /// Under `file`: the file with the job's secret, on a file system that all nodes of the job
    /// see. Otherwise `None`.
    #[serde(default)]
    pub job_secret_file: Option<PathBuf>,
    /// What tells this job's keys from those of other jobs, as the command found it, the same on
    /// all nodes: under `derived` the job's number, otherwise nothing secret that identifies where
    /// the job's secret comes from. `None`: the user's secret alone.
    #[serde(default)]
    pub job: Option<String>,
    /// Whether what nodes send to each other is encrypted, the same on all nodes. Default:
    /// none.
    #[serde(default)]
    pub encryption: Encryption,
    /// How long a node that is expected and was never seen counts as an owner. Default 60 s; at
    /// most 1 h.
    pub join_timeout: Duration,
    /// How long a reader waits for a peer that does not answer before it turns to the next one, or
    /// the PFS. Default 2 s; 10 ms to 60 s. Peers that usually answer quickly are given up
    /// sooner.
    pub peer_timeout: Duration,
    /// Bytes a second that this node sends to all other nodes. Default `None`: no limit; at least 1
    /// MiB/s.
    pub bandwidth_limit: Option<u64>,
    /// Bytes a second that this node sends to one of them. Default `None`: no limit; at least 1
    /// MiB/s.
    pub peer_bandwidth_limit: Option<u64>,
    /// Most small files that prefetch requests of another node at a time. Default 64; 1 to 64.
    #[serde(default = "batch_files")]
    pub batch_files: usize,
    /// Part of each tier that copies pass through which another node owns, under `sharded`. Default
    /// an eighth; 0.01 to 0.9.
    pub transient_share: f64,
}

/// Most files of a batch.
pub const MAX_BATCH_FILES: usize = 64;

const fn batch_files() -> usize {
    MAX_BATCH_FILES
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            discovery: Discovery::None,
            nodes: Vec::new(),
            dns: None,
            members: Vec::new(),
            me: 0,
            expected: 0,
            partial: false,
            placement: Spread::Hybrid,
            listen: None,
            port: None,
            secret_file: None,
            job_secret: JobSecretSource::None,
            job_secret_file: None,
            job: None,
            encryption: Encryption::None,
            join_timeout: Duration::from_secs(60),
            peer_timeout: Duration::from_secs(2),
            bandwidth_limit: None,
            peer_bandwidth_limit: None,
            batch_files: MAX_BATCH_FILES,
            transient_share: 0.125,
        }
    }
}

impl Cluster {
    /// Whether this node shares with no other node.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.members.len() < 2 && !self.partial
    }

    /// What every node of the job knows alike, to derive from: all members; the first one, where
    /// only that is known everywhere; the name that leads to all of them.
    #[must_use]
    pub fn agreed(&self) -> &[String] {
        match (&self.dns, self.partial) {
            (Some(name), _) => std::slice::from_ref(name),
            (None, true) => self.members.get(..1).unwrap_or_default(),
            (None, false) => &self.members,
        }
    }
}

/// How the nodes of a job are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discovery {
    /// This node alone.
    #[default]
    None,
    /// From the job's environment, whatever it is: Slurm, then PBS, LSF and MPI launchers, then
    /// torchrun; alone where there is none.
    Auto,
    /// `cluster.nodes` names them.
    Static,
    /// Slurm's list of nodes (`SLURM_STEP_NODELIST`, `SLURM_JOB_NODELIST`).
    Slurm,
    /// The environment of torchrun: `MASTER_ADDR` and the ranks of groups; the other nodes join
    /// through the first.
    Torchrun,
    /// The lists that PBS, LSF, OAR, Grid Engine, Cobalt and MPI launchers leave.
    Mpi,
    /// The addresses that a name leads to.
    Dns,
}

/// Which copies a node keeps of files that another one owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// None: they pass through.
    Sharded,
    /// All that it reads, as long as there is room.
    Replicated,
    /// Those that fit beside the copies of files that it owns, for which they are dropped.
    #[default]
    Hybrid,
}

/// Whether connections between nodes are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// They are authentic, and can be read by whoever sits on the path.
    #[default]
    None,
    /// TLS 1.3 with raw public keys that are derived from the secret.
    Tls,
}

/// Which secret the keys between the nodes of a job are derived from, besides the user's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobSecretSource {
    /// No other: all jobs of a user have the same keys.
    #[default]
    None,
    /// The number that the batch system gave the job, which is no secret: keys differ from job to
    /// job.
    Derived,
    /// A file of the job, which the first node makes.
    File,
}
