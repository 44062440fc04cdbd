//! Calls that reach the PFS: each file once, and none once it is resident.

use crate::harness::{Job, World};
use slowfs::{Counters, FaultKind, FaultSpec};
use std::time::Duration;

const FILE_BYTES: u64 = 100_000;

/// All ways but reading a directory by its descriptor, which asks the kernel.
const MODES: &str = "open_read,open_unbuffered,open_seek,readinto,os_read,os_pread,mmap,dup_fdopen,sendfile,path_bytes";

/// Runs a job in a new process; returns the calls that reached the PFS between its first
/// instruction and its end.
pub fn traffic(w: &World, job: &Job) -> (String, Counters) {
    let mut running = w.start(&job.announced());
    running.until_written("ready");
    w.pfs().reset().unwrap();
    running.write(b"\n");
    let text = running.end().good().text();
    (text, w.pfs().counters().unwrap())
}

#[test]
fn eight_processes_read_each_file_once() {
    let w = World::plan().files(200).size(FILE_BYTES as usize).args(&["--plain", "--exact"]).patient().build();
    let script = "for i in 1 2 3 4 5 6 7 8; do python3 \"$1\" --epochs 3 --mode open_read --verify --seed $i \"$2\" & done; wait";
    let job = Job::new("sh").args(["-c", script, "sh"]).arg(crate::harness::sources().join("epochs.py")).arg(w.root());
    w.pfs().reset().unwrap();
    let ended = w.run(&job).good();
    let lines = ended.text().lines().map(str::to_owned).collect::<std::collections::HashSet<_>>();
    assert_eq!((ended.text().lines().count(), lines.len()), (24, 3), "{}", ended.text());
    let paths = w.pfs().paths().unwrap();
    let files: Vec<_> = paths.iter().filter(|(p, _)| p.ends_with(".bin")).collect();
    assert_eq!(files.len(), 200);
    for (path, c) in files {
        assert_eq!((c.opens, c.bytes_read), (1, FILE_BYTES), "{path}: {c:?}");
        assert!(c.lookups + c.getattrs <= 2, "{path}: {c:?}");
    }
}

#[test]
fn a_resident_data_set_costs_the_pfs_nothing() {
    // The kernel caches no attributes: its questions reach the PFS.
    let mut w = World::plan()
        .files(200)
        .size(FILE_BYTES as usize)
        .args(&["--plain"])
        .pfs(|b| b.attr_ttl(Duration::ZERO))
        .build();
    w.settle();
    for rest in [&["--list", "all"][..], &["--workers", "4"], &["--workers", "2", "--start", "spawn"]] {
        let job = w.python("epochs.py").args(["--epochs", "3", "--verify", "--mode", MODES]).args(rest).arg(w.root());
        let (_, c) = traffic(&w, &job);
        assert_eq!(c.calls(), 0, "{rest:?}: {c:?}");
    }
}

#[test]
fn a_resident_data_set_is_read_from_a_dead_pfs() {
    let mut w = World::plan().args(&["--plain"]).pfs(|b| b.attr_ttl(Duration::ZERO)).build();
    let job = w.python("epochs.py").args(["--epochs", "2", "--verify", "--mode", MODES, "--list", "all"]).arg(w.root());
    let bare = w.bare(&job).good();
    w.settle();
    let mut running = w.start(&job.announced());
    running.until_written("ready");
    w.pfs().fault(FaultSpec::new(FaultKind::EIO)).unwrap();
    running.write(b"\n");
    let ours = running.end();
    w.pfs().clear().unwrap();
    assert_eq!(ours.good().text().strip_prefix("ready\n"), Some(&*bare.text()));
}
