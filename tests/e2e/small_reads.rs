//! Small reads by chunks, for which a process maps the copies: right bytes while copies come and
//! go, no descriptor, bounds on mappings and on the space that they hold.

use crate::faults::{MIB, charged, du, kill, wait_for};
use crate::harness::{Job, Plan, World};
use std::process::Command;
use std::time::Duration;

const FILES: u64 = 20;
const FILE_BYTES: u64 = 1_000_000;

fn make() -> Job {
    let job = Job::new("python3").arg(crate::harness::sources().join("streamed.py"));
    job.args(["make", "--files", &FILES.to_string(), "--bytes", &FILE_BYTES.to_string()])
}

/// Files of 20 MB in chunks, and a tier for all of them.
fn plan() -> Plan {
    let plan = World::plan().made_by(make()).set("source.chunk_threshold=256KiB").set("source.chunk_size=64KiB");
    plan.patient().set("prefetch.enabled=false")
}

fn job(w: &World, words: &[&str]) -> Job {
    w.python("small_reads.py").args(words).arg(w.root()).arg(w.tier())
}

fn evict(w: &World) {
    let out = w.monarch("evict").args(w.words()).arg("--").arg(w.root()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_copy_is_mapped_for_small_reads_as_long_as_its_descriptor_is_open() {
    let disk = tempfile::tempdir().unwrap();
    let steps = ["mapped", "closed", "forked", "limited"];
    for w in [plan().build(), plan().tier_dir(disk.path()).build()] {
        let ours = w.start_indexed(&job(&w, &steps)).end().good().text();
        assert!(steps.iter().all(|step| ours.contains(&format!("{step} is right"))), "{ours}");
    }
    let w = plan().build();
    assert!(w.start_indexed(&job(&w, &["many"])).end().good().text().ends_with("many is right\n"));
}

#[test]
fn a_process_under_a_seccomp_filter_reads_by_descriptors() {
    let w = plan().build();
    assert!(w.start_indexed(&job(&w, &["filtered"])).end().good().text().ends_with("filtered is right\n"));
}

#[test]
fn small_reads_are_right_while_copies_are_evicted() {
    let mut w = plan().build();
    w.keep();
    let mut running = w.start_indexed(&job(&w, &["--seconds", "6", "hammer"]));
    running.until_written("begun");
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(120));
        evict(&w);
    }
    assert!(running.end().good().text().ends_with("hammer is right\n"));
    wait_for("the space of all copies", || {
        evict(&w);
        du(w.tier()) < MIB
    });
    charged(&w, 0, w.tier());
}

/// Slots of the window are overwritten in place, under mappings of it.
#[test]
fn small_reads_are_right_while_chunks_are_streamed_and_files_replaced() {
    let mut w = plan().tier_size("9MiB").pfs(|b| b.attr_ttl(Duration::ZERO)).build();
    w.keep();
    let mut running = w.start_indexed(&job(&w, &["--seconds", "8", "hammer"]));
    running.until_written("begun");
    for round in 0..10u64 {
        std::thread::sleep(Duration::from_millis(500));
        let mut replace = Command::new("python3");
        replace.arg(crate::harness::sources().join("streamed.py")).args([
            "replace",
            "--bytes",
            &FILE_BYTES.to_string(),
        ]);
        replace.arg(w.backing()).args([(round % FILES).to_string(), "1".to_owned()]);
        assert!(replace.status().unwrap().success());
        assert!(du(w.tier()) <= 9 * MIB, "{}", du(w.tier()));
    }
    assert!(running.end().good().text().ends_with("hammer is right\n"));
}

#[test]
fn small_reads_are_right_while_agents_die() {
    let mut w = plan().set("wait.pickup=100ms").build();
    w.keep();
    let mut running = w.start_indexed(&job(&w, &["--seconds", "6", "hammer"]));
    running.until_written("begun");
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1200));
        if let Some(agent) = w.agent() {
            kill(agent.pid as i32, libc::SIGKILL);
        }
    }
    assert!(running.end().good().text().ends_with("hammer is right\n"));
}

/// A complete copy that is evicted stays charged until the job closes its descriptor, as one that
/// it has open itself. A partial one is emptied, whatever a process that does not read keeps
/// mapped.
#[test]
fn evicted_copies_that_a_process_has_mapped_give_their_space_back() {
    let mut w = plan().build();
    w.keep();
    let mut running = w.start_indexed(&job(&w, &["held"]));
    running.until_written("held");
    evict(&w);
    let in_trash = || std::fs::read_dir(w.copies().join("../trash")).unwrap().count();
    assert_eq!(in_trash(), 2, "a complete copy and a partial one");
    wait_for("the space of the partial copy", || in_trash() == 1);
    charged(&w, 0, w.tier());
    running.write(b"\n");
    running.until_written("closed");
    wait_for("the space of both", || {
        evict(&w);
        du(w.tier()) < MIB
    });
    charged(&w, 0, w.tier());
    running.write(b"\n");
    running.end().good();
}
