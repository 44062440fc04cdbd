//! Whatever a program does to descriptors without the shim's knowledge, each is the file it was
//! opened on, and calls report it as that file.

use crate::harness::{Job, World};

fn truth(w: &World) -> Job {
    w.program("truth").arg("--strict").arg(w.root())
}

#[test]
fn descriptors_before_anything_is_resident() {
    let w = World::plan().set("prefetch.enabled=false").build();
    w.same(&truth(&w)).good();
}

#[test]
fn descriptors_when_all_is_resident() {
    let mut w = World::plan().build();
    w.settle();
    w.same(&truth(&w)).good();
}

#[test]
fn descriptors_on_a_plain_disk() {
    let mut w = World::plan().disk().build();
    w.settle();
    w.same(&truth(&w)).good();
}

#[test]
fn descriptors_when_the_tier_is_on_the_same_device_as_the_data() {
    let dir = tempfile::Builder::new().prefix("monarch-e2e-tier-").tempdir().unwrap();
    let mut w = World::plan().disk().tier_dir(dir.path().join("tier")).build();
    w.settle();
    w.same(&truth(&w)).good();
    // Not `dir`: ext4 lists `.` and `..` anywhere, the shim lists them first.
    for family in ["open", "read", "stat", "odd", "errors"] {
        w.same(&w.program("readers").arg(family).arg(w.root()));
    }
}

#[test]
fn held_files_outlive_their_copies() {
    let mut w = World::plan().build();
    w.settle();
    for how in ["--limit=", "--mmap", "--fopen"] {
        let mut job = w.program("hold");
        if how.starts_with("--limit") {
            job = job.args(["--limit", "60"]);
        } else {
            job = job.arg(how);
        }
        let mut running = w.start(&job.arg(w.root()));
        running.until_written("ready 60");
        if how == "--fopen" {
            // As an eviction does: the names go, the inodes stay as long as a process has them
            // open.
            std::fs::remove_dir_all(w.copies()).unwrap();
        }
        let ended = running.end().good();
        assert!(ended.text().contains("ok 60"), "{how}: {}", ended.text());
    }
    // No copy is left: everything comes from the PFS, without an error.
    w.same(&w.python("epochs.py").args(["--epochs", "1", "--verify"]).arg(w.root())).good();
}
