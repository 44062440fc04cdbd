//! Nodes that wait for an index read directories for the node that scans (`index.shared_scan`): the
//! PFS is asked once, every node has every attribute and listing, whatever happens to those that
//! help.

use super::patient;
use crate::harness::{Job, Running};
use crate::plan::Plan;
use crate::reads::Reads;
use crate::wait::wait_for;
use crate::world::Cluster;
use slowfs::{Settings, Time};
use std::time::Duration;

/// Prints what each name is, as lstat and listings say, without times of access.
pub(super) const WALK: &str = "
import os, sys
root = sys.argv[1]
for at, dirs, files in os.walk(root):
    dirs.sort()
    names = os.listdir(at)
    for name in sorted(names):
        s = os.lstat(os.path.join(at, name))
        print(os.path.relpath(at, root), name, s.st_mode, s.st_ino, s.st_nlink, s.st_uid, s.st_size, s.st_mtime_ns)
";

/// 120 directories whose scan takes its time: one thread on each node.
fn slow(nodes: usize) -> Plan {
    let pfs = |b: slowfs::Builder| b.meta_latency(Duration::from_millis(20));
    patient(Plan::new(nodes)).files(240).dirs(120).set("index.shared_scan=true").set("index.scan_threads=1").pfs(pfs)
}

/// Starts a job on each node that does nothing until the test ends it. The first node scans.
fn waiting(c: &Cluster) -> Vec<Running> {
    let start = |i: usize| {
        let job = c.node(i).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
        if i == 0 {
            c.node(0).until("the scan", |s| s.load.scan_calls > 10);
        }
        job
    };
    (0..c.len()).map(start).collect()
}

/// Waits until a node reads for the scan of another one.
fn helps(c: &Cluster, node: usize) {
    c.node(node).until("help", |s| s.load.scan_calls > 10);
}

/// Waits until these nodes have the index.
fn have(c: &Cluster, nodes: &[usize]) {
    nodes.iter().for_each(|&i| c.node(i).indexed());
}

/// Waits until all nodes have the index. From then on the PFS is quick.
fn indexed(c: &Cluster) {
    c.all().for_each(|node| node.indexed());
    c.pfs().set(Settings { meta_latency: Some(Time(Duration::ZERO)), ..Settings::default() }).expect("slowfs");
}

fn walk(job: Running) -> String {
    job.end().good().text()
}

/// Each of these nodes says of every name what the PFS says.
fn assert_all_see_the_same(c: &Cluster, nodes: &[usize]) {
    let job = Job::new("python3").arg("-c").arg(WALK).arg(c.root());
    let bare = walk(c.node(0).start_bare(&job));
    assert!(bare.lines().count() as u64 == c.files() + c.dirs() - 1, "{bare}");
    for &node in nodes {
        assert_eq!(walk(c.node(node).start(&job)), bare, "node {node}");
    }
}

/// Each directory was opened once. (Every agent looks at the root, and opens it once more to help.)
#[track_caller]
fn assert_one_scan(c: &Cluster, seen: &slowfs::Counters) {
    assert!(seen.opendir >= c.dirs() && seen.opendir <= c.dirs() + 4 * c.len() as u64, "{seen:#?}");
}

fn directories_of_others(c: &Cluster) -> u64 {
    let log = c.node(0).log_tail();
    let helped = log.lines().filter(|l| l.contains("root ready")).find_map(|l| {
        let (_, rest) = l.split_once("helped=")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    });
    helped.unwrap_or_else(|| panic!("no scan: {log}"))
}

#[test]
fn each_directory_is_read_once_by_one_of_the_nodes() {
    let Some(c) = slow(3).build() else { return };
    let mark = c.mark();
    let jobs = waiting(&c);
    indexed(&c);
    assert_one_scan(&c, &c.since(&mark));
    let helped = directories_of_others(&c);
    assert!(helped >= c.dirs() / 4, "{helped} of {} directories", c.dirs());
    let calls = |i: usize| c.node(i).status().expect("a status").load.scan_calls;
    assert!((1..3).all(|i| calls(i) > 20), "{:?}", [0, 1, 2].map(calls));
    let listed = c.mark();
    assert_all_see_the_same(&c, &[0, 1, 2]);
    // (The bare walk lists each directory twice.)
    let seen = c.since(&listed);
    assert!(seen.opendir <= 2 * c.dirs() + 10, "{seen:#?}");
    // The files come from the PFS once, as ever.
    c.together(&Reads::epochs(2).barrier(&c.barrier()));
    assert_eq!(c.since(&mark).bytes_read, c.bytes());
    jobs.into_iter().for_each(|job| drop(job.end()));
}

#[test]
fn an_agent_that_helps_is_killed() {
    let Some(c) = slow(3).build() else { return };
    let jobs = waiting(&c);
    helps(&c, 1);
    let old = c.node(1).signal(libc::SIGKILL);
    c.node(1).successor(old);
    indexed(&c);
    assert_all_see_the_same(&c, &[0, 1, 2]);
    jobs.into_iter().for_each(|job| drop(job.end()));
}

#[test]
fn an_agent_that_helps_is_stopped() {
    let Some(c) = slow(3).build() else { return };
    let jobs = waiting(&c);
    helps(&c, 1);
    c.node(1).signal(libc::SIGSTOP);
    have(&c, &[0, 2]);
    c.node(1).signal(libc::SIGCONT);
    indexed(&c);
    assert_all_see_the_same(&c, &[0, 1, 2]);
    jobs.into_iter().for_each(|job| drop(job.end()));
}

#[test]
fn the_link_of_a_node_that_helps_is_cut() {
    let Some(c) = slow(3).cluster("join_timeout: 5s").build() else { return };
    let jobs = waiting(&c);
    helps(&c, 2);
    c.net().cut(2);
    have(&c, &[0, 1]);
    c.net().join(2);
    indexed(&c);
    assert_all_see_the_same(&c, &[0, 1, 2]);
    jobs.into_iter().for_each(|job| drop(job.end()));
}

#[test]
fn the_agent_that_scans_is_killed_while_others_help() {
    let Some(c) = slow(3).build() else { return };
    let jobs = waiting(&c);
    helps(&c, 1);
    let old = c.node(0).signal(libc::SIGKILL);
    c.node(0).successor(old);
    indexed(&c);
    assert_all_see_the_same(&c, &[0, 1, 2]);
    jobs.into_iter().for_each(|job| drop(job.end()));
}

/// A directory and a file change while nodes read for the scan: what is indexed is what is there
/// then, or is left to the PFS.
#[test]
fn what_changes_during_the_scan_is_as_the_pfs_has_it() {
    let ttl = |b: slowfs::Builder| b.meta_latency(Duration::from_millis(20)).attr_ttl(Duration::ZERO);
    let Some(c) = slow(3).set("dataset.consistency=close-to-open").set("dataset.revalidate=0s").pfs(ttl).build() else {
        return;
    };
    let jobs = waiting(&c);
    helps(&c, 1);
    let mut dirs: Vec<_> = std::fs::read_dir(c.backing()).unwrap().map(|d| d.unwrap().path()).collect();
    dirs.sort();
    for dir in dirs.iter().filter(|d| d.is_dir()).step_by(7) {
        std::fs::write(dir.join("new"), "made during the scan").unwrap();
        let first = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).find(|f| !f.ends_with("new")).unwrap();
        std::fs::write(first, "changed during the scan").unwrap();
    }
    indexed(&c);
    let job = Job::new("python3").arg("-c").arg(WALK).arg(c.root());
    let bare = walk(c.node(0).start_bare(&job));
    for node in c.all() {
        // (A listing that was taken before is left to the PFS once it was compared.)
        wait_for("what the PFS has", || walk(node.start(&job)) == bare);
    }
    jobs.into_iter().for_each(|job| drop(job.end()));
}

/// A node with other directories at the path helps with nothing, and the others share as ever.
#[test]
fn a_node_with_another_file_system_changes_nothing() {
    let Some(c) = slow(3).build() else { return };
    let other = c.shared().join("other");
    for dir in std::fs::read_dir(c.backing()).unwrap() {
        std::fs::create_dir_all(other.join(dir.unwrap().file_name())).unwrap();
    }
    c.mount(2, &other);
    let mark = c.mark();
    let jobs = waiting(&c);
    helps(&c, 2);
    have(&c, &[0, 1]);
    assert_one_scan(&c, &c.since(&mark));
    indexed(&c);
    assert_all_see_the_same(&c, &[0, 1]);
    jobs.into_iter().for_each(|job| drop(job.end()));
}
