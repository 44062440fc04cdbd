//! Several roots, several jobs, one agent: roots that a job adds, copies that it finds, and stalls
//! that must not delay it.

use crate::faults::{agent_pid, around, control, copies, kill, monarch, reads, regular, wait_for, with_control};
use crate::harness::{Ended, Job, Running, World, built};
use monarch_abi::control::Control;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::Request;
use monarch_core::config::{Config, Overrides, SystemProbe};
use slowfs::{FaultKind, FaultSpec, MutationKind, Op, When};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A world whose own root is one of several.
pub fn world() -> World {
    World::plan().files(12).args(&["--plain"]).build()
}

/// A directory beside the root with `n` files that contain their numbers.
pub fn set(w: &World, name: &str, n: usize) -> PathBuf {
    let dir = fs::canonicalize(w.scratch()).unwrap().join(name);
    fs::create_dir_all(&dir).unwrap();
    for i in 0..n {
        fs::write(dir.join(format!("{i}")), format!("{name} {i}\n")).unwrap();
    }
    dir
}

/// `monarch run` with these roots instead of the world's own.
pub fn command(w: &World, roots: &[&Path], job: &Job) -> Command {
    let run = w.monarch_run(job);
    let mut words: Vec<_> = run.get_args().map(ToOwned::to_owned).collect();
    let at = words.iter().position(|a| a == "--root").unwrap();
    words.drain(at..at + 2);
    for root in roots.iter().rev() {
        words.splice(at..at, ["--root".into(), root.as_os_str().to_owned()]);
    }
    let mut c = Command::new(run.get_program());
    c.args(words).current_dir(w.scratch());
    for (name, value) in run.get_envs() {
        match value {
            Some(v) => c.env(name, v),
            None => c.env_remove(name),
        };
    }
    c
}

fn run(w: &World, roots: &[&Path], job: &Job) -> Ended {
    Running::new(command(w, roots, job)).end()
}

/// A job that keeps its roots in use.
pub fn keeper(w: &World, roots: &[&Path]) -> Running {
    let mut running = Running::new(command(w, roots, &Job::new("sh").args(["-c", "echo kept; cat"])));
    running.until_written("kept");
    running
}

pub fn sh(script: &str) -> Job {
    Job::new("sh").args(["-c", script])
}

/// Waits for the index of all roots and for `files` copies.
#[track_caller]
fn settled(w: &World, roots: usize, files: u64) {
    w.until("index and copies", |s| {
        s.roots.len() == roots && s.roots.iter().all(|r| r.state == "ready") && s.tiers[0].files >= files
    });
}

#[test]
fn a_root_that_an_earlier_job_replaced_is_served_to_the_next_one() {
    let w = World::plan().files(6).args(&["--plain"]).disk().build();
    let other = set(&w, "other", 2);
    let _elsewhere = keeper(&w, &[&other]);
    // From here on this job's root is the PFS's.
    let replace = format!("cp -r {0} {0}.new && mv {0} {0}.old && mv {0}.new {0}", w.root().display());
    run(&w, &[w.root()], &sh(&replace)).good();
    w.until("the end of the root's job", |s| s.jobs == 1);
    let _next = keeper(&w, &[w.root()]);
    settled(&w, 2, 8);
    let hits = w.counter("hits");
    run(&w, &[w.root()], &crate::faults::reads(&w)).good();
    assert_eq!(w.counter("hits"), hits + 6);
    let ino = fs::metadata(w.root()).unwrap().ino();
    let seen = run(&w, &[w.root()], &Job::new("stat").arg("-c%i").arg(w.root())).good();
    assert_eq!(seen.text().trim(), ino.to_string());
}

#[test]
fn a_second_job_brings_another_root() {
    let w = world();
    let (a, b) = (set(&w, "a", 5), set(&w, "b", 7));
    let _first = keeper(&w, &[w.root(), &a]);
    settled(&w, 2, 17);
    let pid = agent_pid(&w);
    let _second = keeper(&w, &[&b, &a]);
    settled(&w, 3, 24);
    assert_eq!(agent_pid(&w), pid);
    let status = w.agent().unwrap();
    let jobs = |p: &Path| status.roots.iter().find(|r| r.path == p).map(|r| r.jobs);
    assert_eq!((jobs(&a), jobs(&b), jobs(w.root())), (Some(2), Some(1), Some(1)), "{status:#?}");
    // A job serves from all roots that the agent knows.
    let hits = w.counter("hits");
    let script = format!("cat {}/* {}/* | wc -l", a.display(), b.display());
    assert_eq!(run(&w, &[&a], &sh(&script)).good().text().trim(), "12");
    assert_eq!(w.counter("hits"), hits + 12);
}

#[test]
fn conflicting_tiers_of_a_second_job_are_an_error_that_names_both() {
    let mut w = world();
    w.settle();
    let tier = w.tier().display().to_string();
    let other = World::plan().files(1).args(&["--plain"]).tier_dir(w.tier()).tier_size("64MiB").build();
    let runtime = format!("runtime_dir={}", w.runtime().display());
    let ended = other.run(&reads(&other).option("--set").option(runtime)).good();
    let errors = ended.errors();
    let both = ["running without Monarch", &tier, "256.0 MiB", "64.0 MiB"];
    assert!(both.iter().all(|t| errors.contains(t)), "{errors}");
    assert_eq!(w.agent().unwrap().tiers[0].files, 12);
}

#[test]
fn a_link_that_was_repointed_leads_the_next_job_to_the_new_target() {
    let w = world();
    let (v3, v4) = (set(&w, "v3", 3), set(&w, "v4", 3));
    let link = w.scratch().join("current");
    symlink(&v3, &link).unwrap();
    let script = format!("cat {}/0", link.display());
    let _first = keeper(&w, &[&link]);
    settled(&w, 1, 3);
    assert_eq!(run(&w, &[&link], &sh(&script)).good().text(), "v3 0\n");
    fs::remove_file(&link).unwrap();
    symlink(&v4, &link).unwrap();
    assert_eq!(run(&w, &[&link], &sh(&script)).good().text(), "v4 0\n");
    let _second = keeper(&w, &[&link]);
    settled(&w, 2, 6);
    let hits = w.counter("hits");
    assert_eq!(run(&w, &[&link], &sh(&script)).good().text(), "v4 0\n");
    assert_eq!(w.counter("hits"), hits + 1, "the new target is served from its copies");
    // And back again.
    fs::remove_file(&link).unwrap();
    symlink(&v3, &link).unwrap();
    assert_eq!(run(&w, &[&link], &sh(&script)).good().text(), "v3 0\n");
}

#[test]
fn a_link_that_only_the_job_can_see_is_not_taken_for_the_root() {
    // In a mount namespace of its own the job has `here` lead to a directory below the root; the
    // agent sees nothing there.
    let mut w = World::plan().files(4).args(&["--plain"]).disk().build();
    fs::create_dir_all(w.root().join("sub")).unwrap();
    fs::write(w.root().join("same"), "of the root\n").unwrap();
    fs::write(w.root().join("sub/same"), "of the directory below\n").unwrap();
    w.settle();
    let place = w.scratch().join("place");
    fs::create_dir(&place).unwrap();
    let link = place.join("here");
    let job = Job::new("cat").arg(link.join("same"));
    let inside = "mount -t tmpfs none \"$1\" && ln -s \"$2\" \"$1/here\" && shift 2 && exec \"$@\"";
    let (place, sub) = (place.display().to_string(), w.root().join("sub").display().to_string());
    let words = ["unshare", "--mount", "sh", "-c", inside, "sh", &place, &sub];
    let out = around(&words, &w.monarch_run(&job)).stdin(Stdio::null()).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if errors.contains("Operation not permitted") {
        println!("skipped: {errors}");
        return;
    }
    assert_eq!((text.as_ref(), out.status.success()), ("of the directory below\n", true), "{errors}");
}

#[test]
fn a_root_whose_jobs_have_gone_is_scanned_again_for_the_next_one() {
    let w = world();
    let other = set(&w, "other", 2);
    let _elsewhere = keeper(&w, &[&other]);
    {
        let _job = keeper(&w, &[w.root()]);
        settled(&w, 2, 14);
    }
    w.until("the end of the root's job", |s| s.jobs == 1);
    let pid = agent_pid(&w);
    let victim = regular(w.backing()).remove(0);
    let rel = victim.strip_prefix(w.backing()).unwrap().to_str().unwrap().to_owned();
    w.pfs().mutate(&rel, MutationKind::ReplaceSame, When::Now).unwrap();
    let new = victim.with_file_name("new.bin");
    fs::write(&new, "new").unwrap();
    w.pfs().reset().unwrap();
    let ours = run(&w, &[w.root()], &Job::new("cat").arg(w.root().join(&rel))).good();
    assert!(ours.out == fs::read(&victim).unwrap(), "an old copy was served to a later job");
    assert_eq!(agent_pid(&w), pid, "the agent went on for the other root");
    let _next = keeper(&w, &[w.root()]);
    settled(&w, 2, 15);
    // Unchanged files were not copied again: their copies were taken over.
    let opens = w.pfs().counters().unwrap().open;
    assert!(opens <= 4, "{opens} opens for one changed and one new file");
    let segments = |end: &str| regular(w.runtime()).iter().filter(|p| p.to_string_lossy().ends_with(end)).count();
    assert_eq!((segments(".idx"), segments(".st")), (2, 2), "files of retired segments are removed");
    let hits = w.counter("hits");
    let all = run(&w, &[w.root()], &sh(&format!("find {} -name '*.bin' -exec cat {{}} + | wc -c", w.root().display())))
        .good();
    let size: u64 = regular(w.backing())
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "bin"))
        .map(|p| p.metadata().unwrap().len())
        .sum();
    assert_eq!(all.text().trim(), size.to_string());
    assert!(w.counter("hits") >= hits + 13, "{} hits", w.counter("hits") - hits);
    // All copies are in the ledger. The copy of the old version is not: the scan has dropped it.
    assert_eq!((w.agent().unwrap().tiers[0].files, copies(&w).len()), (15, 15));
}

#[test]
fn a_root_is_scanned_again_while_its_files_are_being_copied() {
    let w = World::plan().files(40).size(200_000).args(&["--plain"]).pfs(|b| b.bandwidth(8 << 20)).build();
    let other = set(&w, "other", 2);
    let _elsewhere = keeper(&w, &[&other]);
    for _ in 0..6 {
        let _job = keeper(&w, &[w.root()]);
        let before = w.agent().unwrap().tiers[0].files;
        w.until("some copies", |s| s.roots.len() == 2 && s.tiers[0].files >= (before + 3).min(42));
    }
    let _last = keeper(&w, &[w.root()]);
    settled(&w, 2, 42);
    let hits = w.counter("hits");
    run(&w, &[w.root()], &reads(&w)).good();
    assert_eq!(w.counter("hits"), hits + 40);
    w.until("no copy without an owner", |s| s.tiers[0].files == 42 && s.tiers[0].reserved == 0);
    assert_eq!(copies(&w).len(), 42);
    // Copies under way were of use to the next segment.
    assert!(w.pfs().counters().unwrap().open <= 40 + 6 * 4, "{:?}", w.pfs().counters());
}

/// The configuration of this world's jobs.
fn config(w: &World) -> Config {
    let tiers = vec![format!("{}:256MiB", w.tier().display())];
    let set = vec![("runtime_dir".to_owned(), w.runtime().display().to_string())];
    let overrides = Overrides { roots: vec![w.root().to_owned()], tiers, set, ..Overrides::default() };
    monarch_core::config::load(None, std::iter::empty(), &overrides, &SystemProbe).unwrap().config
}

#[test]
fn status_and_other_jobs_are_served_while_the_pfs_stalls() {
    let w = World::plan()
        .files(12)
        .args(&["--plain"])
        .pfs(|b| b.attr_ttl(Duration::ZERO).entry_ttl(Duration::ZERO))
        .build();
    let (first, other) = (set(&w, "first", 2), set(&w, "other", 2));
    let _first = keeper(&w, &[&first]);
    settled(&w, 1, 2);
    let config = Box::new(config(&w));
    let dir = w.agent().unwrap().runtime_dir;
    w.pfs().fault(FaultSpec::new(FaultKind::STALL).ops(&[Op::Lookup, Op::Getattr])).unwrap();
    let attach = Request::Attach {
        config,
        spellings: vec![],
        pid: std::process::id(),
        again: false,
        writable: vec![],
        counter_group: 0,
    };
    let ask = std::thread::spawn(move || Client::connect(&dir).unwrap().ask(&attach));
    wait_for("the stall", || w.pfs().counters().unwrap().faults > 0);
    let start = Instant::now();
    assert_eq!(w.agent().expect("an answer").roots.len(), 1);
    let ended = run(&w, &[&other], &sh(&format!("cat {}/*", other.display()))).good();
    assert_eq!(ended.errors(), "");
    assert!(monarch(&w, &["stop"]).status.success());
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    w.pfs().clear().unwrap();
    let _ = ask.join();
}

#[test]
fn a_scan_that_could_not_begin_is_tried_again() {
    let w = world();
    // The first is that of the search for links that leave the root.
    w.pfs().fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Opendir]).count(2)).unwrap();
    let _job = keeper(&w, &[w.root()]);
    w.until("the failure", |s| s.roots[0].state.starts_with("failed"));
    settled(&w, 1, 12);
}

#[test]
fn more_spellings_than_there_is_room_for_do_not_keep_a_root_from_being_served() {
    let w = world();
    let data = set(&w, "data", 3);
    let other = set(&w, "other", 2);
    let _first = keeper(&w, &[&other]);
    for round in 0..5 {
        let mut job = sh(&format!("cat {}/0", data.display()));
        for i in 0..32 {
            let link = w.scratch().join(format!("link-{round}-{i}"));
            symlink(&data, &link).unwrap();
            job = job.arg(link);
        }
        assert_eq!(run(&w, &[&data], &job).good().text(), "data 0\n");
        (0..32).for_each(|i| fs::remove_file(w.scratch().join(format!("link-{round}-{i}"))).unwrap());
    }
    let _last = keeper(&w, &[w.root(), &data]);
    settled(&w, 3, 17);
    assert!(w.log().contains("no room for more spellings"), "{}", w.log());
    let hits = w.counter("hits");
    run(&w, &[w.root(), &data], &reads(&w)).good();
    assert_eq!(w.counter("hits"), hits + 12, "links took the place of the root's own path");
}

#[test]
fn an_agent_that_was_ending_is_not_taken_over() {
    let mut w = world();
    w.settle();
    let (pid, control) = (agent_pid(&w), control(&w));
    // Killed between its last mark and the removal of its directory. Changes from then on are not
    // marked.
    let bypassed = std::mem::offset_of!(Control, bypassed) as u64;
    kill(pid, libc::SIGSTOP);
    fs::OpenOptions::new().write(true).open(&control).unwrap().write_all_at(&1u32.to_le_bytes(), bypassed).unwrap();
    let victim = regular(w.root()).remove(0);
    let change = "printf changed > \"$1\"";
    w.bare(&with_control(sh(change).arg("sh").arg(&victim), &control)).good();
    kill(pid, libc::SIGKILL);
    wait_for("the next agent", || w.agent().is_some_and(|s| s.pid as i32 != pid));
    w.until("a new index", |s| s.incarnation == 1 && s.roots.iter().all(|r| r.state == "ready"));
    assert_eq!(w.run(&Job::new("cat").arg(&victim)).good().text(), "changed");
}

#[test]
fn an_agent_takes_nothing_over_from_another_mount_namespace() {
    let w = world();
    let keeper = keeper(&w, &[w.root()]);
    settled(&w, 1, 12);
    let pid = agent_pid(&w);
    // The `run` that would start the next agent is stopped, and a job comes from a container.
    keeper.signal(libc::SIGSTOP);
    kill(pid, libc::SIGKILL);
    let out = around(&["unshare", "--mount"], &w.monarch_run(&reads(&w))).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    keeper.signal(libc::SIGCONT);
    if errors.contains("Operation not permitted") {
        println!("skipped: {errors}");
        return;
    }
    assert!(out.status.success() && errors.contains("running without Monarch"), "{errors}");
    wait_for("the next agent", || w.agent().is_some_and(|s| s.pid as i32 != pid));
    assert_eq!(w.agent().unwrap().incarnation, 2);
}

#[test]
fn files_of_segments_without_jobs_are_removed() {
    let mut w = world();
    w.settle();
    let dir = w.agent().unwrap().runtime_dir;
    let pid = agent_pid(&w);
    for name in ["00112233445566778899aabbccddeeff.idx", "00112233445566778899aabbccddeeff.st", "x.new"] {
        fs::write(dir.join(name), "left by an agent that was killed while it wrote").unwrap();
    }
    kill(pid, libc::SIGKILL);
    wait_for("the next agent", || w.agent().is_some_and(|s| s.pid as i32 != pid));
    let segments = |dir: &Path| {
        regular(dir)
            .into_iter()
            .filter(|p| p.extension().is_some_and(|e| e == "idx" || e == "st" || e == "new"))
            .count()
    };
    assert_eq!(segments(&dir), 2, "{:?}", regular(&dir));
    let hits = w.counter("hits");
    w.run(&reads(&w)).good();
    assert_eq!(w.counter("hits"), hits + 12);
}

#[test]
fn a_saved_index_spares_the_scan_and_serves_nothing_that_changed_since() {
    for trust in ["verify", "frozen"] {
        let w = world();
        let file = w.scratch().join("set.idx");
        let built = Command::new(built("monarch")).args(["index", "build", "-o"]).arg(&file).arg(w.root()).output();
        assert!(built.unwrap().status.success());
        let victims: Vec<PathBuf> = regular(w.backing()).into_iter().filter(|p| p.extension().is_some()).collect();
        let rel = |p: &PathBuf| p.strip_prefix(w.backing()).unwrap().to_str().unwrap().to_owned();
        w.pfs().mutate(rel(&victims[0]), MutationKind::ReplaceSame, When::Now).unwrap();
        w.pfs().mutate(rel(&victims[1]), MutationKind::Shrink, When::Now).unwrap();
        w.pfs().reset().unwrap();
        let file = format!("index.file={}", file.display());
        let trust = format!("index.trust={trust}");
        let options = |job: Job| job.option("--set").option(&file).option("--set").option(&trust);
        let mut keeper = w.start(&options(sh("echo kept; cat")));
        keeper.until_written("kept");
        w.until("all copies but two", |s| s.tiers[0].files == 10 && s.agent["changed"] == 2);
        let counters = w.pfs().counters().unwrap();
        assert_eq!(
            (counters.opendir, counters.readdir + counters.readdirplus),
            (1, 0),
            "scanned in spite of the index"
        );
        for path in &victims[..2] {
            let ours = w.run(&options(Job::new("cat").arg(w.root().join(rel(path))))).good();
            assert!(ours.out == fs::read(path).unwrap(), "{trust}: an old version of {}", path.display());
        }
        let hits = w.counter("hits");
        w.run(&options(reads(&w).args(["--versions"]))).good();
        assert_eq!(w.counter("hits"), hits + 10);
    }
}

/// How many files below a directory have copies.
fn resident(w: &World, dir: &Path) -> u64 {
    let out = w.monarch("du").arg("--json").arg(dir).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    status[0]["resident"]["files"].as_u64().unwrap()
}

#[test]
fn two_jobs_that_compete_for_one_quota_get_half_each() {
    // Two data sets of 200 files of 30 kB, and room for about 130 files.
    let w = World::plan().files(200).size(30_000).args(&["--plain"]).tier_size("4MiB").build();
    let other = w.scratch().join("other");
    let made = w.python("mkdata.py").args(["--files", "200", "--size", "30000", "--plain", "--seed", "1"]).arg(&other);
    w.bare(&made).good();
    let first = keeper(&w, &[w.root()]);
    w.until("a full tier", |s| s.roots[0].state == "ready" && s.tiers[0].used * 100 > s.tiers[0].capacity * 96);
    let alone = resident(&w, w.root());
    assert!(alone > 100, "{alone}");
    // The other job starts: it gets its share, from the copies of the first job.
    let second = keeper(&w, &[&other]);
    let (mine, theirs) = (|| resident(&w, w.root()), || resident(&w, &other));
    crate::faults::wait_for("its share", || theirs() * 100 >= alone * 44);
    let job = |root: &Path| w.python("reads.py").args(["--rounds", "40", "--procs", "2"]).arg(root);
    let readers = [w.root(), &other].map(|root| Running::new(command(&w, &[root], &job(root))));
    let before = w.agent().unwrap().agent["evicted"];
    for reader in readers {
        reader.end().good();
    }
    let s = w.agent().unwrap();
    // No job was brought below its share, and at rest nothing more is dropped.
    let (a, b) = (mine(), theirs());
    assert!(a * 100 >= alone * 44 && b * 100 >= alone * 44, "{a} and {b} of {alone}");
    assert!(s.agent["evicted"] - before <= 12, "{} dropped while they read", s.agent["evicted"] - before);
    assert!(s.tiers[0].used <= s.tiers[0].capacity);
    // The first job has gone: the other job gets the rest.
    drop(first);
    w.until("the end of the first job", |s| s.jobs == 1);
    crate::faults::wait_for("all of it", || theirs() * 100 >= alone * 90);
    drop(second);
}
