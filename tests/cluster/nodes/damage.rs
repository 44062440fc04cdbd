//! Bytes that were damaged after they came from the PFS: no other node takes them, and the node
//! that sends them makes its copies again.

use super::{NodeStatus, account, patient};
use crate::harness::{Job, Running};
use crate::plan::Plan;
use crate::reads::Reads;
use crate::wait::wait_for;
use crate::world::Cluster;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

/// Flips a bit of every copy below a directory, and leaves its times as they were; returns the
/// number of copies.
fn damage(dir: &Path, sizes: std::ops::Range<u64>) -> usize {
    let mut done = 0;
    for path in fs::read_dir(dir).unwrap().flatten().map(|e| e.path()) {
        let m = path.symlink_metadata().unwrap();
        if m.is_dir() {
            done += damage(&path, sizes.clone());
        } else if sizes.contains(&m.len()) {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let file = fs::File::options().read(true).write(true).open(&path).unwrap();
            let (mut byte, at) = ([0], m.len() / 2);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
            file.set_modified(m.modified().unwrap()).unwrap();
            fs::set_permissions(&path, m.permissions()).unwrap();
            done += 1;
        }
    }
    done
}

/// The contents of all files below a directory that are of these sizes.
fn contents(dir: &Path, sizes: &std::ops::Range<u64>) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for path in fs::read_dir(dir).unwrap().flatten().map(|e| e.path()) {
        // (A copy may go while it is looked at.)
        let Ok(m) = path.symlink_metadata() else { continue };
        if m.is_dir() {
            all.extend(contents(&path, sizes));
        } else if sizes.contains(&m.len()) {
            all.extend(fs::read(&path));
        }
    }
    all
}

/// A job that does nothing, so that the agent stays.
fn keep(c: &Cluster, node: usize) -> Running {
    let mut job = c.node(node).start(&Job::new("sh").arg("-c").arg("echo ready; read -r line"));
    job.until_written("ready");
    job
}

fn holds_its_own(account: &NodeStatus) -> bool {
    account.held.0 >= account.owned.0 + account.held_of_others.0
}

/// A node holds the files that it owns, damaged, and no other node has a copy: none had read
/// anything yet.
fn no_node_takes_damaged_copies(plan: Plan, sizes: std::ops::Range<u64>) {
    let Some(c) = patient(plan.placement("sharded")).build() else { return };
    let keepers: Vec<Running> = (0..3).map(|i| keep(&c, i)).collect();
    for node in c.all() {
        node.indexed();
        wait_for("what it owns", || holds_its_own(&account(node)));
    }
    c.quiet();
    let (owned, owned_bytes) = account(c.node(0)).owned;
    let owned = owned as usize;
    // It may hold copies for owners that were not there yet when it looked for them; they are
    // damaged as well.
    let damaged = damage(&c.node(0).tier(), sizes.clone());
    assert!(damaged >= owned);
    let originals: HashSet<Vec<u8>> = contents(c.backing(), &sizes).into_iter().collect();
    let right = || contents(&c.node(0).tier(), &sizes).iter().filter(|copy| originals.contains(*copy)).count();
    assert_eq!((right(), account(c.node(1)).damaged + account(c.node(2)).damaged), (0, 0));
    let mark = c.mark();
    // Right bytes, or the jobs fail.
    c.end(c.start_indexed([1, 2], &Reads::epochs(2)));
    let (one, two) = (account(c.node(1)), account(c.node(2)));
    // Node 0 found out before it sent anything.
    assert_eq!(one.damaged + two.damaged, 0, "{one:#?}{two:#?}");
    let seen = c.since(&mark);
    assert!(seen.bytes_read > 0, "the right bytes came from nowhere: {seen:#?}");
    // Damaged files are read at each turn at most (2 nodes, 2 epochs), and nothing else.
    assert!(seen.bytes_read <= 4 * owned_bytes, "{owned_bytes}: {seen:#?}");
    // Node 0 has made its copies again: no node asked it for those that it holds for other owners.
    wait_for("right copies", || right() >= owned);
    let zero = account(c.node(0));
    assert!(zero.found_damaged as usize >= owned && zero.found_damaged as usize <= damaged, "{zero:#?}");
    // No reader finds damage any more.
    c.end(c.start_indexed([1, 2], &Reads::epochs(1)));
    assert_eq!((account(c.node(1)).damaged, account(c.node(2)).damaged), (one.damaged, two.damaged));
    keepers.into_iter().for_each(|k| drop(k.end()));
}

#[test]
fn no_node_takes_damaged_small_files() {
    no_node_takes_damaged_copies(Plan::new(3).files(120), 30_000..50_001);
}

#[test]
fn no_node_takes_damaged_large_files() {
    let plan = Plan::new(3).files(24).size(400_000);
    let plan = plan.set("source.chunk_threshold=64KiB").set("source.chunk_size=64KiB");
    no_node_takes_damaged_copies(plan, 300_000..500_001);
}

/// Files of more than one request that are not read in chunks: no node has checksums of their
/// parts, and a checksum taken from damaged bytes would agree with them.
#[test]
fn no_node_takes_damaged_files_of_several_parts() {
    let sizes = 4_500_000..7_500_001;
    // (Of twelve files a node owned none in one run of a hundred.)
    let plan = Plan::new(3).files(30).size(6_000_000).placement("sharded").tier_size("256MiB");
    let Some(c) = patient(plan).build() else { return };
    let keepers: Vec<Running> = (0..3).map(|i| keep(&c, i)).collect();
    for node in c.all() {
        node.indexed();
        wait_for("what it owns", || holds_its_own(&account(node)));
    }
    c.quiet();
    let damaged = damage(&c.node(0).tier(), sizes.clone());
    assert!(damaged > 0);
    let originals: HashSet<Vec<u8>> = contents(c.backing(), &sizes).into_iter().collect();
    let right = || contents(&c.node(0).tier(), &sizes).iter().filter(|copy| originals.contains(*copy)).count();
    assert_eq!(right(), 0);
    // Right bytes, or the jobs fail.
    c.end(c.start_indexed([1, 2], &Reads::epochs(1)));
    let owned = account(c.node(0)).owned.0 as usize;
    wait_for("right copies", || right() >= owned);
    keepers.into_iter().for_each(|k| drop(k.end()));
}
