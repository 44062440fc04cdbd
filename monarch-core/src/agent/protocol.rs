//! Messages of the control socket: a request and its reply, one JSON object a line over a Unix
//! socket.
//!
//! An `attach` lasts as long as its connection; when the last one is gone, the agent ends after a
//! short while. Replies carry the snapshots of [`crate::snapshot`].

pub use crate::snapshot::{
    Ahead, Census, Directory, Epoch, FromCopies, JobCounters, Load, MetricsStatus, NamesStatus, NearPurge, Opens,
    OutputStatus, PendingEntry, PendingState, Range, RootStatus, Savings, Status, Tally, TierStatus, Traced, Trouble,
    Why, percent,
};

use crate::cluster::node::{Link, NodeStatus, Said};
use crate::config::Config;
use serde::{Deserialize, Serialize};
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
        /// Group of its counters at the agent that has gone; 0: none.
        #[serde(default)]
        counter_group: usize,
    },
    /// Report the state of the agent.
    Status,
    /// Give the agent's page of metrics, if it is to be served on this port.
    Metrics {
        /// The port of the agent that asks.
        port: u16,
    },
    /// Copy the files of these ranges in the background, behind those that readers wait for; files
    /// on tape only where they are a range of their own.
    Prefetch {
        /// Which entries.
        ranges: Vec<Range>,
    },
    /// Report the state of the copies of these ranges.
    Census {
        /// Which entries.
        ranges: Vec<Range>,
        /// Whether to count how many of the files without a copy will fit.
        plan: bool,
        /// How many failed files are named.
        list: usize,
    },
    /// Drop the copies of these ranges.
    Evict {
        /// Which entries.
        ranges: Vec<Range>,
        /// Also those of an earlier job that no file of this one's roots has claimed.
        unclaimed: bool,
        /// Of those, the ones with these names.
        #[serde(default)]
        copies: Vec<String>,
    },
    /// Scan these roots again: changes by other users are seen from then on.
    Refresh {
        /// Their real paths.
        roots: Vec<PathBuf>,
    },
    /// Write what readers open to a file, as long as this connection lasts; or end that now. The
    /// descriptor of the file comes with the request: the agent, which may see another file at a
    /// path than the client, opens none.
    Trace {
        /// Name of the file in messages; `None` ends the trace.
        path: Option<PathBuf>,
    },
    /// Report the accounts of the nodes that share copies, or of their links.
    Cluster {
        /// Whether links are asked for.
        check: bool,
    },
    /// Report what is pending below output roots.
    Outputs {
        /// Their real paths; none: all of them.
        #[serde(default)]
        roots: Vec<PathBuf>,
    },
    /// Publish as soon as possible what is pending below output roots; answered when that is begun.
    Flush {
        /// Their real paths; none: all of them.
        #[serde(default)]
        roots: Vec<PathBuf>,
        /// Files below them that processes have open for writing, of which a snapshot is published.
        #[serde(default)]
        open: Vec<PathBuf>,
    },
    /// The job of this connection has ended, and no other follows on this node: an agent without
    /// jobs need not wait for one.
    Leave,
    /// End now.
    Stop,
}

/// A reply.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The job is served.
    Attached {
        /// The control block that the shim maps.
        control: PathBuf,
        /// Group of the job's counters in that block; 0: the job has none of its own.
        #[serde(default)]
        counter_group: usize,
    },
    /// State of the agent.
    Status(Box<Status>),
    /// A page of metrics; `None` if the agent serves none on that port.
    Metrics {
        /// The page.
        page: Option<String>,
    },
    /// State of copies.
    Census(Box<Census>),
    /// The request was served, or begun: files and bytes.
    Tally(Tally),
    /// Size of a trace.
    Traced(Traced),
    /// State of output roots.
    Outputs {
        /// One for each of them.
        outputs: Vec<OutputStatus>,
    },
    /// Accounts of the nodes.
    Cluster(Box<ClusterView>),
    /// The agent ends.
    Stopping,
    /// The request failed.
    Error {
        /// Why, and what to do.
        message: String,
    },
}

/// Accounts of the nodes that share copies.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterView {
    /// This node works alone.
    Alone {
        /// Why, if its job names other nodes.
        why: Option<String>,
    },
    /// Accounts of the nodes; the one that was asked comes first.
    Nodes(Vec<Said<NodeStatus>>),
    /// Accounts of their links.
    Links(Vec<Said<Vec<Link>>>),
}

/// A way to write the path of a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spelling {
    /// The path.
    pub path: PathBuf,
    /// The same with every symbolic link followed; `None` when it leads nowhere.
    pub real: Option<PathBuf>,
}

/// A regular file that a process can write through a descriptor that it has: no report says when it
/// does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writable {
    /// Its path as the kernel reports it, in the mount through which it was opened. Not every path
    /// is text.
    pub path: Vec<u8>,
    /// Its device.
    pub dev: u64,
    /// Its inode.
    pub ino: u64,
    /// Its names.
    pub links: u64,
}
