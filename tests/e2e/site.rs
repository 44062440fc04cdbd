//! The settings of the site, in a mount namespace in which `/etc/monarch` is the test's, and the
//! line that each job appends to the site's accounts.

use crate::harness::{Job, Running, World, has_command};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Makes `/etc` a directory of links to what lies there, with a `monarch` of its own.
const OWN_ETC: &str = r#"
    set -e
    mkdir -p "$0/etc/monarch" "$0/old"
    mount --bind /etc "$0/old"
    for f in /etc/*; do
        [ -e "$0/etc/${f##*/}" ] || [ -L "$0/etc/${f##*/}" ] || ln -s "$0/old/${f##*/}" "$0/etc/"
    done
    mount --bind "$0/etc" /etc
    exec "$@"
"#;

/// A node whose administrator is the test; `None` where this user can mount nothing.
struct Node {
    world: World,
}

impl Node {
    fn new(world: World) -> Option<Self> {
        let may = has_command("unshare") && Command::new("unshare").args(["-m", "true"]).status().unwrap().success();
        fs::create_dir_all(world.scratch().join("etc/monarch")).unwrap();
        may.then_some(Self { world })
    }

    fn file(&self) -> PathBuf {
        self.world.scratch().join("etc/monarch/monarch.yaml")
    }

    /// Writes the file of the site, as an administrator replaces it.
    fn set(&self, text: &str) {
        let beside = self.file().with_extension("new");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.file()).unwrap();
    }

    /// Starts a command on this node.
    fn start(&self, command: &Command) -> Running {
        let mut c = Command::new("unshare");
        c.args(["-m", "--propagation", "private", "sh", "-c", OWN_ETC]).arg(self.world.scratch());
        c.arg(command.get_program()).args(command.get_args()).current_dir(self.world.scratch());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => c.env(name, value),
                None => c.env_remove(name),
            };
        }
        Running::new(c)
    }

    /// Runs `monarch` with these words before those of the world; exit status, output, errors.
    fn monarch(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let mut c = self.world.monarch(words[0]);
        c.args(&words[1..]).args(self.world.words());
        let ended = self.start(&c).end();
        (ended.status.code(), ended.text(), ended.errors())
    }
}

#[test]
fn the_switch_of_the_site_reaches_new_programs_of_a_running_job() {
    let Some(node) = Node::new(World::plan().files(4).patient().build()) else { return };
    let w = &node.world;
    node.set("enabled: true\n");
    let script = "echo ready; while read -r how file; do case $how in \
                  new) cat \"$file\" > copy;; own) : < \"$file\";; esac; echo \"done $how\"; done";
    let mut job = node.start(&w.monarch_run(&Job::new("sh").args(["-c", script])));
    job.until_written("ready");
    w.until("all copies", |s| s.tiers.iter().map(|t| t.files).sum::<u64>() >= 4);
    let first = |dir: PathBuf| fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    let path = first(first(w.root().join("data")));
    let mut asked = 0;
    // Whether an open by a program that starts now, or by the shell that runs, is a hit.
    let mut hits = |how: &str| {
        let before = w.counter("hits");
        job.write(format!("{how} {}\n", path.display()).as_bytes());
        asked += 1;
        while job.written().matches("done").count() < asked {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        w.counter("hits") > before
    };
    assert!(hits("new") && hits("own"));
    node.set("enabled: false\nreason: the metadata servers are repaired\n");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while hits("new") {
        assert!(std::time::Instant::now() < deadline, "the switch does not arrive: {}", w.log());
    }
    assert!(hits("own"), "a running process is served as before");
    assert!(w.log().contains("the metadata servers are repaired"), "{}", w.log());
    node.set("enabled: true\n");
    while !hits("new") {
        assert!(std::time::Instant::now() < deadline, "the switch does not come back: {}", w.log());
    }
    // A file that others may write to switches nothing off.
    node.set("enabled: false\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    while hits("new") {
        assert!(std::time::Instant::now() < deadline, "the switch does not arrive: {}", w.log());
    }
    fs::set_permissions(node.file(), mode).unwrap();
    while !hits("new") {
        assert!(std::time::Instant::now() < deadline, "the file is still believed: {}", w.log());
    }
    job.end().good();
}

#[test]
fn a_job_runs_plainly_where_the_site_has_switched_monarch_off() {
    let Some(node) = Node::new(World::plan().files(4).build()) else { return };
    node.set("enabled: false\nreason: ticket 4711\n");
    let job = Job::new("sh").args(["-c", "echo \"ctl=$MONARCH_CTL\""]);
    let ended = node.start(&node.world.monarch_run(&job)).end().good();
    assert_eq!(ended.text(), "ctl=\n");
    let said = ended.errors();
    let line = "running without Monarch: the site has switched Monarch off in /etc/monarch/monarch.yaml: ticket 4711";
    assert!(said.contains(line) && said.lines().count() == 1, "{said}");
    for strict in ["--strict", "--set=run.strict=true"] {
        let ended = node.start(&node.world.monarch_run(&job.clone().option(strict))).end();
        assert_eq!((ended.status.code(), ended.text().as_str()), (Some(3), ""), "{strict}");
        assert!(ended.errors().contains("ticket 4711"), "{}", ended.errors());
    }
    assert!(node.world.agent().is_none());
    let (code, _, said) = node.monarch(&["stage"]);
    assert!(code == Some(3) && said.contains("nothing is staged: the site has"), "{code:?} {said}");
    let (code, out, said) = node.monarch(&["env"]);
    assert!(code == Some(0) && out.is_empty() && said.contains("ticket 4711"), "{code:?} {out} {said}");
    let (code, out, said) = node.monarch(&["config", "show"]);
    assert!(code == Some(0) && out.contains("roots:") && said.contains("ticket 4711"), "{code:?} {out} {said}");
}

#[test]
fn caps_and_forbidden_roots_hold_whatever_a_user_sets() {
    let Some(node) = Node::new(World::plan().files(4).set("source.max_inflight=40").build()) else { return };
    node.set("caps:\n  source: { max_inflight: 8 }\n  tiers: { total_capacity: 64MiB }\n");
    let (code, out, said) = node.monarch(&["config", "show"]);
    assert!(code == Some(0) && out.contains("max_inflight: 8 ") && out.contains("capacity: 64MiB"), "{out} {said}");
    let line = "source.max_inflight: 40 is lowered to 8, the cap of this site (/etc/monarch/monarch.yaml:2)";
    assert!(said.contains(line), "{said}");
    let (code, _, said) = node.monarch(&["config", "check"]);
    assert_eq!(code, Some(0), "{said}");

    let root = node.world.root().display();
    node.set(&format!("caps: {{ dataset: {{ forbidden_roots: [{root}] }} }}\n"));
    let job = Job::new("sh").args(["-c", "echo \"ctl=$MONARCH_CTL\""]);
    let ended = node.start(&node.world.monarch_run(&job)).end().good();
    assert_eq!(ended.text(), "ctl=\n");
    assert!(
        ended.errors().contains(&format!("the root {root} is not served: this site forbids")),
        "{}",
        ended.errors()
    );
    let ended = node.start(&node.world.monarch_run(&job.option("--strict"))).end();
    assert_eq!((ended.status.code(), ended.text().as_str()), (Some(3), ""));
    assert!(node.world.agent().is_none());
}

#[test]
fn a_file_of_the_site_that_is_not_roots_alone_is_ignored_with_one_warning() {
    let Some(node) = Node::new(World::plan().files(4).build()) else { return };
    node.set("enabled: false\n");
    let mode = |path: PathBuf, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(path, mode).unwrap();
    };
    mode(node.file(), 0o664);
    let (code, _, said) = node.monarch(&["config", "check"]);
    let ignored = "the settings of the site in /etc/monarch/monarch.yaml are ignored: it can be written";
    assert!(code == Some(0) && said.matches("warning").count() == 1 && said.contains(ignored), "{code:?} {said}");
    mode(node.file(), 0o644);
    mode(node.file().parent().unwrap().to_owned(), 0o757);
    let (code, _, said) = node.monarch(&["config", "check"]);
    assert!(code == Some(0) && said.contains("its directory /etc/monarch can be written"), "{code:?} {said}");
    let mut check = node.world.monarch("config");
    check.args(["check", "--site"]);
    let ended = node.start(&check).end();
    assert!(ended.status.code() == Some(2) && ended.errors().contains("go-w,a+rX"), "{}", ended.errors());
}

#[test]
fn caps_hold_in_a_user_namespace_in_which_root_has_another_number() {
    let Some(node) = Node::new(World::plan().files(4).set("source.max_inflight=40").build()) else { return };
    if !Command::new("unshare").args(["-U", "true"]).status().unwrap().success() {
        return;
    }
    node.set("caps: { source: { max_inflight: 8 } }\n");
    // As root the file would belong to this user there: it is root's, and this user another one.
    // Directories of this user may be closed to that one.
    let open = tempfile::tempdir().unwrap();
    let program = open.path().join("monarch");
    fs::copy(crate::harness::built("monarch"), &program).unwrap();
    for path in [open.path(), &program] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut show = Command::new("setpriv");
    show.args(["--reuid", "4242", "--clear-groups", "unshare", "-U"]);
    show.arg(program).args(["config", "show", "--root", "/usr", "--tier", "/tmp/m4242:1MiB"]);
    let ended = node.start(&show).end().good();
    assert!(ended.text().contains("max_inflight: 8 "), "{} {}", ended.text(), ended.errors());
}

#[test]
fn each_job_leaves_a_line_in_the_accounts_of_the_site() {
    let accounts = tempfile::tempdir().unwrap();
    let w = World::plan()
        .files(10)
        .args(&["--plain"])
        .set(&format!("run.accounting={}", accounts.path().display()))
        .build();
    let report = w.scratch().join("report.json");
    let job = w.python("passes.py").args(["--epochs", "2"]).arg(w.root());
    let first = job.clone().env("SLURM_JOB_ID", "4711").env("SLURM_LOCALID", "0");
    w.run(&first.option("--report").option(&report)).good();
    // Another task of the same node has the same figures.
    w.run(&job.clone().env("SLURM_LOCALID", "1")).good();
    w.run(&job).good();
    let file = fs::read_dir(accounts.path()).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let (line, savings) = (&lines[0], &report["savings"]);
    assert_eq!((&line["job"], &lines[1]["job"]), (&"4711".into(), &serde_json::Value::Null));
    for (ours, theirs) in [("read_bytes", "read_bytes"), ("pfs_bytes", "sent_bytes"), ("opens", "opens")] {
        assert_eq!(line[ours], savings[theirs], "{line} {savings}");
    }
    assert!(line["opens"].as_u64() >= Some(20) && line["jobs"] == 1, "{line}");
    let (read, sent) = (line["read_bytes"].as_u64().unwrap(), line["pfs_bytes"].as_u64().unwrap());
    assert_eq!(line["spared_bytes"].as_u64(), Some(read.saturating_sub(sent)));
    assert!(line["end"].as_f64() > line["start"].as_f64() && line["node"] == report["host"], "{line}");
    assert_eq!(line["roots"], serde_json::json!([w.root()]));
}
