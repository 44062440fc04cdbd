//! `monarch explain` and `monarch evict`, and the library, over the states that a real job leaves
//! behind.

use crate::faults::wait_for;
use crate::harness::{Job, World, built};
use monarch_core::config::{self, Config, Overrides, SystemProbe};
use monarch_core::reader::{Place, Verdict};
use monarch_core::session::{Session, SessionError};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

/// Verdict of `explain --json` for each path, and its exit status.
fn explained(w: &World, paths: &[&Path]) -> (Vec<String>, i32) {
    // (The tier is named: the default one may have copies of jobs on this machine.)
    let out = w.monarch("explain").arg("--json").arg("--tier").arg(w.tier()).args(paths).output().unwrap();
    let all: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout).unwrap_or_default();
    let verdict = |v: &serde_json::Value| v["verdict"]["is"].as_str().unwrap().to_owned();
    (all.iter().map(verdict).collect(), out.status.code().unwrap())
}

fn text(w: &World, path: &Path) -> String {
    String::from_utf8(w.monarch("explain").arg(path).output().unwrap().stdout).unwrap()
}

#[test]
fn explain_reports_why_a_path_is_served_or_not() {
    let mut w = World::plan().files(8).args(&["--plain"]).build();
    let files: Vec<_> = crate::faults::regular(w.root());
    assert_eq!(explained(&w, &[&files[0]]), (vec![], 4), "no agent");
    w.settle();
    let [served, written, removed, moved] = [0, 1, 2, 3].map(|n| files[n].as_path());
    // Not in a job's working directory, where the agent would find it.
    let (new, link) = (w.root().join("new"), w.scratch().join("aside/link"));
    fs::create_dir(link.parent().unwrap()).unwrap();
    symlink(w.root(), &link).unwrap();
    let change = "echo x | tee -a \"$1\"; rm \"$2\"; mv \"$3\" \"$3.moved\"; echo y | tee \"$4\"";
    let job = Job::new("sh").args(["-c", change, "sh"]).args([written, removed, moved, &new]);
    w.run(&job).good();
    let same_by_link = link.join(served.strip_prefix(w.root()).unwrap());
    let gone = w.root().join("never");
    let paths = [w.root(), served, written, removed, moved, &new, &gone, &same_by_link, Path::new("/etc/passwd")];
    let want =
        ["directory", "hit", "changed", "changed", "changed", "not_in_index", "missing", "other_spelling", "outside"];
    assert_eq!(explained(&w, &paths), (want.map(str::to_owned).to_vec(), 3));
    assert_eq!(explained(&w, &[served, w.root()]).1, 0);

    // A copy that was removed; the agent must not make it again just now.
    let copy = crate::faults::copies(&w);
    let said = text(&w, served);
    let line = said.lines().find_map(|l| l.trim().strip_prefix("copy")).unwrap().trim().to_owned();
    assert!(copy.iter().any(|c| c == Path::new(&line)), "{said}");
    assert!(said.contains("hit: ") && said.contains("inode"), "{said}");
    let real = text(&w, &same_by_link);
    assert!(real.contains(served.to_str().unwrap()) && real.contains("dataset.aliases"), "{real}");
    assert!(text(&w, Path::new("/etc/passwd")).contains(w.root().to_str().unwrap()));
}

#[test]
fn explain_distinguishes_large_refused_and_absent_files() {
    let w = World::plan().files(8).size(400_000).args(&["--plain", "--exact"]).set("prefetch.enabled=false");
    let mut w = w.set("source.chunk_threshold=600KB").tier_size("2MiB").patient().build();
    fs::write(w.backing().join("large"), vec![1; 700_000]).unwrap();
    w.keep();
    w.until("the index", |s| s.roots[0].state == "ready");
    let files = crate::faults::regular(w.root());
    let large = w.root().join("large");
    let (small, rest): (Vec<_>, Vec<_>) = files.iter().partition(|f| **f != large);
    assert_eq!(rest.len(), 1);
    assert_eq!(explained(&w, &[small[0], &large]).0, ["absent", "large"]);
    // More than fits.
    for f in &small {
        w.run(&Job::new("cat").arg(f)).good();
    }
    let (said, _) = explained(&w, &small.iter().map(|p| p.as_path()).collect::<Vec<_>>());
    let count = |what: &str| said.iter().filter(|s| *s == what).count();
    assert!(count("hit") >= 3 && count("refused") >= 1 && count("hit") + count("refused") == 8, "{said:?}");
}

#[test]
fn a_file_that_the_agent_may_not_read_is_not_called_changed() {
    let dir = tempfile::tempdir().unwrap();
    let open = |p: &Path| fs::set_permissions(p, fs::Permissions::from_mode(0o1777)).unwrap();
    open(dir.path());
    let [root, tier, run] = ["root", "tier", "run"].map(|name| dir.path().join(name));
    for d in [&root, &tier, &run] {
        fs::create_dir(d).unwrap();
        open(d);
    }
    let file = root.join("secret");
    fs::write(&file, "x").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    let monarch = built("monarch");
    let mut job = std::process::Command::new("setpriv");
    job.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&monarch).arg("run").arg("--quiet");
    job.arg("--root").arg(&root).arg("--tier").arg(format!("{}:16MiB", tier.display()));
    let script = "i=0; while [ $i -lt 400 ] && \"$0\" explain \"$1\" | grep -q 'no index yet'; do sleep 0.05; i=$((i+1)); done; \
                  cat \"$1\"; \"$0\" explain \"$1\"";
    job.args(["--set", "dataset.min_file_age=0s", "--", "sh", "-c", script]);
    job.arg(&monarch).arg(&file).env("MONARCH_RUNTIME_DIR", &run);
    let said = String::from_utf8(job.output().unwrap().stdout).unwrap();
    assert!(said.contains("you may not read it") && !said.contains("changed"), "{said}");
}

#[test]
fn explain_answers_for_the_agent_of_the_job_that_asks() {
    let mut w = World::plan().files(8).args(&["--plain"]).build();
    w.settle();
    let file = crate::faults::regular(w.root())[0].clone();
    // Another agent of the same user, whose tier holds nothing.
    let other = w.scratch().join("other");
    let script = "\"$MONARCH\" explain --json \"$0\"; \"$MONARCH\" explain --json --tier \"$1\" \"$0\"";
    let job = Job::new("sh").args(["-c", script]).arg(&file).arg(w.tier());
    let job = job.env("MONARCH", crate::harness::built("monarch")).env("MONARCH_RUNTIME_DIR", w.runtime());
    let mut run = w.monarch("run");
    run.arg("-q").arg("--root").arg(w.root()).arg("--tier").arg(&other).args(["--set", "prefetch.enabled=false"]);
    run.args(["--set", "dataset.min_file_age=0s"]).arg("--").args(job.words());
    run.env("MONARCH", crate::harness::built("monarch"));
    let mut said = crate::harness::Running::new(run).end();
    said.out.retain(|&c| c != b'\n' && c != b' ');
    let text = said.text();
    let verdicts: Vec<&str> = text.split("\"is\":\"").skip(1).filter_map(|t| t.split('"').next()).collect();
    // Within the job its own agent answers, whichever agent is named.
    assert!(verdicts.len() == 2 && verdicts.iter().all(|v| *v != "hit"), "{text} {}", said.errors());
    let tier = |dir: &Path| {
        let out = w.monarch("explain").arg("--json").arg("--tier").arg(dir).arg(&file).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(tier(w.tier()).contains("\"hit\""));
    assert!(!tier(&other).contains("\"hit\""));
}

#[test]
fn explain_sees_that_the_agent_does_not_run() {
    let mut w = World::plan().files(8).args(&["--plain"]).set("prefetch.enabled=false").set("wait.stall=1s").build();
    w.keep();
    w.until("the index", |s| s.roots[0].state == "ready");
    let files = crate::faults::regular(w.root());
    w.run(&Job::new("cat").arg(&files[0])).good();
    let agent = crate::faults::agent_pid(&w);
    crate::faults::kill(agent, libc::SIGSTOP);
    wait_for("silence", || explained(&w, &[&files[0], &files[1]]).0 == ["hit", "no_agent"]);
    crate::faults::kill(agent, libc::SIGCONT);
    wait_for("a pulse", || explained(&w, &[&files[1]]).0 == ["absent"]);
}

#[test]
fn explain_sees_another_mount_at_the_roots_path() {
    let mut w = World::plan().files(8).args(&["--plain"]).build();
    w.settle();
    let file = crate::faults::regular(w.root())[0].clone();
    let mut explain = w.monarch("explain");
    explain.arg("--json").arg(&file);
    let covered =
        "mount -t tmpfs none \"$0\" && mkdir -p \"$(dirname \"$1\")\" && touch \"$1\" && shift && exec \"$@\"";
    let words = ["unshare", "-m", "sh", "-c", covered, w.root().to_str().unwrap(), file.to_str().unwrap()];
    let out = crate::faults::around(&words, &explain).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains("other_mount"), "{said} {}", String::from_utf8_lossy(&out.stderr));
    // Mounted below the root; a bind mount of another place leaves it as it is.
    let aside = w.scratch().join("aside");
    fs::create_dir(&aside).unwrap();
    for (place, verdict) in [(file.parent().unwrap(), "other_mount"), (aside.as_path(), "hit")] {
        let mounted = "mount -t tmpfs none \"$0\" && exec \"$@\"";
        let words = ["unshare", "-m", "sh", "-c", mounted, place.to_str().unwrap()];
        let mut explain = w.monarch("explain");
        explain.arg("--json").arg(if verdict == "hit" { &file } else { w.root() });
        let out = crate::faults::around(&words, &explain).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(said.contains(verdict), "{said} {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn evict_drops_the_named_files_and_readers_get_them_back() {
    let mut w = World::plan().files(24).args(&["--plain"]).patient().build();
    w.settle();
    let job = w.python("epochs.py").args(["--epochs", "1", "--verify"]).arg(w.root());
    let bare = w.bare(&job).good().text();
    let files = crate::faults::regular(w.root());
    let evict = |args: &[&Path]| {
        let out = w.monarch("evict").arg("--json").args(args).output().unwrap();
        let tally: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        (tally["files"].as_u64(), out.status.code().unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (one, code, _) = evict(&[&files[0]]);
    assert_eq!((one, code), (Some(1), 0));
    assert_eq!(explained(&w, &[&files[0], &files[1]]).0, ["absent", "hit"]);
    let (strange, code, said) = evict(&[Path::new("/etc/passwd")]);
    assert!(strange == Some(0) && code == 3 && said.contains("/etc/passwd"), "{said}");
    // All other files, while a job reads.
    let mut reading = w.start(&job.announced());
    reading.until_written("ready");
    reading.write(b"\n");
    let (rest, code, _) = evict(&[w.root()]);
    assert!(rest >= Some(files.len() as u64 - 1) && code == 0, "{rest:?}");
    assert_eq!(reading.end().good().text().strip_prefix("ready\n"), Some(&*bare));
    assert_eq!(w.run(&job).good().text(), bare);
    let out = w.monarch("evict").arg("--all").output().unwrap();
    assert!(out.status.success());
    w.until("an empty tier", |s| s.tiers[0].files == 0);
    assert_eq!(crate::faults::copies(&w).len(), 0);
    assert_eq!(w.run(&job).good().text(), bare);
}

pub fn config(w: &World) -> Config {
    let mut tier = w.tier().as_os_str().to_owned();
    tier.push(":64MiB");
    let runtime = ("runtime_dir".to_owned(), w.runtime().display().to_string());
    let set = vec![
        runtime,
        ("dataset.min_file_age".to_owned(), "0s".to_owned()),
        ("prefetch.enabled".to_owned(), "false".to_owned()),
        ("wait.pickup".to_owned(), "10s".to_owned()),
        ("wait.stall".to_owned(), "20s".to_owned()),
    ];
    let given = Overrides {
        roots: vec![w.root().to_owned()],
        tiers: vec![tier.into_string().unwrap()],
        set,
        ..Overrides::default()
    };
    config::load(None, std::iter::empty(), &given, &SystemProbe).unwrap().config
}

#[test]
fn a_program_that_links_the_library_reads_copies() {
    let w = World::plan().files(24).args(&["--plain"]).build();
    let files = crate::faults::regular(w.root());
    let expected: Vec<Vec<u8>> =
        files.iter().map(|f| fs::read(w.backing().join(f.strip_prefix(w.root()).unwrap())).unwrap()).collect();
    let session = Session::start(&config(&w)).unwrap();
    session.wait_for_index(Duration::from_secs(30)).unwrap();
    w.pfs().reset().unwrap();
    for _ in 0..2 {
        for (path, bytes) in files.iter().zip(&expected) {
            let mut opened = session.open(path).unwrap();
            assert_eq!(opened.place, Place::Copy(0), "{}", path.display());
            let mut got = Vec::new();
            opened.file.read_to_end(&mut got).unwrap();
            assert!(got == *bytes, "{}", path.display());
        }
    }
    let paths = w.pfs().paths().unwrap();
    assert!(files.iter().all(|f| paths[f.strip_prefix(w.root()).unwrap().to_str().unwrap()].opens == 1), "{paths:?}");
    // Prefetched: dropped, requested again as a directory, there without an open.
    let dropped = session.evict(&[w.root()]).unwrap();
    assert_eq!(dropped.files, files.len() as u64);
    assert_eq!(session.explain(&files[3]).verdict, Verdict::Absent);
    assert_eq!(session.prefetch(&[w.root()]).unwrap().files, files.len() as u64);
    wait_for("the copies", || files.iter().all(|f| session.explain(f).verdict == Verdict::Hit));
    // Files outside the roots are opened as they are, and mistakes are a plain open's.
    assert_eq!(session.open("/etc/passwd").unwrap().place, Place::Pfs);
    assert_eq!(session.open(w.root().join("none")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert!(matches!(session.prefetch(&["/etc"]), Err(SessionError::Path { verdict: Verdict::Outside, .. })));
    drop(session);
    wait_for("the end of the agent", || w.agent().is_none());
    assert_eq!(fs::read_dir(w.runtime()).unwrap().flatten().flat_map(|d| fs::read_dir(d.path())).flatten().count(), 0);
}

#[test]
fn a_job_takes_over_from_a_program_that_hosted_the_agent() {
    let mut w = World::plan().files(8).args(&["--plain"]).tier_size("64MiB").build();
    let files = crate::faults::regular(w.root());
    let session = Session::start(&config(&w)).unwrap();
    session.wait_for_index(Duration::from_secs(30)).unwrap();
    assert_eq!(session.open(&files[0]).unwrap().place, Place::Copy(0));
    w.keep();
    let before = w.agent().unwrap();
    assert_eq!((before.pid, before.jobs), (std::process::id(), 2));
    drop(session);
    w.until("another agent", |s| s.pid != before.pid && s.jobs == 1);
    assert_eq!(explained(&w, &[&files[0]]).0, ["hit"], "the copy was taken over");
    let second = Session::start(&config(&w)).unwrap();
    assert_eq!(second.status().unwrap().jobs, 2);
    assert_eq!(second.open(&files[1]).unwrap().place, Place::Copy(0));
}

#[test]
fn du_counts_the_files_that_have_copies() {
    let mut w = World::plan().files(30).args(&["--plain"]).build();
    w.settle();
    let evicted = w.monarch("evict").arg(w.root().join("data/d00")).output().unwrap();
    assert!(evicted.status.success(), "{evicted:?}");
    let du = |paths: &[&Path]| w.monarch("du").arg("--json").args(paths).output().unwrap();
    let of = |out: &std::process::Output| serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap();
    let (all, part) = (du(&[]), du(&[&w.root().join("data/d00"), &w.root().join("data/d01")]));
    assert!(all.status.success() && part.status.success(), "{all:?} {part:?}");
    let (all, part) = (of(&all), of(&part));
    let gone = part[0]["all"]["files"].as_u64().unwrap();
    assert!(gone > 0 && part[0]["resident"]["files"] == 0, "{part}");
    assert_eq!(part[1]["all"], part[1]["resident"]);
    assert_eq!(all[0]["all"]["files"].as_u64().unwrap() - gone, all[0]["resident"]["files"].as_u64().unwrap());
    let text = w.monarch("du").output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains(" of 30 files  "), "{text:?}");
    assert_eq!(du(&[&w.root().join("nothing")]).status.code(), Some(3));
}

#[test]
fn refresh_shows_running_jobs_the_changes_of_other_clients() {
    let plan = World::plan().files(30).args(&["--plain"]);
    let mut w = plan.pfs(|b| b.cache(slowfs::CacheMode::Direct).attr_ttl(Duration::ZERO)).build();
    w.settle();
    let files = crate::faults::regular(w.backing());
    let (changed, gone) = (&files[3], &files[9]);
    let at = |p: &std::path::Path| w.root().join(p.strip_prefix(w.backing()).unwrap());
    let cat = |p: &std::path::Path| w.run(&Job::new("cat").arg(at(p)));
    let old = fs::read(changed).unwrap();
    fs::write(changed, b"what somebody else wrote").unwrap();
    fs::remove_file(gone).unwrap();
    let new = changed.with_file_name("new.bin");
    fs::write(&new, b"a new file").unwrap();
    assert_eq!(cat(changed).good().out, old, "a job reads what there was when it started");
    w.pfs().reset().unwrap();
    let out = w.monarch("refresh").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && text.contains(": ready, 30 files, "), "{out:?}");
    assert_eq!(cat(changed).good().out, b"what somebody else wrote");
    assert_eq!(cat(&new).good().out, b"a new file");
    assert!(!cat(gone).status.success());
    let names = w.run(&Job::new("ls").arg(at(new.parent().unwrap()))).good().text();
    assert!(names.contains("new.bin") && !names.contains(gone.file_name().unwrap().to_str().unwrap()), "{names}");
    w.settle();
    // Two are new; the other files kept their copies.
    let c = w.pfs().counters().unwrap();
    assert!(c.opens() <= 5, "{c:?}");

    let out = w.monarch("refresh").arg("/nonexistent").output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    w.release();
    // While it ends, the agent lives and does not answer.
    wait_for("the end of the agent", || w.monarch("refresh").output().unwrap().status.code() == Some(4));
}
