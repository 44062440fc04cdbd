//! The PFS errs, stalls, or its files change during a read: right bytes, or exactly the error of a
//! plain read.

use crate::faults::{Loop, copies, reads, regular, slowest, wait_for};
use crate::harness::{Job, World};
use slowfs::{FaultKind, FaultSpec, MutationKind, Op, When};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Paths of the data files below the root.
fn files(w: &World) -> Vec<PathBuf> {
    let all = regular(w.backing()).into_iter().filter(|p| p.extension().is_some_and(|e| e == "bin"));
    let mut all: Vec<PathBuf> = all.map(|p| p.strip_prefix(w.backing()).unwrap().to_owned()).collect();
    all.sort();
    all
}

fn cat(w: &World, rel: &PathBuf) -> Job {
    Job::new("cat").arg(w.root().join(rel))
}

/// A world in which copies are made on demand only, with its index ready.
fn on_demand(files: usize) -> World {
    let mut w = World::plan().files(files).args(&["--plain"]).set("prefetch.enabled=false").patient().build();
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    w
}

#[test]
fn an_error_is_the_plain_reads_error_and_passes() {
    for (kind, errno) in [(FaultKind::EIO, "EIO"), (FaultKind::ESTALE, "ESTALE")] {
        for op in [Op::Open, Op::Read] {
            let w = on_demand(12);
            let victim = files(&w)[3].clone();
            let rule = FaultSpec::new(kind).ops(&[op]).path(victim.to_str().unwrap());
            w.pfs().fault(rule).unwrap();
            let job = reads(&w).arg("--errors");
            let (bare, ours) = (w.bare(&job).good().text(), w.run(&job).good().text());
            let failures = |t: &str| t.lines().filter(|l| l.ends_with(errno)).map(str::to_owned).collect::<Vec<_>>();
            assert_eq!((failures(&bare).len(), failures(&bare)), (1, failures(&ours)), "{op:?}: {ours}");
            assert!(ours.contains("wrong 0 errors 1"), "{ours}");
            w.pfs().clear().unwrap();
            w.run(&reads(&w)).good();
            // The agent tries again after its pause.
            w.until("the second try", |s| s.agent["source_errors"] == 1 && s.tiers[0].files >= 11);
            let text = w.run(&cat(&w, &victim)).good().out;
            assert_eq!(text, fs::read(w.backing().join(&victim)).unwrap());
        }
    }
}

#[test]
fn errors_while_everything_is_prefetched_do_not_reach_the_job() {
    let mut w = World::plan().files(60).args(&["--plain"]).build();
    // Every call of the agent fails for a while, before any reader is there. After some failures in
    // a row the agent only probes.
    w.pfs().fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Open]).count(8)).unwrap();
    w.keep();
    w.until("errors", |s| s.agent["source_errors"] >= 8);
    w.run(&reads(&w).args(["--rounds", "3"])).good();
    w.until("all copies", |s| s.tiers[0].files == 60);
}

#[test]
fn eight_workers_read_a_stalled_file_of_the_pfs_once() {
    let w = on_demand(8);
    let victim = files(&w)[0].clone();
    w.pfs().reset().unwrap();
    let rule = FaultSpec::new(FaultKind::Stall(Some(Duration::from_secs(30)))).ops(&[Op::Open]).count(1);
    w.pfs().fault(rule.path(victim.to_str().unwrap())).unwrap();
    let only = victim.file_name().unwrap().to_str().unwrap().to_owned();
    let ended = w.run(&reads(&w).args(["--procs", "8"]).args(["--only", &only])).good();
    assert!((29_000..60_000).contains(&slowest(&ended)), "{}", ended.text());
    let paths = w.pfs().paths().unwrap();
    let c = paths.iter().find(|(p, _)| victim.as_path() == std::path::Path::new(p.trim_start_matches('/'))).unwrap().1;
    assert_eq!((c.opens, c.bytes_read), (1, fs::metadata(w.backing().join(&victim)).unwrap().len()), "{c:?}");
}

/// No tier counted it, and its room was lost until the agent ended.
#[test]
fn a_copy_that_completes_long_after_its_index_was_retired_is_used_by_the_next_index() {
    let w = on_demand(3);
    let victim = files(&w)[0].clone();
    let rule = FaultSpec::new(FaultKind::Stall(Some(Duration::from_secs(14)))).ops(&[Op::Read]).count(1);
    w.pfs().fault(rule.path(victim.to_str().unwrap())).unwrap();
    let stuck = w.start(&cat(&w, &victim));
    wait_for("the stall", || w.pfs().counters().unwrap().read > 0);
    assert!(w.monarch("refresh").output().unwrap().status.success());
    stuck.end().good();
    w.until("the copy", |s| s.tiers[0].files == 1);
    w.pfs().reset().unwrap();
    w.run(&cat(&w, &victim)).good();
    assert_eq!(w.pfs().counters().unwrap().opens(), 0);
}

#[test]
fn a_stall_of_one_file_does_not_hold_up_other_files() {
    let w = on_demand(40);
    let victim = files(&w)[0].clone();
    w.pfs().fault(FaultSpec::new(FaultKind::STALL).ops(&[Op::Read]).path(victim.to_str().unwrap())).unwrap();
    let stuck = w.start(&cat(&w, &victim));
    wait_for("the stall", || w.pfs().counters().unwrap().read > 0);
    for rel in &files(&w)[1..] {
        w.run(&cat(&w, rel)).good();
    }
    w.pfs().clear().unwrap();
    assert_eq!(stuck.end().good().out, fs::read(w.backing().join(&victim)).unwrap());
}

#[test]
fn short_reads_of_the_pfs_are_completed() {
    let plan = || World::plan().files(20).args(&["--plain"]).pfs(|b| b.cache(slowfs::CacheMode::Direct));
    let w = plan().set("prefetch.enabled=false").build();
    w.pfs().fault(FaultSpec::new(FaultKind::ShortRead(777)).ops(&[Op::Read])).unwrap();
    w.run(&reads(&w).args(["--rounds", "2"])).good();

    // In a ring the `statx` that checks the file's identity is linked to the read, and must not run
    // before all bytes are there.
    let mut w = plan().set("io.engine=uring").build();
    w.pfs().fault(FaultSpec::new(FaultKind::ShortRead(777)).ops(&[Op::Read])).unwrap();
    w.settle();
    assert_eq!(w.agent().unwrap().agent["source_errors"], 0);
    w.run(&reads(&w)).good();
}

/// A file changes at some moment of its copying: every reader gets one version, whole; other files
/// are served.
fn changes_during_a_copy(kind: MutationKind, when: When) {
    let w = World::plan()
        .files(12)
        .size(300_000)
        .args(&["--plain"])
        .pfs(|b| b.cache(slowfs::CacheMode::Direct).attr_ttl(Duration::ZERO))
        .set("prefetch.enabled=false")
        .set("source.io_size=64KiB")
        .patient()
        .build();
    let mut w = w;
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    let victim = files(&w)[5].clone();
    w.pfs().mutate(victim.to_str().unwrap(), kind, when).unwrap();
    // The first reader meets the change in the agent's reading, then reads the PFS itself.
    let first = w.run(&cat(&w, &victim));
    let now = fs::read(w.backing().join(&victim));
    let what = format!("{kind:?} {when:?}");
    match &now {
        Ok(bytes) => assert!(first.status.success() && first.out == *bytes, "{what}: {first:?}"),
        Err(_) => assert!(!first.status.success() && first.errors().contains("No such file"), "{what}: {first:?}"),
    }
    let second = w.run(&cat(&w, &victim));
    assert_eq!((second.status, second.out), (first.status, first.out), "{what}");
    w.until("the change to be reported", |s| s.agent["changed"] > 0);
    let status = w.agent().unwrap();
    assert_eq!((status.agent["changed"], status.tiers[0].files), (1, 0), "{what}: {status:#?}");
    for rel in files(&w).iter().filter(|r| **r != victim) {
        assert_eq!(w.run(&cat(&w, rel)).good().out, fs::read(w.backing().join(rel)).unwrap());
    }
}

#[test]
fn a_file_that_changes_while_it_is_copied() {
    for kind in [MutationKind::Change, MutationKind::Shrink, MutationKind::Delete, MutationKind::Replace] {
        changes_during_a_copy(kind, When::AfterOpen);
        changes_during_a_copy(kind, When::AfterRead(3));
    }
}

#[test]
fn a_file_replaced_by_one_of_the_same_size_and_time_while_it_is_copied() {
    changes_during_a_copy(MutationKind::ReplaceSame, When::AfterOpen);
    changes_during_a_copy(MutationKind::ReplaceSame, When::AfterRead(2));
}

#[test]
fn files_that_changed_between_scan_and_copy() {
    for kind in [
        MutationKind::Change,
        MutationKind::Shrink,
        MutationKind::Delete,
        MutationKind::Replace,
        MutationKind::ReplaceSame,
    ] {
        let w = on_demand(12);
        let victims = &files(&w)[..3];
        for v in victims {
            w.pfs().mutate(v.to_str().unwrap(), kind, When::Now).unwrap();
        }
        for v in victims {
            let ours = w.run(&cat(&w, v));
            match fs::read(w.backing().join(v)) {
                Ok(bytes) => assert!(ours.status.success() && ours.out == bytes, "{kind:?}: {ours:?}"),
                Err(_) => assert!(ours.errors().contains("No such file"), "{kind:?}: {ours:?}"),
            }
        }
        assert_eq!((w.agent().unwrap().tiers[0].files, copies(&w).len()), (0, 0), "{kind:?}");
    }
}

#[test]
fn files_that_change_all_the_time_are_read_whole() {
    let mut w = World::plan()
        .files(24)
        .args(&["--plain"])
        .pfs(|b| b.cache(slowfs::CacheMode::Direct).attr_ttl(Duration::ZERO))
        .build();
    w.settle();
    let readers = Loop::start(&w, &["--procs", "2", "--versions", "--errors"]);
    for (n, rel) in files(&w).iter().enumerate() {
        let kind = [MutationKind::Replace, MutationKind::ReplaceSame][n % 2];
        w.pfs().mutate(rel.to_str().unwrap(), kind, When::Now).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    readers.more(2);
    let ended = readers.end();
    assert!(!ended.text().contains("WRONG"), "{}", ended.text());
}

#[test]
fn a_recently_modified_file_is_left_alone_until_it_has_settled() {
    let w = World::plan().files(6).args(&["--plain"]).set("dataset.min_file_age=2s").build();
    let old = std::time::SystemTime::now() - Duration::from_secs(1);
    let rel = files(&w)[0].clone();
    fs::File::options().write(true).open(w.backing().join(&rel)).unwrap().set_modified(old).unwrap();
    w.run(&reads(&w)).good();
    // All files were made by this test: none is copied at first, all are in the end.
    let mut w = w;
    w.keep();
    w.until("all copies", |s| s.tiers[0].files == 6);
    w.run(&reads(&w)).good();
}
