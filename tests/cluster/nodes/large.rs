//! Files of several chunks: each byte leaves the PFS once, also while the owner is still fetching,
//! and is right when the owner dies.

use super::{Steady, bound, patient, within};
use crate::plan::Plan;
use crate::reads::Reads;
use crate::wait::wait_for;
use crate::world::Cluster;
use slowfs::{Counters, Rate, Settings};
use std::time::Duration;

/// Mean size of a file in bytes: 10 chunks.
const FILE_BYTES: usize = 640 << 10;
fn chunked(files: usize, placement: &str) -> Plan {
    let plan = Plan::new(3).files(files).size(FILE_BYTES).placement(placement).tier_size("128MiB");
    plan.set("source.chunk_threshold=64KiB").set("source.chunk_size=64KiB")
}

fn slow(b: slowfs::Builder) -> slowfs::Builder {
    b.data_latency(Duration::from_millis(15))
}

/// (A reader of a file that is being fetched holds it open on the PFS, so that opens say nothing.)
#[track_caller]
fn bytes_once(c: &Cluster, mark: &Counters) {
    let seen = c.since(mark);
    assert_eq!(seen.bytes_read, c.bytes(), "{} times: {seen:#?}", seen.bytes_read as f64 / c.bytes() as f64);
}

fn cold(plan: Plan) {
    let Some(c) = patient(plan).build() else { return };
    let mark = c.mark();
    let outcomes = c.together(&Reads::epochs(3).barrier(&c.barrier()));
    assert!(outcomes.iter().all(|o| o.version("1") == 3 * c.files()), "{outcomes:#?}");
    bytes_once(&c, &mark);
}

#[test]
fn large_files_leave_the_pfs_once_when_sharded() {
    cold(chunked(18, "sharded"));
}

#[test]
fn large_files_leave_the_pfs_once_when_hybrid() {
    cold(chunked(18, "hybrid"));
}

#[test]
fn large_files_leave_the_pfs_once_while_they_are_being_filled_when_sharded() {
    cold(chunked(12, "sharded").pfs(slow));
}

#[test]
fn large_files_leave_the_pfs_once_while_they_are_being_filled_when_hybrid() {
    cold(chunked(12, "hybrid").pfs(slow));
}

/// All ranks read the same file at the same time, in pieces.
#[test]
fn one_file_that_all_read_at_once_leaves_the_pfs_once() {
    let plan = chunked(1, "sharded").size(8 << 20).pfs(|b| b.data_latency(Duration::from_millis(5)));
    cold(plan);
}

/// All ranks map the same file, as loaders of model weights do, and read all of it: it waits for
/// the copy where another node sends it.
#[test]
fn one_file_that_all_map_at_once_leaves_the_pfs_once() {
    for placement in ["sharded", "hybrid"] {
        let plan = chunked(1, placement).size(8 << 20).pfs(|b| b.data_latency(Duration::from_millis(5)));
        let Some(c) = patient(plan).build() else { return };
        let mark = c.mark();
        let outcomes = c.together(&Reads::epochs(3).barrier(&c.barrier()).with(&["--map"]));
        assert!(outcomes.iter().all(|o| o.version("1") == 3 * c.files()), "{outcomes:#?}");
        bytes_once(&c, &mark);
    }
}

/// The owner sent all chunks to all nodes at the same time, so that each took longer than
/// `peer_timeout`, and the nodes read the PFS instead.
fn over_slow_links(chunks: usize, map: &[&str]) {
    let plan = Plan::new(6).files(1).size(chunks * (4 << 20)).placement("hybrid").tier_size("128MiB");
    let plan = plan.set("source.chunk_threshold=4MiB").set("wait.pickup=5s").set("wait.stall=20s");
    let Some(c) = plan.cluster("peer_timeout: 2s").build() else { return };
    // A chunk of 4 MiB takes 0.7 s over one of them.
    (0..6).for_each(|node| c.net().rate(node, 50));
    let mark = c.mark();
    let outcomes = c.together(&Reads::epochs(2).barrier(&c.barrier()).with(map));
    assert!(outcomes.iter().all(|o| o.version("1") == 2 * c.files()), "{outcomes:#?}");
    bytes_once(&c, &mark);
}

#[test]
fn one_file_that_all_read_over_slow_links_leaves_the_pfs_once() {
    over_slow_links(4, &[]);
}

/// A file that is mapped waits for its copy though the first chunk comes late. (Three chunks: with
/// more, a chunk that takes 1 s on a busy machine would have the rest take longer than the 2 s that
/// a mapping may wait for.)
#[test]
fn one_file_that_all_map_over_slow_links_leaves_the_pfs_once() {
    over_slow_links(3, &["--map"]);
}

/// A quarter of a tier, twice the room for files of other owners.
#[test]
fn a_file_larger_than_the_transient_room_leaves_the_pfs_once() {
    cold(chunked(1, "sharded").size(32 << 20));
}

fn owner_dies(placement: &str, for_good: bool) {
    // All of it takes some seconds, until the owner has died.
    let plan = chunked(24, placement).cluster("peer_timeout: 1s").cluster("join_timeout: 5s");
    let plan = plan.pfs(|b| slow(b).bandwidth(6 << 20));
    let Some(c) = plan.build() else { return };
    let mark = c.mark();
    let mut steady = Steady::start(c);
    wait_for("a part of the bytes", || steady.c.since(&mark).bytes_read > steady.c.bytes() / 4);
    let middle = steady.c.since(&mark).bytes_read;
    assert!(middle < steady.c.bytes(), "there is no middle: {middle} of {}", steady.c.bytes());
    if for_good {
        steady.c.lose(1);
        drop(steady.jobs.remove(1));
    } else {
        let old = steady.c.node(1).signal(libc::SIGKILL);
        steady.c.node(1).successor(old);
    }
    let unlimited = Settings { bandwidth: Some(Rate(0)), ..Settings::default() };
    steady.c.pfs().set(unlimited).unwrap();
    steady.more(2);
    let reads_nothing = || {
        let rest = steady.c.mark();
        steady.more(1);
        steady.c.since(&rest).bytes_read == 0
    };
    // (A busy machine is late with some.)
    assert!((0..10).any(|_| reads_nothing()), "not everything is shared again");
    let (c, outcomes) = steady.end();
    within(bound(), &outcomes);
    // Files of the dead owner are read again, and chunks for which readers could not wait.
    let seen = c.since(&mark);
    assert!(seen.bytes_read < 2 * c.bytes(), "{} times", seen.bytes_read as f64 / c.bytes() as f64);
}

#[test]
fn an_agent_is_killed_while_it_fills_sharded() {
    owner_dies("sharded", false);
}

#[test]
fn an_agent_is_killed_while_it_fills_hybrid() {
    owner_dies("hybrid", false);
}

#[test]
fn a_node_is_lost_while_it_fills() {
    owner_dies("sharded", true);
}
