//! The agent dies, is stopped, is started twice; its clients die.

use crate::faults::{
    Loop, agent_pid, around, control, copies, du, kill, monarch, open_to_all, reads, regular, slowest, wait_for,
    with_control,
};
use crate::harness::{Job, World};
use monarch_core::agent::protocol::Reply;
use slowfs::{FaultKind, FaultSpec, MutationKind, Op, When};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

const FILES: usize = 120;

fn world() -> World {
    World::plan().files(FILES).args(&["--plain"]).build()
}

/// Waits for another agent than `old`; returns its process.
#[track_caller]
fn successor(w: &World, old: i32) -> i32 {
    let mut pid = old;
    wait_for("the next agent", || {
        pid = w.agent().map_or(old, |s| s.pid as i32);
        pid != old
    });
    pid
}

#[test]
fn an_agent_is_killed_twenty_times_while_readers_read() {
    let mut w = world();
    w.settle();
    let readers = Loop::start(&w, &["--procs", "3"]);
    w.pfs().reset().unwrap();
    let mut pid = agent_pid(&w);
    let mut took = Vec::new();
    for _ in 0..20 {
        kill(pid, libc::SIGKILL);
        let start = Instant::now();
        pid = successor(&w, pid);
        took.push(start.elapsed());
        readers.more(1);
    }
    took.sort();
    // (Some at least, on a busy machine.)
    assert!(took[2] < Duration::from_secs(1) && took[19] < Duration::from_secs(40), "restarts took {took:?}");
    let status = w.agent().unwrap();
    assert_eq!((status.incarnation, status.tiers[0].files), (21, FILES as u64), "{status:#?}");
    let hits = w.counter("hits");
    readers.more(2);
    assert!(w.counter("hits") >= hits + FILES as u64);
    readers.end();
    // Resident copies stayed resident throughout.
    assert_eq!(w.pfs().counters().unwrap().open, 0);
}

#[test]
fn an_agent_is_killed_while_it_copies() {
    let w = World::plan().files(60).size(300_000).args(&["--plain"]).pfs(|b| b.bandwidth(4 << 20)).build();
    let readers = Loop::begin(&w, &["--procs", "2"]);
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    let mut pid = agent_pid(&w);
    for _ in 0..4 {
        wait_for("copies under way", || regular(w.tier()).iter().any(|p| p.to_string_lossy().contains("/tmp/")));
        kill(pid, libc::SIGKILL);
        pid = successor(&w, pid);
    }
    w.until("all copies", |s| s.tiers[0].files == 60);
    let (status, on_disk) = (w.agent().unwrap(), du(w.tier()));
    let tier = &status.tiers[0];
    assert!(!regular(w.tier()).iter().any(|p| p.to_string_lossy().contains("/tmp/")));
    assert_eq!(tier.reserved, 0);
    // The ledger counts names and its own directories, too.
    assert!(
        tier.used >= on_disk && tier.used < on_disk + 60 * 96 + SMALL_FILES_BYTES,
        "{} charged, {on_disk} on disk",
        tier.used
    );
    readers.end();
}

#[test]
fn an_agent_is_killed_when_its_socket_for_other_users_is_gone() {
    let mut w = world();
    w.keep();
    w.settle();
    let pid = agent_pid(&w);
    let noted = std::fs::read_to_string(control(&w).with_file_name("changes")).unwrap();
    let socket = std::path::Path::new(&noted);
    std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
    kill(pid, libc::SIGKILL);
    successor(&w, pid);
    wait_for("the socket", || std::os::unix::net::UnixStream::connect(socket).is_ok());
}

/// Bytes of the tier's own small files.
const SMALL_FILES_BYTES: u64 = 64 << 10;

#[test]
fn a_stopped_agent_costs_each_reader_its_timeouts_once() {
    let mut w = World::plan().files(FILES).args(&["--plain"]).set("prefetch.enabled=false").build();
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    let (pid, control) = (agent_pid(&w), control(&w));
    kill(pid, libc::SIGSTOP);
    let start = Instant::now();
    // No other job can be attached now: this job was attached before.
    let ended = w.bare(&with_control(reads(&w).args(["--rounds", "3"]), &control)).good();
    let took = start.elapsed();
    kill(pid, libc::SIGCONT);
    // (A second for each read would be six minutes.)
    assert!(slowest(&ended) < 10_000, "{}", ended.text());
    assert!(took < Duration::from_secs(60), "{took:?} for {} reads", 3 * FILES);
    // The demands were not lost.
    w.until("what was asked for", |s| s.tiers[0].files == FILES as u64);
    w.run(&reads(&w)).good();
}

#[test]
fn an_agent_is_stopped_inside_a_call_to_the_pfs() {
    let mut w = World::plan().files(8).args(&["--plain"]).set("prefetch.enabled=false").build();
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    w.pfs().fault(FaultSpec::new(FaultKind::STALL).ops(&[Op::Open]).count(1)).unwrap();
    let (pid, control) = (agent_pid(&w), control(&w));
    let job = with_control(reads(&w), &control);
    let ended = std::thread::scope(|s| {
        let reader = s.spawn(|| w.bare(&job));
        wait_for("the stall", || w.pfs().counters().unwrap().open == 1);
        kill(pid, libc::SIGSTOP);
        reader.join().unwrap()
    });
    kill(pid, libc::SIGCONT);
    w.pfs().clear().unwrap();
    assert!(slowest(&ended.good()) < 30_000);
}

#[test]
fn a_second_agent_for_the_same_tier_is_refused() {
    let mut w = world();
    w.settle();
    let other = w.scratch().join("other");
    fs::create_dir(&other).unwrap();
    let job = reads(&w).option("--set").option(format!("runtime_dir={}", other.display()));
    let ended = w.run(&job).good();
    let errors = ended.errors();
    assert!(
        errors.contains("running without Monarch") && errors.contains("in use by another Monarch agent"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert_eq!(w.agent().unwrap().tiers[0].files, FILES as u64);
}

#[test]
fn clients_killed_at_any_moment_of_a_demand() {
    let mut w = World::plan().files(300).args(&["--plain"]).set("prefetch.enabled=false").build();
    w.keep();
    let start = Instant::now();
    for n in 0..40u64 {
        let job = w.start(&reads(&w).args(["--procs", "3"]).args(["--rounds", "100"]));
        std::thread::sleep(Duration::from_millis(60 + n * 7 % 90));
        // Dropped: the whole group is killed.
        drop(job);
        if start.elapsed() > Duration::from_secs(25) {
            break;
        }
    }
    w.run(&reads(&w)).good();
    w.run(&reads(&w)).good();
    w.until("all copies", |s| s.tiers[0].files == 300);
    let hits = w.counter("hits");
    w.run(&reads(&w)).good();
    assert_eq!(w.counter("hits"), hits + 300);
}

#[test]
fn the_first_jobs_end_is_not_noticed_by_the_second() {
    let w = world();
    let first = Loop::start(&w, &[]);
    let pid = agent_pid(&w);
    let second = Loop::start(&w, &["--procs", "2"]);
    w.until("both jobs", |s| s.jobs == 2);
    // SAFETY: the process group of a job of this test.
    unsafe { libc::kill(-first.pid(), libc::SIGKILL) };
    w.until("the first job's end", |s| s.jobs == 1);
    second.more(3);
    assert_eq!(agent_pid(&w), pid);
    let ended = second.end();
    assert_eq!(ended.errors(), "");
}

#[test]
fn an_agent_ends_after_the_last_job_and_leaves_nothing() {
    let w = world();
    let readers = Loop::start(&w, &[]);
    let pid = agent_pid(&w);
    wait_for("copies", || !copies(&w).is_empty());
    readers.end();
    wait_for("the agent's end", || !kill(pid, 0));
    assert_eq!(regular(w.runtime()), Vec::<std::path::PathBuf>::new());
    assert_eq!(regular(w.tier()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn an_agent_that_was_stopped_is_not_started_again() {
    let w = world();
    let readers = Loop::start(&w, &[]);
    let pid = agent_pid(&w);
    assert!(monarch(&w, &["stop"]).status.success());
    wait_for("the agent's end", || !kill(pid, 0));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(w.agent().is_none(), "it was started again");
    readers.more(2);
    readers.end();
}

#[test]
fn a_later_job_sees_what_changed_after_the_earlier_one() {
    let w = world();
    let earlier = Loop::start(&w, &[]);
    w.until("all copies", |s| s.tiers[0].files == FILES as u64);
    earlier.end();
    let victim = fs::canonicalize(&regular(w.backing())[0]).unwrap();
    let rel = victim.strip_prefix(w.backing()).unwrap().to_str().unwrap();
    w.pfs().mutate(rel, MutationKind::ReplaceSame, When::Now).unwrap();
    // The agent is still there: it waits for jobs for a while.
    let ours = w.run(&Job::new("cat").arg(w.root().join(rel))).good();
    assert!(ours.out == fs::read(&victim).unwrap(), "an old copy was served to a later job");
    // The other files are still resident: nothing is read again.
    let others = Job::new("sh").args(["-c", "cat \"$1\"/data/d0[1-5]/*.bin | wc -c", "sh"]).arg(w.root());
    let mut job = w.start(&others.announced());
    // The copy of the old version may still be there, too.
    w.until("all copies", |s| s.jobs == 1 && s.agent["adopted"] + s.agent["copied_ahead"] >= FILES as u64);
    w.pfs().reset().unwrap();
    job.begin();
    job.end().good();
    assert_eq!(w.pfs().counters().unwrap().open, 0);
}

#[test]
fn twenty_short_jobs_in_a_row() {
    let w = World::plan().files(12).args(&["--plain"]).build();
    for _ in 0..20 {
        let ended = w.run(&reads(&w)).good();
        assert_eq!(ended.errors(), "");
    }
}

#[test]
fn run_returns_at_once() {
    let mut w = world();
    let mut job = w.start(&Job::new("true").announced());
    job.until_written("ready");
    // Another job keeps the agent. Both outputs of the first are pipes: if the agent held them,
    // their end would never be read.
    w.keep();
    let pid = agent_pid(&w);
    job.begin();
    job.end().good();
    assert_eq!(agent_pid(&w), pid, "the agent went on");
}

#[test]
fn run_as_process_one_reaps_orphans_and_takes_the_agent_along() {
    let w = world();
    let script = "for i in 1 2 3 4 5; do (sleep 0.$i & ) ; done; sleep 1; \
                  cat /proc/[0-9]*/stat 2>/dev/null | grep -c ' Z ' >&2; python3 \"$@\"";
    let words = reads(&w);
    let job = Job::new("sh").args(["-c", script, "sh"]).args(&words.words()[1..]);
    let mut c = around(&["unshare", "--pid", "--fork", "--mount-proc"], &w.monarch_run(&job));
    let out = c.stdin(Stdio::null()).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if errors.contains("Operation not permitted") {
        println!("skipped: {errors}");
        return;
    }
    assert!(out.status.success() && text.contains("wrong 0 errors 0"), "{text}{errors}");
    assert_eq!(errors.trim(), "0", "zombies");
    assert_eq!(regular(w.tier()), Vec::<std::path::PathBuf>::new(), "the agent was killed before it could clean up");
}

#[test]
fn another_user_inside_the_job_reads_the_pfs() {
    let mut w = world();
    open_to_all(w.root());
    w.settle();
    let script = "cat \"$1\"/data/d00/*.bin | cksum; id -u";
    let plain = w.bare(&Job::new("sh").args(["-c", script, "sh"]).arg(w.root())).text();
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script, "sh"];
    w.pfs().reset().unwrap();
    let ended = w.run(&Job::new("setpriv").args(words).arg(w.root())).good();
    assert_eq!(ended.text(), plain.replace("\n0\n", "\n65534\n"));
    assert!(w.pfs().counters().unwrap().open > 0);
}

#[test]
fn an_agent_that_dies_before_the_job_begins_is_replaced() {
    let mut w = world();
    w.keep();
    let dir = w.agent().unwrap().runtime_dir;
    assert!(monarch(&w, &["stop"]).status.success());
    w.release();
    wait_for("its end", || !dir.exists());
    // A stand-in that attaches the job and dies before it has reported its state.
    fs::create_dir(&dir).unwrap();
    let (socket, control) = (dir.join("agent.sock"), dir.join("control"));
    let listener = UnixListener::bind(&socket).unwrap();
    let dead = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut lines = BufReader::new(stream.unwrap());
            let mut line = String::new();
            // Clients that only probe for an agent send nothing.
            if lines.read_line(&mut line).unwrap() > 0 {
                let reply = serde_json::to_string(&Reply::Attached { control, counter_group: 0 }).unwrap();
                writeln!(lines.get_mut(), "{reply}").unwrap();
                lines.read_line(&mut line).unwrap();
                fs::remove_file(&socket).unwrap();
                return line.contains("status");
            }
        }
        false
    });
    let ended = w.run(&Job::new("sh").arg("-c").arg("test -e \"$MONARCH_CTL\"")).good();
    assert!(dead.join().unwrap(), "it was asked");
    assert!(!ended.errors().contains("without Monarch"), "{}", ended.errors());
}
