//! Calls and bytes that several nodes take from the PFS.

use super::{PLACEMENTS, account, assert_one_scan, patient, read_once};
use crate::harness::{Job, Running};
use crate::plan::Plan;
use crate::reads::Reads;
use crate::wait::wait_for;
use std::time::Duration;

pub(super) fn cold(nodes: usize, files: usize, placement: &str) {
    // Under `sharded` no tier could hold all of it.
    let tier = if placement == "sharded" { "4MiB" } else { "64MiB" };
    let plan = Plan::new(nodes).files(files).placement(placement).tier_size(tier);
    let Some(c) = patient(plan).build() else { return };
    let mark = c.mark();
    let outcomes = c.together(&Reads::epochs(3).barrier(&c.barrier()));
    read_once(&c, &mark);
    assert!(outcomes.iter().all(|o| o.count() == 3 && o.version("1") == 3 * c.files()), "{outcomes:#?}");
}

#[test]
fn three_nodes_sharded_read_each_byte_once() {
    cold(3, 120, PLACEMENTS[0]);
}

#[test]
fn three_nodes_replicated_read_each_byte_once() {
    cold(3, 120, PLACEMENTS[1]);
}

#[test]
fn three_nodes_hybrid_read_each_byte_once() {
    cold(3, 120, PLACEMENTS[2]);
}

#[test]
fn eight_nodes_sharded_read_each_byte_once() {
    cold(8, 160, PLACEMENTS[0]);
}

#[test]
fn eight_nodes_replicated_read_each_byte_once() {
    cold(8, 160, PLACEMENTS[1]);
}

#[test]
fn eight_nodes_hybrid_read_each_byte_once() {
    cold(8, 160, PLACEMENTS[2]);
}

/// No node sends more than its limit, and still everything comes from nodes.
#[test]
fn nodes_send_no_more_than_they_may() {
    let limit = 1 << 20;
    let plan = Plan::new(3).files(120).tier_size("4MiB").placement("sharded").cluster("bandwidth_limit: 1MiB/s");
    let Some(c) = patient(plan).build() else { return };
    // Before the agents start: the scan is part of what the PFS sees.
    let mark = c.mark();
    let keep = |i| c.node(i).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    let mut keepers: Vec<Running> = (0..c.len()).map(keep).collect();
    // (Before a node has its agent, each job looks for links in the root.)
    keepers.iter_mut().for_each(|k| k.until_written("ready"));
    let start = std::time::Instant::now();
    c.together(&Reads::epochs(3).barrier(&c.barrier()));
    let took = start.elapsed().as_secs_f64();
    read_once(&c, &mark);
    for node in c.all() {
        let sent: u64 = account(node).peers.iter().map(|p| p.traffic.sent_bytes).sum();
        // Each epoch has more than a megabyte for other nodes in it, so that there is something to
        // limit.
        assert!(sent > 3 * limit, "node {}: {sent} bytes", node.index);
        assert!((sent as f64) < limit as f64 * (took + 1.0), "node {}: {sent} bytes in {took} s", node.index);
    }
    keepers.into_iter().for_each(|k| drop(k.end()));
}

/// Files opened before a node has its index may come from the PFS; after that, none that another
/// node has read.
#[test]
fn jobs_that_do_not_wait_for_the_index_read_little_more() {
    let Some(c) = patient(Plan::new(3).files(120)).build() else { return };
    let mark = c.mark();
    c.end(c.start_all(&Reads::epochs(3).barrier(&c.barrier())));
    let seen = c.since(&mark);
    assert!(seen.open < c.files() * 2, "{seen:#?}");
    assert_one_scan(&c, &seen);
}

#[test]
fn nodes_that_start_one_after_the_other_read_each_byte_once() {
    let Some(c) = patient(Plan::new(3).files(120).placement("hybrid")).build() else { return };
    let mark = c.mark();
    let mut jobs: Vec<Running> = Vec::new();
    let reads = Reads::epochs(3).barrier(&c.barrier());
    for i in 0..3 {
        jobs.extend(c.start_indexed([i], &reads));
        std::thread::sleep(Duration::from_secs(1));
    }
    c.end(jobs);
    read_once(&c, &mark);
}

/// Four tiers of 4 MiB, 9.6 MB of files: no node could hold them.
#[test]
fn a_data_set_that_fits_only_into_all_tiers_together_is_read_once() {
    let plan = Plan::new(4).files(240).placement("sharded").tier_size("4MiB");
    let Some(c) = patient(plan).build() else { return };
    let mark = c.mark();
    c.together(&Reads::epochs(3).barrier(&c.barrier()));
    read_once(&c, &mark);
    for node in c.all() {
        assert!(node.used() <= 4 << 20, "node {}: {} bytes", node.index, node.used());
    }
}

/// Three tiers of 1 MiB, 9.6 MB of files: right, within the quotas, and better than no tiers.
#[test]
fn tiers_that_are_too_small_are_filled_and_not_more() {
    for placement in PLACEMENTS {
        let plan = Plan::new(3).files(240).placement(placement).tier_size("1MiB");
        let Some(c) = patient(plan).build() else { return };
        let mark = c.mark();
        let jobs = c.start_indexed(0..3, &Reads::epochs(3).barrier(&c.barrier()));
        let over = |job: &Running| job.written().contains("\"end\"");
        wait_for("the jobs", || {
            c.all().for_each(|n| assert!(n.used() <= 1 << 20, "{placement}, node {}: {}", n.index, n.used()));
            jobs.iter().all(over)
        });
        c.end(jobs);
        let (seen, bare) = (c.since(&mark), 9 * c.bytes());
        assert!(seen.bytes_read < bare, "{placement}: {} of {bare} bytes", seen.bytes_read);
    }
}

/// Copies of an earlier version lie in all tiers; another version is on the PFS when the next jobs
/// start.
#[test]
fn no_reader_is_served_copies_of_another_version() {
    let plan = Plan::new(3).files(120).disk().placement("hybrid").set("tiers[0].persist=node");
    let Some(c) = patient(plan).build() else { return };
    c.together(&Reads::epochs(1));
    wait_for("the end of the agents", || c.all().all(|n| n.agent().is_none()));
    c.make("2");
    let mark = c.mark();
    let outcomes = c.together(&Reads::epochs(2).with(&["--seed", "2"]).barrier(&c.barrier()));
    assert!(outcomes.iter().all(|o| o.version("2") == 2 * c.files()), "{outcomes:#?}");
    read_once(&c, &mark);
}

/// All nodes know the copies of an earlier job: nothing is read again.
#[test]
fn copies_of_the_same_version_are_found_by_the_next_job() {
    let plan = Plan::new(3).files(120).disk().placement("sharded").tier_size("4MiB").set("tiers[0].persist=node");
    let Some(c) = patient(plan).build() else { return };
    c.together(&Reads::epochs(1));
    wait_for("the end of the agents", || c.all().all(|n| n.agent().is_none()));
    let mark = c.mark();
    c.together(&Reads::epochs(2).barrier(&c.barrier()));
    assert_eq!(c.since(&mark).bytes_read, 0, "{:#?}", c.since(&mark));
}

/// The data set changes under running jobs, one node joins later: files may be of either version,
/// each as a whole.
#[test]
fn versions_are_not_mixed_within_a_file() {
    let Some(c) = Plan::new(3).files(60).cluster("join_timeout: 2s").build() else { return };
    let over = c.shared().join("over");
    let reads = Reads::until(&over).with(&["--seed", "1,2"]);
    let mut jobs = c.start_indexed(0..2, &reads);
    jobs.iter_mut().for_each(|job| job.until_written("\"epoch\": 0"));
    c.make("2");
    jobs.extend(c.start_indexed([2], &reads));
    jobs[2].until_written("\"epoch\": 1");
    std::fs::write(&over, "").unwrap();
    c.end(jobs);
}
