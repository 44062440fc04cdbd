//! `dataset.verify_on_open`: a reader that opens a copy which a disk has damaged finds it; no
//! reader is served it, and the copy is made again.

use crate::faults::{agent_pid, control, copies, kill, reads, wait_for};
use crate::harness::{Job, Plan, Running, World};
use crate::warm::hurt;
use monarch_core::reader::{Place, Reader};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use tempfile::TempDir;

fn plan(files: usize) -> (Plan, TempDir) {
    let disk = tempfile::tempdir().unwrap();
    let plan = World::plan().files(files).size(30_000).args(&["--plain"]).tier_dir(disk.path().join("tier"));
    (plan.set("dataset.verify_on_open=true"), disk)
}

/// Bytes and opens of the PFS since the last reset.
fn asked(w: &World) -> (u64, u64) {
    let c = w.pfs().counters().unwrap();
    (c.bytes_read, c.opens())
}

fn damaged(w: &World) -> u64 {
    w.agent().unwrap().agent["damaged"]
}

/// Flips one bit, as a failing disk would: times stay.
fn flip(copy: &Path, at: u64) {
    let before = fs::metadata(copy).unwrap();
    fs::set_permissions(copy, fs::Permissions::from_mode(0o600)).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(copy).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    fs::set_permissions(copy, fs::Permissions::from_mode(0o400)).unwrap();
}

#[test]
fn no_reader_is_served_a_flipped_bit() {
    for (set, tool) in [("prefetch.enabled=true", "cat"), ("prefetch.enabled=false", "md5sum")] {
        let (plan, _disk) = plan(40);
        let mut w = plan.set(set).build();
        w.keep();
        w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
        w.run(&reads(&w)).good();
        w.until("all copies", |s| s.tiers[0].files == 40);
        w.pfs().reset().unwrap();
        w.run(&reads(&w).args(["--procs", "2"])).good();
        assert_eq!((asked(&w), damaged(&w)), ((0, 0), 0));
        // A bit in the middle, a bit at the end; by all readers at once, and by a stream.
        for (n, copy) in copies(&w).into_iter().take(3).enumerate() {
            flip(&copy, (fs::metadata(&copy).unwrap().len() - 1) / (3 - n as u64));
        }
        w.run(&reads(&w).args(["--procs", "8"])).good();
        w.until("the drops", |s| s.agent["damaged"] == 3);
        w.run(&reads(&w).args(["--procs", "2"])).good();
        w.until("all copies", |s| s.tiers[0].files == 40);
        assert!(w.log().contains("removed or damaged by another program; they are fetched again"), "{}", w.log());
        w.pfs().reset().unwrap();
        let files: Vec<_> = crate::faults::regular(w.backing());
        let job = Job::new(tool).args(files.iter().map(|f| w.root().join(f.strip_prefix(w.backing()).unwrap())));
        w.same(&job);
        assert_eq!((asked(&w).1, damaged(&w)), (40, 3), "read once, by the job without us");
        assert!(w.agent().unwrap().roots[0].verify_on_open);
    }
}

#[test]
fn of_two_readers_that_open_a_damaged_copy_neither_gets_it() {
    let (plan, _disk) = plan(12);
    let mut w = plan.build();
    w.settle();
    for round in 1..=3 {
        copies(&w).iter().for_each(|copy| hurt(copy, b"not what it was"));
        w.run(&reads(&w).args(["--procs", "8"])).good();
        w.until("the drops", |s| s.agent["damaged"] >= 12 * round && s.tiers[0].files == 12);
    }
    // As many as were damaged: each is reported once.
    assert_eq!(damaged(&w), 36);
}

#[test]
fn copies_made_in_chunks_are_compared_piece_by_piece() {
    let disk = tempfile::tempdir().unwrap();
    let large = || Job::new("python3").arg(crate::harness::sources().join("large.py"));
    let mut w = World::plan()
        .made_by(large().args(["make", "--sizes", "5000000,3000001,2097152"]))
        .set("source.chunk_threshold=64KiB")
        .set("source.chunk_size=256KiB")
        .set("dataset.verify_on_open=true")
        .patient()
        .tier_dir(disk.path().join("tier"))
        .build();
    w.settle();
    let job = || large().args(["read", "--how", "seq,whole,mapped,stdio,sent"]).arg(w.root()).arg(w.backing());
    let read = |w: &World| w.run(&job()).good();
    w.pfs().reset().unwrap();
    read(&w);
    assert_eq!((asked(&w), damaged(&w)), ((0, 0), 0));
    let all = copies(&w);
    for (copy, at) in all.iter().zip([2_000_000, 0, 1_500_000]) {
        flip(copy, at);
    }
    read(&w);
    w.until("new copies", |s| s.agent["damaged"] == 3 && s.tiers[0].files == 3);
    w.pfs().reset().unwrap();
    read(&w);
    assert_eq!((asked(&w), damaged(&w)), ((0, 0), 3));
}

#[test]
fn copies_of_an_earlier_job_are_compared_with_the_log() {
    for index in [false, true] {
        let (plan, _disk) = plan(30);
        let w = plan.build();
        let saved = w.scratch().join("saved.idx");
        let mut set = Vec::new();
        if index {
            let mut build = w.monarch("index");
            build.args(["build", "-o"]).arg(&saved).arg(w.root());
            Running::new(build).end().good();
            set = vec!["--set".to_owned(), format!("index.file={}", saved.display())];
        }
        // The earlier job did not ask for it.
        let mut stage = w.monarch("stage");
        stage.args(w.words()).args(["--quiet", "--set", "dataset.verify_on_open=false"]).args(&set);
        Running::new(stage).end().good();
        wait_for("the end of the agent", || w.agent().is_none());
        flip(&copies(&w)[7], 1000);
        let job = set.iter().fold(reads(&w).args(["--rounds", "2"]), Job::option);
        w.pfs().reset().unwrap();
        w.start_indexed(&job).end().good();
        let opens = asked(&w).1;
        // The reader that finds it, the agent, and perhaps the reader again before the agent has
        // finished.
        assert!((1..=3).contains(&opens), "{opens}, with a saved index: {index}");
    }
}

#[test]
fn checksums_outlive_the_agent_that_noted_them() {
    let (plan, _disk) = plan(30);
    let mut w = plan.build();
    w.settle();
    let old = agent_pid(&w);
    assert!(kill(old, libc::SIGKILL));
    w.until("another agent", |s| s.pid as i32 != old && s.roots[0].state == "ready" && s.tiers[0].files == 30);
    assert!(w.agent().unwrap().roots[0].verify_on_open);
    w.pfs().reset().unwrap();
    w.run(&reads(&w)).good();
    assert_eq!((asked(&w), damaged(&w)), ((0, 0), 0));
    flip(&copies(&w)[3], 12);
    w.run(&reads(&w)).good();
    w.until("a new copy", |s| s.agent["damaged"] == 1 && s.tiers[0].files == 30);
}

#[test]
fn copies_that_move_between_tiers_stay_comparable() {
    let mut w = World::plan()
        .files(60)
        .size(40_000)
        .args(&["--plain"])
        .tier_size("1MiB")
        .second_tier("64MiB")
        .set("dataset.verify_on_open=true")
        .build();
    w.settle();
    w.release();
    wait_for("the end of the agent", || w.agent().is_none());
    w.resize_tier("3MiB");
    w.keep();
    w.until("the index", |s| s.roots[0].state == "ready");
    let readers = crate::faults::Loop::start(&w, &["--procs", "2"]);
    w.until("copies in memory", |s| s.agent["promoted"] >= 20);
    readers.more(2);
    readers.end();
    assert_eq!(damaged(&w), 0, "{}", w.log());
    for copy in &copies(&w)[..2] {
        flip(copy, 100);
    }
    w.run(&reads(&w)).good();
    w.until("the drops", |s| s.agent["damaged"] == 2);
    w.run(&reads(&w)).good();
}

#[test]
fn the_library_compares_as_well() {
    let (plan, _disk) = plan(8);
    let mut w = plan.set("prefetch.enabled=false").build();
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    w.run(&reads(&w)).good();
    let reader = Reader::open(&control(&w)).unwrap();
    let bytes = |reader: &Reader, path: &Path| {
        let mut opened = reader.open_file(path).unwrap();
        let mut bytes = Vec::new();
        opened.file.read_to_end(&mut bytes).unwrap();
        (opened.place, bytes)
    };
    copies(&w).iter().for_each(|copy| flip(copy, 77));
    for file in crate::faults::regular(w.backing()) {
        let path = w.root().join(file.strip_prefix(w.backing()).unwrap());
        let right = fs::read(&file).unwrap();
        assert!(bytes(&reader, &path) == (Place::Pfs, right.clone()), "{}", path.display());
        wait_for("a new copy", || bytes(&reader, &path) == (Place::Copy(0), right.clone()));
    }
    assert_eq!(damaged(&w), 8);
}
