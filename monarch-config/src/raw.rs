//! The configuration as written: every field optional, every scalar a text of a known kind.
//!
//! The doc comments here are the reference for users: they become the descriptions in
//! `docs/config.schema.json`.

mod cluster;
mod outputs;

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

pub(super) use cluster::{RawCluster, RawNodes};
pub(super) use outputs::{RawDrain, RawNamedOutput, RawOutput};

use super::checks::AbsentRule;
use super::choice::OneOf;
use super::given::{
    Count, Given, Listener, Location, Name, OrNone, Rate, Ratio, Share, Size, SizeOrShare, Time, Toggle,
};
use super::model::{
    Compression, Consistency, Direct, Distributed, Engine, Extent, Follow, Libraries, LogLevel, Persist, Policy,
    RawCalls, Trust, WorkingSets,
};

/// Monarch's configuration file. Every value can also be set by an environment variable
/// (`source.io_size` is `MONARCH_SOURCE__IO_SIZE`), and overridden by a flag (`--set
/// source.io_size=4MiB`).
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Monarch configuration")]
pub(super) struct RawConfig {
    /// What is read.
    pub(super) dataset: Option<RawDataset>,
    /// How the parallel file system (PFS) is read.
    pub(super) source: Option<RawSource>,
    /// How bytes are moved from the PFS into the tiers.
    pub(super) io: Option<RawIo>,
    /// Directories on this node where copies are kept, fastest first. Without any: a directory on
    /// the node's local disk.
    pub(super) tiers: Option<Vec<RawTier>>,
    /// Directories on the PFS, absolute, none inside another, below which files that the job
    /// creates are staged in a tier of the node and then copied to the PFS in the job's order:
    /// docs/OUTPUTS.md. Here, by --output, or in MONARCH_OUTPUTS (separated by `:`). Default:
    /// none, jobs write to the PFS themselves.
    pub(super) outputs: Option<Vec<RawOutput>>,
    /// How what jobs write below `outputs` is copied to the PFS.
    pub(super) drain: Option<RawDrain>,
    /// What is kept.
    pub(super) placement: Option<RawPlacement>,
    /// What is copied before it is asked for.
    pub(super) prefetch: Option<RawPrefetch>,
    /// The index of names and attributes.
    pub(super) index: Option<RawIndex>,
    /// How long a reader waits for a copy before it reads the PFS itself: pickup < stall <=
    /// max_wait.
    pub(super) wait: Option<RawWait>,
    /// Nodes of the job that share copies and the index, so that each byte is read from the PFS
    /// once. Default: this node alone.
    pub(super) cluster: Option<RawCluster>,
    /// What the agent tells monitoring systems. Default: nothing.
    pub(super) metrics: Option<RawMetrics>,
    /// Private directory for the agent's socket, locks and shared memory. Default: chosen at start.
    /// Absolute.
    pub(super) runtime_dir: Option<Given<Location>>,
    /// The agent's log.
    pub(super) log: Option<RawLog>,
    /// What `monarch run` does.
    pub(super) run: Option<RawRun>,
}

/// What is read.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawDataset {
    /// Directories whose files are kept near, absolute, none inside another. Here, by --root, or in
    /// MONARCH_DATASET__ROOTS (separated by `:`). At least one, unless there are `outputs`.
    pub(super) roots: Option<Vec<RawRoot>>,
    /// What is promised when files change: immutable (only this job changes the data set while it
    /// runs), or close-to-open (other jobs and users may: each open asks the PFS whether the file
    /// is still the one that was indexed). Default immutable.
    pub(super) consistency: Option<Given<OneOf<Consistency>>>,
    /// With close-to-open: a file about which the PFS was asked less than this ago, by any process
    /// on this node, is not asked about again; 0s: it is asked at every open. Default 5s; 0s to
    /// 1h.
    pub(super) revalidate: Option<Given<Time>>,
    /// Whether each open reads the whole copy first and compares it with its checksum, so that
    /// bytes which a disk has damaged are never served. Costs a read of the copy for each open.
    /// Default false.
    pub(super) verify_on_open: Option<Given<Toggle>>,
    /// A file changed less than this ago is not copied: it may still be being written. Default 10s;
    /// 0s to 1h.
    #[serde(alias = "settle")]
    pub(super) min_file_age: Option<Given<Time>>,
    /// What is done about links below a root that lead out of it, as in Hugging Face's cache: auto
    /// (the directories that they lead to are served, too, where they lie on the same file system
    /// and have at most 20,000 entries; a line at the start of the job names them), or off. Default
    /// auto.
    pub(super) follow: Option<Given<OneOf<Follow>>>,
    /// What answers when the job asks for a name that the index lacks, as imports of Python do a
    /// thousand times: kernel (the PFS, each time), checked (the listing of the directory, which is
    /// compared with the PFS once every `revalidate` and node), index (the listing, never compared:
    /// for trees that nobody changes while the job runs), or auto (checked in environments of
    /// software, kernel elsewhere). Default auto.
    pub(super) absent: Option<Given<OneOf<AbsentRule>>>,
}

/// A directory of the data set, alone or with its other names.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(super) enum RawRoot {
    /// The directory.
    Path(Given<Location>),
    /// The directory and its other names.
    Named(RawNamedRoot),
}

/// A directory of the data set with its other names.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNamedRoot {
    /// The directory, absolute.
    pub(super) path: Given<Location>,
    /// Other spellings that lead to the same directory: symbolic links, bind mounts. Absolute.
    /// Default: none.
    #[serde(default)]
    pub(super) aliases: Option<Vec<Given<Location>>>,
}

impl<'de> Deserialize<'de> for RawRoot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PathOrNamed)
    }
}

/// By hand, because serde's untagged enums lose both the place and the reason of a mistake.
struct PathOrNamed;

impl<'de> Visitor<'de> for PathOrNamed {
    type Value = RawRoot;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path, or a path with aliases")
    }

    fn visit_str<E: Error>(self, path: &str) -> Result<RawRoot, E> {
        Given::deserialize(serde::de::value::StrDeserializer::new(path)).map(RawRoot::Path)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawRoot, A::Error> {
        RawNamedRoot::deserialize(MapAccessDeserializer::new(map)).map(RawRoot::Named)
    }
}

/// How the PFS is read.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawSource {
    /// Size of one read of a large file at the PFS. Default 4MiB; 4KiB to 64MiB, a multiple of
    /// 4KiB.
    pub(super) io_size: Option<Given<Size>>,
    /// Requests in flight at the PFS from this node. Default 64; 1 to 1024.
    pub(super) max_inflight: Option<Given<Count>>,
    /// Requests in flight at the PFS while readers wait for small files (up to 256 KiB). Default
    /// 256 where max_inflight is left out, otherwise the same; max_inflight to 1024.
    pub(super) max_demands: Option<Given<Count>>,
    /// Limit of what this node reads from the PFS, such as 500MiB/s. Default none; at least 1MiB/s.
    pub(super) bandwidth_limit: Option<Given<OrNone<Rate>>>,
    /// Limit of the PFS operations that this node starts in a second, those of the scan included.
    /// Default none; 1 to 1000000.
    pub(super) iops_limit: Option<Given<OrNone<Count>>>,
    /// Whether background copying slows down when the PFS's latency rises, and keeps no more
    /// requests in flight than the PFS needs to give what it has. Default true.
    pub(super) backoff: Option<Given<Toggle>>,
    /// Files larger than this are copied in chunks, which are served as they arrive: no reader
    /// waits for the whole copy. Default 16MiB; 4KiB to 1TiB.
    pub(super) chunk_threshold: Option<Given<Size>>,
    /// Size of a chunk. Default 4MiB; 4KiB to 64MiB, a multiple of 4KiB.
    pub(super) chunk_size: Option<Given<Size>>,
    /// Age, since its last access, at which this site removes a file, such as 30d: Monarch then
    /// warns before files of the data set reach it. Default none; 1d to 3650d.
    pub(super) purge_age: Option<Given<OrNone<Time>>>,
}

/// How bytes are moved from the PFS into the tiers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawIo {
    /// `uring` has the kernel make the calls, with few threads; where io_uring is forbidden,
    /// threads do. `threads` uses a thread for each file under way. `auto` takes uring for
    /// roots on ext4, xfs, btrfs and tmpfs, threads for all others. Default auto.
    pub(super) engine: Option<Given<OneOf<Engine>>>,
    /// Whether the PFS is read past the page cache: in requests as large as source.io_size, with
    /// less work for the processor, and other data stays cached. auto: chunks of large files
    /// are, except on ext4, xfs, btrfs and tmpfs. true: chunks are, and files of at least
    /// source.io_size. Default auto.
    pub(super) direct: Option<Given<OneOf<Direct>>>,
}

/// A directory where copies are kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["path"]))]
pub(super) struct RawTier {
    /// What reports call it: 1 to 32 letters, digits, `-` or `_`, unique. Default tierN, counted
    /// from 0.
    pub(super) name: Option<Given<Name>>,
    /// The directory, absolute, on a local disk or in memory (tmpfs). It is made if its parent may
    /// be written.
    pub(super) path: Option<Given<Location>>,
    /// Space that copies may take, a hard limit; at least 1MiB. Default: a quarter of what is free,
    /// at most 200GiB; in memory also at most a quarter of the memory that the job has left.
    pub(super) capacity: Option<Given<Size>>,
    /// Use a network or FUSE file system as a tier anyway. Copies there are as far away as the data
    /// set; worth it only when that file system is much less loaded. Default false.
    pub(super) allow_network: Option<Given<Toggle>>,
    /// Space of its file system that is left free for other programs, as a size or a share of the
    /// file system. Default 5% or 1GiB, whichever is less; 0 in memory.
    pub(super) keep_free: Option<Given<SizeOrShare>>,
    /// How long copies stay: node (for the next jobs on this node) or job (until the last job has
    /// ended). Default node on a disk, job in memory, which other programs need.
    pub(super) persist: Option<Given<OneOf<Persist>>>,
    /// How copies are kept: none (as they are), lz4 or zstd (compressed, where that makes them
    /// smaller by min_ratio; zstd holds 1.5 times as much text and 1.7 times as much of arrays of
    /// floats as lz4, and takes 1.5 to 3 times as long to decompress), or auto (by suffix, what
    /// saves most reads of the PFS, measured on the files). A reader that opens a compressed copy
    /// waits until the agent has decompressed it into a faster tier, so there has to be one before
    /// this: see `decompression_share` there. Default none.
    pub(super) compression: Option<Given<OneOf<Compression>>>,
    /// How many times smaller a file has to get for its copy to be compressed; others are kept as
    /// they are, and opened right here. Default 1.2; 1 to 100.
    pub(super) min_ratio: Option<Given<Ratio>>,
    /// Space of this tier for decompressed copies of files that a slower tier holds compressed, as
    /// a size or a share of its capacity. Files larger than that are not compressed. Default
    /// 25% if a slower tier has compression, otherwise 0.
    #[serde(alias = "decoded")]
    pub(super) decompression_share: Option<Given<SizeOrShare>>,
}

/// What is kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawPlacement {
    /// Default first_epoch (keep files as first read until the tiers are full; never replace).
    /// static (a fixed part of the files, chosen by chance), ops_per_byte (small files first:
    /// most PFS operations saved for each byte), clairvoyant (where the order is announced or
    /// repeats: fetched just before they are read), lru, lfu, random. See docs/POLICIES.md.
    pub(super) policy: Option<Given<OneOf<Policy>>>,
}

/// What is copied before it is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawPrefetch {
    /// Whether files are copied in the background, up to the tiers' capacity, before a job opens
    /// them. Default true.
    pub(super) enabled: Option<Given<Toggle>>,
    /// Which files of a data set: `auto` as many as what the job has opened so far is evidence for,
    /// and all of them where the last job opened all; `all` the whole data set from the start.
    /// Default auto.
    pub(super) ahead: Option<Given<OneOf<Extent>>>,
    /// `auto` keeps the list of files that a job opened in its first minutes, and fetches these
    /// first for the next job; `off` keeps none. Default auto.
    pub(super) working_set: Option<Given<OneOf<WorkingSets>>>,
    /// Share of the time in which a task of the job waits for memory (the kernel's PSI of the job's
    /// control group, over 10 s). Above it files are prefetched one at a time, and none into
    /// memory, until it is below half of this. Readers get their copies as ever. none: prefetch
    /// goes on at full pace. Default 30%; above 0%, at most 100%.
    pub(super) max_memory_pressure: Option<Given<OrNone<Share>>>,
}

/// The index of names and attributes.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawIndex {
    /// Memory the index may take, as a size or a share of the job's memory limit; subtrees beyond
    /// are left to the PFS. Default 5%; at least 1MiB.
    pub(super) max_memory: Option<Given<SizeOrShare>>,
    /// `verify` compares each entry of a saved index with the PFS once before its first use;
    /// `frozen` asks nothing. Default verify.
    pub(super) trust: Option<Given<OneOf<Trust>>>,
    /// A saved index to start from, absolute. Default: none, the data set is scanned.
    pub(super) file: Option<Given<Location>>,
    /// Threads that scan the data set. Default 16; 1 to 256.
    pub(super) scan_threads: Option<Given<Count>>,
    /// Whether nodes that wait for the index read directories for the node that scans, up to 32
    /// nodes, each with up to scan_threads calls at a time (16 at most) and within its own limit of
    /// calls. Default false.
    pub(super) shared_scan: Option<Given<Toggle>>,
    /// What is done about directories that max_memory does not suffice for: `off` leaves them to
    /// the PFS; with `auto` the nodes of the job hold their entries, each directory on one node,
    /// read when a process first needs it, in up to half of max_memory more. Default off.
    pub(super) distributed: Option<Given<OneOf<Distributed>>>,
}

/// How long a reader waits for a copy before it reads the PFS itself: pickup < stall <= max_wait.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawWait {
    /// The agent has not taken the request. Default 50ms; at least 1ms.
    pub(super) pickup: Option<Given<Time>>,
    /// A live agent makes no progress. Default 2s.
    pub(super) stall: Option<Given<Time>>,
    /// The agent itself waits for the PFS. Default 120s; at most 1h.
    pub(super) max_wait: Option<Given<Time>>,
    /// A reader to whom single chunks are of no use (fopen, sendfile) waits for the rest of a large
    /// file if it is expected within this time. Default 2s; 0s to 1h.
    pub(super) complete: Option<Given<Time>>,
    /// The longest wait of a mapping for the rest of a large file, where that is quicker than its
    /// page faults would be. Default 30s; 0s (never) to 1h.
    pub(super) map: Option<Given<Time>>,
}

/// What the agent tells monitoring systems: docs/METRICS.md.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawMetrics {
    /// Where Prometheus gets the metrics: a port (on 127.0.0.1) or an address with a port, such as
    /// 127.0.0.1:9464; port 0: one that is free, which `monarch status` tells; off: nowhere.
    /// Any program that reaches the port may read the metrics. Default off.
    pub(super) listen: Option<Given<Listener>>,
    /// File for the textfile collector of node_exporter, absolute, with the suffix .prom; or a
    /// directory, in which each agent has a file of its own. Default: none.
    pub(super) textfile: Option<Given<Location>>,
    /// How often the file is written. Default 15s; 1s to 1h.
    pub(super) interval: Option<Given<Time>>,
}

/// The agent's log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawLog {
    /// The least severe messages that are written. Default info.
    pub(super) level: Option<Given<OneOf<LogLevel>>>,
}

/// What `monarch run` does.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawRun {
    /// Whether a job that Monarch cannot serve is not started: `run` then ends with exit code 3
    /// before its command, and a shell that evaluates `monarch env` ends with it. Otherwise the job
    /// runs, and reads the PFS itself. Also --strict. Default false.
    pub(super) strict: Option<Given<Toggle>>,
    /// File to which each job appends a line of JSON at its end: user, job, node, roots, bytes read
    /// and bytes that the PFS sent. Absolute; or a directory, in which each user has a file of
    /// their own. Default: none.
    pub(super) accounting: Option<Given<Location>>,
    /// Whether shared libraries and extension modules below a root are mapped from their copies, by
    /// an audit library (`LD_AUDIT`) in the processes of the job. `auto`: if the agent knows of
    /// libraries below a root when the job starts, or the program or a search path (`PATH`,
    /// `VIRTUAL_ENV`, `CONDA_PREFIX`, `PYTHONPATH`, `LD_LIBRARY_PATH`) leads below one. `on`,
    /// `off`. Default auto.
    pub(super) libraries: Option<Given<OneOf<Libraries>>>,
    /// How long `monarch run` waits at the end of the command until what it wrote below `outputs`
    /// is published; what is not stays on the node, for the next job there or `monarch recover`.
    /// Default none: as long as it takes; 0s to 30d.
    pub(super) output_wait: Option<Given<OrNone<Time>>>,
    /// Whether changes that programs make by raw system calls are caught, which no preload library
    /// sees: renames of safetensors from 0.8, all of programs in Go. `seccomp`: by a filter in the
    /// command's processes, for the calls alone that change names or attributes; it needs Linux
    /// 5.19, and takes from setuid programs the rights that they would gain. Only by `run`. `off`.
    /// Also --raw-calls. Default off.
    pub(super) raw_calls: Option<Given<OneOf<RawCalls>>>,
}
