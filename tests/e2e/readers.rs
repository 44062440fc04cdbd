//! Unmodified programs read the same bytes, metadata and listings as without Monarch: before, while
//! and after copies are made.

use crate::harness::{Job, World, assert_same, has_command, has_program};
use std::os::unix::fs::symlink;

fn readers(w: &World) -> Job {
    w.program("readers").arg("all").arg(w.root())
}

/// `epochs.py`: three shuffled epochs, every byte checked against the rule of the data.
fn epochs(w: &World, rest: &[&str]) -> Job {
    w.python("epochs.py").args(["--epochs", "3", "--verify"]).args(rest).arg(w.root())
}

/// Compares a job's results before anything is resident, on the way, and when all is. Jobs before
/// it have tried to write to at most `writes` files.
fn at_all_times(w: &mut World, job: &Job, writes: u64) {
    let bare = w.bare(job);
    let cold = w.run(job);
    assert_same(&bare, &cold);
    assert_same(&bare, &w.run(job));
    w.settle_but(writes);
    let served = |w: &World| w.counter("hits") + w.counter("stats");
    let before = served(w);
    assert_same(&bare, &w.run(job));
    assert!(served(w) > before, "nothing was served: {job:?}");
}

#[test]
fn every_variant_behind_a_slow_pfs() {
    let mut w = World::plan().args(&["--fifo"]).build();
    let job = readers(&w);
    at_all_times(&mut w, &job, 0);
}

#[test]
fn every_variant_on_a_plain_disk() {
    let mut w = World::plan().args(&["--fifo"]).disk().build();
    // Not `dir`: ext4 lists `.` and `..` anywhere, the shim lists them first.
    for family in ["open", "read", "stat", "odd", "errors"] {
        let job = w.program("readers").arg(family).arg(w.root());
        at_all_times(&mut w, &job, 20);
    }
}

#[test]
fn every_variant_on_a_tmpfs() {
    let mut w = World::plan().args(&["--fifo"]).memory().build();
    let job = readers(&w);
    at_all_times(&mut w, &job, 20);
}

#[test]
fn every_variant_without_prefetch() {
    let w = World::plan().files(24).set("prefetch.enabled=false").build();
    w.same(&readers(&w));
}

#[test]
fn every_variant_relative_to_a_directory_inside_the_root() {
    let mut w = World::plan().files(24).build();
    w.settle();
    w.same(&w.program("readers").args(["all", "."]).dir(w.root()));
    w.same(&w.program("readers").args(["all", "../data"]).dir(w.root().join("special")));
}

#[test]
fn every_variant_through_symlinks() {
    let mut w = World::plan().files(24).build();
    let (all, some) = (w.scratch().join("all"), w.scratch().join("some"));
    symlink(w.root(), &all).unwrap();
    symlink(w.root().join("data"), &some).unwrap();
    for link in [&all, &some] {
        // The dot, because the program does not walk through a link.
        let job = w.program("readers").arg("all").arg(link.join("."));
        at_all_times(&mut w, &job, 24);
    }
}

#[test]
fn python_in_one_process() {
    let mut w = World::plan().build();
    let job = epochs(&w, &["--mode", "all", "--list", "all"]);
    at_all_times(&mut w, &job, 0);
}

#[test]
fn python_with_workers() {
    let mut w = World::plan().build();
    for round in 0..2 {
        for start in ["fork", "spawn", "forkserver", "thread"] {
            // Within one process sendfile would mix up its pipes.
            let rest = ["--workers", "2", "--start", start, "--mode", "open_read,os_pread,mmap,dup_fdopen,dir_fd"];
            w.same(&epochs(&w, &rest));
        }
        if round == 0 {
            w.settle();
        }
    }
}

#[test]
fn python_with_latency_while_copies_are_made() {
    let ms = std::time::Duration::from_millis(1);
    let w = World::plan().pfs(move |b| b.meta_latency(ms).data_latency(ms)).build();
    w.same(&epochs(&w, &["--workers", "4"]));
}

#[test]
fn everyday_tools() {
    let mut w = World::plan().args(&["--git"]).build();
    let job = w.tools(&[]);
    at_all_times(&mut w, &job, 0);
}

#[test]
fn everyday_tools_on_a_plain_disk() {
    let mut w = World::plan().files(24).args(&["--git"]).disk().build();
    w.keep();
    w.until("the index", |s| s.roots[0].state == "ready");
    // What git keeps is software, which is not copied ahead.
    let software = w.agent().unwrap().roots[0].software;
    assert!(software > 0);
    w.settle_but(software);
    // Not `list`: see above.
    w.same(&w.tools(&["read", "stat", "copy", "tar", "rsync", "diff", "grep", "git", "busybox"]));
}

#[test]
fn foreign_programs() {
    let mut w = World::plan().files(24).build();
    for program in ["mini", "mini32", "mini-static", "mini-musl"] {
        if !has_program(program) {
            eprintln!("note: {program} is not built");
            continue;
        }
        // The loader of another architecture reports that it cannot preload the shim, and
        // continues.
        let job = w.program(program).arg(w.root());
        let (bare, ours) = (w.bare(&job), w.run(&job));
        assert_eq!((bare.status, bare.text()), (ours.status, ours.text()), "{program}");
    }
    w.settle();
    w.same(&w.program("mini").arg(w.root()));
}

#[test]
fn busybox_in_every_applet() {
    if has_command("busybox") {
        let mut w = World::plan().files(24).build();
        w.settle();
        w.same(&w.tools(&["busybox"]));
    }
}

#[test]
fn a_thousand_processes_at_once() {
    let mut w = World::plan().build();
    let job = w.python("many.py").arg(w.root());
    let bare = w.bare(&job);
    assert_same(&bare, &w.run(&job));
    w.settle();
    assert_same(&bare, &w.run(&job));
}

#[test]
fn a_shell_with_many_children() {
    let w = World::plan().build();
    w.same(&Job::new(crate::harness::sources().join("many.sh")).arg(w.root()).arg("200"));
}

#[test]
fn two_jobs_share_an_agent() {
    let w = World::plan().build();
    let job = epochs(&w, &[]);
    let bare = w.bare(&job);
    let (mut a, mut b) = (w.start(&job.announced()), w.start(&job.announced()));
    w.until("two jobs at one agent", |s| s.jobs == 2);
    a.begin();
    b.begin();
    for job in [a, b] {
        assert_eq!(job.end().good().text().strip_prefix("ready\n"), Some(&*bare.text()));
    }
}

#[test]
fn the_second_job_does_not_notice_that_the_first_is_killed() {
    let w = World::plan().build();
    let job = epochs(&w, &["--mode", "all"]);
    let bare = w.bare(&job);
    let first = w.start(&Job::new("sh").args(["-c", "echo up; cat; :"]));
    let mut second = w.start(&job.announced());
    w.until("two jobs at one agent", |s| s.jobs == 2);
    second.begin();
    drop(first); // its whole process group, by SIGKILL
    assert_eq!(second.end().good().text().strip_prefix("ready\n"), Some(&*bare.text()));
}

#[test]
fn run_in_a_subshell_returns_at_once() {
    let w = World::plan().files(8).build();
    // The agent that the job started must not keep the pipe open.
    let ended = w.run(&Job::new("true")).good();
    assert_eq!((ended.text(), ended.errors()), (String::new(), String::new()));
}
