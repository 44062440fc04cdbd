//! Tests that take minutes: run by `tests/nodes.sh`, where nothing else runs beside them.

use super::traffic::cold;
use super::{PLACEMENTS, Steady, bound, patient, read_once, within};
use crate::harness::{Job, Running};
use crate::plan::Plan;
use crate::reads::Reads;
use crate::wait::wait_for;
use std::time::Duration;

/// Each node begins 10 s after the one before; the first has read everything by then. (Its tier has
/// room for it, until the owners come.)
fn apart(placement: &str) {
    let plan = Plan::new(8).files(160).placement(placement).tier_size("16MiB").cluster("join_timeout: 120s");
    let Some(c) = patient(plan).build() else { return };
    let mark = c.mark();
    let over = c.shared().join("over");
    let mut jobs: Vec<Running> = Vec::new();
    for i in 0..8 {
        jobs.extend(c.start_indexed([i], &Reads::until(&over)));
        std::thread::sleep(Duration::from_secs(10));
    }
    std::fs::write(&over, "").expect("own file");
    let outcomes = c.end(jobs);
    assert!(outcomes.iter().all(|o| o.count() >= 3), "{outcomes:#?}");
    read_once(&c, &mark);
}

#[test]
#[ignore = "minutes; tests/nodes.sh"]
fn eight_nodes_that_start_ten_seconds_apart_read_each_byte_once_sharded() {
    apart(PLACEMENTS[0]);
}

#[test]
#[ignore = "minutes; tests/nodes.sh"]
fn eight_nodes_that_start_ten_seconds_apart_read_each_byte_once_replicated() {
    apart(PLACEMENTS[1]);
}

#[test]
#[ignore = "minutes; tests/nodes.sh"]
fn eight_nodes_that_start_ten_seconds_apart_read_each_byte_once_hybrid() {
    apart(PLACEMENTS[2]);
}

#[test]
#[ignore = "minutes; tests/nodes.sh"]
fn sixteen_nodes_read_each_byte_once() {
    PLACEMENTS.iter().for_each(|placement| cold(16, 320, placement));
}

/// After a minute without any chunk the other node's file was taken for closed, and the reader
/// waited in vain for each chunk from then on.
#[test]
#[ignore = "minutes; tests/nodes.sh"]
fn a_reader_continues_a_large_file_of_another_node_after_a_pause() {
    let plan = Plan::new(2).files(1).size(8 << 20).placement("sharded").tier_size("128MiB");
    let plan = plan.set("source.chunk_threshold=64KiB").set("source.chunk_size=64KiB");
    let Some(c) = patient(plan).build() else { return };
    let script = "import hashlib, os, sys, time\n\
        name = [os.path.join(d, n) for d, _, ns in os.walk(sys.argv[1]) for n in ns][0]\n\
        f = open(name, 'rb', 0); h = hashlib.sha256(); half = os.fstat(f.fileno()).st_size // 2\n\
        while f.tell() < half: h.update(f.read(65536))\n\
        time.sleep(float(sys.argv[2])); start = time.time()\n\
        while got := f.read(65536): h.update(got)\n\
        print('slow' if time.time() - start > 8 else 'quick', h.hexdigest())";
    let job = |pause: &str| Job::new("python3").args(["-c", script]).arg(c.root()).arg(pause);
    let bare = c.node(0).start_bare(&job("0")).end().good().text();
    let keep = |i| c.node(i).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    let keepers: Vec<Running> = (0..2).map(keep).collect();
    (0..2).for_each(|i| c.node(i).indexed());
    let jobs: Vec<Running> = (0..2).map(|i| c.node(i).start(&job("65"))).collect();
    for ended in jobs.into_iter().map(|j| j.end().good().text()) {
        assert_eq!(ended, bare);
    }
    keepers.into_iter().for_each(|k| drop(k.end()));
}

#[test]
#[ignore = "minutes; tests/nodes.sh"]
fn a_link_is_cut_for_a_minute() {
    let Some(c) = Plan::new(8).files(160).tier_size("4MiB").placement("sharded").build() else { return };
    let steady = Steady::start(c);
    steady.more(1);
    steady.c.net().cut(3);
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        steady.more(1);
    }
    steady.c.net().join(3);
    wait_for("the nodes to share again", || {
        let mark = steady.c.mark();
        steady.more(2);
        steady.c.since(&mark).open == 0
    });
    within(bound(), &steady.end().1);
}
