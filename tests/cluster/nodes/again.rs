//! Later epochs in the same order, and later jobs on agents that live on: files come from where
//! they came from before.

use super::patient;
use crate::harness::{Job, Running};
use crate::plan::Plan;
use crate::reads::Reads;
use crate::world::Cluster;

/// 4.8 MB of files, a tier of 4 MiB: an eighth of it is for 12 of the 80 files that other nodes
/// own.
fn sharded() -> Option<Cluster> {
    patient(Plan::new(3).files(120).tier_size("4MiB").placement("sharded")).build()
}

/// Opens on the PFS by jobs that run one after the other, while a job that does nothing keeps the
/// agents.
fn opens(c: &Cluster, jobs: usize, reads: &Reads) -> Vec<u64> {
    let keep = |i| c.node(i).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    let keepers: Vec<Running> = (0..c.len()).map(keep).collect();
    c.together(&Reads::epochs(1).with(&["--order-seed", "1"]));
    let job = |_| {
        let mark = c.mark();
        c.together(reads);
        c.since(&mark).open
    };
    let opens = (0..jobs).map(job).collect();
    keepers.into_iter().for_each(|k| drop(k.end()));
    opens
}

#[test]
fn later_jobs_read_nothing_from_the_pfs() {
    let Some(c) = sharded() else { return };
    assert_eq!(opens(&c, 3, &Reads::epochs(2)), [0, 0, 0]);
}

/// (Each of them reads in the order of the previous job.)
#[test]
fn later_jobs_of_the_same_order_read_nothing_from_the_pfs() {
    let Some(c) = sharded() else { return };
    assert_eq!(opens(&c, 3, &Reads::epochs(1)), [0, 0, 0]);
}

#[test]
fn epochs_in_the_same_order_read_each_byte_once_when_sharded() {
    let Some(c) = sharded() else { return };
    let mark = c.mark();
    c.together(&Reads::epochs(5).with(&["--same-order"]).barrier(&c.barrier()));
    twice(&c);
    super::read_once(&c, &mark);
}

#[test]
fn epochs_in_the_same_order_read_each_byte_once_when_hybrid() {
    let plan = Plan::new(3).files(120).tier_size("4MiB").placement("hybrid");
    let Some(c) = patient(plan).build() else { return };
    let mark = c.mark();
    c.together(&Reads::epochs(5).with(&["--same-order"]).barrier(&c.barrier()));
    twice(&c);
    super::read_once(&c, &mark);
}

/// Prints the files that were opened more than once on the PFS.
fn twice(c: &Cluster) {
    let all = c.pfs().paths().unwrap();
    all.iter().filter(|(_, p)| p.opens > 1 && p.bytes_read > 0).for_each(|(path, p)| println!("{path}: {p:?}"));
}
