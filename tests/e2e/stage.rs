//! `monarch stage`: copies made before a job, what is said about them, and what the job finds of
//! them.

use crate::faults::{agent_pid, copies, kill, reads, regular, wait_for};
use crate::harness::{Ended, Running, World};
use slowfs::{FaultKind, FaultSpec, Op};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

fn command(w: &World, words: &[&str]) -> Command {
    let mut c = w.monarch("stage");
    c.args(w.words()).args(words);
    c
}

fn stage(w: &World, words: &[&str]) -> Ended {
    Running::new(command(w, words)).end()
}

/// A world with a tier on disk, where copies stay.
fn on_disk(files: usize, size: usize, tier: &str) -> (World, TempDir) {
    let disk = tempfile::tempdir().unwrap();
    let plan = World::plan().files(files).size(size).args(&["--plain"]);
    (plan.tier_dir(disk.path().join("tier")).tier_size(tier).build(), disk)
}

#[track_caller]
fn says(ended: &Ended, code: i32, text: &str) {
    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    assert!(ended.text().contains(text) || ended.errors().contains(text), "{text}: {ended:?}");
}

/// Waits until the agent has ended, whose last job the stage was.
fn until_gone(w: &World) {
    wait_for("the end of the agent", || w.agent().is_none());
}

#[test]
fn the_job_reads_staged_files_locally() {
    let (w, _disk) = on_disk(80, 20_000, "64MiB");
    let all = regular(w.backing()).len();
    says(&stage(&w, &[]), 0, &format!("staged: {all} of {all} files, "));
    until_gone(&w);
    says(&stage(&w, &[]), 0, "copied now: 0 files, 0 B");
    until_gone(&w);
    w.pfs().reset().unwrap();
    w.start_indexed(&reads(&w)).end().good();
    let c = w.pfs().counters().unwrap();
    assert_eq!((c.opens(), c.bytes_read), (0, 0));
}

#[test]
fn a_named_part_is_staged_first_and_stage_waits_for_nothing_else() {
    let disk = tempfile::tempdir().unwrap();
    let ms = Duration::from_millis(2);
    let plan =
        World::plan().files(400).size(20_000).args(&["--plain"]).pfs(move |b| b.meta_latency(ms).data_latency(ms));
    let w = plan.tier_dir(disk.path().join("tier")).set("source.max_inflight=2").build();
    let files = regular(w.backing());
    let one = w.root().join(files[200].strip_prefix(w.backing()).unwrap());
    says(&stage(&w, &[one.to_str().unwrap()]), 0, "staged: 1 of 1 file");
    assert!(copies(&w).len() < files.len());
    let strange = stage(&w, &[w.root().join("nothing").to_str().unwrap()]);
    says(&strange, 2, "nothing is not below a root, or not in its index; see `monarch explain`");
}

#[test]
fn a_dry_run_reports_what_a_run_then_does() {
    let (w, _disk) = on_disk(100, 50_000, "2MiB");
    w.pfs().reset().unwrap();
    let dry = stage(&w, &["--dry-run", "--json"]);
    assert_eq!(dry.status.code(), Some(3), "{dry:?}");
    let predicted: serde_json::Value = serde_json::from_str(&dry.text()).unwrap();
    assert_eq!((w.pfs().counters().unwrap().opens(), copies(&w).len()), (0, 0));
    until_gone(&w);
    let ran = stage(&w, &["--json"]);
    assert_eq!(ran.status.code(), Some(3), "{ran:?}");
    let done: serde_json::Value = serde_json::from_str(&ran.text()).unwrap();
    // Many are copied at a time: chance decides which of the last files find room.
    let files = |v: &serde_json::Value| v["files"].as_i64().unwrap();
    assert!((files(&predicted["fits"]) - files(&done["census"]["resident"])).abs() <= 3, "{predicted} {done}");
    assert!((files(&predicted["does_not_fit"]) - files(&done["census"]["no_room"])).abs() <= 3, "{predicted} {done}");
    says(&stage(&w, &[]), 3, "no room in the tiers");
}

#[test]
fn a_killed_stage_continues_where_it_was() {
    let (w, _disk) = on_disk(100, 200_000, "64MiB");
    let all = regular(w.backing());
    let bytes: u64 = all.iter().map(|p| p.metadata().unwrap().len()).sum();
    w.pfs().reset().unwrap();
    let first = Running::new(command(&w, &["--set", "source.bandwidth_limit=1MiB/s"]));
    wait_for("some copies", || copies(&w).len() > 10);
    first.signal(libc::SIGKILL);
    assert!(!first.end().status.success());
    until_gone(&w);
    let there = copies(&w).len();
    assert!(there < all.len(), "{there}");
    says(&stage(&w, &[]), 0, &format!("staged: {0} of {0} files", all.len()));
    // Nothing that had been copied was read again; files under way may have been.
    let read = w.pfs().counters().unwrap().bytes_read;
    assert!(read <= bytes + 64 * 200_000, "{read} of {bytes}");
}

#[test]
fn an_agent_that_dies_during_a_stage_is_replaced() {
    let (w, _disk) = on_disk(150, 20_000, "64MiB");
    let running = Running::new(command(&w, &["--set", "source.bandwidth_limit=1MiB/s"]));
    wait_for("some copies", || copies(&w).len() > 20);
    assert!(kill(agent_pid(&w), libc::SIGKILL));
    says(&running.end(), 0, "staged: 150 of 150 files");
    assert_eq!(copies(&w).len(), 150);
}

#[test]
fn a_file_that_fails_is_named_with_its_reason() {
    let (w, _disk) = on_disk(20, 20_000, "64MiB");
    let victim = regular(w.backing())[7].strip_prefix(w.backing()).unwrap().to_owned();
    let rule = FaultSpec::new(FaultKind::EIO).ops(&[Op::Read]).path(victim.to_str().unwrap());
    w.pfs().fault(rule).unwrap();
    let ended = stage(&w, &["--retry", "1s"]);
    says(&ended, 1, "not staged: 1 file");
    says(&ended, 1, &format!("{}: reading the source: Input/output error", w.root().join(&victim).display()));
    w.pfs().clear().unwrap();
    says(&stage(&w, &[]), 0, "staged: 20 of 20 files");
    // A file that fails at first is tried again.
    w.pfs().fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Open]).count(1)).unwrap();
    let (w, _disk) = on_disk(20, 20_000, "64MiB");
    w.pfs().fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Open]).count(1)).unwrap();
    says(&stage(&w, &[]), 0, "staged: 20 of 20 files");
}

#[test]
fn during_a_job_stage_uses_the_jobs_agent() {
    let (mut w, _disk) = on_disk(60, 20_000, "64MiB");
    w.keep();
    let pid = agent_pid(&w);
    says(&stage(&w, &[]), 0, "staged: 60 of 60 files");
    assert_eq!(agent_pid(&w), pid);
}

#[test]
fn copies_last_as_long_as_the_tier_says() {
    // In memory: gone with the job, and said so, unless they are to stay.
    let w = World::plan().files(30).args(&["--plain"]).build();
    says(&stage(&w, &[]), 0, "copies in tier0 go when the last job does");
    wait_for("an empty tier", || copies(&w).is_empty());
    let w = World::plan().files(30).args(&["--plain"]).set("tiers[0].persist=node").build();
    let ended = stage(&w, &[]);
    says(&ended, 0, "staged: 30 of 30 files");
    assert!(!ended.errors().contains("go when the last job does"), "{ended:?}");
    until_gone(&w);
    assert_eq!(copies(&w).len(), 30);
    says(&stage(&w, &[]), 0, "copied now: 0 files");
    // On disk: stay, unless they are to go.
    let disk = tempfile::tempdir().unwrap();
    let plan = World::plan().files(30).args(&["--plain"]).set("tiers[0].persist=job");
    let w = plan.tier_dir(disk.path().join("tier")).build();
    says(&stage(&w, &[]), 0, "staged: 30 of 30 files");
    wait_for("an empty tier", || copies(&w).is_empty());
}

/// Root reads everything: an unprivileged user is needed, and files that belong to it.
#[test]
fn a_directory_that_cannot_be_read_fails_the_stage_and_is_named() {
    let (w, _disk) = on_disk(20, 20_000, "64MiB");
    let dir = w.backing().join("closed");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("file"), "text").unwrap();
    w.pfs().fault(FaultSpec::new(FaultKind::Errno(libc::EACCES)).ops(&[Op::Opendir]).path("closed")).unwrap();
    let closed = w.root().join("closed");
    for words in [&[][..], &["--dry-run"]] {
        let ended = stage(&w, words);
        says(&ended, 1, "not staged: 1 directories that could not be read, and all below them");
        says(&ended, 1, &format!("  {}: Permission denied", closed.display()));
        until_gone(&w);
    }
    let ended = stage(&w, &["--json"]);
    let told: serde_json::Value = serde_json::from_str(&ended.text()).unwrap();
    assert_eq!(told["unread_directories"][0]["path"], closed.to_str().unwrap(), "{told:#}");
    assert_eq!(ended.status.code(), Some(1));
}

#[test]
fn another_file_system_below_the_root_is_named_and_is_no_failure() {
    let (w, _disk) = on_disk(20, 20_000, "64MiB");
    std::fs::create_dir(w.backing().join("mounted")).unwrap();
    let mounted = w.root().join("mounted");
    let words: Vec<String> = w.words().iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let script = "mount -t tmpfs none \"$1\" && shift && exec \"$@\"";
    let stage = w.monarch("stage");
    let mut inside = Command::new("unshare");
    inside.args(["-m", "sh", "-c", script, "sh"]).arg(&mounted).arg(stage.get_program()).arg("stage").args(words);
    inside.envs(stage.get_envs().filter_map(|(k, v)| Some((k, v?))));
    let ended = Running::new(inside).end();
    says(&ended, 0, &format!("left out: {} is another file system: give it a --root of its own", mounted.display()));
}

#[test]
fn an_interrupted_stage_says_what_stays() {
    let (w, _disk) = on_disk(200, 200_000, "64MiB");
    let running = Running::new(command(&w, &["--set", "source.bandwidth_limit=1MiB/s"]));
    wait_for("some copies", || copies(&w).len() > 10);
    running.signal(libc::SIGINT);
    let ended = running.end();
    assert_eq!(ended.status.signal(), Some(libc::SIGINT), "{ended:?}");
    assert!(ended.text().contains(" of 200 files, "), "{ended:?}");
    let kept = "monarch: interrupted; copies in tier0 stay, and the next stage continues there";
    assert!(ended.errors().contains(kept), "{ended:?}");
    until_gone(&w);
    assert!(copies(&w).len() > 10);
}

#[test]
fn what_was_copied_counts_of_what_was_asked_alone() {
    let disk = tempfile::tempdir().unwrap();
    let plan = World::plan().files(60).size(20_000).args(&["--plain"]).set("source.max_inflight=1");
    let mut w = plan.tier_dir(disk.path().join("tier")).build();
    w.keep();
    // The agent of the other job copies all files meanwhile.
    let files = regular(w.backing());
    let one = w.root().join(files[50].strip_prefix(w.backing()).unwrap());
    let ended = stage(&w, &[one.to_str().unwrap()]);
    says(&ended, 0, "staged: 1 of 1 file");
    assert!(ended.text().contains("copied now: 1 file,") || ended.text().contains("copied now: 0 files"), "{ended:?}");
}
