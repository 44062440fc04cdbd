//! Copies that outlive their job: found again, and trusted only as far as they can be.

use crate::faults::{agent_pid, around, below, copies, kill, open_to_all, reads, regular, wait_for};
use crate::harness::{Ended, Job, Running, World, built};
use slowfs::Op;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A world with a full tier on disk, and no agent.
pub fn staged(files: usize, set: &[&str]) -> (World, TempDir) {
    let disk = tempfile::tempdir().unwrap();
    let plan = World::plan().files(files).size(30_000).args(&["--plain"]).tier_dir(disk.path().join("tier")).patient();
    let w = set.iter().fold(plan, |plan, s| plan.set(s)).build();
    let mut c = w.monarch("stage");
    c.args(w.words()).arg("--quiet");
    Running::new(c).end().good();
    until_gone(&w);
    assert_eq!(copies(&w).len(), regular(w.backing()).len());
    (w, disk)
}

pub fn until_gone(w: &World) {
    wait_for("the end of the agent", || w.agent().is_none());
}

/// Changes bytes of a copy as a failing disk would: its times stay.
pub fn hurt(copy: &Path, bytes: &[u8]) {
    hurt_at(copy, bytes, 0);
}

/// The same at an offset.
pub fn hurt_at(copy: &Path, bytes: &[u8], at: u64) {
    let before = fs::metadata(copy).unwrap();
    fs::set_permissions(copy, fs::Permissions::from_mode(0o600)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(copy).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    fs::set_permissions(copy, fs::Permissions::from_mode(0o400)).unwrap();
}

fn verify(w: &World, words: &[&str]) -> Ended {
    let mut c = w.monarch("verify");
    c.args(words).args(["--set".into(), format!("runtime_dir={}", w.runtime().display())]);
    Running::new(c).end()
}

/// `monarch run` as if the machine had been rebooted since.
fn after_a_boot(w: &World, job: &Job) -> Command {
    let fake = w.scratch().join("boot_id");
    fs::write(&fake, format!("{}\n", "01234567-89ab-cdef-0123-456789abcdef")).unwrap();
    let run = w.monarch_run(job);
    let mut c = Command::new("unshare");
    c.args([
        "--mount",
        "sh",
        "-c",
        "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"",
        "sh",
    ]);
    c.arg(fake).arg(run.get_program()).args(run.get_args());
    c.current_dir(w.scratch()).env_remove("LD_PRELOAD").env("TMPDIR", w.scratch());
    c
}

#[test]
fn a_flipped_bit_is_found_and_never_served_again() {
    let (mut w, _disk) = staged(40, &[]);
    let victim = copies(&w)[11].clone();
    hurt(&victim, b"not what it was");
    w.keep();
    w.until("the copies", |s| s.tiers[0].files == 40 && s.roots[0].state == "ready");
    let found = verify(&w, &[]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(found.text().contains("40 copies, ") && found.text().contains(": 1 damaged and dropped\n"), "{found:?}");
    let path = found.text().lines().nth(1).unwrap().trim().split(" (tier").next().unwrap().to_owned();
    assert!(fs::metadata(&path).is_ok_and(|m| m.is_file()), "{path}");
    w.run(&reads(&w).args(["--rounds", "2"])).good();
    let again = verify(&w, &[]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    // With the PFS, and as an object.
    let report: serde_json::Value = serde_json::from_str(&verify(&w, &["--json", "--source"]).good().text()).unwrap();
    assert_eq!((&report["copies"], &report["with_source"]), (&40.into(), &40.into()));
}

#[test]
fn copies_made_in_chunks_have_the_sum_of_their_bytes() {
    // Chunks end in any order, some of them while the identity is asked for.
    for engine in ["threads", "uring"] {
        let disk = tempfile::tempdir().unwrap();
        let ms = std::time::Duration::from_millis(2);
        let plan = World::plan().files(12).size(1_000_000).args(&["--plain"]).tier_dir(disk.path().join("tier"));
        let plan = plan.set("source.chunk_threshold=64KiB").set("source.chunk_size=64KiB");
        let plan = plan.set(&format!("io.engine={engine}")).pfs(move |b| b.meta_latency(ms).data_latency(ms));
        let mut w = plan.build();
        w.settle();
        assert!(w.agent().unwrap().agent["chunks_copied"] > 100);
        let found = verify(&w, &[]).good();
        assert!(found.text().ends_with(": no difference\n"), "{engine}: {found:?}");
        let hurt_one = copies(&w).into_iter().max_by_key(|p| fs::metadata(p).unwrap().len()).unwrap();
        hurt(&hurt_one, b"not what it was");
        assert_eq!(verify(&w, &[]).status.code(), Some(1));
    }
}

#[test]
fn damaged_copies_are_made_again_if_asked() {
    let (mut w, _disk) = staged(40, &["prefetch.enabled=false"]);
    copies(&w).iter().step_by(8).for_each(|copy| hurt(copy, b"not what it was"));
    w.keep();
    w.until("the copies", |s| s.tiers[0].files == 40 && s.roots[0].state == "ready");
    let found = verify(&w, &["--repair"]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(found.text().contains(": 5 damaged and dropped, 5 made again\n"), "{found:?}");
    assert_eq!(w.agent().unwrap().tiers[0].files, 40);
    verify(&w, &["--repair"]).good();
}

#[test]
fn without_an_agent_the_tier_is_verified_under_its_lock() {
    let (w, _disk) = staged(40, &[]);
    let tier = format!("--tier={}:64MiB", w.tier().display());
    let found = verify(&w, &[&tier]).good();
    assert!(found.text().starts_with("40 copies, "), "{found:?}");
    hurt(&copies(&w)[3], &[0; 64]);
    let found = verify(&w, &[&tier]);
    assert_eq!((found.status.code(), copies(&w).len()), (Some(1), 39), "{found:?}");
    verify(&w, &[&tier]).good();
    let none = format!("--tier={}/none:64MiB", w.tier().display());
    assert_eq!(verify(&w, &[&none]).status.code(), Some(4), "no copies");
    assert_eq!(verify(&w, &["--tier=/nonexistent/tier:64MiB"]).status.code(), Some(2), "mistyped");
}

#[test]
fn after_kill_nine_everything_is_found_again() {
    let (w, _disk) = staged(40, &[]);
    let mut job = w.start(&Job::new("sh").args(["-c", "echo up; cat"]));
    job.until_written("up");
    w.until("the copies", |s| s.tiers[0].files == 40 && s.roots[0].state == "ready");
    // Both at once, so that no `run` starts another agent.
    let agent = agent_pid(&w);
    assert!(kill(job.pid() as i32, libc::SIGKILL) && kill(agent, libc::SIGKILL));
    drop(job);
    w.pfs().reset().unwrap();
    w.start_indexed(&reads(&w)).end().good();
    let c = w.pfs().counters().unwrap();
    assert_eq!((c.opens(), c.get(Op::Read)), (0, 0));
}

#[test]
fn after_a_power_loss_copies_that_had_not_reached_the_disk_are_verified_before_use() {
    for prefetch in ["true", "false"] {
        let (w, _disk) = staged(40, &[&format!("prefetch.enabled={prefetch}")]);
        // Bytes that were in memory only come back as zeros.
        let hurt_ones: Vec<_> = copies(&w).into_iter().step_by(4).collect();
        hurt_ones.iter().for_each(|copy| hurt(copy, &vec![0; fs::metadata(copy).unwrap().len() as usize]));
        w.pfs().reset().unwrap();
        let job = reads(&w).args(["--rounds", "3"]);
        let mut running = Running::new(after_a_boot(&w, &job.announced()));
        running.until_written("ready");
        w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
        running.begin();
        running.until_written("round 1");
        let status = w.agent();
        running.end().good();
        let c = w.pfs().counters().unwrap();
        let (lost, whole) = (hurt_ones.len() as u64, 40 - hurt_ones.len() as u64);
        assert!(c.opens() >= lost && c.opens() <= lost + 2, "{c:?}");
        if let Some(s) = status.filter(|s| s.tiers[0].files == 40) {
            assert_eq!((s.agent["damaged"], s.agent["verified"]), (lost, whole), "{}", w.log());
        }
        until_gone(&w);
        verify(&w, &[&format!("--tier={}:64MiB", w.tier().display())]).good();
    }
}

#[test]
fn copies_that_the_log_does_not_know_are_not_used() {
    let (w, _disk) = staged(40, &[]);
    fs::remove_file(copies(&w)[0].ancestors().nth(3).unwrap().join("log")).unwrap();
    w.pfs().reset().unwrap();
    w.start_indexed(&reads(&w)).end().good();
    assert_eq!(w.pfs().counters().unwrap().opens(), 40);
}

#[test]
fn a_tier_of_another_format_is_refused_and_can_be_purged() {
    let (w, _disk) = staged(10, &[]);
    let log = copies(&w)[0].ancestors().nth(3).unwrap().join("log");
    let file = fs::OpenOptions::new().write(true).open(log).unwrap();
    file.write_all_at(&[9], 1).unwrap();
    let ended = w.run(&reads(&w)).good();
    let said = ended.errors();
    assert!(said.contains("running without Monarch") && said.contains("format 9"), "{said}");
    assert_eq!(copies(&w).len(), 10, "nothing of it was touched");
    let mut purge = Command::new(built("monarch"));
    purge.args(["stop", "--purge", "--set"]).arg(format!("runtime_dir={}", w.runtime().display()));
    purge.arg(format!("--tier={}:64MiB", w.tier().display()));
    assert!(purge.output().unwrap().status.success());
    let ended = w.run(&reads(&w)).good();
    assert!(!ended.errors().contains("running without"), "{ended:?}");
}

/// Copies of files that were taken from a user, or removed, stayed on the disk of the node for as
/// long as there was room.
#[test]
fn the_next_jobs_scan_drops_copies_of_files_that_it_may_not_see_or_no_longer_finds() {
    const USER: u32 = 65_534;
    let disk = tempfile::tempdir().unwrap();
    let w = World::plan().files(24).args(&["--plain"]).disk().tier_dir(disk.path().join("tier")).build();
    // A second root in the same tier, which is not touched.
    let other = w.scratch().join("other");
    fs::create_dir(&other).unwrap();
    (0..3).for_each(|n| fs::write(other.join(n.to_string()), "of another root").unwrap());
    open_to_all(w.root());
    open_to_all(w.runtime());
    for dir in [w.runtime(), w.scratch(), disk.path(), w.tier().parent().unwrap()] {
        chown(dir, Some(USER), Some(USER)).unwrap();
    }
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for path in below(w.root()) {
        mode(&path, if path.is_dir() { 0o755 } else { 0o644 });
    }
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut stage = w.monarch("stage");
    stage.args(w.words()).arg("--root").arg(&other).arg("--quiet");
    Running::new(around(&user, &stage)).end().good();
    let mut all = regular(w.backing());
    all.sort();
    wait_for("all copies", || copies(&w).len() == all.len() + 3);

    mode(&all[0], 0o600);
    fs::remove_file(&all[1]).unwrap();
    fs::rename(&all[2], all[2].with_extension("moved")).unwrap();
    fs::write(all[3].with_extension("new"), "another one").unwrap();
    fs::rename(all[3].with_extension("new"), &all[3]).unwrap();
    let shut = all.last().unwrap().parent().unwrap();
    let behind = all[4..].iter().filter(|p| p.starts_with(shut)).count();
    mode(shut, 0o700);
    let script = "cat; cat \"$1\"; cat \"$2\" >/dev/null && echo read";
    let job = Job::new("sh").args(["-c", script, "sh"]).arg(&all[0]).arg(all.last().unwrap());
    let job = job.option("--set").option("prefetch.enabled=false");
    let running = Running::new(around(&user, &w.monarch_run(&job)));
    assert!(behind > 1 && behind < all.len() - 4, "{behind} of {}", all.len());
    let left = all.len() - 4 - behind + 3;
    wait_for("the copies of what is gone to go", || copies(&w).len() == left);
    let ended = running.end();
    assert!(ended.out.is_empty() && ended.errors().matches("Permission denied").count() == 2, "{ended:?}");
    assert!(w.log().contains("copies of files that the scan did not find as they were are dropped"));
    assert_eq!(copies(&w).len(), left, "those of the other root, and those of what has not changed");
}
