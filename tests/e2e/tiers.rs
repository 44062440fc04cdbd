//! Tiers as a job sees them: several tiers, large files, evicted files that are open, limits
//! towards the PFS.

use crate::faults::{Loop, MIB, Tmpfs, charged, du, kill, reads, regular, wait_for};
use crate::harness::{Job, Running, World};
use slowfs::{FaultKind, FaultSpec, Op};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Names of the copies in a tier.
fn names(dir: &Path) -> HashSet<PathBuf> {
    let all = regular(dir).into_iter().filter(|p| p.to_string_lossy().contains("/copies/"));
    all.map(|p| p.file_name().unwrap().into()).collect()
}

/// Bytes that a job takes from the PFS.
fn bytes_of_a_round(w: &World) -> u64 {
    w.pfs().reset().unwrap();
    w.run(&reads(w)).good();
    w.pfs().counters().unwrap().bytes_read
}

fn ready(w: &mut World) {
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
}

#[test]
fn files_beyond_the_first_tier_go_to_the_second_and_both_serve() {
    let mut w = World::plan()
        .files(60)
        .size(100_000)
        .args(&["--plain", "--exact"])
        .tier_size("4MiB")
        .second_tier("64MiB")
        .build();
    w.settle();
    let (first, second) = (names(w.tier()), names(w.second()));
    assert!(first.len() > 10 && second.len() > 10 && first.is_disjoint(&second), "{} {}", first.len(), second.len());
    assert_eq!(first.len() + second.len(), 60);
    assert!(du(w.tier()) <= 4 * MIB);
    assert_eq!(bytes_of_a_round(&w), 0, "both are served");
    charged(&w, 0, w.tier());
    charged(&w, 1, w.second());
}

#[test]
fn a_tier_that_shrinks_leaves_the_copies_of_the_other_tier_alone() {
    let Some(tmpfs) = Tmpfs::mount("size=64m") else { return };
    let mut w = World::plan()
        .files(60)
        .size(1 << 20)
        .args(&["--plain", "--exact"])
        .tier_dir(tmpfs.path().join("tier"))
        .tier_size("32MiB")
        .set("tiers.0.keep_free=8MiB")
        .second_tier("128MiB")
        .build();
    w.settle();
    let second = names(w.second());
    assert!(names(w.tier()).len() > 20 && second.len() > 20);
    let readers = Loop::start(&w, &[]);
    // Another process takes the rest, and 10 MiB of the space to be kept free come from the tier.
    let filler = tmpfs.free() - 8 * MIB + 10 * MIB;
    fs::write(tmpfs.path().join("filler"), vec![1; usize::try_from(filler.min(tmpfs.free())).unwrap()]).unwrap();
    wait_for("space", || tmpfs.free() >= 8 * MIB);
    readers.more(1);
    readers.end();
    let agent = w.agent().unwrap().agent;
    assert!(agent["evicted"] + agent["demoted"] >= 2, "{agent:?}");
    assert!(second.is_subset(&names(w.second())), "the second tier is not touched");
}

#[test]
fn large_files_come_from_the_pfs_until_their_copies_are_complete() {
    let mut w = World::plan()
        .files(6)
        .size(2 << 20)
        .args(&["--plain", "--exact"])
        .pfs(|b| b.bandwidth(16 << 20))
        .set("source.chunk_threshold=64KiB")
        .set("prefetch.enabled=false")
        .build();
    ready(&mut w);
    w.run(&reads(&w)).good();
    assert_eq!((w.counter("chunked"), w.counter("large")), (6, 0), "nobody waits for a whole copy");
    w.until("all copies", |s| s.tiers[0].files == 6);
    assert_eq!(bytes_of_a_round(&w), 0);
    assert_eq!(w.counter("hits"), 6);
}

#[test]
fn a_demand_is_served_before_a_long_queue_of_prefetches() {
    let mut w = World::plan()
        .files(600)
        .size(20_000)
        .args(&["--plain"])
        .pfs(|b| b.data_latency(Duration::from_millis(100)))
        .set("source.max_inflight=8")
        .patient()
        .build();
    ready(&mut w);
    // The last file in the PFS's own order is fetched last.
    let mut at = w.root().join("data");
    while at.is_dir() {
        at = fs::read_dir(&at).unwrap().last().unwrap().unwrap().path();
    }
    let rel = at.strip_prefix(w.root()).unwrap().to_owned();
    let job = crate::harness::Job::new("cat").arg(w.root().join(&rel));
    assert_eq!(w.run(&job).good().out, fs::read(w.backing().join(&rel)).unwrap());
    w.until("its copy to be counted", |s| s.agent["copied_on_demand"] > 0);
    let a = w.agent().unwrap().agent;
    assert!(a["copied_on_demand"] == 1 && a["copied_ahead"] < 500, "{a:?}");
}

/// Each file that had its copy cost prefetches a turn beside demands that leave them nothing: of
/// one file in five only one in forty was fetched ahead.
#[test]
fn beside_demands_prefetches_lose_no_turn_on_files_that_have_copies() {
    let disk = tempfile::tempdir().unwrap();
    let w = World::plan().files(1).args(&["--plain"]).pfs(|b| b.data_latency(Duration::from_millis(5)));
    let w = w.tier_dir(disk.path().join("tier")).set("source.max_inflight=3").patient().build();
    let file = |n: usize| w.backing().join(format!("f{n:04}"));
    (0..1500).filter(|n| n % 5 != 0).for_each(|n| fs::write(file(n), [1; 100]).unwrap());
    let mut stage = w.monarch("stage");
    stage.args(w.words()).arg("--quiet");
    Running::new(stage).end().good();
    wait_for("the end of the agent", || w.agent().is_none());
    (0..1500).filter(|n| n % 5 == 0).for_each(|n| fs::write(file(n), [2; 100]).unwrap());
    // Files that have no copy, from the end, by as many readers as may copy.
    let read = "ls -r \"$1\" | grep '[05]$' | xargs -P 3 -n 25 sh -c 'cd \"$1\"; shift; cat \"$@\"' - \"$1\" | wc -c";
    let job = Job::new("sh").args(["-c", read, "-"]).arg(w.root());
    let ended = w.start_indexed(&job.option("--report").option(w.scratch().join("report.json"))).end().good();
    assert!(ended.text().ends_with("30000\n"), "{ended:?}");
    let report = fs::read(w.scratch().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    let ahead = report["agent"]["copied_ahead"].as_u64().unwrap();
    assert!(ahead > 18, "{ahead} of 300\n{}", report["agent"]);
}

#[test]
fn evicted_files_that_are_open_stay_charged_until_they_are_closed() {
    let Some(tmpfs) = Tmpfs::mount("size=64m") else { return };
    let mut w = World::plan()
        .files(60)
        .args(&["--plain"])
        .tier_dir(tmpfs.path().join("tier"))
        .tier_size("32MiB")
        .set("tiers.0.keep_free=16MiB")
        .build();
    w.settle();
    let mut held = w.start(&w.program("hold").args(["--limit", "10"]).arg(w.root()));
    held.until_written("ready 10");
    // Other programs take so much that every copy has to go.
    let filler = usize::try_from(tmpfs.free() - 4 * MIB).unwrap();
    fs::write(tmpfs.path().join("filler"), vec![1; filler]).unwrap();
    let trashed = || regular(w.tier()).into_iter().filter(|p| p.to_string_lossy().contains("/trash/")).count();
    w.until("empty tier", |s| s.tiers[0].files == 0);
    wait_for("the sweep", || trashed() == 10);
    charged(&w, 0, w.tier());
    let before = w.agent().unwrap().tiers[0].used;
    assert!(before >= 10 * 20_000, "{before}");
    held.write(b"\n");
    held.end().good();
    wait_for("the sweep", || trashed() == 0);
    charged(&w, 0, w.tier());
    assert!(w.agent().unwrap().tiers[0].used + 10 * 20_000 < before);
}

#[test]
fn the_bandwidth_limit_of_the_agent_holds() {
    let mut w = World::plan()
        .files(100)
        .size(100_000)
        .args(&["--plain", "--exact"])
        .set("source.bandwidth_limit=1MiB/s")
        .build();
    ready(&mut w);
    let start = Instant::now();
    w.pfs().reset().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let (bytes, took) = (w.pfs().counters().unwrap().bytes_read as f64, start.elapsed().as_secs_f64());
    let rate = bytes / took / MIB as f64;
    assert!((0.5..1.5).contains(&rate), "{rate} MiB/s");
}

#[test]
fn the_iops_limit_of_the_agent_holds() {
    let mut w = World::plan().files(300).size(10_000).args(&["--plain"]).set("source.iops_limit=60").build();
    ready(&mut w);
    let start = Instant::now();
    w.pfs().reset().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let (c, took) = (w.pfs().counters().unwrap(), start.elapsed().as_secs_f64());
    let rate = (c.open + c.read + c.getattr) as f64 / took;
    assert!((20.0..90.0).contains(&rate), "{rate} calls/s: {c:?}");
}

#[test]
fn a_reader_waits_for_a_copier_that_the_limits_hold_back() {
    // The second request of the copy waits for 4 s, longer than a stall.
    let mut w = World::plan()
        .files(1)
        .size(6 << 20)
        .args(&["--plain", "--exact"])
        .set("source.bandwidth_limit=1MiB/s")
        .set("source.io_size=4MiB")
        .set("prefetch.enabled=false")
        .set("wait.pickup=1s")
        .build();
    ready(&mut w);
    w.pfs().reset().unwrap();
    w.run(&reads(&w).args(["--procs", "4"])).good();
    let c = w.pfs().counters().unwrap();
    // The kernel's own readahead may ask for some pages twice: up to a request of it, 128 KiB.
    assert!(c.open == 1 && (6 << 20..=(6 << 20) + (128 << 10)).contains(&c.bytes_read), "{c:?}");
}

#[test]
fn a_pfs_that_fails_at_once_is_not_walked_over_at_full_speed() {
    let mut w = World::plan().files(600).size(1000).args(&["--plain"]).build();
    w.pfs().fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Open])).unwrap();
    ready(&mut w);
    std::thread::sleep(Duration::from_secs(3));
    let c = w.pfs().counters().unwrap();
    // Reads under way when the circuit breaker opened, and some probes.
    assert!((8..90).contains(&c.open), "{c:?}");
    w.pfs().clear().unwrap();
    w.until("all copies", |s| s.tiers[0].files == 600);
}

#[test]
fn killed_while_it_recovers_the_next_agent_accounts_for_everything() {
    let disk = tempfile::Builder::new().prefix("monarch-e2e-").tempdir().unwrap();
    let mut w = World::plan().files(200).args(&["--plain"]).tier_dir(disk.path().join("tier")).build();
    w.settle();
    let readers = Loop::start(&w, &["--procs", "2"]);
    let lock = regular(w.tier()).into_iter().find(|p| p.ends_with("lock")).unwrap();
    let holder = || fs::read_to_string(&lock).ok()?.split_whitespace().next()?.parse::<i32>().ok();
    let mut seed = u64::from(std::process::id());
    let mut last = 0;
    for _ in 0..10 {
        // The lock names the agent long before it answers.
        wait_for("the next agent", || holder().is_some_and(|pid| pid != last && kill(pid, 0)));
        last = holder().unwrap();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis((seed >> 33) % 200));
        kill(last, libc::SIGKILL);
    }
    w.until("all copies", |s| s.pid as i32 != last && s.tiers[0].files == 200 && s.tiers[0].reserved == 0);
    readers.more(2);
    readers.end();
    assert_eq!(names(w.tier()).len(), 200);
    charged(&w, 0, w.tier());
}

/// A directory that looks like a tier and holds files dear to a user; its files with their bytes.
fn victim(at: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    for name in ["copies/ab", "part", "trash", "tmp", "hints"] {
        fs::create_dir_all(at.join(name)).unwrap();
        fs::write(at.join(name).join("dear"), "dear").unwrap();
    }
    for name in ["log", "lock", "seed", "control", "agent.log", "x.idx", "x.st"] {
        fs::write(at.join(name), "dear").unwrap();
    }
    contents(at)
}

fn contents(at: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all: Vec<_> = regular(at).into_iter().map(|p| (p.clone(), fs::read(p).unwrap())).collect();
    all.sort();
    all
}

/// Another user who owns a directory above the tier can exchange what lies in it: then the job does
/// not begin.
#[test]
fn a_tier_or_a_runtime_directory_that_another_user_can_exchange_is_refused_before_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = dir.path().canonicalize().unwrap().join("theirs");
    fs::create_dir_all(theirs.join("mine")).unwrap();
    let w = World::plan().files(3).disk().build();
    let job = Job::new("echo").arg("begun");
    let refused = |option: &[String], said: &[&str]| {
        let job = option.iter().fold(job.clone(), Job::option);
        let ended = w.run(&job);
        let flat = ended.errors().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!((ended.status.code(), ended.text().as_str()), (Some(2), ""), "{flat}");
        said.iter().for_each(|s| assert!(flat.contains(s), "no {s} in {flat}"));
    };
    let tier = [format!("--tier={}:16MiB", theirs.join("mine/tier").display())];
    let runtime = [format!("--set=runtime_dir={}", theirs.join("mine").display())];
    let mode = |mode| fs::set_permissions(&theirs, fs::Permissions::from_mode(mode)).unwrap();
    for (bits, shown) in [(0o777, "mode 0777"), (0o775, "mode 0775"), (0o2770, "mode 2770")] {
        mode(bits);
        refused(&tier, &[shown, "/theirs (owner", "can be written to by other users", "chmod +t"]);
        refused(&runtime, &["runtime_dir", shown, "/theirs (owner"]);
    }
    mode(0o1777);
    assert_eq!(w.run(&job.clone().option(&tier[0])).good().text(), "begun\n", "sticky: what lies there is its owner's");
    if rustix::process::geteuid().is_root() {
        mode(0o755);
        chown(&theirs, Some(4242), Some(4242)).unwrap();
        refused(&tier, &["/theirs (owner 4242, mode 0755)", "belongs to another user", "/tmp"]);
        refused(&runtime, &["runtime_dir", "/theirs (owner 4242"]);
        // A link in a safe place that another user made.
        symlink(dir.path(), dir.path().join("link")).unwrap();
        std::os::unix::fs::lchown(dir.path().join("link"), Some(4242), None).unwrap();
        refused(
            &[format!("--tier={}/link/tier:16MiB", dir.path().display())],
            &["symbolic link", "/link (owner 4242)"],
        );
    }
}

/// The attack whose way in is refused: the tier is renamed away during the job, and a link leads to
/// another user's files.
#[test]
fn a_tier_or_a_runtime_directory_that_is_exchanged_for_a_link_during_a_job_costs_other_users_nothing() {
    for which in ["tier", "runtime directory", "private directory of the runtime directories"] {
        let mut w = World::plan().files(30).args(&["--plain"]).set("tiers.0.persist=job").build();
        let elsewhere = w.scratch().join("victim");
        let before = victim(&elsewhere);
        w.settle();
        let status = w.agent().unwrap();
        let path = match which {
            "tier" => status.tiers[0].path.clone(),
            "runtime directory" => status.runtime_dir,
            _ => status.runtime_dir.parent().unwrap().to_owned(),
        };
        let away = w.scratch().join("away");
        let readers = Loop::start(&w, &[]);
        // (Onto the same file system, as a rename is.)
        let away = if fs::rename(&path, &away).is_ok() {
            away
        } else {
            let beside = path.with_file_name("away");
            fs::rename(&path, &beside).unwrap();
            beside
        };
        symlink(&elsewhere, &path).unwrap();
        readers.more(2);
        readers.end();
        w.release();
        wait_for("the end of the agents", || !is_running(status.pid));
        assert!(contents(&elsewhere) == before, "{which}: {:?}", contents(&elsewhere));
        assert_eq!(fs::read_link(&path).unwrap(), elsewhere, "{which}");
        assert!(away.exists());
        // Also files that are removed on request, and by the next job.
        fs::remove_file(&path).unwrap();
        symlink(&elsewhere, &path).unwrap();
        let _ = w.monarch("stop").arg("--purge").args(w.words()).output().unwrap();
        w.run(&reads(&w)).good();
        assert!(contents(&elsewhere) == before, "{which}, afterwards");
    }
}

fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// In the namespace the host's root, which owns the directories above, has the number that stands
/// for all users without a mapping.
#[test]
fn in_a_user_namespace_a_tier_below_directories_of_the_hosts_root_serves() {
    const USER: u32 = 1234;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let [root, own] = ["root", "own"].map(|name| dir.path().join(name));
    for d in [&root, &own] {
        fs::create_dir(d).unwrap();
    }
    fs::write(root.join("file"), "bytes").unwrap();
    let inside = |map: &str| {
        let mut c = std::process::Command::new("setpriv");
        c.args([format!("--reuid={USER}"), format!("--regid={USER}")]);
        c.args(["--clear-groups", "unshare", "--user", map]);
        c
    };
    let may = rustix::process::geteuid().is_root() && chown(&own, Some(USER), Some(USER)).is_ok();
    if !may || !inside("--map-root-user").arg("true").output().is_ok_and(|out| out.status.success()) {
        return;
    }
    for map in ["--map-root-user", "--map-user=1234"] {
        let (tier, run) = (own.join(format!("tier{map}")), own.join("run"));
        let script = "i=0; until [ -n \"$(find \"$1\" -type f -path '*/copies/*')\" ] || [ $i -gt 400 ]; \
                      do sleep 0.05; i=$((i+1)); done; cat \"$2\"";
        let mut job = inside(map);
        job.args(["sh", "-c", "mkdir -p \"$0\" && exec \"$@\""]).arg(&run).arg(crate::harness::built("monarch"));
        job.arg("run").arg("--root").arg(&root).arg("--tier").arg(format!("{}:16MiB", tier.display()));
        job.arg("--set").arg(format!("runtime_dir={}", run.display())).args([
            "--set",
            "dataset.min_file_age=0s",
            "--set",
            "prefetch.ahead=all",
            "--",
        ]);
        job.args(["sh", "-c", script, "sh"]).arg(&tier).arg(root.join("file"));
        let out = job.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.stdout == b"bytes"
                && said.contains(" of 1 opens; readers waited ")
                && !said.contains("opens went to the PFS"),
            "{map}: {said}"
        );
    }
}
