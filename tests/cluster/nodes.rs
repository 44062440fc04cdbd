//! Promises of nodes that share copies: each byte leaves the PFS once; a failure costs a bounded
//! wait and never a byte.

#[path = "nodes/again.rs"]
mod again;
#[path = "nodes/attacker.rs"]
mod attacker;
#[path = "nodes/batches.rs"]
mod batches;
#[path = "nodes/changes.rs"]
mod changes;
#[path = "nodes/damage.rs"]
mod damage;
#[path = "nodes/distributed.rs"]
mod distributed;
#[path = "nodes/failures.rs"]
mod failures;
#[path = "nodes/large.rs"]
mod large;
#[path = "nodes/operator.rs"]
mod operator;
#[path = "nodes/outputs.rs"]
mod outputs;
#[path = "nodes/secrets.rs"]
mod secrets;
#[path = "nodes/security.rs"]
mod security;
#[path = "nodes/shared_scan.rs"]
mod shared_scan;
#[path = "nodes/slow.rs"]
mod slow;
#[path = "nodes/stage.rs"]
mod stage;
#[path = "nodes/traffic.rs"]
mod traffic;
#[path = "nodes/working_set.rs"]
mod working_set;

use crate::harness::Running;
use crate::node::Node;
use crate::plan::Plan;
use crate::reads::{Outcome, Reads};
use crate::wait::wait_for;
use crate::world::Cluster;
use monarch_core::cluster::node::{NodeStatus, Said};
use std::path::PathBuf;

/// The three ways to spread copies.
pub const PLACEMENTS: [&str; 3] = ["sharded", "replicated", "hybrid"];

/// Seconds that a read may take while something fails: it may wait for the agent (`wait.stall`, 2
/// s), which may wait for peers (`peer_timeout` each), on a machine that is busy with other tests.
/// `tests/nodes.sh` tests the promise itself where nothing else runs: 2 s and the read from the
/// PFS.
pub fn bound() -> f64 {
    let set = std::env::var("MONARCH_CLUSTER_BOUND").ok().and_then(|s| s.parse().ok());
    set.unwrap_or(12.0)
}

/// For tests that count calls exactly: timeouts that do not fire on a machine that is busy with
/// other tests, and so many directories that a second scan differs from agents that look at the
/// root.
pub fn patient(plan: Plan) -> Plan {
    plan.dirs(60).set("wait.pickup=5s").set("wait.stall=20s").cluster("peer_timeout: 20s")
}

/// Asserts that the PFS saw one job: every file opened once and read once, every directory listed
/// once (every agent looks at the root).
#[track_caller]
pub fn read_once(c: &Cluster, mark: &slowfs::Counters) {
    let seen = c.since(mark);
    assert_eq!((seen.open, seen.bytes_read), (c.files(), c.bytes()), "{seen:#?}");
    assert_one_scan(c, &seen);
}

/// Asserts that every directory was opened once, beside the looks at the root by each agent.
#[track_caller]
pub fn assert_one_scan(c: &Cluster, seen: &slowfs::Counters) {
    assert!(
        seen.opendir >= c.dirs() && seen.opendir <= c.dirs() + 3 * c.len() as u64,
        "{} directories: {seen:#?}",
        c.dirs()
    );
}

/// Asserts that no read took longer than `seconds`.
#[track_caller]
pub fn within(seconds: f64, outcomes: &[Outcome]) {
    let slowest = outcomes.iter().map(Outcome::slowest).fold(0.0, f64::max) / 1000.0;
    assert!(slowest < seconds, "a read took {slowest} s: {outcomes:#?}");
}

/// Jobs on all nodes that read until the test ends them.
pub struct Steady {
    pub c: Cluster,
    over: PathBuf,
    jobs: Vec<Running>,
}

impl Steady {
    pub fn start(c: Cluster) -> Self {
        let over = c.shared().join("over");
        let jobs = c.start_indexed(0..c.len(), &Reads::until(&over));
        Self { c, over, jobs }
    }
    fn epochs(&self, job: usize) -> usize {
        self.jobs[job].written().matches("\"epoch\"").count()
    }
    /// Waits until every job has read some more epochs.
    #[track_caller]
    pub fn more(&self, n: usize) {
        let want: Vec<usize> = (0..self.jobs.len()).map(|i| self.epochs(i) + n).collect();
        wait_for("more epochs", || want.iter().enumerate().all(|(i, n)| self.epochs(i) >= *n));
    }
    /// Ends the jobs; every byte was right.
    #[track_caller]
    pub fn end(self) -> (Cluster, Vec<Outcome>) {
        std::fs::write(&self.over, "").expect("own file");
        let outcomes = self.c.end(self.jobs);
        (self.c, outcomes)
    }
}

/// The accounts of the nodes in `monarch status --cluster --json` on one of them.
#[track_caller]
pub fn accounts(node: Node<'_>) -> Vec<Said<NodeStatus>> {
    let out = node.monarch("status").args(["--cluster", "--json"]).output().expect("monarch status");
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{}", String::from_utf8_lossy(&out.stderr)))
}

/// The account of one node.
#[track_caller]
pub fn account(node: Node<'_>) -> NodeStatus {
    accounts(node).remove(0).said.expect("its own account")
}

/// Waits until every node holds `files` files.
#[track_caller]
pub fn all_hold(c: &Cluster, files: u64) {
    for node in c.all() {
        wait_for("all copies", || account(node).held.0 >= files);
    }
}
