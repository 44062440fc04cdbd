//! What the command line and the agent say to each other: one JSON object a line over a Unix
//! socket.
//!
//! An `attach` lasts as long as its connection; when the last one is gone, the agent ends after a
//! short while.

use crate::cluster::node::{Link, NodeStatus, Said};
use crate::config::Config;
use crate::tier::PackedUsage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
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
        /// Files that it can write from its start.
        #[serde(default)]
        writable: Vec<Writable>,
    },
    /// Say how things are.
    Status,
    /// Copy what lies in these ranges in the background, behind what readers wait for; files on
    /// tape only where they are a range of their own.
    Prefetch {
        /// Which entries.
        ranges: Vec<Range>,
    },
    /// Say how far the copies of what lies in these ranges are.
    Census {
        /// Which entries.
        ranges: Vec<Range>,
        /// Whether to say how much of what is not there will fit.
        plan: bool,
        /// How many files that went wrong are named.
        list: usize,
    },
    /// Drop the copies of what lies in these ranges.
    Evict {
        /// Which entries.
        ranges: Vec<Range>,
        /// Also those of an earlier job that no file of this one's roots has claimed.
        unclaimed: bool,
        /// Of those, the ones with these names.
        #[serde(default)]
        copies: Vec<String>,
    },
    /// Scan these roots again: what others have changed there is seen from then on.
    Refresh {
        /// Their real paths.
        roots: Vec<PathBuf>,
    },
    /// Write what readers open to a file, as long as this connection lasts; or end that now. The
    /// descriptor of the file comes with the request: the agent, which may see another file at
    /// a path than who asks, opens none.
    Trace {
        /// What messages call the file; `None` ends it.
        path: Option<PathBuf>,
    },
    /// What the nodes that share copies say of themselves, or of their links.
    Cluster {
        /// Of their links.
        check: bool,
    },
    /// The job of this connection has ended, and no other follows on this node: an agent without
    /// jobs need not wait for one.
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
    pub(crate) const fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Files by what has become of their copies. Every file of the ranges is in one group.
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
    /// Changed a moment ago: copied once `dataset.settle` has passed.
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

/// What the nodes that share copies say.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterView {
    /// This node works alone.
    Alone,
    /// Of themselves, the one that was asked first.
    Nodes(Vec<Said<NodeStatus>>),
    /// Of their links.
    Links(Vec<Said<Vec<Link>>>),
}

/// What a trace came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// Opens that were written.
    pub opens: u64,
    /// Opens that were too many at a time.
    pub lost: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Why it ends early, if it does.
    pub failed: Option<String>,
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

/// A way to write the path of a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spelling {
    /// The path.
    pub path: PathBuf,
    /// The same with every symbolic link followed; `None` when it leads nowhere.
    pub real: Option<PathBuf>,
}

/// A regular file that a process can write through a descriptor that it has: nothing tells when
/// that happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writable {
    /// Its path as the kernel tells it, in the mount through which it was opened. Not every path is
    /// text.
    pub path: Vec<u8>,
    /// Its device.
    pub dev: u64,
    /// Its inode.
    pub ino: u64,
    /// Its names.
    pub links: u64,
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
    /// How far copies are.
    Census(Box<Census>),
    /// It was done, or begun.
    Tally(Tally),
    /// What a trace came to.
    Traced(Traced),
    /// What the nodes say.
    Cluster(Box<ClusterView>),
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
    /// Copy engine for what is fetched ahead: `uring`, `threads`, or `auto` when each root has its
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
    /// How fetching ahead goes.
    #[serde(default)]
    pub prefetch: Ahead,
    /// Where its metrics are.
    #[serde(default)]
    pub metrics: MetricsStatus,
    /// How long its opens at the PFS took.
    #[serde(default)]
    pub pfs_opens: Vec<Opens>,
    /// The roots.
    pub roots: Vec<RootStatus>,
    /// The tiers.
    pub tiers: Vec<TierStatus>,
    /// Counters of all processes since the control block was made, by name.
    pub counters: BTreeMap<String, u64>,
    /// Counters of this agent since it started, by name.
    pub agent: BTreeMap<String, u64>,
}

/// Opens at the PFS that took about as long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Opens {
    /// At most so long, and longer than the ones before; `None`: longer than any of them.
    pub up_to_s: Option<f64>,
    /// How many.
    pub opens: u64,
}

/// Where an agent's metrics are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsStatus {
    /// The page that Prometheus reads.
    pub url: Option<String>,
    /// The file that node_exporter reads.
    pub textfile: Option<PathBuf>,
    /// Why one of them is missing.
    pub trouble: Option<String>,
}

/// How a root is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RootStatus {
    /// Its real path.
    pub path: PathBuf,
    /// `scanning`, `ready`, `failed: ...`.
    pub state: String,
    /// What is promised when others change its files.
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
    /// Files that look as if they were on tape: they are fetched on demand only.
    #[serde(default)]
    pub released: u64,
    /// Their bytes.
    #[serde(default)]
    pub released_bytes: u64,
    /// Files that the site will soon remove, if `source.purge_age` says when it does.
    #[serde(default)]
    pub near_purge: Option<NearPurge>,
    /// The directories below it that cost the PFS most, or from which most was read, first.
    #[serde(default)]
    pub directories: Vec<Directory>,
}

/// What was opened in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// Below the root.
    #[serde(serialize_with = "crate::shown::serial::path")]
    pub path: PathBuf,
    /// Opens of its files.
    pub opens: u64,
    /// Bytes of the files that were opened.
    pub bytes: u64,
    /// Opens that went to the PFS.
    pub pfs: u64,
    /// Bytes of the files that those opened.
    pub pfs_bytes: u64,
}

impl RootStatus {
    /// What the user should know of its files, one line each.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        let tape = (self.released > 0).then(|| {
            let (n, bytes) = (self.released, bytesize::ByteSize(self.released_bytes));
            format!("{n} files ({bytes}) released to tape: fetched on demand only")
        });
        tape.into_iter().chain(self.near_purge.map(|near| near.to_string())).collect()
    }
}

/// Why opens of indexed files went to the PFS, by the names of their counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Why {
    /// There was no index yet.
    pub absent: u64,
    /// The copy of a large file was not complete.
    pub large: u64,
    /// No copy is taken of it for a while.
    pub refused: u64,
    /// The tiers have no room.
    pub no_room: u64,
    /// Changed since the scan, or not readable.
    pub changed: u64,
    /// The job writes it.
    pub written: u64,
    /// A clock ran out.
    pub deadline: u64,
    /// The copy had gone.
    pub vanished: u64,
}

impl Why {
    /// What has been added to an earlier count.
    #[must_use]
    pub const fn since(&self, b: &Self) -> Self {
        Self {
            absent: self.absent.saturating_sub(b.absent),
            large: self.large.saturating_sub(b.large),
            refused: self.refused.saturating_sub(b.refused),
            no_room: self.no_room.saturating_sub(b.no_room),
            changed: self.changed.saturating_sub(b.changed),
            written: self.written.saturating_sub(b.written),
            deadline: self.deadline.saturating_sub(b.deadline),
            vanished: self.vanished.saturating_sub(b.vanished),
        }
    }
}

/// One pass over the files of a root, as the agent saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Counted from 1, or as the job counts.
    pub number: u32,
    /// Whether the next one has begun.
    pub complete: bool,
    /// From the first open to the first one of the next epoch, or so far to the last one.
    pub seconds: f64,
    /// Opens.
    pub opens: u64,
    /// Bytes of the files that were opened.
    pub bytes: u64,
    /// Opens that found a copy.
    pub local: u64,
    /// Opens that waited for one.
    pub waited: u64,
    /// Opens of large files that were served in chunks.
    pub chunked: u64,
    /// Opens that went to the PFS.
    pub pfs: u64,
    /// Bytes of the files that those opened.
    pub pfs_bytes: u64,
    /// Seconds that readers waited for copies, all together.
    pub wait_s: f64,
    /// Files copied from the PFS meanwhile (all roots).
    pub copied: u64,
    /// Bytes copied from the PFS meanwhile (all roots).
    pub bytes_copied: u64,
    /// Why opens went to the PFS meanwhile (all roots; a process counts before the agent hears of
    /// an open, so that some are an epoch late or early).
    #[serde(default)]
    pub why: Why,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.complete { "" } else { " so far" };
        let local = 100.0 * (self.local + self.waited) as f64 / self.opens.max(1) as f64;
        write!(f, "epoch {}{state}: {} opens in {:.1} s, {local:.1} % local", self.number, self.opens, self.seconds)?;
        if self.pfs > 0 {
            write!(f, ", {} at the PFS ({})", self.pfs, bytesize::ByteSize(self.pfs_bytes))?;
        }
        if self.waited > 0 {
            write!(f, ", waited {:.1} s for {}", self.wait_s, self.waited)?;
        }
        if self.chunked > 0 {
            write!(f, ", {} in chunks", self.chunked)?;
        }
        if self.bytes_copied > 0 {
            write!(f, "; {} copied", bytesize::ByteSize(self.bytes_copied))?;
        }
        Ok(())
    }
}

impl Epoch {
    /// Counts what was counted apart.
    pub(crate) const fn add(&mut self, more: &Self) {
        self.opens += more.opens;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.local += more.local;
        self.waited += more.waited;
        self.chunked += more.chunked;
        self.pfs += more.pfs;
        self.pfs_bytes = self.pfs_bytes.saturating_add(more.pfs_bytes);
    }
}

/// Files that the site will soon remove, because nobody has read them on the PFS for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearPurge {
    /// How many: four fifths of `purge_days` have passed.
    pub files: u64,
    /// Days since the first of them was read.
    pub oldest_days: u64,
    /// Days after which the site removes a file.
    pub purge_days: u64,
}

impl fmt::Display for NearPurge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, oldest_days, purge_days } = self;
        write!(
            f,
            "{files} files have not been read on the PFS for up to {oldest_days} days, and this site removes them after \
             {purge_days} (source.purge_age): ask it to keep them, or move the data set to storage that is not purged"
        )
    }
}

/// How fetching ahead goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Ahead {
    /// Nothing is to be fetched.
    #[default]
    Idle,
    /// It goes on as configured.
    Running,
    /// The PFS answers slowly (`source.backoff`).
    Slowed {
        /// One in so many of the usual number of files is fetched at a time.
        divisor: usize,
        /// How long opens take now, microseconds.
        opens_us: u64,
        /// How long they took at best.
        best_us: u64,
    },
    /// The PFS answers with errors: one file at a time is tried.
    PfsFails {
        /// Seconds until the next try.
        next_try_s: u64,
    },
    /// No tier takes copies at present.
    TiersRest,
}

impl Ahead {
    /// What holds it up, if anything does.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        (!matches!(self, Self::Idle | Self::Running)).then(|| self.to_string())
    }
}

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: u64| {
            if us < 10_000 { format!("{:.1} ms", us as f64 / 1000.0) } else { format!("{} ms", us / 1000) }
        };
        match self {
            Self::Idle => f.write_str("nothing is left to prefetch"),
            Self::Running => f.write_str("prefetching goes on at full pace"),
            Self::Slowed { divisor, opens_us, best_us } => write!(
                f,
                "prefetching slowed to 1/{divisor}: opens at the PFS take {}, {} at best",
                ms(*opens_us),
                ms(*best_us)
            ),
            Self::PfsFails { next_try_s } => {
                write!(f, "prefetching held back: the PFS fails; next try in {next_try_s} s")
            }
            Self::TiersRest => {
                f.write_str("prefetching held back: no tier takes copies (their disks are full, or an error)")
            }
        }
    }
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
    /// Those of them that are packed.
    #[serde(default)]
    pub packed: PackedUsage,
    /// Whether it rests after an error.
    pub resting: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_up_prefetching_is_told_with_its_figures() {
        let slowed = Ahead::Slowed { divisor: 4, opens_us: 480_900, best_us: 12_000 };
        assert_eq!(slowed.to_string(), "prefetching slowed to 1/4: opens at the PFS take 480 ms, 12 ms at best");
        let fails = Ahead::PfsFails { next_try_s: 7 };
        assert_eq!(fails.trouble().as_deref(), Some("prefetching held back: the PFS fails; next try in 7 s"));
        assert_eq!((Ahead::Idle.trouble(), Ahead::Running.trouble()), (None, None));
        let json = serde_json::to_value(&slowed).unwrap();
        assert_eq!((json["state"].as_str(), json["divisor"].as_u64()), (Some("slowed"), Some(4)));
        assert_eq!(serde_json::from_value::<Ahead>(json).unwrap(), slowed);
    }
}
