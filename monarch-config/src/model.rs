//! The configuration as meant: every value present, in plain units, checked against this machine.
//!
//! The rest of Monarch uses this, and the command line hands it to the agent as JSON.
//! `docs/config.schema.json` describes the settings as a user writes them.

mod cluster;
mod outputs;

use super::checks::{AbsentNames, AbsentRule, Checks};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use cluster::{Cluster, Discovery, Encryption, JobSecretSource, MAX_BATCH_FILES, Spread};
pub(super) use outputs::THROUGH;
pub use outputs::{Drain, OutputRoot, OutputSync};

/// The whole configuration. Fields: 15, one per key at the top of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// What is read.
    pub dataset: Dataset,
    /// How the PFS is read.
    pub source: Source,
    /// How bytes are moved.
    #[serde(default)]
    pub io: Io,
    /// Where copies are kept, fastest first; never empty.
    pub tiers: Vec<Tier>,
    /// Directories below which what jobs write is staged; none inside another. Default: none.
    #[serde(default)]
    pub outputs: Vec<OutputRoot>,
    /// How what jobs write is copied to the PFS.
    #[serde(default)]
    pub drain: Drain,
    /// What is kept.
    pub placement: Placement,
    /// What is copied before it is read.
    pub prefetch: Prefetch,
    /// The index of names and attributes.
    pub index: Index,
    /// How long a reader waits for a copy.
    pub wait: Wait,
    /// Nodes that share copies. Default: this node alone.
    #[serde(default)]
    pub cluster: Cluster,
    /// What the agent tells monitoring systems. Default: nothing.
    #[serde(default)]
    pub metrics: Metrics,
    /// Directory for the agent's socket, locks and shared memory. `None` (the default): chosen at
    /// start, private to the user and this node. An absolute path.
    pub runtime_dir: Option<PathBuf>,
    /// The agent's log.
    pub log: Log,
    /// What `monarch run` does.
    #[serde(default)]
    pub run: Run,
}

/// What is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dataset {
    /// The directories whose files are kept near, none inside another; at least one, unless there
    /// are output roots.
    pub roots: Vec<Root>,
    /// What is promised when files change. Default: immutable.
    pub consistency: Consistency,
    /// Under `close-to-open`: how old the last comparison of a file with the PFS may be when it is
    /// opened; 0: none. Default 5 s; at most 1 h.
    #[serde(default = "revalidate")]
    pub revalidate: Duration,
    /// Whether a copy is read and compared with its checksum each time it is opened. Default false.
    #[serde(default)]
    pub verify_on_open: bool,
    /// A file changed less than this ago is not copied: it may still be being written. Default 10
    /// s; at most 1 h.
    pub min_file_age: Duration,
    /// What is done about links that leave a root. Default: auto.
    #[serde(default)]
    pub follow: Follow,
    /// Where listings of the index answer that a name is not there. Default: auto.
    #[serde(default)]
    pub absent: AbsentRule,
}

/// One directory of the data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Root {
    /// The directory as it was given: absolute, without `.`, `..` and trailing slash. Never `/`.
    pub path: PathBuf,
    /// The same with every symbolic link followed.
    pub real_path: PathBuf,
    /// Other absolute spellings that lead to the same directory (symbolic links, bind mounts).
    /// Default: none.
    pub aliases: Vec<PathBuf>,
    /// Whether its files are copied only when they are opened. (So it is for a directory that links
    /// of another root lead to, if it holds much else.)
    #[serde(default)]
    pub only_on_demand: bool,
    /// The root whose links lead to this one, which no user named.
    #[serde(default)]
    pub followed_from: Option<PathBuf>,
}

/// What is done about links below a root that lead out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Follow {
    /// The directories that they lead to are served, too, where they are small and on the same file
    /// system.
    #[default]
    Auto,
    /// They are read from the PFS.
    Off,
}

/// What is promised when files of the data set change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Consistency {
    /// Only this job changes the data set while the job runs.
    Immutable,
    /// Other jobs and users may: each open asks the PFS whether the file is still what was indexed,
    /// at most every `revalidate`.
    CloseToOpen,
}

impl std::fmt::Display for Consistency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Immutable => "immutable",
            Self::CloseToOpen => "close-to-open",
        })
    }
}

/// The default of [`Dataset::revalidate`].
pub(super) const fn revalidate() -> Duration {
    Duration::from_secs(5)
}

impl Dataset {
    /// The checks of a file when it is opened.
    #[must_use]
    pub fn checks(&self) -> Checks {
        let revalidate = (self.consistency == Consistency::CloseToOpen).then_some(self.revalidate);
        let absent = AbsentNames { rule: self.absent, every: self.revalidate, min_age: self.min_file_age };
        Checks { revalidate, verify: self.verify_on_open, absent, ..Checks::default() }
    }
}

/// How the PFS is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Bytes asked of the PFS in one read of a large file. Default 4 MiB; 4 KiB to 64 MiB, a
    /// multiple of 4 KiB.
    pub io_size: u64,
    /// Requests in flight at the PFS from this node. Default 64; 1 to 1024.
    pub max_inflight: usize,
    /// The same while readers wait for small files (up to 256 KiB): each of them would have a
    /// request of its own in flight otherwise. Default 256, or `max_inflight` where that was
    /// written; `max_inflight` to 1024.
    #[serde(default)]
    pub max_demands: usize,
    /// Bytes a second read from the PFS by this node, on average over a second. Default `None`: no
    /// limit; at least 1 MiB/s.
    pub bandwidth_limit: Option<u64>,
    /// PFS operations a second started by this node, those of the scan included. Default `None`: no
    /// limit; at least 1.
    pub iops_limit: Option<usize>,
    /// Whether background copying slows down when the PFS's latency rises, and keeps no more
    /// requests in flight than the PFS needs to give what it has. Default true.
    pub backoff: bool,
    /// Files larger than this many bytes are copied in chunks, which are served as they arrive: no
    /// reader waits for the whole copy. Default 16 MiB; 4 KiB to 1 TiB.
    pub chunk_threshold: u64,
    /// Bytes of a chunk. Default 4 MiB; 4 KiB to 64 MiB, a multiple of 4 KiB.
    pub chunk_size: u64,
    /// Age, since its last access, at which the site removes a file. Default `None`: not known, or
    /// it removes none; 1 to 3650 days.
    #[serde(default)]
    pub purge_age: Option<Duration>,
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Io {
    /// What moves them. Default: auto.
    pub engine: Engine,
    /// Whether the PFS is read past the page cache. Default: auto.
    pub direct: Direct,
}

/// Whether the PFS is read past the page cache: in requests as large as they are made, and without
/// filling memory with pages that are not needed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direct {
    /// Chunks of large files are, except on local file systems.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// Chunks are, and files of at least `source.io_size`.
    #[serde(rename = "true")]
    Yes,
    /// Nothing is.
    #[serde(rename = "false")]
    No,
}

/// What moves bytes from the PFS into a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// For each mount the better one: both take turns until that is measured.
    #[default]
    Auto,
    /// io_uring: few threads, the kernel makes the calls. Where it is forbidden, as `threads`.
    Uring,
    /// A thread for each file under way.
    Threads,
}

/// A directory where copies are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// What reports call it: 1 to 32 letters, digits, `-` or `_`, unique. Default `tierN`, counted
    /// from 0.
    pub name: String,
    /// The directory, absolute; made if its parent may be written.
    pub path: PathBuf,
    /// Bytes of blocks that copies may take, at least 1 MiB. Default: a quarter of what is free, at
    /// most 200 GiB; in memory also at most a quarter of the memory that the job has left.
    pub capacity: u64,
    /// Whether `capacity` is the default. It depends on the free space of the moment, so two jobs
    /// that left it to the default are not in conflict when they differ in it.
    pub capacity_is_default: bool,
    /// Bytes of its file system that are left free for other programs. Default 1 GiB or 5 % of the
    /// file system, whichever is less; 0 in memory.
    pub keep_free: u64,
    /// Whether the directory may be on a network or FUSE file system. Default false.
    #[serde(default)]
    pub allow_network: bool,
    /// How long copies stay. Default: `node` on a disk, `job` in memory.
    #[serde(default)]
    pub persist: Persist,
    /// How copies are kept. Default: none.
    #[serde(default)]
    pub compression: Compression,
    /// Least ratio for which a copy is compressed. Default 1.2; 1 to 100.
    #[serde(default = "min_ratio")]
    pub min_ratio: f64,
    /// Bytes of the capacity for decompressed copies of what slower tiers hold compressed. Default:
    /// a quarter if one does, otherwise 0.
    #[serde(default)]
    pub decompression_share: u64,
    /// What the directory is made of.
    pub medium: Medium,
}

const fn min_ratio() -> f64 {
    MIN_RATIO
}

/// See [`Tier::min_ratio`].
pub(super) const MIN_RATIO: f64 = 1.2;

/// How the copies in a tier are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// Compressed with LZ4, where that is worth it, and decompressed into a faster tier for
    /// readers.
    Lz4,
    /// The same with Zstandard.
    Zstd,
    /// With LZ4, with Zstandard or not at all, by the suffix of the file.
    Auto,
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::Auto => "auto",
        })
    }
}

/// How long the copies in a tier stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Persist {
    /// Until the last job has ended.
    Job,
    /// For the next jobs on this node, until a user removes them.
    #[default]
    Node,
}

impl std::fmt::Display for Persist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Job => "job",
            Self::Node => "node",
        })
    }
}

impl Persist {
    /// The default for what a tier is made of.
    #[must_use]
    pub const fn of(medium: Medium) -> Self {
        match medium {
            Medium::Memory => Self::Job,
            Medium::Disk => Self::Node,
        }
    }
}

/// What a tier is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// Memory (tmpfs, ramfs): charged to the job's memory.
    Memory,
    /// A local disk.
    Disk,
}

/// What is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// The policy. Default: `first_epoch`.
    pub policy: Policy,
}

/// The policies that decide what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Policy {
    /// Keep files as first read until the tiers are full; never replace.
    FirstEpoch,
    /// Keep a fixed part of the files, chosen by chance; never replace.
    Static,
    /// Keep what saves most time at the PFS for each byte: small files first.
    OpsPerByte,
    /// Fetch files just before they are read and drop them after, where the order is known
    /// (announced or learned).
    Clairvoyant,
    /// Drop what was read longest ago.
    Lru,
    /// Drop what is read least often.
    Lfu,
    /// Drop anything.
    Random,
}

impl Policy {
    /// All of them, under the names that [`monarch_policies::by_name`] knows.
    pub const ALL: [(&'static str, Self); 7] = [
        ("first_epoch", Self::FirstEpoch),
        ("static", Self::Static),
        ("ops_per_byte", Self::OpsPerByte),
        ("clairvoyant", Self::Clairvoyant),
        ("lru", Self::Lru),
        ("lfu", Self::Lfu),
        ("random", Self::Random),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, policy)| *policy == self).map_or("first_epoch", |(name, _)| name)
    }
}

/// What is copied before it is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prefetch {
    /// Whether files are copied in the background, up to the tiers' capacity, before a job opens
    /// them. Default true.
    pub enabled: bool,
    /// Which files of a data set. Default: [`Extent::Auto`].
    #[serde(default)]
    pub ahead: Extent,
    /// Whether what a job opens first is kept for the next. Default: [`WorkingSets::Auto`].
    #[serde(default)]
    pub working_set: WorkingSets,
    /// Share of the time in which a task of the job waits for memory, above which prefetch is
    /// narrowed; `None` never. Default 0.3.
    #[serde(default = "max_memory_pressure")]
    pub max_memory_pressure: Option<f64>,
}

/// The default of [`Prefetch::max_memory_pressure`].
#[expect(clippy::unnecessary_wraps, reason = "the type of the setting")]
pub(super) const fn max_memory_pressure() -> Option<f64> {
    Some(0.3)
}

/// Which files of a data set are prefetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// As many as what the job has opened is evidence for; all where the last job opened all.
    #[default]
    Auto,
    /// All, from the start.
    All,
}

/// Whether the files that a job opens first are noted for the next job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkingSets {
    /// They are noted, and fetched first the next time.
    #[default]
    Auto,
    /// They are not.
    Off,
}

/// The index of names and attributes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// Bytes the index may take; subtrees beyond are left to the PFS. Default 5 % of the job's
    /// memory limit (of the node's memory without one); at least 1 MiB, at most the limit.
    pub max_memory: u64,
    /// Whether entries of a saved index are checked before their first use. Default: verify.
    pub trust: Trust,
    /// A saved index to start from (`monarch index build`). Default `None`: scan.
    pub file: Option<PathBuf>,
    /// Threads that scan the data set. Default 16; 1 to 256.
    pub scan_threads: usize,
    /// Whether nodes that wait for the index read directories for the node that scans. Default
    /// false.
    pub shared_scan: bool,
    /// What is done about directories beyond `max_memory`. Default: [`Distributed::Off`].
    pub distributed: Distributed,
}

/// What is done about directories that the index has no memory for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distributed {
    /// They are left to the PFS.
    #[default]
    Off,
    /// Their entries are held by the nodes of the job, each directory by one of them.
    Auto,
}

/// How far a saved index is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// Each file is compared with the PFS once, in the background, before its first hit.
    Verify,
    /// The data set has not changed since the index was saved; nothing is asked.
    Frozen,
}

/// How long a reader waits for a copy before it reads the PFS itself: `pickup` < `stall` <=
/// `max_wait`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The agent has not taken the request. Default 50 ms; at least 1 ms.
    pub pickup: Duration,
    /// A live agent makes no progress. Default 2 s.
    pub stall: Duration,
    /// The agent itself waits for the PFS. Default 120 s; at most 1 h.
    pub max_wait: Duration,
    /// A reader to whom single chunks are of no use (fopen, sendfile) waits for the rest of a large
    /// file if it is expected within this time. Default 2 s; at most 1 h.
    pub complete: Duration,
    /// The longest wait of a mapping for the rest of a large file, where that is quicker than its
    /// page faults would be. Default 30 s; at most 1 h.
    pub map: Duration,
}

/// What the agent tells monitoring systems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// Where they are served over HTTP; port 0: any that is free. Default `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// A file for the textfile collector of node_exporter, or a directory for one. Default `None`.
    pub textfile: Option<PathBuf>,
    /// How often the file is written. Default 15 s; 1 s to 1 h.
    pub interval: Duration,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { listen: None, textfile: None, interval: Duration::from_secs(15) }
    }
}

impl Metrics {
    /// Whether metrics are served or written.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.listen.is_some() || self.textfile.is_some()
    }
}

/// The agent's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Log {
    /// The least severe messages that are written. Default: info.
    pub level: LogLevel,
}

/// What `monarch run` does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Whether a job that cannot be served is not started. Default: false.
    pub strict: bool,
    /// A file to which each job appends a line about what it read, or a directory with such a file
    /// for each user. Default `None`.
    #[serde(default)]
    pub accounting: Option<PathBuf>,
    /// Whether the loader maps shared libraries from their copies. Default [`Libraries::Auto`].
    #[serde(default)]
    pub libraries: Libraries,
    /// How long it waits at the end until what the command wrote is published. Default `None`: as
    /// long as it takes; at most 30 days.
    #[serde(default)]
    pub output_wait: Option<Duration>,
    /// Whether changes that the job makes by raw system calls are caught. Default
    /// [`RawCalls::Off`].
    #[serde(default)]
    pub raw_calls: RawCalls,
}

/// How changes are noticed that a job makes by raw system calls, which no preload library sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RawCalls {
    /// Not at all.
    #[default]
    Off,
    /// By a seccomp filter in the processes of the job, for the calls that change names and
    /// attributes.
    Seccomp,
}

/// Whether the processes of a job load the audit library, by which the loader maps shared libraries
/// from their copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Libraries {
    /// If there are libraries below a root, as far as that is known when the job starts.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Severity of log messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What failed.
    Error,
    /// What is likely wrong.
    Warn,
    /// Milestones.
    Info,
    /// Decisions.
    Debug,
    /// Everything.
    Trace,
}

/// A size, or a share of something that only the machine knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Amount {
    /// Bytes.
    Bytes(u64),
    /// A fraction, 0 to 1.
    Share(f64),
}

impl Amount {
    /// In bytes, where the whole is `of`.
    pub(super) fn of(self, of: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => super::units::share(of, share),
        }
    }
}
