//! Failures on or between nodes: the jobs read every byte right, wait for a bounded time, and end
//! well.

use super::{account, bound, patient, within};
use crate::harness::{Job, Running};
use crate::plan::Plan;
use crate::reads::{Outcome, Reads};
use crate::wait::wait_for;
use crate::world::Cluster;
use slowfs::{FaultKind, FaultSpec, Op};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Three nodes that read until the test ends them. 4.8 MB of files, 4 MiB of tier each: no node
/// holds everything, so that peers are asked all the time.
struct Busy {
    c: Cluster,
    over: PathBuf,
    jobs: Vec<Running>,
}

impl Busy {
    fn start(plan: Plan) -> Option<Self> {
        let c = plan.files(120).tier_size("4MiB").cluster("join_timeout: 5s").build()?;
        let over = c.shared().join("over");
        let jobs = c.start_indexed(0..c.len(), &Reads::until(&over));
        Some(Self { c, over, jobs })
    }
    /// Epochs that a job has read.
    fn epochs(&self, job: usize) -> usize {
        self.jobs[job].written().matches("\"epoch\"").count()
    }
    /// Waits until every job has read some more epochs.
    #[track_caller]
    fn more(&self, n: usize) {
        let want: Vec<usize> = (0..self.jobs.len()).map(|i| self.epochs(i) + n).collect();
        wait_for("more epochs", || want.iter().enumerate().all(|(i, n)| self.epochs(i) >= *n));
    }
    #[track_caller]
    fn end(self) -> (Cluster, Vec<Outcome>) {
        fs::write(&self.over, "").unwrap();
        let outcomes = self.c.end(self.jobs);
        within(bound(), &outcomes);
        (self.c, outcomes)
    }
}

#[test]
fn an_agent_is_killed_while_all_read() {
    for placement in ["sharded", "hybrid"] {
        let Some(busy) = Busy::start(Plan::new(3).placement(placement)) else { return };
        let mark = busy.c.mark();
        for victim in [1, 2, 1] {
            let old = busy.c.node(victim).signal(libc::SIGKILL);
            busy.c.node(victim).successor(old);
            busy.more(1);
        }
        let seen = busy.c.since(&mark);
        // No node reads everything again because one agent was away for a moment.
        assert!(seen.open < 4 * busy.c.files(), "{placement}: {seen:#?}");
        let opens_nothing = || {
            let mark = busy.c.mark();
            busy.more(2);
            busy.c.since(&mark).open == 0
        };
        // (A busy machine is late with some.)
        assert!((0..10).any(|_| opens_nothing()), "{placement}: not everything is shared again");
        busy.end();
    }
}

#[test]
fn an_agent_is_killed_in_the_first_epoch() {
    let slow = |b: slowfs::Builder| b.data_latency(Duration::from_millis(20));
    let Some(busy) = Busy::start(Plan::new(3).placement("hybrid").pfs(slow)) else { return };
    let old = busy.c.node(1).signal(libc::SIGKILL);
    busy.more(1);
    assert_ne!(busy.c.node(1).successor(old), old);
    busy.end();
}

#[test]
fn a_node_is_lost_for_good() {
    let Some(mut busy) = Busy::start(Plan::new(3).placement("sharded")) else { return };
    busy.more(1);
    let mark = busy.c.mark();
    busy.c.lose(1);
    drop(busy.jobs.remove(1));
    busy.more(3);
    let seen = busy.c.since(&mark);
    // Its third has new owners, which read it once; files under way may be read twice.
    assert!(seen.open < busy.c.files(), "{seen:#?}");
    let mark = busy.c.mark();
    busy.more(2);
    assert_eq!(busy.c.since(&mark).open, 0, "the files of the lost node have no new owner");
    busy.end();
}

#[test]
fn a_link_is_cut_and_joined() {
    let Some(busy) = Busy::start(Plan::new(3).placement("sharded")) else { return };
    busy.more(1);
    busy.c.net().cut(1);
    busy.more(2);
    busy.c.net().join(1);
    wait_for("the nodes to share again", || {
        let mark = busy.c.mark();
        busy.more(2);
        busy.c.since(&mark).open == 0
    });
    busy.end();
}

#[test]
fn a_link_is_slow() {
    // Each file takes 250 to 400 ms over a link of 1 Mbit/s: longer than its readers wait for it.
    let plan = Plan::new(3).placement("sharded").cluster("peer_timeout: 200ms");
    let Some(busy) = Busy::start(plan) else { return };
    busy.more(1);
    busy.c.net().rate(1, 1);
    // The files of the other nodes take 26 s over such a link. After a file that came too late its
    // holder is asked for none for 1 s, 2 s, 4 s ... (CLUSTER.md). (In one of three epochs at
    // least: the machine may be busy.)
    let epoch = || {
        let start = std::time::Instant::now();
        busy.more(1);
        start.elapsed()
    };
    assert!((0..3).any(|_| epoch() < Duration::from_secs(20)), "no epoch was faster than the link");
    busy.c.net().unshaped(1);
    busy.end();
}

#[test]
fn a_link_is_slow_from_the_start() {
    let plan = Plan::new(3).files(60).placement("hybrid").cluster("peer_timeout: 1s");
    let Some(c) = plan.build() else { return };
    c.net().rate(2, 1);
    within(bound(), &c.end(c.start_all(&Reads::epochs(2))));
}

#[test]
fn an_agent_is_stopped() {
    let Some(busy) = Busy::start(Plan::new(3).placement("sharded")) else { return };
    busy.more(1);
    let pid = busy.c.node(1).signal(libc::SIGSTOP);
    // Its own job and the other jobs.
    busy.more(1);
    busy.c.node(1).signal(libc::SIGCONT);
    busy.more(1);
    assert_eq!(busy.c.node(1).agent(), Some(pid));
    busy.end();
}

#[test]
fn all_links_are_cut_before_any_node_starts() {
    let plan = Plan::new(3).files(60).cluster("join_timeout: 1s").cluster("peer_timeout: 200ms");
    let Some(c) = plan.build() else { return };
    (0..3).for_each(|i| c.net().cut(i));
    let mark = c.mark();
    within(bound(), &c.end(c.start_all(&Reads::epochs(2))));
    // As three nodes that know nothing of each other: two epochs each before they have an index,
    // and the files that they prefetch then.
    assert!(c.since(&mark).open <= 9 * c.files(), "{:#?}", c.since(&mark));
}

#[test]
fn a_node_with_another_secret_works_alone() {
    let plan = Plan::new(3).files(60).placement("sharded").cluster("join_timeout: 2s").cluster("peer_timeout: 500ms");
    let Some(c) = plan.build() else { return };
    c.node(2).configure("another");
    let mark = c.mark();
    let outcomes = c.together(&Reads::epochs(3).barrier(&c.barrier()));
    within(bound(), &outcomes);
    let seen = c.since(&mark);
    // Once for the two, once for the third.
    assert!(seen.open >= 2 * c.files() && seen.open < 3 * c.files(), "{seen:#?}");
}

#[test]
fn a_node_that_comes_back_is_taken_up_again() {
    let Some(mut busy) = Busy::start(Plan::new(3).placement("sharded")) else { return };
    busy.more(1);
    drop(busy.jobs.remove(1));
    wait_for("the end of its agent", || busy.c.node(1).agent().is_none());
    busy.more(1);
    let again = busy.c.start_indexed([1], &Reads::until(&busy.over));
    busy.jobs.extend(again);
    busy.more(2);
    let mark = busy.c.mark();
    busy.more(1);
    assert_eq!(busy.c.since(&mark).open, 0);
    busy.end();
}

/// No node takes bytes that are not those that the owner sent; once they arrive as they were sent,
/// it does.
#[test]
fn bytes_are_changed_on_their_way() {
    let Some(busy) = Busy::start(Plan::new(3).placement("sharded")) else { return };
    busy.more(1);
    busy.c.net().corrupt(1);
    busy.more(2);
    busy.c.net().sound(1);
    let damaged = account(busy.c.node(0)).damaged + account(busy.c.node(2)).damaged;
    assert!(damaged > 0, "nothing arrived damaged");
    wait_for("the nodes to share again", || {
        let mark = busy.c.mark();
        busy.more(2);
        busy.c.since(&mark).open == 0
    });
    // The copies themselves were sound.
    assert_eq!(account(busy.c.node(1)).found_damaged, 0);
    busy.end();
}

/// Its agent answers, so that no peer takes it for dead.
#[test]
fn a_scan_that_hangs_keeps_the_index_from_no_other_node() {
    let plan = Plan::new(3).files(60).placement("hybrid").cluster("join_timeout: 1s");
    let Some(c) = plan.build() else { return };
    let hangs = FaultSpec::new(FaultKind::STALL).ops(&[Op::Opendir]).path("d001").count(1);
    c.pfs().fault(hangs).unwrap();
    let over = c.shared().join("over");
    let jobs = c.start_all(&Reads::until(&over));
    let ready = |i: &usize| {
        let status = c.node(*i).status();
        status.is_some_and(|s| !s.roots.is_empty() && s.roots.iter().all(|r| r.state == "ready"))
    };
    wait_for("the index on two nodes", || (0..3).filter(ready).count() == 2);
    c.pfs().clear().unwrap();
    wait_for("the index on all nodes", || (0..3).all(|i| ready(&i)));
    fs::write(&over, "").unwrap();
    within(bound(), &c.end(jobs));
}

/// A path that is on the nodes' own disks: bytes of one node were read on another.
#[test]
fn a_node_with_other_files_works_alone() {
    let Some(c) = patient(Plan::new(3).files(60).placement("sharded")).build() else { return };
    let other = c.shared().join("other");
    let copied = std::process::Command::new("cp").arg("-r").arg(c.backing()).arg(&other).status().unwrap();
    assert!(copied.success());
    // As many bytes in each, but different ones.
    let turn = "import os, sys\nfor d, _, names in os.walk(sys.argv[1]):\n for n in names:\n  with open(os.path.join(d, n), 'r+b') as f: f.write(b'other')";
    assert!(std::process::Command::new("python3").args(["-c", turn]).arg(&other).status().unwrap().success());
    c.mount(2, &other);
    let sums = "import hashlib, os, sys\nh = hashlib.sha256()\nfor d, ds, names in os.walk(sys.argv[1]):\n ds.sort()\n for n in sorted(names):\n  h.update(open(os.path.join(d, n), 'rb').read())\nprint(h.hexdigest())";
    let job = Job::new("python3").args(["-c", sums]).arg(c.root());
    let all = |start: &dyn Fn(usize) -> Running| -> Vec<String> {
        let running: Vec<Running> = (0..3).map(start).collect();
        running.into_iter().map(|r| r.end().good().text()).collect()
    };
    let bare = all(&|i| c.node(i).start_bare(&job));
    assert!(bare[0] == bare[1] && bare[0] != bare[2], "{bare:?}");
    let keep = |i| c.node(i).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    let mut keepers: Vec<Running> = (0..3).map(keep).collect();
    keepers.iter_mut().for_each(|k| k.until_written("ready"));
    (0..3).for_each(|i| c.node(i).indexed());
    for _ in 0..2 {
        assert_eq!(all(&|i| c.node(i).start(&job)), bare);
    }
    let logs: Vec<String> = c.all().map(|node| node.log_tail()).collect();
    assert!(logs.iter().any(|log| log.contains("other nodes have other files")), "{logs:#?}");
    keepers.into_iter().for_each(|k| drop(k.end()));
}

/// A client of the PFS that numbers its files in its own way: the other nodes share, it works
/// alone.
#[test]
fn a_node_with_other_inode_numbers_works_alone() {
    let Some(c) = patient(Plan::new(3).files(60).placement("sharded")).build() else { return };
    let copy = c.shared().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(c.backing()).arg(&copy).status().unwrap();
    assert!(copied.success());
    c.mount(2, &copy);
    let mark = c.mark();
    // (Were it there first, the other nodes would work alone.)
    let first = c.node(0).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    c.node(0).indexed();
    let outcomes = c.together(&Reads::epochs(3).barrier(&c.barrier()));
    drop(first.end());
    within(bound(), &outcomes);
    let seen = c.since(&mark);
    assert_eq!((seen.open, seen.bytes_read), (c.files(), c.bytes()), "{seen:#?}");
    assert!(c.node(2).log_tail().contains("other inode numbers"), "{}", c.node(2).log_tail());
}

/// Its owner cannot read it, and says that the node which asks is to keep it: that one cannot read
/// it either.
#[test]
fn a_file_that_others_have_removed_is_missing_at_once() {
    let plan = Plan::new(2).files(24).placement("sharded").set("prefetch.enabled=false");
    let Some(c) = patient(plan).build() else { return };
    let keep = |i| c.node(i).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    let mut keepers: Vec<Running> = (0..2).map(keep).collect();
    keepers.iter_mut().for_each(|k| k.until_written("ready"));
    (0..2).for_each(|i| c.node(i).indexed());
    let remove =
        "import os, sys\nfor d, _, names in os.walk(sys.argv[1]):\n for n in names:\n  os.unlink(os.path.join(d, n))";
    assert!(std::process::Command::new("python3").args(["-c", remove]).arg(c.backing()).status().unwrap().success());
    // The index still has them. (The reader gives up what takes longer.)
    let open = "import os, signal, sys\nsignal.alarm(60)\nfor d, _, names in os.walk(sys.argv[1]):\n for n in names:\n  try:\n   open(os.path.join(d, n), 'rb').read()\n   print('there')\n  except FileNotFoundError:\n   print('missing')";
    let job = Job::new("python3").args(["-c", open]).arg(c.root());
    for node in 0..2 {
        let told = c.node(node).start(&job).end().good().text();
        assert!(told.lines().all(|line| line == "missing"), "{told}");
    }
    keepers.into_iter().for_each(|k| drop(k.end()));
}
