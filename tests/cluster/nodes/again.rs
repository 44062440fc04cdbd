//! Later epochs in the same order, and later jobs on agents that live on: files come from where
//! they came from before.

use super::patient;
use crate::harness::{Job, Running};
use crate::node::copies;
use crate::plan::Plan;
use crate::reads::Reads;
use crate::world::Cluster;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

/// How long a node's copies are counted if the job there does not end.
const MAX_WATCH: Duration = Duration::from_secs(120);

/// All copies cost the same here, and the room for transient ones is full. A copy that was read
/// leaves for the next file while that is asked for, and not once it has come, when the copier may
/// have another reader to serve.
#[test]
fn room_for_a_file_of_another_node_is_made_while_that_node_is_asked() {
    let plan = Plan::new(2).files(400).size(2000).tier_size("4MiB").placement("sharded");
    let Some(c) = patient(plan.set("prefetch.enabled=false")).build() else { return };
    let keep = |i| c.node(i).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    let keepers: Vec<Running> = (0..c.len()).map(keep).collect();
    let reads = Reads::epochs(1).with(&["--same-order"]);
    c.together(&reads);
    c.end(c.start_indexed([0], &reads));
    let tier = c.node(0).tier();
    let before = copies(&tier).len();
    // An answer takes long enough for the copies to be counted meanwhile.
    c.net().rate(1, 1);
    let is_over = AtomicBool::new(false);
    let least = std::thread::scope(|s| {
        let watch = s.spawn(|| {
            let (mut least, began) = (before, Instant::now());
            while !is_over.load(Ordering::Relaxed) && began.elapsed() < MAX_WATCH {
                // (A look at the directories takes a while: only what two see is so.)
                let (first, second) = (copies(&tier), copies(&tier));
                least = if first == second { least.min(first.len()) } else { least };
            }
            least
        });
        c.end(c.start_indexed([0], &reads));
        is_over.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    assert!((1..before).contains(&least), "{least} of {before}");
    assert_eq!(copies(&tier).len(), before);
    keepers.into_iter().for_each(|k| drop(k.end()));
}
