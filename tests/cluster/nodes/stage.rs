//! `monarch stage` on all nodes at once, as `srun` starts it.

use super::patient;
use crate::harness::{Ended, Running};
use crate::plan::Plan;
use crate::reads::Reads;
use crate::wait::wait_for;
use crate::world::Cluster;

fn stage(c: &Cluster, node: usize) -> Running {
    stage_with(c, node, &[])
}

fn stage_with(c: &Cluster, node: usize, settings: &[&str]) -> Running {
    let mut command = c.node(node).monarch("stage");
    command.args(["--quiet", "--config"]).arg(c.shared().join(format!("node{node}/monarch.yaml")));
    command.args(c.site.settings.iter().flat_map(|s| ["--set", s]));
    command.args(settings.iter().flat_map(|s| ["--set", s]));
    Running::new(command)
}

fn staged(placement: &str, tier: &str) {
    let plan = Plan::new(3).files(120).disk().placement(placement).tier_size(tier);
    let Some(c) = patient(plan.set("tiers[0].persist=node")).build() else { return };
    let mark = c.mark();
    let all: Vec<Running> = (0..3).map(|i| stage(&c, i)).collect();
    let ended: Vec<Ended> = all.into_iter().map(Running::end).collect();
    let seen = c.since(&mark);
    let output: String = ended.iter().map(|e| format!("{}\n{}{}", e.status, e.text(), e.errors())).collect();
    println!("{placement}: {} opens of {} files\n{output}", seen.open, c.files());
    assert!(ended.iter().all(|e| e.status.success()), "{output}");
    assert_eq!((seen.open, seen.bytes_read), (c.files(), c.bytes()), "{seen:#?}\n{output}");
    // The next job finds all of it.
    wait_for("the end of the agents", || c.all().all(|n| n.agent().is_none()));
    let mark = c.mark();
    c.together(&Reads::epochs(2));
    assert_eq!(c.since(&mark).bytes_read, 0, "{:#?}", c.since(&mark));
}

#[test]
fn all_nodes_stage_a_sharded_data_set_once() {
    staged("sharded", "64MiB");
}

#[test]
fn all_nodes_stage_a_hybrid_data_set_once() {
    staged("hybrid", "64MiB");
}

/// 4.8 MB of files, more than any node could hold.
#[test]
fn a_data_set_that_fits_only_into_all_tiers_together_is_staged() {
    staged("sharded", "4MiB");
}

/// The slower nodes once staged the share that the first had staged, too.
#[test]
fn a_node_that_has_staged_its_share_and_left_is_not_taken_over() {
    let plan = Plan::new(3).files(60).size(500_000).disk().placement("sharded").tier_size("64MiB");
    let Some(c) = patient(plan.set("tiers[0].persist=node")).build() else { return };
    let mark = c.mark();
    // 10 MB for each: the first agent is gone 3 s after its end, long before the other nodes are
    // done.
    let slow = ["source.bandwidth_limit=1MiB/s"];
    let first = stage(&c, 0);
    let others = [1, 2].map(|i| stage_with(&c, i, &slow));
    let mut ended = vec![first.end()];
    wait_for("the end of the first agent", || c.node(0).agent().is_none());
    let still = (1..3).all(|i| c.node(i).agent().is_some());
    let status = c.node(1).monarch("status").arg("--cluster").output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    ended.extend(others.map(Running::end));
    let output: String = ended.iter().map(|e| format!("{}\n{}{}", e.status, e.text(), e.errors())).collect();
    assert!(ended.iter().all(|e| e.status.success()), "{output}");
    assert!(still, "the others were done before the first agent had gone\n{output}");
    assert!(status.matches(" up ").count() == 1 && status.matches(" left").count() == 1, "{status}");
    let seen = c.since(&mark);
    assert_eq!((seen.open, seen.bytes_read), (c.files(), c.bytes()), "{seen:#?}\n{output}");
}
