//! The command line: help, mistakes, configuration, saved indexes, commands without an agent, and
//! whether the document of messages is complete.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "cli/env.rs"]
mod env;
#[path = "cli/evaluation.rs"]
mod evaluation;
#[path = "cli/kernel.rs"]
mod kernel;
#[path = "cli/messages.rs"]
mod messages;
#[path = "cli/outputs.rs"]
mod outputs;
#[path = "cli/purge.rs"]
mod purge;
#[path = "cli/strict.rs"]
mod strict;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A private place: root with a few files, runtime directory, temporary directory.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        let at = |name: &str| dir.path().join(name);
        for d in ["root/a/b", "run", "tmp", "tier"] {
            std::fs::create_dir_all(at(d)).expect("mkdir");
        }
        for (name, len) in [("root/one", 1), ("root/a/two", 2000), ("root/a/b/three", 30_000)] {
            std::fs::write(at(name), vec![7; len]).expect("write");
        }
        std::os::unix::fs::symlink("a", at("root/link")).expect("link");
        Self { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `monarch` with these arguments, without the settings of this process.
    fn monarch<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Said {
        self.monarch_in("", args)
    }

    /// The same in a directory of this place.
    fn monarch_in<A: AsRef<std::ffi::OsStr>>(&self, dir: &str, args: impl IntoIterator<Item = A>) -> Said {
        self.command(dir, [], args)
    }

    /// The same with these variables.
    fn monarch_with<const N: usize, A: AsRef<std::ffi::OsStr>>(
        &self,
        set: [(&str, &str); N],
        args: impl IntoIterator<Item = A>,
    ) -> Said {
        self.command("", set, args)
    }

    fn command<const N: usize, A: AsRef<std::ffi::OsStr>>(
        &self,
        dir: &str,
        set: [(&str, &str); N],
        args: impl IntoIterator<Item = A>,
    ) -> Said {
        let mut c = Command::new(env!("CARGO_BIN_EXE_monarch"));
        for (k, _) in std::env::vars_os().filter(|(k, _)| k.to_string_lossy().starts_with("MONARCH_")) {
            c.env_remove(k);
        }
        c.env("MONARCH_RUNTIME_DIR", self.at("run"))
            .env("TMPDIR", self.at("tmp"))
            .env("HOME", self.at("tmp"))
            .envs(set);
        c.args(args).current_dir(self.at(dir)).stdin(Stdio::null());
        Said::from(c.output().expect("monarch starts"))
    }

    fn config(&self, text: &str) -> String {
        let file = self.at("monarch.yaml");
        let text = text.replace("ROOT", &path(&self.at("root"))).replace("TIER", &path(&self.at("tier")));
        std::fs::write(&file, text).expect("write");
        path(&file)
    }
}

fn path(p: &Path) -> String {
    p.to_str().expect("a path in UTF-8").to_owned()
}

/// The result of a command.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(o: Output) -> Self {
        let text = |b: Vec<u8>| String::from_utf8(b).expect("UTF-8");
        Self { code: o.status.code(), out: text(o.stdout), err: text(o.stderr) }
    }
}

impl Said {
    /// Asserts that it ended with this code and printed these words on standard error.
    #[track_caller]
    fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(self.out.is_empty(), "mistakes go to standard error: {self:#?}");
        words.iter().for_each(|w| assert!(self.err.contains(w), "no {w:?} in {self:#?}"));
        assert!(!self.err.contains("panicked"), "{self:#?}");
    }

    #[track_caller]
    fn fine(&self, words: &[&str]) {
        assert_eq!(self.code, Some(0), "{self:#?}");
        words.iter().for_each(|w| assert!(self.out.contains(w), "no {w:?} in {self:#?}"));
    }
}

const COMMANDS: [&[&str]; 21] = [
    &[],
    &["run"],
    &["status"],
    &["stop"],
    &["config"],
    &["config", "show"],
    &["config", "check"],
    &["index"],
    &["index", "build"],
    &["index", "show"],
    &["kernel"],
    &["kernel", "install"],
    &["kernel", "list"],
    &["kernel", "remove"],
    &["trace"],
    &["trace", "show"],
    &["trace", "stats"],
    &["trace", "import"],
    &["simulate"],
    &["completions"],
    &["man"],
];

#[test]
fn every_help_has_an_example_that_starts_with_its_command() {
    let p = Place::new();
    for command in COMMANDS {
        let said = p.monarch(command.iter().chain(&["--help"]));
        said.fine(&["Example", "Usage:"]);
        let start = ["monarch"].iter().chain(command).copied().collect::<Vec<_>>().join(" ");
        let examples = said.out.split_once("Example").expect("an example").1;
        assert!(examples.contains(&format!("\n  {start}")), "{start}: {examples}");
        assert!(said.out.lines().all(|l| l.chars().count() <= 100), "{start}: wider than 100 columns");
        assert!(said.err.is_empty());
    }
}

#[test]
fn help_names_every_command() {
    let said = Place::new().monarch(["--help"]);
    said.fine(&["run ", "status ", "stop ", "config ", "index ", "Exit codes:"]);
    Place::new().monarch(["--version"]).fine(&["monarch ", env!("CARGO_PKG_VERSION")]);
}

#[test]
fn completions_and_man_pages_are_made_of_the_same_description() {
    let p = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        p.monarch(["completions", shell]).fine(&["monarch", "tier", "status"]);
    }
    p.monarch(["completions", "dos"]).failed(2, &["dos", "bash"]);
    let dir = path(&p.at("man1"));
    p.monarch(["man", &dir]).fine(&[]);
    let page = std::fs::read_to_string(p.at("man1/monarch-run.1")).expect("page");
    assert!(page.contains("monarch\\-run") && page.contains("tier"), "{page}");
    // The agent is no command for people.
    assert!(!p.at("man1/monarch-agent.1").exists());
    let file = path(&p.at("man1/monarch.1"));
    p.monarch(["man", &file]).failed(1, &["monarch.1"]);
}

#[test]
fn wrong_usage_is_exit_code_2_and_a_message() {
    let p = Place::new();
    p.monarch::<&str>([]).failed(2, &["Usage:"]);
    p.monarch(["bogus"]).failed(2, &["bogus", "--help"]);
    p.monarch(["status", "--bogus"]).failed(2, &["--bogus"]);
    p.monarch(["run"]).failed(2, &["COMMAND", "Usage: monarch run"]);
    p.monarch(["run", "--root"]).failed(2, &["--root"]);
    p.monarch(["run", "--rooot", "x", "--", "true"]).failed(2, &["--rooot", "--root"]);
    for (mistyped, meant) in [("rnu", "'run'"), ("stauts", "'status'"), ("exlpain", "'explain'"), ("evcit", "'evict'")]
    {
        p.monarch([mistyped]).failed(2, &[mistyped, meant]);
    }
    p.monarch(["run", "--root", "root", "--set", "dataset=x", "--", "true"]).failed(2, &["SECTION.KEY=VALUE"]);
    p.monarch(["run", "--set", "dataset.roots=root", "--", "true"]).failed(2, &["with --set, `KEY=[a, b]`"]);
    for views in ["/proc/self", "/sys", "/dev"] {
        p.monarch(["run", "--root", views, "--", "true"]).failed(2, &["the kernel makes", "help"]);
    }
    p.monarch(["run", "--set", "no-equals-sign", "--", "true"]).failed(2, &["KEY=VALUE"]);
    p.monarch(["config"]).failed(2, &["show", "check"]);
    p.monarch(["index", "build", "root"]).failed(2, &["--output"]);
    p.monarch(["index", "show"]).failed(2, &["FILE"]);
    p.monarch(["index", "build", "-o", "x", "--threads", "many", "root"]).failed(2, &["many"]);
}

#[test]
fn a_good_configuration_is_shown_and_passes_the_check() {
    let p = Place::new();
    let file = p.config("dataset: { roots: [ROOT] }\ntiers: [{ name: t, path: TIER, capacity: 64MiB }]\n");
    p.monarch(["config", "check", "--config", &file]).fine(&["ok: 1 root, 1 tier"]);
    let shown = p.monarch(["config", "show", "--config", &file]);
    shown.fine(&[&path(&p.at("root")), "64MiB", "monarch.yaml"]);
    let flags = ["config", "show", "--config", &file, "--set", "source.max_inflight=9"];
    let shown = p.monarch(flags);
    shown.fine(&["max_inflight: 9"]);
    // Without a file, by flags alone; relative paths are those of the shell.
    let tier = format!("{}:64MiB", path(&p.at("tier")));
    p.monarch(["config", "check", "--root", &path(&p.at("root")), "--tier", &tier]).fine(&["ok:"]);
    p.monarch(["config", "check", "--root", "root", "--tier", "./tier:64MiB"]).fine(&["ok:"]);
}

#[test]
fn a_configuration_may_name_directories_that_the_job_writes_to_alone() {
    let p = Place::new();
    std::fs::create_dir(p.at("out")).expect("make");
    let tier = format!("{}:64MiB", path(&p.at("tier")));
    p.monarch(["config", "check", "--output", "out", "--tier", &tier]).fine(&["ok: 0 roots, 1 tier, 1 output root"]);
    let shown = p.monarch(["config", "show", "--output", "out", "--tier", &tier, "--set", "outputs.0.fsync=publish"]);
    shown.fine(&[&path(&p.at("out")), "flag --output", "fsync: publish", "max_pending: 32MiB"]);
    p.monarch(["config", "check", "--output", "nowhere", "--tier", &tier]).failed(2, &["outputs[0]", "nowhere"]);
    p.monarch(["stage", "--set", "outputs=[OUT]".replace("OUT", &path(&p.at("out"))).as_str(), "--tier", &tier])
        .failed(2, &["nothing is staged", "names no root"]);
    // Reports and saved indexes have an `--output` of their own.
    p.monarch(["status", "--output", "out"]).failed(2, &["--output"]);
}

#[test]
fn a_bad_configuration_is_one_screen_about_the_mistake() {
    let p = Place::new();
    let tiers = "tiers: [{ name: t, path: TIER, capacity: 64MiB }]\n";
    for (text, words) in [
        ("dataset: { roots: [ROOT] }\nsauce: {}\n".to_owned(), &["sauce", "monarch.yaml:2"][..]),
        (format!("dataset: {{ roots: [ROOT, ROOT/a] }}\n{tiers}"), &["dataset.roots"]),
        ("dataset: { roots: [ROOT] }\ntiers: [{ name: t, path: ROOT/a, capacity: 1MiB }]\n".to_owned(), &["tiers"]),
        (format!("dataset: {{ roots: [ROOT/nowhere] }}\n{tiers}"), &["nowhere"]),
        ("dataset: [".to_owned(), &["monarch.yaml"]),
        (format!("dataset: {{ roots: [ROOT] }}\nwait: {{ pickup: 5 }}\n{tiers}"), &["wait.pickup", "monarch.yaml:2"]),
    ] {
        let file = p.config(&text);
        for command in ["check", "show"] {
            let said = p.monarch(["config", command, "--config", &file]);
            said.failed(2, words);
            assert!(said.err.lines().count() <= 24, "{}", said.err);
        }
        p.monarch(["run", "--config", &file, "--", "true"]).failed(2, words);
    }
    p.monarch(["config", "check", "--config", &path(&p.at("no.yaml"))]).failed(2, &["no.yaml"]);
    p.monarch(["config", "check"]).failed(2, &["--root"]);
}

#[test]
fn a_saved_index_is_built_and_shown() {
    let p = Place::new();
    let built = p.monarch(["index", "build", "-o", "set.idx", "root"]);
    built.fine(&["set.idx: 3 files"]);
    let shown = p.monarch(["index", "show", "set.idx"]);
    shown.fine(&["entries 7\n", "files 3\n", "directories 3\n", "bytes 32001\n", "complete true"]);
    // Again, over the saved index.
    p.monarch(["index", "build", "-o", "set.idx", "root", "--threads", "1"]).fine(&["3 files"]);
    p.monarch(["index", "show", "set.idx"]).fine(&["entries 7\n"]);
    assert_eq!(std::fs::read_dir(p.dir.path()).expect("list").count(), 5, "nothing else is left behind");
}

#[test]
fn a_file_that_is_no_saved_index_is_refused() {
    let p = Place::new();
    std::fs::write(p.at("text"), b"this is some text, long enough to hold the header of a saved index, but none")
        .expect("write");
    p.monarch(["index", "show", "text"]).failed(1, &["text", "not a saved index", "monarch index build"]);
    p.monarch(["index", "show", "missing"]).failed(1, &["missing"]);
    p.monarch(["index", "build", "-o", "x.idx", "missing"]).failed(1, &["missing"]);
    p.monarch(["index", "build", "-o", "no/such/place", "root"]).failed(1, &["no/such/place"]);
    p.monarch(["index", "build", "-o", "set.idx", "root"]).fine(&[]);
    let mut bytes = std::fs::read(p.at("set.idx")).expect("read");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(p.at("set.idx"), bytes).expect("write");
    p.monarch(["index", "show", "set.idx"]).failed(1, &["checksum"]);
}

#[test]
fn without_an_agent_status_and_stop_say_so() {
    let p = Place::new();
    // (A tier is named: the default one may have copies of jobs on this machine.)
    let tier = path(&p.at("tier"));
    p.monarch(["status", "--tier", &tier]).failed(4, &["no agent"]);
    p.monarch(["stop"]).failed(4, &["no agent"]);
    let json = p.monarch(["status", "--json"]);
    assert_eq!((json.code, json.out.trim(), json.err.as_str()), (Some(4), "[]", ""));
    // The directory of an agent that has died.
    let uid = String::from_utf8(Command::new("id").arg("-u").output().expect("id").stdout).expect("a number");
    let left = p.at("run").join(format!("monarch-{}", uid.trim())).join("0123456789abcdef");
    std::fs::create_dir_all(&left).expect("mkdir");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(left.parent().expect("parent"), private).expect("chmod");
    std::fs::write(left.join("agent.sock"), b"").expect("write");
    p.monarch(["status", "--tier", &tier]).failed(4, &["no agent"]);
    p.monarch(["stop", "--purge", "--tier", &path(&p.at("none"))]).failed(4, &["no agent"]);
}

#[test]
fn status_and_stop_take_a_configuration() {
    let p = Place::new();
    let file = p
        .config(&format!("runtime_dir: {}\ntiers: [{{ name: t, path: TIER, capacity: 64MiB }}]\n", path(&p.at("run"))));
    p.monarch(["status", "--config", &file]).failed(4, &["no agent"]);
    p.monarch(["stop", "--set", "runtime_dir=/nowhere"]).failed(4, &["no agent"]);
    p.monarch(["status", "--config", &path(&p.at("no.yaml"))]).failed(2, &["no.yaml"]);
    p.monarch(["stop", "--set", "runtime_dir=relative"]).failed(4, &["no agent"]);
    p.monarch(["stop", "--set", "runtime_dir=[1]"]).failed(2, &["runtime_dir"]);
    // A directory in which no agent has made a tier is not touched, and nothing is said to be gone.
    p.monarch(["stop", "--purge", "--config", &file]).failed(4, &["no agent"]);
    std::fs::remove_dir(p.at("tier")).expect("an empty directory");
    p.monarch(["stop", "--purge", "--config", &file]).failed(4, &["no agent"]);
    // A tier in use is not touched.
    p.monarch(["stop", "--purge", "--tier", "/proc/self:64MiB"]).failed(2, &["/proc"]);
}

#[test]
fn commands_survive_an_output_without_reader() {
    let p = Place::new();
    let sh = |script: &str| {
        let mut c = Command::new("bash");
        c.args(["-c", script, "bash", env!("CARGO_BIN_EXE_monarch")]).current_dir(p.dir.path());
        c.env("MONARCH_RUNTIME_DIR", p.at("run")).env("TMPDIR", p.at("tmp")).stdin(Stdio::null());
        Said::from(c.output().expect("bash"))
    };
    let show = "\"$1\" config show --root $PWD/root --tier $PWD/tier:64MiB";
    let piped = sh(&format!("(sleep 0.2; {show}) | true; echo ${{PIPESTATUS[0]}}"));
    assert!(piped.out == "0\n" && !piped.err.contains("panicked"), "{piped:#?}");
    let full = sh(&format!("{show} > /dev/full; echo $?"));
    assert!(full.out == "1\n" && full.err.contains("No space left"), "{full:#?}");
    assert_eq!(sh("\"$1\" status --tier $PWD/tier 2> /dev/full; echo $?").out, "4\n");
    assert_eq!(sh("\"$1\" status --json > /dev/full 2>&1; echo $?").out, "1\n");
}

#[test]
fn an_agent_needs_its_configuration() {
    let p = Place::new();
    p.monarch(["agent"]).failed(1, &["standard input"]);
}

#[test]
fn a_saved_index_is_compared_with_its_root() {
    let p = Place::new();
    let (root, file) = (p.at("root"), p.at("saved.idx"));
    let verify = |more: &[&str]| p.monarch(["index", "verify"].iter().chain(more));
    let (root, file) = (path(&root), path(&file));
    p.monarch(["index", "build", "-o", &file, &root]).fine(&["3 files"]);
    verify(&[&file]).fine(&["whole"]);
    verify(&[&file, &root]).fine(&["6 entries compared, no difference"]);
    verify(&["--sample", "2", &file, &root]).fine(&["2 files chosen at random compared, no difference"]);
    std::fs::write(p.at("root/a/two"), "other").expect("write");
    std::fs::remove_file(p.at("root/one")).expect("remove");
    std::fs::write(p.at("root/new"), "new").expect("write");
    let said = verify(&[&file, &root]);
    assert_eq!(said.code, Some(3), "{said:#?}");
    for words in ["1 changed, 1 missing, 1 not in the index", "changed  a/two", "missing  one", "new      new"] {
        assert!(said.out.contains(words), "{said:#?}");
    }
    let said = verify(&["--json", "--sample", "9", &file, &root]);
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!((said.code, json["changed"]["count"].as_u64(), json["compared"].as_u64()), (Some(3), Some(1), Some(3)));
    verify(&[&file, &path(&p.at("tmp"))]).failed(1, &["another path", "monarch index build"]);
    verify(&[&path(&p.at("none")), &root]).failed(1, &["none", "No such file"]);
    verify(&["--sample", "9", &file]).failed(2, &["<ROOT>"]);
    let mut bytes = std::fs::read(&file).expect("read");
    bytes[300] ^= 1;
    std::fs::write(&file, bytes).expect("write");
    verify(&[&file]).failed(1, &["saved.idx", "build it again"]);
}

#[test]
fn commands_that_need_an_agent_say_so_without_one() {
    let p = Place::new();
    // (A tier is named: the default one may have copies of jobs on this machine.)
    let tier = path(&p.at("tier"));
    for words in [&["explain", "root/one"][..], &["evict", "--all"], &["verify"], &["du"], &["status"]] {
        p.monarch([words, &["--tier", &tier]].concat()).failed(4, &["no agent of yours", &tier]);
    }
    p.monarch(["explain"]).failed(2, &["<PATH>"]);
    p.monarch(["evict"]).failed(2, &["<PATH>"]);
    p.monarch(["evict", "--all", "root"]).failed(2, &["cannot be used with"]);
}

#[test]
fn with_monarch_disabled_a_wrong_configuration_does_not_matter() {
    let p = Place::new();
    let run = |variable: &str| {
        let mut c = Command::new(env!("CARGO_BIN_EXE_monarch"));
        c.env("MONARCH_DISABLE", variable).args(["run", "--root", "nowhere", "--", "echo", "ran"]);
        Said::from(c.current_dir(p.dir.path()).output().expect("monarch starts"))
    };
    let off = run("1");
    assert_eq!((off.code, &*off.out, &*off.err), (Some(0), "ran\n", ""));
    run("0").failed(2, &["nowhere"]);
}

#[test]
fn paths_on_the_command_line_mean_what_they_mean_to_the_shell() {
    let p = Place::new();
    let shown = p.monarch(["config", "show", "--root", "tmp/../root", "--tier", "tmp/../tier/new:64MiB"]);
    shown.fine(&[&path(&p.at("root")), &path(&p.at("tier/new"))]);
    assert!(!shown.out.contains(".."), "{shown:#?}");
    p.monarch(["index", "build", "-o", "saved.idx", "root"]).fine(&[]);
    let tier = path(&p.at("tier"));
    let shown = p.monarch(["config", "show", "--root", "root", "--tier", &tier, "--set", "index.file=saved.idx"]);
    shown.fine(&[&path(&p.at("saved.idx"))]);
}

/// Whether a directory entry is called after a size.
fn is_of_a_size(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
    entry.as_ref().expect("entry").file_name().to_string_lossy().contains(':')
}

#[test]
fn a_tiers_size_that_is_none_is_a_mistake_and_no_directory() {
    let p = Place::new();
    for wrong in ["12blah", "50%", "", "400", "-1GiB", "-5"] {
        let tier = format!("{}:{wrong}", path(&p.at("tier")));
        p.monarch(["config", "check", "--root", "root", "--tier", &tier]).failed(2, &["capacity", "help"]);
    }
    p.monarch(["config", "check", "--root", "root", "--tier", ":1GiB"]).failed(2, &["--tier", "the path is empty"]);
    assert_eq!(std::fs::read_dir(p.dir.path()).expect("list").filter(is_of_a_size).count(), 0);
}

#[test]
fn an_index_is_built_and_compared_within_the_limit_of_calls() {
    let p = Place::new();
    let file = p.config("source: { iops_limit: 10 }\n");
    let slow = |words: &[&str]| {
        let start = std::time::Instant::now();
        p.monarch(words).fine(&[]);
        start.elapsed().as_secs_f64()
    };
    // 18 calls or more: three directories, seven names, the target of a link.
    let limited = [
        slow(&["index", "build", "-o", "set.idx", "root", "--config", &file]),
        slow(&["index", "build", "-o", "set.idx", "root", "--set", "source.iops_limit=10"]),
        slow(&["index", "verify", "set.idx", "root", "--set", "source.iops_limit=10"]),
    ];
    assert!(limited.iter().all(|took| (1.4..20.0).contains(took)), "{limited:?}");
    let sampled = slow(&["index", "verify", "--sample", "3", "set.idx", "root", "--set", "source.iops_limit=3"]);
    assert!((1.4..20.0).contains(&sampled), "6 calls at 3/s took {sampled} s");
    // (In one of five turns: the machine may be busy.)
    assert!((0..5).any(|_| slow(&["index", "build", "-o", "set.idx", "root"]) < 1.4), "no limit");
    p.monarch(["index", "build", "-o", "x", "root", "--set", "source.iops_limit=0"]).failed(2, &["1 to 1000000"]);
    p.monarch(["index", "build", "-o", "x", "root", "--config", "none.yaml"]).failed(2, &["none.yaml"]);
}

/// Two passes over 300 files, as comma-separated values.
fn accesses() -> String {
    let line = |n: u32| {
        let served = if n < 300 { "pfs" } else { "tier" };
        format!(
            "{}.{:04},{},\"train, all/{}.jpg\",{},{served}\n",
            n / 100,
            n % 100 * 100,
            n % 4,
            n % 300,
            1000 + n % 300
        )
    };
    std::iter::once("time_s,stream,path,size,served\n".to_owned()).chain((0..600).map(line)).collect()
}

#[test]
fn a_trace_is_imported_shown_and_counted() {
    let p = Place::new();
    let csv = accesses();
    std::fs::write(p.at("in.csv"), &csv).expect("write");
    let said = p.monarch(["trace", "import", "in.csv", "-o", "job.trace"]);
    assert_eq!((said.code, &*said.out, &*said.err), (Some(0), "job.trace: 600 accesses\n", ""));
    let said = p.monarch(["trace", "show", "--csv", "job.trace"]);
    assert_eq!((said.code, said.out), (Some(0), csv));
    let said = p.monarch(["trace", "show", "--limit", "2", "job.trace"]);
    assert_eq!((said.code, said.out.lines().count()), (Some(0), 2));
    assert!(said.out.ends_with("train, all/1.jpg\n") && said.err.is_empty(), "{said:?}");
    let said = p.monarch(["trace", "show", "--json", "--limit", "1", "job.trace"]);
    let first: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!((&first["path"], &first["served"]), (&"train, all/0.jpg".into(), &"pfs".into()));
    let said = p.monarch(["trace", "stats", "--json", "job.trace"]);
    let stats: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!((&stats["files"], &stats["accesses"], &stats["end"]), (&300.into(), &600.into(), &"whole".into()));
    let epochs = stats["epochs"].as_array().expect("epochs");
    assert_eq!(epochs.iter().map(|e| &e["served"]["pfs"]).collect::<Vec<_>>(), [&serde_json::json!(300), &0.into()]);
    let said = p.monarch(["trace", "stats", "job.trace"]);
    assert!(said.code == Some(0) && said.out.contains("files      300 with"), "{said:?}");
}

#[test]
fn a_trace_that_was_cut_short_is_shown_as_far_as_it_goes() {
    let p = Place::new();
    std::fs::write(p.at("in.csv"), accesses()).expect("write");
    p.monarch(["trace", "import", "in.csv", "-o", "job.trace"]);
    let whole = std::fs::read(p.at("job.trace")).expect("read");
    std::fs::write(p.at("cut"), &whole[..whole.len() - 16]).expect("write");
    let said = p.monarch(["trace", "show", "cut"]);
    assert_eq!((said.code, said.out.lines().count()), (Some(0), 600));
    assert!(said.err.contains("has no end"), "{said:?}");
    std::fs::write(p.at("cut"), &whole[..whole.len() - 20]).expect("write");
    let said = p.monarch(["trace", "stats", "cut"]);
    assert!(said.code == Some(0) && said.err.contains("ends within a block"), "{said:?}");
    let mut damaged = whole;
    let at = damaged.len() - 40;
    damaged[at] ^= 1;
    std::fs::write(p.at("damaged"), damaged).expect("write");
    let said = p.monarch(["trace", "show", "damaged"]);
    assert!(said.code == Some(1) && said.err.contains("is damaged"), "{said:?}");
}

#[test]
fn a_file_that_is_no_trace_is_refused_and_mistakes_have_a_line() {
    let p = Place::new();
    std::fs::write(p.at("in.csv"), "time_s,stream,path,size\n0,1,a,10\n0,1,a,ten\n").expect("write");
    let said = p.monarch(["trace", "import", "in.csv", "-o", "job.trace"]);
    assert_eq!(said.code, Some(2));
    assert_eq!(said.err, "monarch: in.csv, line 3: size cannot be \"ten\"; give whole bytes such as 110592\n");
    assert!(!p.at("job.trace").exists());
    let said = p.monarch(["trace", "stats", "in.csv"]);
    assert!(said.code == Some(1) && said.err.contains("in.csv is not a trace"), "{said:?}");
    let said = p.monarch(["trace", "show", "none"]);
    assert!(said.code == Some(1) && said.err.contains("trace none: No such file"), "{said:?}");
}

/// A small run, quickly simulated.
const SMALL: [&str; 3] = ["simulate", "--synthetic", "files=1000,size=100KB,epochs=3,ranks=2,workers=2,batch=10"];

#[test]
fn policies_are_simulated() {
    let p = Place::new();
    let said = p.monarch(SMALL.iter().chain(&["--nodes", "1,2", "--capacity", "25%,100%"]));
    said.fine(&[
        "1,000 files, 95.4 MiB, 3 epochs",
        "policy",
        "first_epoch",
        "100%",
        "bound",
        "Best policy on 2 nodes: ",
    ]);
    let rows = |more: &[&str]| {
        let said = p.monarch(SMALL.iter().chain(&["--json", "--policy", "first_epoch"]).chain(more));
        said.fine(&[]);
        assert!(said.err.is_empty(), "{said:#?}");
        serde_json::from_str::<serde_json::Value>(&said.out).expect("JSON")
    };
    let quarter = rows(&["--capacity", "25%"]);
    let row = &quarter["rows"][0];
    assert_eq!((row["later"]["hits"].as_u64(), row["later"]["pfs_bytes"].as_u64()), (Some(500), Some(150_000_000)));
    assert_eq!(row["bound"]["belady_pfs_bytes_later"].as_u64(), Some(150_000_000));
    assert_eq!(row["bound"]["static_hit_share"].as_f64(), Some(0.25));
    assert_eq!(quarter["model"]["pfs_rate"].as_f64(), Some(100_000.0));
    assert_eq!(quarter["workload"]["bytes"].as_u64(), Some(100_000_000));
    // The same each time, and something else with another seed.
    assert_eq!(quarter, rows(&["--capacity", "25%"]));
    assert_ne!(quarter["rows"], rows(&["--capacity", "25%", "--seed", "2"])["rows"]);
    // Two tiers; nothing is limited.
    let two =
        rows(&["--capacity", "10%+20MB", "--pfs-bandwidth", "unlimited", "--pfs-rate", "unlimited", "--sync", "off"]);
    assert_eq!(two["rows"][0]["most_used_bytes"], serde_json::json!([10_000_000, 20_000_000]));
    assert!(two["model"]["pfs_rate"].is_null());
}

#[test]
fn a_simulation_is_drawn() {
    let p = Place::new();
    let draw = |file: &str| p.monarch(SMALL.iter().chain(&["--nodes", "1,2,4", "--plot", file]));
    draw("plot.html").fine(&["first_epoch"]);
    let page = std::fs::read_to_string(p.at("plot.html")).expect("page");
    for words in [
        "<!DOCTYPE html>",
        "<svg ",
        "<h1>Best policy on 4 nodes: ",
        "with probability 1/N",
        "prefers-color-scheme:dark",
        "on 4 nodes",
        "Efficiency, capacity 25%",
        "first_epoch",
        "monarch simulate",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("<script") && !page.contains("NaN") && !page.contains("inf"), "{page}");
    draw("plot.svg").fine(&[]);
    assert!(std::fs::read_to_string(p.at("plot.svg")).expect("drawing").starts_with("<svg "));
    draw("plot.png").failed(2, &["plot.png", ".html or .svg"]);
    draw("no/such/plot.svg").failed(1, &["no/such/plot.svg"]);
}

#[test]
fn a_recorded_run_is_simulated() {
    let p = Place::new();
    let line = |epoch: u32, at: u32| {
        format!("{},{},train/{at:03},5000,{epoch}\n", f64::from(epoch * 100 + at) / 100.0, at % 2)
    };
    let lines: String = (1..=3).flat_map(|epoch| (0..100).map(move |at| line(epoch, at))).collect();
    std::fs::write(p.at("run.csv"), format!("time_s,stream,path,size,epoch\n{lines}")).expect("write");
    let said = p.monarch(["simulate", "--trace", "run.csv", "--json", "--capacity", "50%", "--prefetch", "off"]);
    said.fine(&[]);
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    let (row, work) = (&json["rows"][0], &json["workload"]);
    assert_eq!(
        (work["files"].as_u64(), work["epochs"].as_u64(), work["ranks"].as_u64()),
        (Some(100), Some(3), Some(2))
    );
    assert_eq!((row["later"]["hits"].as_u64(), row["later"]["pfs_bytes"].as_u64()), (Some(100), Some(500_000)));
    std::fs::write(p.at("bad.csv"), "0,1,f,10\n1,1,f,many\n").expect("write");
    p.monarch(["simulate", "--trace", "bad.csv"]).failed(1, &["bad.csv", "line 2", "time_s,stream"]);
    p.monarch(["simulate", "--trace", "root/one"]).failed(1, &["root/one", "first bytes are not those of a trace"]);
    p.monarch(["simulate", "--trace", "none.csv"]).failed(1, &["none.csv"]);
}

#[test]
fn mistakes_of_a_simulation_are_reported_with_their_remedy() {
    let p = Place::new();
    for (flag, value, words) in [
        ("--policy", "best", &["no policy `best`", "first_epoch"][..]),
        ("--capacity", "0", &["`0` is not a capacity", "25%"]),
        ("--capacity", "10%,0%", &["`0%` is not a capacity"]),
        ("--capacity", "4 parsec", &["`4 parsec` is not a capacity"]),
        ("--nodes", "0", &["`0` is not a number of nodes"]),
        ("--pfs-bandwidth", "10GB", &["10GB/s"]),
        ("--pfs-latency", "soon", &["`soon` is not a time"]),
        ("--pfs-rate", "none", &["calls per second"]),
        ("--hints", "yes", &["neither on nor off"]),
        ("--app-calls", "2", &["BEFORE+AFTER"]),
        ("--synthetic", "files=0", &["files: `0`", "between 1"]),
        ("--synthetic", "bacth=3", &["bacth: no such key", "batch"]),
        ("--synthetic", "mix=10MB", &["mix: `10MB` is not SHARE:SIZE"]),
    ] {
        p.monarch(["simulate", flag, value]).failed(2, words);
    }
    let crowd = ["simulate", "--nodes", "512", "--synthetic", "ranks=1024,workers=1024"];
    p.monarch(crowd).failed(2, &["too many", "fewer"]);
    p.monarch(["simulate", "--trace", "x.csv", "--synthetic", "files=1"]).failed(2, &["cannot be used with"]);
}
