//! Memory over disk: copies move to a faster tier when they are read, and to a slower one instead
//! of being dropped.

use crate::faults::{Loop, MIB, Tmpfs, agent_pid, copies, kill, reads, regular, wait_for};
use crate::harness::{Job, Plan, Running, World};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

fn plan(files: usize, first: &str) -> Plan {
    World::plan().files(files).size(40_000).args(&["--plain"]).tier_size(first).second_tier("64MiB").patient()
}

/// Copies in both tiers.
fn both(w: &World) -> (usize, usize) {
    let second = regular(w.second()).into_iter().filter(|p| p.to_string_lossy().contains("/copies/")).count();
    (copies(w).len(), second)
}

fn until_gone(w: &World) {
    wait_for("the end of the agent", || w.agent().is_none());
}

#[test]
fn copies_that_the_next_job_reads_move_up_into_memory() {
    // Nearly all files find room on the disk only, and stay there when the job ends.
    let mut w = plan(100, "1MiB").build();
    w.settle();
    w.release();
    until_gone(&w);
    let (_, below) = both(&w);
    assert!(below > 60, "{below}");
    // The next job has memory for half of it.
    w.resize_tier("3MiB");
    w.pfs().reset().unwrap();
    w.keep();
    w.until("what is there", |s| s.roots[0].state == "ready" && s.tiers[1].files as usize == below);
    let missing = 100 - below as u64;
    let readers = Loop::start(&w, &["--procs", "2"]);
    w.until("copies in memory", |s| s.agent["promoted"] >= 25 && s.tiers[0].files >= 25);
    readers.more(2);
    readers.end();
    let s = w.agent().unwrap();
    // Copies that go with the job up there stay below for the next job.
    assert_eq!((s.tiers[1].files as usize, s.agent["evicted"]), (below, 0), "{}", w.log());
    assert!(s.tiers[0].used <= 3 * MIB);
    assert!(w.pfs().counters().unwrap().opens() <= missing);
    // A reader that has a copy open in the meantime keeps it: nothing was lost or read twice, and
    // the logs know all copies.
    let out = w.monarch("verify").args(["--set", &format!("runtime_dir={}", w.runtime().display())]).output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn a_tier_that_has_to_shrink_sends_its_copies_down() {
    // (Copies that a busy machine has not moved in its time are dropped: one of three tiers at
    // least loses nothing.)
    assert!((0..3).any(|_| shrunk_tier_loses_nothing()), "copies were dropped each time");
}

fn shrunk_tier_loses_nothing() -> bool {
    let Some(tmpfs) = Tmpfs::mount("size=64m") else { return true };
    let mut w = plan(100, "20MiB").tier_dir(tmpfs.path().join("tier")).set("tiers.0.keep_free=16MiB").build();
    w.settle();
    let readers = Loop::start(&w, &["--procs", "2"]);
    w.pfs().reset().unwrap();
    assert_eq!(both(&w), (100, 0));
    let filler = fs::File::create(tmpfs.path().join("filler")).unwrap();
    let mut at = 0;
    while tmpfs.free() > 14 * MIB {
        filler.write_all_at(&vec![1; 1 << 20], at).unwrap();
        at += 1 << 20;
    }
    let took = wait_for("space", || tmpfs.free() >= 16 * MIB);
    assert!(took < Duration::from_secs(10), "{took:?}");
    readers.more(3);
    readers.end();
    let s = w.agent().unwrap();
    if s.agent["evicted"] > 0 {
        return false;
    }
    assert!(s.agent["demoted"] > 20, "{:?}", s.agent);
    assert_eq!(s.tiers[0].files + s.tiers[1].files, 100);
    // Each byte is still here.
    assert_eq!(w.pfs().counters().unwrap().bytes_read, 0);
    true
}

#[test]
fn an_agent_that_dies_while_copies_move_loses_none() {
    let mut w = plan(300, "1MiB").second_tier("64MiB").build();
    w.settle();
    w.release();
    until_gone(&w);
    w.resize_tier("64MiB");
    let readers = Loop::begin(&w, &[]);
    let (before, mut deaths) = (both(&w).1, 0);
    for copies_up in [30, 120] {
        wait_for("copies in memory", || both(&w).0 > copies_up && w.agent().is_some());
        deaths += u32::from(kill(agent_pid(&w), libc::SIGKILL));
    }
    assert_eq!(deaths, 2);
    wait_for("the next agent", || w.agent().is_some());
    readers.end();
    until_gone(&w);
    // Copies in memory have gone with the job; copies that moved up there had been left below, and
    // the next agent took them for superfluous.
    assert!(both(&w).1 >= before, "{} of {before}", both(&w).1);
    let tier = |dir: &std::path::Path| format!("--tier={}:64MiB", dir.display());
    let mut verify = w.monarch("verify");
    verify.args([tier(w.second()), format!("--set=runtime_dir={}", w.runtime().display())]);
    let out = verify.output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn a_damaged_copy_is_not_moved_but_made_again() {
    let mut w = plan(60, "1MiB").build();
    w.settle();
    w.release();
    until_gone(&w);
    let victim = regular(w.second()).into_iter().find(|p| p.to_string_lossy().contains("/copies/")).unwrap();
    crate::warm::hurt(&victim, b"not what it was");
    w.resize_tier("64MiB");
    w.keep();
    w.until("what is there", |s| s.roots[0].state == "ready" && s.agent["adopted"] > 30);
    // The readers may be served it once: the agent reads no copies before each open.
    let _ = w.run(&reads(&w));
    w.until("the others in memory", |s| s.agent["damaged"] == 1);
    w.run(&reads(&w).args(["--rounds", "2"])).good();
}

/// A memory control group of version 1 below that of this process, with a limit; `None` where it
/// cannot be made.
pub struct Group(pub std::path::PathBuf);

impl Group {
    pub fn new(limit: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let group = own
            .lines()
            .find_map(|l| l.split(':').nth(1)?.split(',').any(|c| c == "memory").then(|| l.rsplit(':').next()))??;
        let name = format!("monarch-e2e-{}", std::process::id());
        let dir = std::path::Path::new("/sys/fs/cgroup/memory").join(group.trim_start_matches('/')).join(name);
        fs::create_dir(&dir).ok()?;
        let made = Self(dir);
        fs::write(made.0.join("memory.limit_in_bytes"), limit.to_string()).ok()?;
        Some(made)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn copies_in_memory_make_room_before_the_job_runs_out_of_it() {
    let Some(group) = Group::new(256 << 20) else {
        eprintln!("no memory control group can be made here");
        return;
    };
    let plan = World::plan().files(80).size(1 << 20).args(&["--plain"]).tier_size("120MiB").second_tier("100MiB");
    let w = plan.build();
    // Takes more than the group has left beside the copies: at once as much as is safe, then
    // slowly.
    let hungry = "import sys, time\nprint('ready', flush=True); sys.stdin.readline()\nhold = [b'x' * (100 << 20)]\n\
        for _ in range(60): hold.append(b'x' * (1 << 20)); time.sleep(0.1)\nprint('alive', len(hold))";
    let mut c = std::process::Command::new("sh");
    let run = w.monarch_run(&Job::new("python3").args(["-c", hungry]));
    c.args(["-c", "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"", "sh"]).arg(&group.0).arg(run.get_program());
    c.args(run.get_args()).current_dir(w.scratch());
    let mut job = Running::new(c);
    job.until_written("ready");
    w.until("all copies", |s| s.tiers[0].files == 80);
    job.begin();
    w.until("room", |s| s.agent["demoted"] > 0);
    let ended = job.end().good();
    assert!(ended.text().contains("alive 61"), "{ended:?}");
}

/// Partial copies are no files of the ledger: where there were no others, the job's memory was not
/// even looked at.
#[test]
fn partial_copies_in_memory_make_room_before_the_job_runs_out_of_it() {
    let Some(group) = Group::new(256 << 20) else {
        eprintln!("no memory control group can be made here");
        return;
    };
    let plan = World::plan().files(1).args(&["--plain"]).tier_size("160MiB").set("prefetch.enabled=false");
    let w = plan.build();
    fs::write(w.backing().join("large.bin"), vec![7; 96 << 20]).unwrap();
    // Reads all but the first chunks of a file, backwards so that nothing is fetched ahead of it,
    // and then takes more than the group has left beside what there is of its copy.
    let hungry = "import os, sys, time\nname = sys.argv[1] + '/large.bin'\n\
        time.sleep(1); f = open(name, 'rb', 0); size = os.fstat(f.fileno()).st_size\n\
        for at in range(size - (4 << 20), 8 << 20, -4 << 20): assert len(os.pread(f.fileno(), 4 << 20, at)) == 4 << 20\n\
        print('ready', flush=True); sys.stdin.readline()\nhold = [b'x' * (100 << 20)]\n\
        for _ in range(90): hold.append(b'x' * (1 << 20)); time.sleep(0.1)\nprint('alive', len(hold))";
    let mut c = std::process::Command::new("sh");
    let run = w.monarch_run(&Job::new("python3").args(["-c", hungry]).arg(w.root()));
    c.args(["-c", "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"", "sh"]).arg(&group.0).arg(run.get_program());
    c.args(run.get_args()).current_dir(w.scratch());
    let mut job = Running::new(c);
    job.until_written("ready");
    wait_for("most of the copy", || crate::faults::du(w.tier()) > 70 * MIB);
    assert_eq!(w.agent().unwrap().tiers[0].files, 0, "the copy is whole");
    job.begin();
    let ended = job.end().good();
    assert!(ended.text().contains("alive 91"), "{ended:?}");
    assert!(w.log().contains("memory is short"), "{}", w.log());
}
