//! What takes minutes: run by `tests/nodes.sh`, where nothing else runs beside it.

use super::traffic::cold;
use super::{PLACEMENTS, Steady, bound, patient, read_once, within};
use crate::harness::Running;
use crate::reads::Reads;
use crate::world::{Cluster, wait_for};
use std::time::Duration;

/// Each node begins 10 s after the one before; the first has read everything by then. (Its tier has room for it, until the owners come.)
fn apart(placement: &str) {
    let plan = Cluster::plan(8).files(160).placement(placement).tier_size("16MiB").cluster("join_timeout: 120s");
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

#[test]
#[ignore = "minutes; tests/nodes.sh"]
fn a_link_is_cut_for_a_minute() {
    let Some(c) = Cluster::plan(8).files(160).tier_size("4MiB").placement("sharded").build() else { return };
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
