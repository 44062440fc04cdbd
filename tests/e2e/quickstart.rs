//! `./quickstart` on a small data set: the same losses, no PFS call after the first epoch, nothing
//! left at the end or after Ctrl-C.
//!
//! `tests/quickstart.sh` interrupts the whole command at random moments; it is slow and not part of
//! the suite.

use crate::harness::{Ended, Running, built};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

fn examples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart")
}

/// A directory for one run: `$TMPDIR`, by which its processes are known. Its path is short, as
/// sockets lie below it.
fn base() -> TempDir {
    tempfile::Builder::new().prefix("mq-").tempdir_in("/tmp").expect("temporary directory")
}

/// The driver with a tiny data set; `python3` is Debian's, which has PyTorch.
fn quickstart(base: &TempDir) -> Command {
    let mut c = Command::new("/usr/bin/python3");
    c.arg("-B").arg(examples().join("quickstart.py")).args(["--images", "96", "--latency", "2ms"]);
    c.arg("--bin").arg(built("monarch").parent().expect("a directory")).env("TMPDIR", base.path());
    c
}

/// Processes, mounts and files of a run that are still there.
fn left(base: &TempDir) -> Vec<String> {
    let mark = [b"TMPDIR=", base.path().as_os_str().as_encoded_bytes()].concat();
    let has_mark = |dir: &Path| {
        std::fs::read(dir.join("environ")).is_ok_and(|env| env.split(|b| *b == 0).any(|v| v.starts_with(&mark)))
    };
    let processes = entries(Path::new("/proc")).into_iter().filter(|dir| has_mark(dir));
    let place = format!(" {}/", base.path().display());
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let mounts = table.lines().filter(|l| l.contains(&place)).map(str::to_owned);
    let files = entries(base.path()).into_iter().filter(|p| !p.ends_with("figures.json"));
    processes.chain(files).map(|p| p.display().to_string()).chain(mounts).collect()
}

fn entries(dir: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(dir).expect("directory").flatten().map(|e| e.path()).collect()
}

#[track_caller]
fn assert_nothing_left(base: &TempDir, ended: &Ended) {
    assert_eq!(left(base), Vec::<String>::new(), "{}{}", ended.text(), ended.errors());
}

#[test]
fn the_table_shows_equal_losses_and_no_calls_after_the_first_epoch() {
    let base = base();
    let figures = base.path().join("figures.json");
    let mut command = quickstart(&base);
    let ended = Running::new({
        command.arg("--json").arg(&figures);
        command
    })
    .end()
    .good();
    assert_nothing_left(&base, &ended);
    let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(figures).unwrap()).unwrap();
    let (direct, ours) = (&figures["direct"], &figures["monarch"]);
    for same in ["losses", "model"] {
        assert_eq!(direct[same], ours[same]);
    }
    assert_eq!(ours["losses"].as_array().map(Vec::len), Some(3));
    let number = |run: &serde_json::Value, epoch: usize, what: &str| run["epochs"][epoch][what].as_u64().unwrap();
    let data = figures["data"].as_u64().unwrap();
    assert_eq!(direct["job"]["bytes"], 3 * data, "each direct epoch reads everything: {figures:#}");
    assert!(number(ours, 0, "bytes") >= data, "{figures:#}");
    for epoch in 1..3 {
        assert_eq!((number(ours, epoch, "calls"), number(ours, epoch, "bytes")), (0, 0), "{figures:#}");
    }
    let table: Vec<&str> = ended.written_table().collect();
    assert!(table.len() == 6 && table.iter().all(|l| l.len() < 80), "{table:#?}");
}

impl Ended {
    /// The lines of the table.
    fn written_table(&self) -> impl Iterator<Item = &str> {
        let text = std::str::from_utf8(&self.out).expect("text");
        text.lines().skip_while(|l| !l.contains("under monarch run")).take_while(|l| !l.is_empty())
    }
}

#[test]
fn an_interrupted_quickstart_leaves_nothing() {
    for (moment, signal) in
        [("train.py $DIR", libc::SIGINT), ("epoch 1 of 3", libc::SIGTERM), ("monarch run --root", libc::SIGINT)]
    {
        let base = base();
        let mut run = Running::new(quickstart(&base));
        run.until_written(moment);
        std::thread::sleep(std::time::Duration::from_millis(700));
        run.signal(signal);
        run.signal(signal);
        let ended = run.end();
        assert_eq!(ended.status.signal(), Some(signal), "{}{}", ended.text(), ended.errors());
        assert_nothing_left(&base, &ended);
    }
}

#[test]
fn a_guard_that_is_killed_is_replaced() {
    let base = base();
    let mut run = Running::new(quickstart(&base));
    run.until_written("epoch 1 of 3");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid())).unwrap();
    let guard: i32 = children.trim().parse().unwrap();
    // SAFETY: the only child of a process of this test that has not ended.
    unsafe { libc::kill(guard, libc::SIGKILL) };
    let ended = run.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.errors());
    assert_nothing_left(&base, &ended);
}

#[test]
fn wrong_usage_and_missing_prerequisites_are_reported_in_a_line() {
    let base = base();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("quickstart");
    let run = |args: &[&str], name: &str, value: &str| {
        let mut c = Command::new(&script);
        c.args(args).arg("--no-install").env("TMPDIR", base.path()).env(name, value);
        Running::new(c).end()
    };
    for wrong in [&["--frob"][..], &["--images", "3"], &["--latency", "soon"], &["--json", "/nowhere/f"]] {
        let ended = run(wrong, "X", "");
        assert_eq!((ended.status.code(), ended.text()), (Some(2), String::new()), "{wrong:?}");
        assert!(ended.errors().contains("--help") && ended.errors().lines().count() == 1, "{}", ended.errors());
    }
    assert!(run(&["--help"], "X", "").good().text().contains("--latency TIME"));
    let ended = run(&["--python", "/bin/false"], "X", "");
    assert!(ended.status.code() == Some(1) && ended.errors().contains("/bin/false"), "{}", ended.errors());
    let mut c = quickstart(&base);
    c.env("TMPDIR", "/nowhere");
    let ended = Running::new(c).end();
    assert!(ended.status.code() == Some(1) && ended.errors().contains("TMPDIR=/path"), "{}", ended.errors());
    assert_nothing_left(&base, &ended);
}

#[test]
fn checksums_of_records_are_those_of_tfrecord() {
    let mut c = Command::new("/usr/bin/python3");
    c.args(["-B", "-m", "doctest"]).arg(examples().join("make_data.py"));
    Running::new(c).end().good();
}
