//! Small files that a node prefetches from another one, several with each request.

use super::{account, patient};
use crate::harness::{Job, Running};
use crate::plan::Plan;
use crate::reads::Reads;
use crate::wait::wait_for;
use crate::world::Cluster;

/// A job that does nothing, so that the agent stays.
fn keep(c: &Cluster, node: usize) -> Running {
    let mut job = c.node(node).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    job.until_written("ready");
    job
}

fn holds(c: &Cluster, node: usize, files: u64) {
    wait_for("all copies", || account(c.node(node)).held.0 >= files);
}

/// A node that starts alone prefetches all files, as the other one has not come up. It then has
/// those that the other one owns, too.
fn first_node_has_all(plan: Plan) -> Option<(Cluster, Running)> {
    let c = plan.placement("replicated").build()?;
    let first = keep(&c, 0);
    holds(&c, 0, c.files());
    Some((c, first))
}

/// The second node gets all files from the first, and reads them.
fn second_node_prefetches(plan: Plan) -> Option<monarch_core::cluster::node::NodeStatus> {
    let (c, first) = first_node_has_all(patient(plan))?;
    let mark = c.mark();
    let second = keep(&c, 1);
    holds(&c, 1, c.files());
    let (asker, owner) = (account(c.node(1)), account(c.node(0)));
    assert_eq!(c.since(&mark).bytes_read, 0, "all came from the other node: {asker:#?}");
    // Right bytes, or the job fails.
    let outcomes = c.end(c.start_indexed([1], &Reads::epochs(1)));
    assert_eq!(outcomes[0].version("1"), c.files());
    assert_eq!(c.since(&mark).bytes_read, 0, "{asker:#?}");
    assert_eq!((asker.damaged, asker.peers[0].traffic.failed), (0, 0), "{asker:#?}");
    // (Each file counts as one that was sent, however it was asked for.)
    assert!(owner.peers[0].traffic.sent >= c.files(), "{owner:#?}");
    [first, second].into_iter().for_each(|job| drop(job.end()));
    Some(asker)
}

fn comes_in_batches(plan: Plan) {
    let files = 600;
    let Some(asker) = second_node_prefetches(plan.files(files).size(4000)) else { return };
    println!("{} files in {} batches", asker.batched_files, asker.batches);
    assert!(asker.batched_files as usize >= files * 9 / 10, "{asker:#?}");
    // 64 files each, but for the first ones and the last.
    assert!(asker.batches as usize <= files / 20, "{asker:#?}");
}

#[test]
fn small_files_of_another_node_are_prefetched_in_batches() {
    comes_in_batches(Plan::new(2));
}

#[test]
fn batches_are_the_same_with_encryption() {
    comes_in_batches(Plan::new(2).cluster("encryption: tls"));
}

#[test]
fn a_batch_has_no_more_files_than_the_setting_says() {
    let plan = Plan::new(2).files(200).size(4000).cluster("batch_files: 5");
    let Some(asker) = second_node_prefetches(plan) else { return };
    assert!(asker.batched_files > 0 && asker.batched_files <= 5 * asker.batches, "{asker:#?}");
}

#[test]
fn each_file_is_requested_by_itself_where_that_is_set() {
    let plan = Plan::new(2).files(200).size(4000).cluster("batch_files: 1");
    let Some(asker) = second_node_prefetches(plan) else { return };
    assert_eq!((asker.batches, asker.batched_files), (0, 0));
}

/// Of files of 100 KB about ten fit into a batch; of those above 256 KiB none does.
#[test]
fn larger_files_are_requested_by_themselves() {
    let Some(asker) = second_node_prefetches(Plan::new(2).files(60).size(100_000)) else { return };
    assert!(asker.batches > 0 && asker.batched_files <= 20 * asker.batches, "{asker:#?}");
    let Some(asker) = second_node_prefetches(Plan::new(2).files(20).size(600_000)) else { return };
    assert_eq!((asker.batches, asker.batched_files), (0, 0));
}

/// Three nodes start together and prefetch everything of each other: each file leaves the PFS once.
#[test]
fn nodes_that_start_together_read_each_file_once() {
    let Some(c) = patient(Plan::new(3).files(300).size(4000).placement("replicated")).build() else { return };
    let mark = c.mark();
    let start = |i| c.node(i).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    let mut keepers: Vec<Running> = (0..3).map(start).collect();
    keepers.iter_mut().for_each(|job| job.until_written("ready"));
    (0..3).for_each(|i| holds(&c, i, c.files()));
    assert_eq!((c.since(&mark).open, c.since(&mark).bytes_read), (c.files(), c.bytes()));
    c.end(c.start_indexed(0..3, &Reads::epochs(1)));
    assert_eq!(c.since(&mark).bytes_read, c.bytes());
    keepers.into_iter().for_each(|job| drop(job.end()));
}

/// The node that sends is lost in the middle of a batch.
#[test]
fn files_of_a_node_that_is_lost_in_the_middle_of_a_batch_arrive_all_the_same() {
    let plan = Plan::new(2).files(400).size(100_000).cluster("peer_timeout: 5s");
    let Some((c, _first)) = first_node_has_all(plan.dirs(60)) else { return };
    // More than six seconds for all of them.
    c.net().rate(0, 50);
    let second = keep(&c, 1);
    wait_for("some files", || account(c.node(1)).batched_files > 0);
    c.lose(0);
    let before = account(c.node(1));
    assert!(before.held.0 < c.files(), "{before:#?}");
    holds(&c, 1, c.files());
    let outcomes = c.end(c.start_indexed([1], &Reads::epochs(1)));
    assert_eq!(outcomes[0].version("1"), c.files());
    drop(second.end());
}

/// Bytes of the answers are changed on their way.
#[test]
fn no_changed_byte_of_a_batch_is_taken() {
    let Some((c, first)) = first_node_has_all(Plan::new(2).files(300).size(4000).dirs(60)) else { return };
    let second_start = c.mark();
    c.net().corrupt(0);
    let second = keep(&c, 1);
    holds(&c, 1, c.files());
    let asker = account(c.node(1));
    println!("{} damaged, {:#?}, {:#?}", asker.damaged, asker.peers, c.since(&second_start));
    assert!(asker.damaged > 0 || asker.peers[0].traffic.failed > 0, "nothing was changed: {asker:#?}");
    // Right bytes, or the job fails.
    let outcomes = c.end(c.start_indexed([1], &Reads::epochs(1)));
    assert_eq!(outcomes[0].version("1"), c.files());
    c.net().sound(0);
    [first, second].into_iter().for_each(|job| drop(job.end()));
}
