//! Environments and source trees: a job opens a small part of them, and no more is read ahead.

use crate::faults::regular;
use crate::harness::{Job, World};
use monarch_core::agent::protocol::{Ahead, Status};
use std::path::{Path, PathBuf};

/// Makes 20 directories of 10 files below $4/$1, and $4/$2 if it has a name; a data set of 40 files
/// in $4/data. $3 is what follows the names of files.
const TREE: &str = "set -e; for d in $(seq 20); do mkdir -p \"$4/$1/p$d\"; for f in $(seq 10); do\n\
    head -c 3000 /dev/urandom > \"$4/$1/p$d/f$f$3\"; done; done\n\
    if [ -n \"$2\" ]; then mkdir -p \"$(dirname \"$4/$2\")\"; echo 1 > \"$4/$2\"; fi\n\
    mkdir \"$4/data\"; for f in $(seq 40); do head -c 5000 /dev/urandom > \"$4/data/$f.bin\"; done";

/// A world with such a tree, when prefetch has nothing left to do.
fn world(below: &str, marker: &str, suffix: &str) -> World {
    let tree = Job::new("sh").args(["-c", TREE, "sh", below, marker, suffix]);
    let mut w = World::plan().made_by(tree).patient().build();
    w.keep();
    w.until("the end of prefetch", |s| is_ready(s) && s.prefetch == Ahead::Idle && s.tiers[0].files >= 40);
    w
}

fn is_ready(s: &Status) -> bool {
    s.roots.iter().all(|r| r.state == "ready")
}

fn bytes(files: &[PathBuf]) -> u64 {
    files.iter().map(|f| f.metadata().unwrap().len()).sum()
}

/// Every twelfth file of the software, and all of the data set.
fn read_by_job(root: &Path, below: &str) -> Vec<PathBuf> {
    let part = regular(&root.join(below)).into_iter().step_by(12);
    part.chain(regular(&root.join("data"))).collect()
}

#[test]
fn of_software_the_pfs_sends_what_the_job_opens_and_of_a_data_set_everything_once() {
    for (below, marker, suffix) in [
        ("env/lib/python3.11/site-packages", "env/pyvenv.cfg", ""),
        ("miniconda/share", "miniconda/conda-meta/history", ".txt"),
        ("opt/lib/python3.11", "opt/lib/python3.11/os.py", ""),
        ("packages/node_modules", "", ".json"),
        ("src", "", ".c"),
    ] {
        let w = world(below, marker, suffix);
        let files = read_by_job(w.root(), below);
        let (data, software): (Vec<PathBuf>, Vec<PathBuf>) =
            files.iter().cloned().partition(|f| f.starts_with(w.root().join("data")));
        let seen = w.pfs().counters().unwrap();
        assert_eq!((seen.opens(), seen.bytes_read), (40, bytes(&data)), "{below}: read ahead");
        w.pfs().reset().unwrap();
        let job = Job::new("cat").args(&files);
        let said = w.run(&job).good().text();
        let seen = w.pfs().counters().unwrap();
        assert_eq!((seen.opens(), seen.bytes_read), (software.len() as u64, bytes(&software)), "{below}: by the job");
        assert_eq!(said, w.bare(&job).good().text(), "{below}");
        let status = w.agent().unwrap();
        assert!(status.roots[0].software >= 200 && status.tiers[0].files == files.len() as u64, "{below}: {status:?}");
        let notice = &status.roots[0].notices()[0];
        assert!(notice.contains("of software: copied when they are opened, not ahead"), "{notice}");
    }
}

#[test]
fn software_is_copied_as_a_whole_when_it_is_staged() {
    let w = world("env/lib", "env/pyvenv.cfg", "");
    let mut stage = w.monarch("stage");
    stage.args(w.words()).arg(w.root().join("env"));
    let out = stage.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && said.contains("staged: 201 of 201 files"), "{said} {out:?}");
}
