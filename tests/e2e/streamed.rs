//! Streamed files: chunks in the window are overwritten in place under their readers. Whatever
//! these do, they get the bytes of the version that they have open.

use crate::faults::{MIB, Tmpfs, du, kill, wait_for};
use crate::harness::{Job, Plan, World};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

const FILES: u64 = 8;
const FILE_BYTES: u64 = 3_000_000;

fn program() -> Job {
    Job::new("python3").arg(crate::harness::sources().join("streamed.py"))
}

/// Files of 24 MB, and a window with 16 slots of 64 KiB for them.
fn plan() -> Plan {
    let bytes = FILE_BYTES.to_string();
    let made = program().args(["make", "--files", &FILES.to_string(), "--bytes", &bytes]);
    let plan = World::plan().made_by(made).set("source.chunk_threshold=256KiB").set("source.chunk_size=64KiB");
    plan.patient().tier_size("17MiB").pfs(|b| b.data_latency(Duration::from_millis(1)).attr_ttl(Duration::ZERO))
}

fn readers(w: &World, seconds: u32, seed: u32) -> Job {
    let job = program().args(["read", "--processes", "4", "--seconds", &seconds.to_string()]);
    job.args(["--seed", &seed.to_string()]).arg(w.root())
}

fn chunks_copied(w: &World) -> u64 {
    w.agent().map_or(0, |s| s.agent["chunks_copied"])
}

/// Replaces a file by another version.
fn replace(w: &World, number: u64, version: u64) {
    let mut replace = Command::new("python3");
    replace.arg(crate::harness::sources().join("streamed.py")).args(["replace", "--bytes", &FILE_BYTES.to_string()]);
    replace.arg(w.backing()).args([number.to_string(), version.to_string()]);
    assert!(replace.status().unwrap().success());
}

#[test]
fn readers_in_every_order_get_the_bytes_of_their_file() {
    let mut w = plan().build();
    w.keep();
    for seed in 1..=2 {
        assert!(w.start_indexed(&readers(&w, 4, seed)).end().good().text().ends_with("all right\n"));
        assert!(du(w.tier()) <= 17 * MIB, "{}", du(w.tier()));
    }
    // Some were streamed: more chunks than the tier can have held.
    assert!(chunks_copied(&w) > 17 * 16 + 50, "{}", chunks_copied(&w));
}

#[test]
fn readers_get_the_bytes_of_one_version_while_files_are_replaced_and_evicted() {
    let mut w = plan().build();
    w.keep();
    let mut running = w.start_indexed(&readers(&w, 6, 3));
    running.until_written("begun");
    for round in 0..12 {
        std::thread::sleep(Duration::from_millis(300));
        if round % 3 == 2 {
            replace(&w, round % FILES, 1 + round / FILES);
        }
        let out = w.monarch("evict").args(w.words()).arg("--").arg(w.root()).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    assert!(running.end().good().text().ends_with("all right\n"));
    assert!(du(w.tier()) <= 17 * MIB, "{}", du(w.tier()));
}

/// The window's file goes with the agent. The next agent makes another one, under the same readers.
#[test]
fn readers_get_the_bytes_of_their_file_while_agents_die() {
    let mut w = plan().set("wait.pickup=100ms").build();
    w.keep();
    let mut running = w.start_indexed(&readers(&w, 6, 4));
    running.until_written("begun");
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(1000));
        if let Some(agent) = w.agent() {
            kill(agent.pid as i32, libc::SIGKILL);
        }
    }
    assert!(running.end().good().text().ends_with("all right\n"));
}

/// A process that opens the next file before it reads it finds its first chunks there.
#[test]
fn the_first_chunks_of_a_streamed_file_are_requested_when_it_is_opened() {
    let mut w = plan().tier_size("6MiB").set("prefetch.enabled=false").build();
    w.keep();
    let script = "import os,sys,time\n\
        def read(fd):\n\
        \x20 while os.read(fd, 262144): pass\n\
        names = [f'{sys.argv[1]}/s{n}.bin' for n in range(8)]\n\
        for name in names: read(os.open(name, 0))\n\
        print('in order', flush=True)\n\
        sys.stdin.readline()\n\
        last = os.open(names[3], 0)\n\
        sys.stdin.readline()\n\
        read(last)";
    let job = Job::new("python3").args(["-c", script]).arg(w.root());
    let mut running = w.start_indexed(&job);
    running.until_written("in order");
    let before = w.pfs().counters().unwrap().bytes_read;
    running.write(b"\n");
    // (The job waits.)
    wait_for("its first chunk", || w.pfs().counters().unwrap().bytes_read > before);
    running.write(b"\n");
    running.end().good();
}

/// The kernel has no memory for the slots of the window, and cannot read into them.
#[test]
fn readers_get_the_bytes_of_their_file_while_the_tiers_tmpfs_is_full() {
    let Some(tmpfs) = Tmpfs::mount("size=32m") else { return };
    let plan = plan().tier_dir(tmpfs.path().join("tier")).set("tiers.0.keep_free=0").set("prefetch.enabled=false");
    let mut w = plan.build();
    w.keep();
    let mut running = w.start_indexed(&readers(&w, 12, 5));
    running.until_written("begun");
    let filler = tmpfs.path().join("filler");
    for _ in 0..3 {
        let file = File::create(&filler).unwrap();
        let full = (0..).map(|at| file.write_all_at(&[1; 4096], at * 4096)).find_map(Result::err).unwrap();
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
        std::thread::sleep(Duration::from_millis(1500));
        std::fs::remove_file(&filler).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    // The tier rests for a while after a failure.
    let before = chunks_copied(&w);
    wait_for("chunks in the tier", || chunks_copied(&w) > before + 20);
    assert!(running.end().good().text().ends_with("all right\n"));
    println!("{}", w.log());
}
