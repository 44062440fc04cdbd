//! What a job opened first is kept, and fetched first for the next job.

use crate::faults::{monarch, regular, wait_for};
use crate::harness::{Job, Plan, World};
use monarch_core::agent::protocol::Ahead;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Makes an environment of 120 files of 3 kB and one of 2 MB.
const TREE: &str = "set -e; mkdir -p \"$1/lib\"; echo 1 > \"$1/pyvenv.cfg\"; for f in $(seq 120); do\n\
    head -c 3000 /dev/urandom > \"$1/lib/f$f.py\"; done; head -c 2000000 /dev/urandom > \"$1/lib/a.so\"";

fn plan() -> Plan {
    let maker = Job::new("sh").args(["-c", TREE, "sh"]);
    World::plan().made_by(maker).set("prefetch.ahead=auto").set("tiers[0].persist=node").patient()
}

/// The files that the jobs open: the library, then every tenth file.
fn wanted(w: &World) -> Vec<PathBuf> {
    let mut files = vec![w.root().join("lib/a.so")];
    files.extend((1..=12).map(|n| w.root().join(format!("lib/f{}.py", n * 10))));
    files
}

fn cat(files: &[PathBuf]) -> Job {
    Job::new("cat").args(files)
}

/// A job that reads these files below a ready index. The agent stays.
fn job(w: &mut World, files: &[PathBuf]) {
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    w.run(&cat(files)).good();
}

fn end_agent(w: &mut World) {
    w.release();
    wait_for("the end of the agent", || w.agent().is_none());
}

/// The directory of the tier.
fn tier(w: &World) -> PathBuf {
    fs::read_dir(w.tier()).unwrap().next().unwrap().unwrap().path()
}

fn set_file(w: &World) -> PathBuf {
    tier(w).join("working-sets")
}

/// Removes all copies, as a reboot does with a tier in memory.
fn lose_copies(w: &World) {
    regular(&tier(w).join("copies")).iter().for_each(|copy| fs::remove_file(copy).unwrap());
}

/// Has a job open the files, and loses the copies.
fn learned() -> World {
    learned_in(plan())
}

fn learned_in(plan: Plan) -> World {
    let mut w = plan.build();
    let files = wanted(&w);
    job(&mut w, &files);
    end_agent(&mut w);
    lose_copies(&w);
    w
}

/// Starts an agent with a job that reads nothing. Returns the files that were opened on the PFS
/// when nothing is left to prefetch, below `lib`.
fn fetched(w: &mut World) -> Vec<String> {
    w.pfs().reset().unwrap();
    w.keep();
    w.until("the end of prefetch", |s| s.roots.iter().all(|r| r.state == "ready") && s.prefetch == Ahead::Idle);
    let mut opened: Vec<String> =
        w.pfs().paths().unwrap().into_iter().filter(|(_, c)| c.opens > 0).map(|(path, _)| path).collect();
    opened.retain(|path| path.contains("lib/"));
    opened.sort();
    opened
}

fn names(w: &World, files: &[PathBuf]) -> Vec<String> {
    let below = |f: &PathBuf| f.strip_prefix(w.root()).unwrap().display().to_string();
    let mut names: Vec<String> = files.iter().map(below).collect();
    names.sort();
    names
}

#[track_caller]
fn fetches(w: &mut World, files: &[PathBuf]) {
    let fetched = fetched(w);
    let expected = names(w, files);
    let same = fetched.len() == expected.len() && fetched.iter().zip(&expected).all(|(f, e)| f.ends_with(e.as_str()));
    assert!(same, "{fetched:?}, not {expected:?}");
}

#[test]
fn what_the_last_job_opened_is_fetched_and_no_more() {
    let mut w = learned();
    let meta = fs::metadata(set_file(&w)).unwrap();
    assert_eq!((meta.mode() & 0o777, meta.uid()), (0o600, rustix::process::geteuid().as_raw()));
    let files = wanted(&w);
    fetches(&mut w, &files);
    let text = String::from_utf8(monarch(&w, &["status"]).stdout).unwrap();
    assert!(text.contains("13 files (") && text.contains("that the last job opened first: fetched first"), "{text}");
    w.pfs().reset().unwrap();
    w.run(&cat(&files)).good();
    assert_eq!(w.pfs().counters().unwrap().opens(), 0);
    let mut explain = w.monarch("explain");
    explain.arg(&files[3]);
    let said = String::from_utf8(explain.output().unwrap().stdout).unwrap();
    assert!(said.contains("  set      file 4 of 13 in the working set of the last job"), "{said}");
}

#[test]
fn small_files_come_before_libraries_in_the_order_of_the_last_job() {
    let mut w = learned();
    w.keep();
    w.until("the end of prefetch", |s| s.prefetch == Ahead::Idle && s.tiers[0].files == 13);
    let at = |path: &Path| {
        let said = w.monarch("explain").arg(path).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let copy = said.lines().find_map(|l| l.trim().strip_prefix("copy     ")).expect("a copy").to_owned();
        let meta = fs::metadata(copy).unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    let files = wanted(&w);
    let library = at(&files[0]);
    assert!(files[1..7].iter().all(|f| at(f) < library), "{library:?}");
}

#[test]
fn a_set_survives_an_agent_that_is_killed() {
    let mut w = plan().build();
    let files = wanted(&w);
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    w.run(&cat(&files)).good();
    wait_for("the set", || tier(&w).join("working-sets").exists());
    let before = fs::read(set_file(&w)).unwrap();
    let pid = w.agent().unwrap().pid as i32;
    // SAFETY: the agent of this world, which answered a moment ago.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    w.until("another agent", |s| s.pid as i32 != pid);
    end_agent(&mut w);
    assert_eq!(fs::read(set_file(&w)).unwrap(), before);
    lose_copies(&w);
    fetches(&mut w, &files);
}

#[test]
fn a_set_that_cannot_be_believed_is_ignored_and_replaced() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("its checksum does not fit", |file| {
            let mut bytes = fs::read(file).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            fs::write(file, bytes).unwrap();
        }),
        ("it was cut short", |file| fs::File::options().write(true).open(file).unwrap().set_len(40).unwrap()),
        ("it belongs to user 65534", |file| chown(file, Some(65534), Some(65534)).unwrap()),
        ("it is no file of working sets", |file| fs::write(file, "something else").unwrap()),
    ];
    for (why, damage) in damages {
        let mut w = learned();
        damage(&set_file(&w));
        fetches(&mut w, &[]);
        let log = w.log();
        assert!(log.contains("the working sets of earlier jobs are ignored") && log.contains(why), "{why}: {log}");
        let files = wanted(&w);
        w.run(&cat(&files)).good();
        end_agent(&mut w);
        lose_copies(&w);
        fetches(&mut w, &files);
    }
}

#[test]
fn files_that_are_gone_are_skipped_and_changed_ones_are_fetched_as_they_are() {
    let mut w = learned_in(plan().pfs(|b| b.attr_ttl(Duration::ZERO)));
    let files = wanted(&w);
    fs::remove_file(w.backing().join("lib/f20.py")).unwrap();
    fs::remove_file(w.backing().join("lib/f30.py")).unwrap();
    fs::create_dir(w.backing().join("lib/f30.py")).unwrap();
    fs::write(w.backing().join("lib/f40.py"), "another version").unwrap();
    let left: Vec<PathBuf> = files.into_iter().filter(|f| !f.ends_with("f20.py") && !f.ends_with("f30.py")).collect();
    fetches(&mut w, &left);
    assert_eq!(w.run(&cat(&[w.root().join("lib/f40.py")])).good().text(), "another version");
}

#[test]
fn a_small_job_does_not_make_a_set_forgotten() {
    let mut w = learned();
    let files = wanted(&w);
    job(&mut w, &files[2..4]);
    end_agent(&mut w);
    lose_copies(&w);
    fetches(&mut w, &files);
}

#[test]
fn stage_copies_the_set_only() {
    let mut w = learned();
    w.pfs().reset().unwrap();
    let mut stage = w.monarch("stage");
    let out = stage.args(w.words()).arg("--working-set").output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && said.contains("staged: 13 of 13 files"), "{said} {out:?}");
    assert_eq!(w.pfs().counters().unwrap().opens(), 13);
    // Evicted by the user, the set is gone, too.
    end_agent(&mut w);
    let mut evict = w.monarch("evict");
    let out = evict.args(w.words()).arg("--all").output().unwrap();
    assert!(out.status.success() && !set_file(&w).exists(), "{out:?}");
    let mut stage = w.monarch("stage");
    let out = stage.args(w.words()).arg("--working-set").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(3) && said.contains("no job has left a working set"), "{said}");
}

#[test]
fn an_agent_forgets_the_set_of_a_root_that_is_evicted() {
    let mut w = plan().build();
    let files = wanted(&w);
    job(&mut w, &files);
    wait_for("the set", || set_file(&w).exists());
    let mut evict = w.monarch("evict");
    let out = evict.args(w.words()).arg(w.root()).output().unwrap();
    assert!(out.status.success() && !set_file(&w).exists(), "{out:?}");
    end_agent(&mut w);
    assert!(!set_file(&w).exists());
}

#[test]
fn nothing_is_kept_when_it_is_off_and_purge_removes_what_is() {
    let mut w = plan().set("prefetch.working_set=off").build();
    let files = wanted(&w);
    job(&mut w, &files);
    end_agent(&mut w);
    assert!(!set_file(&w).exists());
    let w = learned();
    assert!(set_file(&w).exists());
    let mut stop = w.monarch("stop");
    let out = stop.arg("--purge").args(w.words()).output().unwrap();
    assert!(out.status.success() && fs::read_dir(w.tier()).unwrap().next().is_none(), "{out:?}");
}
