//! What is said and done about files that a job has written below an output root and that are not
//! on the PFS yet: the end of `run`, `outputs`, `flush`, `recover`, `stop --purge`.

use crate::faults::{agent_pid, kill, wait_for};
use crate::harness::{Ended, Job, Running, World};
use slowfs::{FaultKind, FaultSpec, Op};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A world with an output root on the PFS, and a tier on disk.
struct Place {
    w: World,
    out: PathBuf,
    tier: PathBuf,
    _disk: TempDir,
}

/// Bytes that [`Place::save`] writes.
const SAVED: u64 = 3_000_000;

impl Place {
    fn new(settings: &[&str]) -> Self {
        let disk = tempfile::tempdir().unwrap();
        let tier = std::fs::canonicalize(disk.path()).unwrap().join("tier");
        let plan = World::plan().files(4).size(1000).args(&["--plain"]).tier_dir(&tier);
        let w = settings.iter().fold(plan, |plan, setting| plan.set(setting)).build();
        std::fs::create_dir(w.backing().join("out")).unwrap();
        let out = w.root().join("out");
        Self { w, out, tier, _disk: disk }
    }

    /// A job that writes a file of [`SAVED`] bytes, says `saved`, and ends with this status.
    fn save(&self, name: &str, status: i32) -> Job {
        let script =
            format!("head -c {SAVED} /dev/zero > '{}/{name}' && echo saved; exit {status}", self.out.display());
        Job::new("sh").arg("-c").arg(script).option("--output").option(&self.out)
    }

    fn monarch(&self, words: &[&str]) -> Ended {
        let mut c = self.w.monarch(words[0]);
        c.args(&words[1..]).arg("--tier").arg(&self.tier);
        Running::new(c).end()
    }

    /// Size of a file on the PFS, seen without Monarch.
    fn published(&self, name: &str) -> Option<u64> {
        std::fs::metadata(self.w.backing().join("out").join(name)).ok().map(|meta| meta.size())
    }

    fn refuse(&self, kind: FaultKind) {
        self.w.pfs().fault(FaultSpec::new(kind).ops(&[Op::Write])).unwrap();
    }

    fn until_no_agent(&self) {
        wait_for("the end of the agent", || self.w.agent().is_none());
    }
}

#[track_caller]
fn says(ended: &Ended, code: i32, texts: &[&str]) {
    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    let said = format!("{}{}", ended.text(), ended.errors());
    texts.iter().for_each(|text| assert!(said.contains(text), "no `{text}` in\n{said}"));
}

fn of_json(ended: &Ended) -> serde_json::Value {
    serde_json::from_str(&ended.text()).unwrap_or_else(|e| panic!("{e}: {ended:?}"))
}

#[test]
fn the_status_of_the_command_stands_when_all_is_published() {
    let p = Place::new(&[]);
    let ended = p.w.start(&p.save("model.pt", 7)).end();
    says(&ended, 7, &["saved"]);
    assert_eq!(p.published("model.pt"), Some(SAVED));
    assert_eq!(std::fs::read_dir(p.w.backing().join("out")).unwrap().count(), 1, "neither part files nor markers");
}

#[test]
fn run_waits_for_a_stalled_file_system_and_what_is_pending_is_shown_meanwhile() {
    let p = Place::new(&[]);
    p.refuse(FaultKind::STALL);
    let mut job = p.w.start(&p.save("model.pt", 0));
    job.until_written("saved");
    wait_for("the copy", || p.monarch(&["outputs"]).text().contains("copying"));
    let root = p.out.to_str().unwrap();
    says(&p.monarch(&["outputs", root]), 3, &["1 entry (2.9 MiB) pending", "model.pt"]);
    let shown = of_json(&p.monarch(&["outputs", "--json"]));
    assert_eq!((&shown[0]["pending"], &shown[0]["is_drained"]), (&1.into(), &true.into()), "{shown}");
    assert_eq!(shown[0]["entries"][0]["path"], "model.pt");
    says(&p.monarch(&["outputs", "/usr"]), 0, &["nothing is staged on this node"]);
    says(&p.monarch(&["outputs", "/elsewhere"]), 2, &["/elsewhere does not exist"]);
    let status = of_json(&p.monarch(&["status", "--json"]));
    assert_eq!(status[0]["outputs"][0]["pending_bytes"], SAVED, "{status}");
    says(&p.monarch(&["status"]), 0, &["OUTPUT ROOT", "2.9 MiB"]);
    says(&p.monarch(&["top", "--once"]), 0, &["OUTPUTS", "1 entry (2.9 MiB) pending"]);
    says(&p.monarch(&["flush", "--timeout", "300ms"]), 5, &["not published: 1 entry", "model.pt", "kept in"]);
    assert_eq!(p.published("model.pt"), None);
    p.w.pfs().clear().unwrap();
    says(&p.monarch(&["flush"]), 0, &[]);
    job.end().good();
    assert_eq!(p.published("model.pt"), Some(SAVED));
    says(&p.monarch(&["flush", "/elsewhere"]), 2, &["/elsewhere does not exist"]);
    says(&p.monarch(&["flush", "/usr"]), 1, &["is below no output root of an agent"]);
}

#[test]
fn a_directory_that_others_remove_ends_the_wait_and_made_again_gets_its_file() {
    let p = Place::new(&[]);
    let (dir, behind) = (p.out.join("sub"), p.w.backing().join("out/sub"));
    std::fs::create_dir(&dir).unwrap();
    // The directory is removed behind the PFS, as by another node, with the part file in it.
    p.refuse(FaultKind::EIO);
    let script = format!("head -c {SAVED} /dev/zero > '{}/model.pt'; rm -r '{}'", dir.display(), behind.display());
    let job = Job::new("sh").arg("-c").arg(script).option("--output").option(&p.out);
    let ended = p.w.start(&job).end();
    says(&ended, 5, &["not published: 1 entry", "sub/model.pt", "the directory sub was removed: make it again"]);
    std::fs::create_dir(&dir).unwrap();
    p.w.pfs().clear().unwrap();
    p.until_no_agent();
    says(&p.monarch(&["recover"]), 0, &[]);
    assert_eq!(p.published("sub/model.pt"), Some(SAVED));
}

#[test]
fn what_the_file_system_refuses_is_status_5_with_a_list_and_recover_publishes_it_later() {
    let p = Place::new(&[]);
    p.refuse(FaultKind::Errno(libc::EDQUOT));
    let ended = p.w.start(&p.save("model.pt", 0)).end();
    says(&ended, 5, &["saved", "not published: 1 entry (2.9 MiB)", "quota", "monarch recover --tier"]);
    p.until_no_agent();
    says(&p.monarch(&["outputs"]), 3, &["left by an earlier job", "waiting", "model.pt"]);
    says(&p.monarch(&["status"]), 4, &["`monarch recover` publishes it"]);
    says(&p.monarch(&["stop", "--purge"]), 1, &["not purged", "is not published: 1 entry"]);
    says(&p.monarch(&["recover"]), 5, &["not published: 1 entry", "quota"]);
    p.w.pfs().clear().unwrap();
    let recovered = of_json(&p.monarch(&["recover", "--json"]));
    assert_eq!((&recovered[0]["published"], &recovered[0]["bytes"]), (&1.into(), &SAVED.into()), "{recovered}");
    assert_eq!(p.published("model.pt"), Some(SAVED));
    says(&p.monarch(&["outputs"]), 0, &["nothing is staged"]);
    says(&p.monarch(&["recover"]), 0, &["no earlier job has left anything to publish"]);
    says(&p.monarch(&["stop", "--purge"]), 0, &["removed"]);
}

#[test]
fn a_signal_during_the_wait_leaves_the_rest_to_the_journal() {
    let p = Place::new(&[]);
    p.refuse(FaultKind::STALL);
    let mut job = p.w.start(&p.save("model.pt", 0));
    job.until_written("saved");
    wait_for("the copy", || p.monarch(&["outputs"]).text().contains("copying"));
    job.signal(libc::SIGTERM);
    let ended = job.end();
    says(&ended, 5, &["not published: 1 entry", "kept in", "the next job here with this output root publishes it"]);
    p.w.pfs().clear().unwrap();
    // The agent goes on while it is let.
    wait_for("the publication", || p.published("model.pt") == Some(SAVED));
}

#[test]
fn the_wait_is_as_long_as_the_setting_says() {
    let p = Place::new(&["run.output_wait=500ms"]);
    p.refuse(FaultKind::STALL);
    let ended = p.w.start(&p.save("model.pt", 0)).end();
    says(&ended, 5, &["not published: 1 entry"]);
    p.w.pfs().clear().unwrap();
    wait_for("the publication", || p.published("model.pt") == Some(SAVED));
}

#[test]
fn what_killed_processes_leave_is_published_by_recover() {
    let p = Place::new(&[]);
    p.refuse(FaultKind::STALL);
    let mut job = p.w.start(&p.save("a.pt", 0));
    job.until_written("saved");
    wait_for("the copy", || p.monarch(&["outputs"]).text().contains("copying"));
    let agent = agent_pid(&p.w);
    job.signal(libc::SIGKILL);
    kill(agent, libc::SIGKILL);
    let _ = job.end();
    p.w.pfs().clear().unwrap();
    p.until_no_agent();
    let left = of_json(&p.monarch(&["outputs", "--json"]));
    assert_eq!((&left[0]["is_drained"], &left[0]["pending_bytes"]), (&false.into(), &SAVED.into()), "{left}");
    says(&p.monarch(&["flush"]), 4, &["no agent of yours"]);
    let elsewhere = p.w.backing().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    says(&p.monarch(&["recover", elsewhere.to_str().unwrap()]), 0, &["no earlier job has left anything"]);
    says(&p.monarch(&["recover", "/elsewhere"]), 2, &["/elsewhere does not exist"]);
    assert_eq!(p.published("a.pt"), None);
    says(&p.monarch(&["recover", p.out.to_str().unwrap()]), 0, &["1 file (2.9 MiB) published"]);
    assert_eq!(p.published("a.pt"), Some(SAVED));
    assert_eq!(names(&p.w.backing().join("out")), ["a.pt"], "neither part files nor markers");
}

#[test]
fn a_flush_publishes_what_an_open_file_has() {
    let p = Place::new(&[]);
    let script = format!("exec 3> '{0}/grows.bin'; echo first >&3; echo written; read -r line", p.out.display());
    let job = Job::new("sh").arg("-c").arg(script).option("--output").option(&p.out);
    let mut job = p.w.start(&job);
    job.until_written("written");
    assert_eq!(p.published("grows.bin"), None);
    let file = p.out.join("grows.bin");
    says(&p.monarch(&["flush", "--open", file.to_str().unwrap()]), 0, &["all that was written so far is published"]);
    assert_eq!(p.published("grows.bin"), Some(6));
    job.write(b"\n");
    job.end().good();
    assert_eq!(p.published("grows.bin"), Some(6));
}

#[test]
fn a_flush_of_an_open_file_that_the_pfs_refuses_leaves_nothing() {
    let p = Place::new(&[]);
    let script = format!("exec 3> '{0}/grows.bin'; echo first >&3; echo written; read -r line", p.out.display());
    let job = Job::new("sh").arg("-c").arg(script).option("--output").option(&p.out);
    let mut job = p.w.start(&job);
    job.until_written("written");
    let parts = || {
        let all = names(&p.w.backing().join("out"));
        all.into_iter().filter(|name| name.starts_with(".monarch-part-")).count()
    };
    let before = parts();
    p.refuse(FaultKind::EIO);
    let file = p.out.join("grows.bin");
    let flush = || p.monarch(&["flush", "--open", file.to_str().unwrap(), "--timeout", "2s"]);
    for _ in 0..2 {
        assert_ne!(flush().status.code(), Some(0));
        assert_eq!(parts(), before, "the part file of the open file alone");
    }
    p.w.pfs().clear().unwrap();
    says(&flush(), 0, &["all that was written so far is published"]);
    assert_eq!((p.published("grows.bin"), parts()), (Some(6), before));
    job.write(b"\n");
    job.end().good();
    assert_eq!(names(&p.w.backing().join("out")), ["grows.bin"]);
}

#[test]
fn a_job_without_data_roots_is_served() {
    let p = Place::new(&[]);
    let tier = format!("{}:64MiB", p.tier.display());
    let mut c = p.w.monarch("run");
    c.args(["--tier", &tier, "--output"]).arg(&p.out).args(["--", "sh", "-c"]);
    c.arg(format!("sleep 1.1; echo x > '{}/x'", p.out.display()));
    let ended = Running::new(c).end();
    says(&ended, 0, &["1 file (2 B) published"]);
    assert!(!ended.errors().contains("nothing below"), "{ended:?}");
    assert_eq!(p.published("x"), Some(2));
}

fn names(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<String> = all.collect();
    all.sort();
    all
}

/// The shell of `env --end` returns when what the script wrote is published.
#[test]
fn the_end_of_a_script_waits_as_well() {
    let p = Place::new(&[]);
    // (A write of the drain is many to the slow file system.)
    let ms = Duration::from_millis(2);
    p.w.pfs().fault(FaultSpec::new(FaultKind::Stall(Some(ms))).ops(&[Op::Write])).unwrap();
    let monarch = crate::harness::built("monarch");
    let words = p.w.words().iter().map(|w| format!("'{}'", w.to_string_lossy())).collect::<Vec<_>>().join(" ");
    let script = format!(
        "eval \"$('{0}' env {words} --output '{1}')\"\nhead -c {SAVED} /dev/zero > '{1}/model.pt'\neval \"$('{0}' env --end)\"\n\
         stat -c %s '{2}/out/model.pt'\n",
        monarch.display(),
        p.out.display(),
        p.w.backing().display()
    );
    let mut shell = std::process::Command::new("bash");
    shell.env("MONARCH_RUNTIME_DIR", p.w.runtime()).args(["-c", &script]);
    let ended = Running::new(shell).end();
    says(&ended, 0, &[&SAVED.to_string()]);
}
