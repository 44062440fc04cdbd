//! A private world of several nodes: a network, one slow file system as the PFS of all, and for
//! each node its own tier, runtime directory and configuration.
//!
//! ```ignore
//! let Some(c) = Plan::new(3).files(60).placement("sharded").build() else { return };   // None: not root
//! let mark = c.mark();
//! let ended = c.together(&Reads::epochs(3).barrier(&c.barrier()));       // `monarch run -- nodes.py read ...` on every node
//! assert_eq!(c.since(&mark).open, c.files());                           // counted by the PFS, all nodes together
//! ```
//! | what | where |
//! |---|---|
//! | making one | `Plan::new` makes a plan: `files size dirs placement alone disk tier_size pfs set cluster`, then `build` |
//! | running | [`Cluster::start`], [`Cluster::start_all`], [`Cluster::skewed`] -> `Running`; [`Cluster::together`] waits for all of them |
//! | a node | [`Cluster::node`] gives a [`Node`]: its processes, its agent, its status and report |
//! | the network | [`Cluster::net`]: `rate delay cut join`; [`Cluster::lose`] deletes a node |
//! | the PFS | [`Cluster::mark`] and [`Cluster::since`]; [`Cluster::pfs`] is the `Slowfs` |
//!
//! The PFS keeps nothing in the page cache and all nodes share its attribute cache, so opens, reads
//! and bytes are exact, and metadata calls are a lower bound of what nodes with caches of their own
//! would make; `pfs(|b| b.attr_ttl(ZERO))` gives the upper.

use crate::harness::{Ended, Job, Running, sources};
use crate::leftovers;
use crate::net::Net;
use crate::node::Node;
use crate::reads::{Data, Outcome, Reads};
use crate::site::Site;
use crate::wait::wait_for;
use slowfs::{Counters, Slowfs};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// A private world of several nodes.
pub struct Cluster {
    pub(crate) site: Site,
    pub(crate) data: Data,
    pub(crate) serial: Cell<usize>,
    pub(crate) pfs: Slowfs,
    pub(crate) backing: PathBuf,
    pub(crate) disk: TempDir,
    pub(crate) shm: TempDir,
}

impl Cluster {
    /// Writes the whole data set with the bytes of this seed: another version of every file, from
    /// behind the PFS.
    pub fn make(&self, seed: &str) {
        let mut c = Command::new("python3");
        c.arg(sources().join("nodes.py")).arg("make").arg(&self.backing).args(self.data.words()).args(["--seed", seed]);
        Running::new(c).end().good();
    }

    pub fn net(&self) -> &Net {
        &self.site.net
    }
    pub fn pfs(&self) -> &Slowfs {
        &self.pfs
    }
    /// What jobs read.
    pub fn root(&self) -> &Path {
        &self.site.root
    }
    /// The directory behind the slow file system.
    pub fn backing(&self) -> &Path {
        &self.backing
    }
    pub fn data(&self) -> &Data {
        &self.data
    }
    /// Files of the data set.
    pub fn files(&self) -> u64 {
        self.data.files as u64
    }
    /// Directories of the data set, the root included: what one scan lists.
    pub fn dirs(&self) -> u64 {
        self.data.dirs as u64 + 1
    }
    /// Bytes of the data set.
    pub fn bytes(&self) -> u64 {
        let dirs = fs::read_dir(&self.backing).expect("own directory").flatten();
        let files = dirs.flat_map(|d| fs::read_dir(d.path()).expect("own directory").flatten());
        files.map(|f| f.metadata().expect("own file").len()).sum()
    }
    pub fn len(&self) -> usize {
        self.site.nodes
    }
    pub fn node(&self, index: usize) -> Node<'_> {
        assert!(index < self.site.nodes, "node {index} of {}", self.site.nodes);
        Node { site: &self.site, index }
    }
    pub fn all(&self) -> impl Iterator<Item = Node<'_>> {
        (0..self.site.nodes).map(|i| self.node(i))
    }

    /// A place on disk that all nodes see, outside the data set.
    pub fn shared(&self) -> &Path {
        &self.site.shared
    }

    /// From now on a node's processes find that directory where the others find the PFS.
    pub fn mount(&self, node: usize, dir: &Path) {
        self.site.mounted.borrow_mut().push((node, dir.to_owned()));
    }

    /// A new directory for the barriers of one set of jobs.
    pub fn barrier(&self) -> PathBuf {
        self.serial.set(self.serial.get() + 1);
        let dir = self.shared().join(format!("barrier{}", self.serial.get()));
        fs::create_dir(&dir).expect("own directory");
        dir
    }

    /// Starts a job on one node.
    pub fn start(&self, node: usize, reads: &Reads) -> Running {
        self.node(node).start(&self.job(node, reads))
    }
    fn job(&self, node: usize, reads: &Reads) -> Job {
        reads.job(&self.site.root, &self.data, node, self.site.nodes)
    }
    /// Starts a job on all nodes at once.
    pub fn start_all(&self, reads: &Reads) -> Vec<Running> {
        self.skewed(reads, Duration::ZERO)
    }
    /// Starts a job on all nodes, one after the other.
    pub fn skewed(&self, reads: &Reads, gap: Duration) -> Vec<Running> {
        let start = |i: usize| {
            std::thread::sleep(if i == 0 { Duration::ZERO } else { gap });
            self.start(i, reads)
        };
        (0..self.site.nodes).map(start).collect()
    }
    /// Starts a job on these nodes that begins to read when their agents have the index: files
    /// opened before are read from the PFS, by any job.
    pub fn start_indexed(&self, nodes: impl IntoIterator<Item = usize>, reads: &Reads) -> Vec<Running> {
        let start = |i: usize| (i, self.node(i).start(&self.job(i, reads).announced()));
        let mut all: Vec<(usize, Running)> = nodes.into_iter().map(start).collect();
        all = all.into_iter().map(|(i, job)| (i, announced(job))).collect();
        all.iter().for_each(|(i, _)| self.node(*i).indexed());
        all.iter_mut().for_each(|(_, job)| job.begin());
        all.into_iter().map(|(_, job)| job).collect()
    }
    /// [`Cluster::start_indexed`] on all nodes, to the end.
    #[track_caller]
    pub fn together(&self, reads: &Reads) -> Vec<Outcome> {
        self.end(self.start_indexed(0..self.site.nodes, reads))
    }
    /// Waits for jobs, which must have ended well.
    #[track_caller]
    pub fn end(&self, jobs: Vec<Running>) -> Vec<Outcome> {
        let ended: Vec<Ended> = jobs.into_iter().map(|job| job.end().good()).collect();
        ended.iter().map(Outcome::of).collect()
    }

    /// A node is lost; barriers do not wait for it any more.
    pub fn lose(&self, node: usize) {
        self.site.net.delete(node);
        for i in 1..=self.serial.get() {
            fs::write(self.shared().join(format!("barrier{i}/gone.{node}")), "").expect("own file");
        }
    }

    /// The counters of the PFS so far.
    pub fn mark(&self) -> Counters {
        self.pfs.counters().expect("slowfs")
    }
    /// Waits until no node reads from the PFS: all fetches have completed.
    pub fn quiet(&self) {
        wait_for("a quiet PFS", || {
            let mark = self.mark();
            std::thread::sleep(Duration::from_millis(300));
            self.since(&mark).bytes_read == 0
        });
    }
    /// The counters of the PFS since a mark.
    pub fn since(&self, mark: &Counters) -> Counters {
        self.mark() - *mark
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.all() {
            if std::thread::panicking() {
                eprintln!("log of node {}:\n{}", node.index, node.log_tail());
            }
            // Before the file system that the processes read is unmounted.
            leftovers::end(&self.site.net.name(node.index));
        }
    }
}

/// Waits until an announced job has started; when it has ended instead, panics with its output.
#[track_caller]
fn announced(job: Running) -> Running {
    let ended = || fs::read_to_string(format!("/proc/{}/stat", job.pid())).is_ok_and(|s| s.contains(") Z "));
    wait_for("a job", || job.written().contains("ready") || ended());
    if job.written().contains("ready") {
        return job;
    }
    panic!("no job: {:?}", job.end().good());
}
