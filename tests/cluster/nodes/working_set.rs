//! The working sets of the nodes, fetched through the owners.

use super::patient;
use crate::harness::{Job, Running};
use crate::plan::Plan;
use crate::reads::Reads;
use crate::wait::wait_for;
use std::fs;

/// Every node fetches what its last two jobs opened, before a job opens anything: each file leaves
/// the PFS once.
#[test]
fn what_all_nodes_opened_first_leaves_the_pfs_once() {
    let plan = Plan::new(3).files(60).disk().placement("replicated").tier_size("64MiB");
    let plan = plan.set("prefetch.ahead=auto").set("tiers[0].persist=node");
    let Some(c) = patient(plan).build() else { return };
    for _ in 0..2 {
        c.together(&Reads::epochs(1));
        wait_for("the end of the agents", || c.all().all(|n| n.agent().is_none()));
    }
    for node in c.all() {
        let own = fs::read_dir(node.tier()).unwrap().next().unwrap().unwrap().path();
        let dirs = fs::read_dir(own.join("copies")).unwrap().flatten();
        dirs.flat_map(|d| fs::read_dir(d.path()).unwrap().flatten())
            .for_each(|copy| fs::remove_file(copy.path()).unwrap());
    }
    let mark = c.mark();
    let keep = |i| c.node(i).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    let keepers: Vec<Running> = (0..c.len()).map(keep).collect();
    wait_for("all copies", || c.all().all(|n| n.status().is_some_and(|s| s.tiers[0].files == 60)));
    assert_eq!((c.since(&mark).open, c.since(&mark).bytes_read), (c.files(), c.bytes()));
    c.together(&Reads::epochs(1));
    assert_eq!(c.since(&mark).open, c.files());
    keepers.into_iter().for_each(|k| drop(k.end()));
}
