//! Directories that the index has no memory for, held by the nodes of the job
//! (`index.distributed`): every node says of each name what the PFS says, without asking it again,
//! whatever happens to the others.

use super::changes::{Puppet, Stage};
use super::shared_scan::WALK;
use super::{bound, patient};
use crate::harness::Job;
use crate::plan::Plan;
use crate::wait::wait_for;
use crate::world::Cluster;
use std::fs;
use std::time::{Duration, Instant};

/// Directories of the data set, of which an index of 1 MiB holds about half, and files in each.
const DIRS: usize = 24;
const FILES: usize = 200;
/// Long names fill an index with few files.
const NAME_BYTES: usize = 200;

fn name(n: usize) -> String {
    format!("{n:0>NAME_BYTES$}")
}

fn size(dir: usize, n: usize) -> usize {
    dir * 1000 + n
}

/// Three nodes with a job on each, and the directories that no index holds anything of.
fn set(shape: impl FnOnce(Plan) -> Plan) -> Option<(Stage, Vec<usize>)> {
    let plan = patient(Plan::new(3).files(8)).set("index.max_memory=1MiB").set("index.distributed=auto");
    let plan = plan.set("index.scan_threads=1").set("prefetch.enabled=false").pfs(|b| b.attr_ttl(Duration::ZERO));
    let c = shape(plan).build()?;
    for dir in 0..DIRS {
        let at = c.backing().join(format!("wide{dir}"));
        fs::create_dir(&at).unwrap();
        (0..FILES).for_each(|n| fs::File::create(at.join(name(n))).unwrap().set_len(size(dir, n) as u64).unwrap());
        std::os::unix::fs::symlink(name(0), at.join("link")).unwrap();
    }
    let all: Vec<Puppet> = (0..3).map(|i| Puppet::start(&c, i)).collect();
    c.all().for_each(|n| n.indexed());
    let is_held = |dir: usize, n: usize| {
        let path = c.root().join(format!("wide{dir}")).join(name(n));
        let said = c.node(0).monarch("explain").arg("--tier").arg(c.node(0).tier()).arg(path).output();
        let said = said.expect("monarch explain");
        !String::from_utf8_lossy(&said.stdout).contains("not in the index")
    };
    let beyond: Vec<usize> =
        (0..DIRS).filter(|dir| ![0, FILES / 2, FILES - 1].iter().any(|n| is_held(*dir, *n))).collect();
    assert!(beyond.len() > 3 && beyond.len() < DIRS - 3, "{beyond:?} are not in the index");
    Some((Stage::of(c, all), beyond))
}

/// Metadata calls of the PFS since a mark.
fn asked(c: &Cluster, mark: &slowfs::Counters) -> u64 {
    let seen = c.since(mark);
    seen.lookup + seen.getattr + seen.opendir + seen.readdir + seen.readdirplus
}

/// Has a node ask for an entry until the PFS is not asked any more: the directory has come.
fn warm(stage: &mut Stage, node: usize, dir: usize) {
    let words = format!("stat wide{dir}/{}", name(1));
    let Stage { c, all, .. } = stage;
    wait_for("a directory of another node", || {
        let mark = c.mark();
        assert_eq!(all[node].ask(&words), size(dir, 1).to_string(), "node {node}");
        asked(c, &mark) == 0
    });
}

/// Every node says the right size of some files of a directory.
#[track_caller]
fn assert_sizes(stage: &mut Stage, dir: usize, nodes: &[usize]) {
    for &node in nodes {
        for n in (0..FILES).step_by(25) {
            let said = stage.all[node].ask(&format!("stat wide{dir}/{}", name(n)));
            assert_eq!(said, size(dir, n).to_string(), "wide{dir}/{n} on node {node}");
        }
    }
}

#[test]
fn every_node_sees_what_the_pfs_has_and_what_one_has_read_no_other_asks_for() {
    let Some((mut stage, beyond)) = set(|plan| plan) else { return };
    let job = Job::new("python3").arg("-c").arg(WALK).arg(stage.c.root());
    let bare = stage.c.node(0).start_bare(&job).end().good().text();
    assert!(bare.lines().count() > DIRS * FILES, "{bare}");
    // While directories are fetched, and after that.
    for round in 0..2 {
        for node in 0..3 {
            let seen = stage.c.node(node).start(&job).end().good().text();
            assert!(seen == bare, "round {round}, node {node}: {}", first_difference(&seen, &bare));
        }
    }
    let dir = beyond[0];
    (0..3).for_each(|node| warm(&mut stage, node, dir));
    let names: Vec<String> = (0..FILES).map(name).chain(["link".to_owned()]).collect();
    // (A question that an agent on a busy machine answers late is put to the PFS.)
    wait_for("a pass that costs the PFS nothing", || {
        let mark = stage.c.mark();
        assert_sizes(&mut stage, dir, &[0, 1, 2]);
        let list: Vec<String> = (0..3).map(|node| stage.all[node].ask(&format!("list wide{dir}"))).collect();
        assert_eq!(list, vec![names.join(" "); 3]);
        asked(&stage.c, &mark) == 0
    });
    // What is not there is the kernel's to say, and what a link leads to.
    assert_eq!(stage.all[1].ask(&format!("stat wide{dir}/none")), "ENOENT");
    assert_eq!(stage.all[1].ask(&format!("stat wide{dir}/link")), size(dir, 0).to_string());
    assert_eq!(stage.all[1].ask(&format!("stat wide{dir}/{}/below", name(0))), "ENOTDIR");
    stage.end();
}

fn first_difference(a: &str, b: &str) -> String {
    let found = a.lines().zip(b.lines()).find(|(a, b)| a != b);
    found.map_or_else(|| format!("{} and {} lines", a.lines().count(), b.lines().count()), |of| format!("{of:?}"))
}

#[test]
fn changes_in_directories_that_no_index_holds_are_seen_by_all() {
    let Some((mut stage, beyond)) = set(|plan| plan) else { return };
    let [a, b] = [beyond[0], beyond[1]];
    for node in 0..3 {
        warm(&mut stage, node, a);
        warm(&mut stage, node, b);
    }
    let rel = |dir: usize, n: usize| format!("wide{dir}/{}", name(n));
    stage.done(0, &format!("append {}", rel(a, 3)));
    stage.seen(0, &format!("stat {}", rel(a, 3)), |s| s == (size(a, 3) + 8).to_string());
    // The rest of the directory's entries are as before.
    assert_sizes(&mut stage, a, &[0, 1, 2]);
    stage.done(1, &format!("delete {}", rel(a, 4)));
    stage.seen(1, &format!("stat {}", rel(a, 4)), |s| s == "ENOENT");
    stage.seen(1, &format!("list wide{a}"), |s| !s.contains(&name(4)));
    stage.done(2, &format!("write wide{a}/new.z1000.bin 3"));
    stage.seen(2, &format!("list wide{a}"), |s| s.contains("new.z1000.bin"));
    stage.seen(2, &format!("read wide{a}/new.z1000.bin"), |s| s == "3");
    stage.done(0, &format!("rename {} wide{b}/other", rel(b, 5)));
    stage.seen(0, &format!("stat {}", rel(b, 5)), |s| s == "ENOENT");
    stage.seen(0, &format!("stat wide{b}/other"), |s| s == size(b, 5).to_string());
    // A directory that moves takes all of it along.
    let c = beyond[2];
    (0..3).for_each(|node| warm(&mut stage, node, c));
    stage.done(1, &format!("rename wide{c} moved"));
    stage.seen(1, &format!("stat {}", rel(c, 6)), |s| s == "ENOENT");
    stage.seen(1, &format!("stat moved/{}", name(6)), |s| s == size(c, 6).to_string());
    stage.seen(1, &format!("list wide{c}"), |s| s == "ENOENT");
    stage.end();
}

#[test]
fn a_holder_that_is_killed_or_cut_off_costs_a_bounded_wait() {
    let Some((mut stage, beyond)) = set(|plan| plan) else { return };
    beyond.iter().take(2).for_each(|dir| (0..3).for_each(|node| warm(&mut stage, node, *dir)));
    let old = stage.c.node(1).signal(libc::SIGKILL);
    let all_right = |stage: &mut Stage, what: &str| {
        let start = Instant::now();
        for dir in &beyond {
            assert_sizes(stage, *dir, &[0, 1, 2]);
        }
        let each = start.elapsed().as_secs_f64() / beyond.len() as f64;
        assert!(each < bound(), "{what}: {each} s for 24 names");
    };
    all_right(&mut stage, "a killed agent");
    stage.c.node(1).successor(old);
    stage.c.node(1).indexed();
    all_right(&mut stage, "another agent");
    stage.c.net().cut(2);
    all_right(&mut stage, "a cut link");
    stage.c.net().join(2);
    all_right(&mut stage, "the link again");
    stage.end();
}
