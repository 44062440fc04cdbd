//! The copy engines in an agent: each fills the tier, and threads do where io_uring is forbidden.

use crate::faults::{monarch, reads};
use crate::harness::{Job, Running, World};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Makes a command forbid io_uring to itself and its children, as a container's profile does.
fn without_io_uring(command: &mut Command) {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: between fork and exec: two system calls that read a structure of this function.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(install) };
}

/// Makes a command unable to lock memory.
fn without_locked_memory(command: &mut Command) {
    let limit = || {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: between fork and exec: a system call that reads a structure of this function.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes a system call only.
    unsafe { command.pre_exec(limit) };
}

fn keeper(w: &World, shape: fn(&mut Command)) -> Running {
    let mut command = w.monarch_run(&Job::new("sh").args(["-c", "echo kept; cat"]));
    shape(&mut command);
    let mut running = Running::new(command);
    running.until_written("kept");
    running
}

fn all_copies(w: &World, files: u64) {
    w.until("all copies", |s| s.tiers.iter().map(|t| t.files).sum::<u64>() >= files);
    w.run(&reads(w).args(["--rounds", "2"])).good();
}

#[test]
fn every_engine_fills_the_tier() {
    for settings in [&["io.engine=threads"][..], &["io.engine=uring"], &["io.engine=uring", "io.direct=true"]] {
        let plan = World::plan().files(150).size(60_000).set("source.io_size=16KiB").set("source.max_inflight=16");
        let mut w = settings.iter().fold(plan, |plan, s| plan.set(s)).build();
        w.settle();
        let status = w.agent().unwrap();
        assert_eq!(settings[0], format!("io.engine={}", status.engine), "{}", status.engine_why);
        assert_eq!(status.agent["source_errors"] + status.agent["tier_errors"], 0);
        w.run(&reads(&w).args(["--rounds", "2"])).good();
    }
}

#[test]
fn auto_begins_with_what_the_file_system_suggests_and_says_so() {
    let mut w = World::plan().files(20).args(&["--plain"]).build();
    w.settle();
    let status = w.agent().unwrap();
    assert_eq!(status.engine, "auto");
    assert_eq!(
        status.roots[0].engine,
        "files threads (not measured yet), chunks threads (not measured yet), streamed threads (not measured yet)"
    );
    let text = String::from_utf8(monarch(&w, &["status"]).stdout).unwrap();
    assert!(text.contains("engine files threads (not measured yet)"), "{text}");
}

#[test]
fn auto_lets_both_engines_take_turns_and_keeps_the_better_one() {
    // Five turns of 512 files, and some more: a turn in which a busy machine paused does not count.
    // Chunks: five turns of 64.
    let mut w = World::plan().files(4_000).size(400).args(&["--plain"]).build();
    w.settle();
    let status = w.agent().unwrap();
    let (files, chunks) = status.roots[0].engine.split_once(", ").unwrap();
    assert!(
        files.contains("(measured: uring takes ") && chunks.starts_with("chunks threads (not measured yet)"),
        "{status:?}"
    );
    assert!(w.log().contains("copy engine chosen: uring takes "), "{}", w.log());
    assert_eq!((status.tiers[0].files, status.agent["source_errors"]), (status.roots[0].files, 0));
    w.run(&reads(&w)).good();
    let mut w = World::plan()
        .files(25)
        .args(&["--plain"])
        .size(1_000_000)
        .set("source.chunk_threshold=64KiB")
        .set("source.chunk_size=32KiB")
        .build();
    w.settle();
    let engine = w.agent().unwrap().roots[0].engine.clone();
    assert!(engine.contains("chunks threads (measured: ") || engine.contains("chunks uring (measured: "), "{engine}");
    w.run(&reads(&w)).good();
}

#[test]
fn where_io_uring_is_forbidden_threads_copy_and_one_line_says_why() {
    let w = World::plan().files(60).args(&["--plain"]).set("io.engine=uring").build();
    let kept = keeper(&w, without_io_uring);
    all_copies(&w, 60);
    let status = w.agent().unwrap();
    assert_eq!(status.engine, "threads");
    assert!(status.engine_why.contains("io_uring is not available") && status.engine_why.contains("seccomp"));
    let log = w.log();
    let lines: Vec<&str> = log.lines().filter(|l| l.contains("io_uring")).collect();
    assert!(lines.len() == 1 && lines[0].contains("copying with threads"), "{log}");
    drop(kept);
}

#[test]
fn without_locked_memory_an_engine_copies() {
    let w = World::plan().files(60).args(&["--plain"]).set("io.engine=uring").build();
    let kept = keeper(&w, without_locked_memory);
    all_copies(&w, 60);
    let status = w.agent().unwrap();
    assert!(status.engine == "uring" || status.engine_why.contains("io_uring is not available"), "{status:?}");
    drop(kept);
}

#[test]
fn a_demand_does_not_wait_behind_a_ring_that_is_full() {
    // 600 files at 150 ms each, 14 at a time, are fetched ahead: the last ones are far away.
    let latency = Duration::from_millis(50);
    let w = World::plan()
        .files(600)
        .args(&["--plain"])
        .pfs(move |b| b.meta_latency(latency).data_latency(latency))
        .set("source.max_inflight=16")
        .set("io.engine=uring")
        .patient()
        .build();
    let kept = keeper(&w, |_| {});
    w.until("the first copies", |s| s.agent["copied_ahead"] > 20);
    w.run(&reads(&w).args(["--rounds", "1", "--only", "s00059"])).good();
    assert!(w.agent().unwrap().agent["copied_ahead"] < 400, "the last ones were asked for long before their turn");
    assert!(w.counter("waited") >= 3 && w.counter("deadline") == 0, "{:?}", w.agent().unwrap().counters);
    drop(kept);
}
