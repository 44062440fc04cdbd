//! `dataset.consistency: close-to-open`: the next open after `dataset.revalidate` sees the changes
//! of other clients, for one metadata call about each entry in that time; and what `immutable`
//! promises instead.

use crate::faults::{agent_pid, control, kill, regular, wait_for};
use crate::harness::{Job, Plan, Running, World};
use monarch_core::reader::{Place, Reader, Verdict};
use slowfs::{FaultKind, FaultSpec, MutationKind, Op, When};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const KINDS: [MutationKind; 4] =
    [MutationKind::Change, MutationKind::Shrink, MutationKind::Replace, MutationKind::ReplaceSame];

/// `asks.py`, a job that reads its orders from standard input.
struct Asks {
    running: Running,
    answers: usize,
}

impl Asks {
    fn new(w: &World) -> Self {
        Self { running: w.start(&w.python("asks.py")), answers: 0 }
    }
    #[track_caller]
    fn ask(&mut self, order: &str) -> String {
        self.running.write(order.as_bytes());
        self.running.write(b"\n");
        self.answers += 1;
        // (Whole lines only: an unbuffered Python writes a line piece by piece.)
        let answers = |r: &Running| {
            r.written().split_inclusive('\n').filter(|l| l.starts_with("= ") && l.ends_with('\n')).count()
        };
        wait_for(order, || answers(&self.running) == self.answers);
        let text = self.running.written();
        text.lines().rfind(|l| l.starts_with("= ")).expect("an answer")[2..].to_owned()
    }
    #[track_caller]
    fn path(&mut self, what: &str, path: &Path) -> String {
        self.ask(&format!("{what} {}", path.display()))
    }
}

/// Answer of `asks.py read` for these bytes.
fn sum(bytes: &[u8]) -> String {
    // CRC-32, as in zip files.
    let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
    let crc = bytes.iter().fold(u32::MAX, |crc, b| (0..8).fold(crc ^ u32::from(*b), step));
    format!("{} bytes, {:08x}", bytes.len(), !crc)
}

fn now(path: &Path) -> String {
    fs::read(path).map_or_else(|_| "ENOENT".to_owned(), |bytes| sum(&bytes))
}

/// Files below the root, relative.
fn files(w: &World) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        regular(w.backing()).iter().map(|p| p.strip_prefix(w.backing()).unwrap().to_owned()).collect();
    all.sort();
    all
}

fn plan(files: usize, revalidate: &str) -> Plan {
    let plan = World::plan().files(files).args(&["--plain"]).set("dataset.consistency=close-to-open");
    plan.set(&format!("dataset.revalidate={revalidate}"))
}

/// Metadata calls for each file about which the PFS was asked.
fn getattrs(w: &World) -> Vec<u64> {
    let paths = w.pfs().paths().unwrap();
    paths.iter().filter(|(path, c)| path.ends_with(".bin") && c.getattrs > 0).map(|(_, c)| c.getattrs).collect()
}

fn change(w: &World, rel: &Path, kind: MutationKind) {
    w.pfs().mutate(rel.to_str().unwrap(), kind, When::Now).unwrap();
}

#[test]
fn the_next_open_sees_files_that_other_clients_replaced() {
    let mut w = plan(12, "0s").build();
    w.settle();
    let mut job = Asks::new(&w);
    for (rel, kind) in files(&w).iter().zip(KINDS) {
        let (path, truth) = (w.root().join(rel), w.backing().join(rel));
        let old = now(&truth);
        assert_eq!(job.path("read", &path), old);
        job.path("open", &path);
        change(&w, rel, kind);
        assert_ne!(now(&truth), old);
        assert_eq!(job.path("read", &path), now(&truth), "{kind:?}");
        assert_eq!(job.path("stat", &path), fs::metadata(&truth).unwrap().len().to_string(), "{kind:?}");
        // A reader that has the copy open keeps its version.
        assert_eq!(job.path("rest", &path), old, "{kind:?}");
    }
    // The copies of changed files go; the other copies are served.
    w.until("the end of four copies", |s| s.tiers[0].files == 8);
    w.pfs().reset().unwrap();
    for rel in &files(&w)[4..] {
        assert_eq!(job.path("read", &w.root().join(rel)), now(&w.backing().join(rel)));
    }
    let c = w.pfs().counters().unwrap();
    assert_eq!((c.opens(), c.read), (0, 0), "{c:?}");
}

#[test]
fn a_change_is_seen_once_the_interval_is_over() {
    let interval = Duration::from_secs(3);
    let mut w = plan(6, "3s").build();
    w.settle();
    let mut job = Asks::new(&w);
    let rel = &files(&w)[2];
    let (path, truth) = (w.root().join(rel), w.backing().join(rel));
    let old = now(&truth);
    let asked = Instant::now();
    assert_eq!(job.path("read", &path), old);
    change(&w, rel, MutationKind::ReplaceSame);
    let new = now(&truth);
    let seen = job.path("read", &path);
    assert!(seen == old || asked.elapsed() >= interval, "it was asked about a moment ago");
    let before = Instant::now();
    wait_for("the new version", || job.path("read", &path) == new);
    assert!(before.elapsed() < interval + Duration::from_secs(2), "{:?}", before.elapsed());
    assert_eq!(w.agent().unwrap().roots[0].consistency, "close-to-open, checked every 3s");
}

#[test]
fn an_unchanged_file_costs_one_metadata_call_for_each_interval() {
    let mut w = plan(40, "1h").build();
    w.settle();
    let reads = |rounds: &str| w.python("reads.py").args(["--rounds", rounds]).arg(w.root());
    // The first job asks once about each file; one after the other.
    w.pfs().reset().unwrap();
    w.run(&reads("3")).good();
    let (c, asked) = (w.pfs().counters().unwrap(), getattrs(&w));
    assert!(asked.len() == 40 && asked.iter().all(|n| *n == 1) && c.opens() == 0 && c.read == 0, "{asked:?}, {c:?}");
    // Directories are listed, too, and `run` itself reads the root.
    let entries = crate::faults::below(w.backing()).len() as u64;
    assert!(c.metadata() <= entries + 2, "{c:?}, {entries} entries");
    // Its questions count for all other processes.
    w.pfs().reset().unwrap();
    w.run(&reads("3").args(["--procs", "8"])).good();
    let (c, asked) = (w.pfs().counters().unwrap(), getattrs(&w));
    assert!(asked.is_empty() && c.metadata() <= 2 && (c.opens(), c.read) == (0, 0), "{asked:?}, {c:?}");
    assert_eq!(w.counter("changed"), 0);
}

#[test]
fn eight_processes_ask_about_as_often_as_one() {
    let mut w = plan(40, "1h").build();
    w.settle();
    w.pfs().reset().unwrap();
    w.run(&w.python("reads.py").args(["--rounds", "5", "--procs", "8"]).arg(w.root())).good();
    let c = w.pfs().counters().unwrap();
    // Processes that open a file for the first time at the same moment all ask.
    assert!(c.metadata() < 8 * 40 && c.opens() == 0 && c.read == 0, "{c:?}");
    assert!(w.counter("checks") >= 40);
}

#[test]
fn with_no_interval_every_open_asks() {
    let mut w = plan(10, "0s").build();
    w.settle();
    let mut job = Asks::new(&w);
    let path = w.root().join(&files(&w)[0]);
    job.path("read", &path);
    w.pfs().reset().unwrap();
    for _ in 0..5 {
        job.path("read", &path);
        job.path("stat", &path);
    }
    let c = w.pfs().counters().unwrap();
    assert_eq!((c.metadata(), c.opens(), c.read), (10, 0, 0), "{c:?}");
}

#[test]
fn a_listing_shows_files_that_other_clients_added() {
    let mut w = plan(12, "0s").build();
    w.settle();
    let mut job = Asks::new(&w);
    let dir = files(&w)[0].parent().unwrap().to_owned();
    let path = w.root().join(&dir);
    let (before, rewound) = (job.path("list", &path), job.path("again", &path));
    assert!(before == rewound && !before.contains("new.bin"), "{before}");
    fs::write(w.backing().join(&dir).join("new.bin"), "new").unwrap();
    let names = job.path("list", &path);
    assert!(names.contains("new.bin"), "{names}");
    assert_eq!(job.path("again", &path), names);
    assert_eq!(job.path("read", &path.join("new.bin")), sum(b"new"));
    // Other directories are unchanged, and listed from memory.
    let lists = w.counter("lists");
    let other = files(&w).iter().map(|f| f.parent().unwrap().to_owned()).find(|d| *d != dir).unwrap();
    job.path("list", &w.root().join(other));
    assert_eq!(w.counter("lists"), lists + 1);
}

#[test]
fn files_that_other_clients_remove_are_gone() {
    let mut w = plan(12, "0s").build();
    w.settle();
    let mut job = Asks::new(&w);
    let all = files(&w);
    for (rel, what) in all.iter().zip(["read", "stat", "there"]) {
        let path = w.root().join(rel);
        assert_ne!(job.path(what, &path), "ENOENT");
        change(&w, rel, MutationKind::Delete);
        let gone = if what == "there" { "False" } else { "ENOENT" };
        assert_eq!(job.path(what, &path), gone);
        let dir = path.parent().unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(!job.path("list", dir).contains(name));
    }
}

#[test]
fn links_that_other_clients_repoint_lead_to_their_new_targets() {
    let mut w = plan(12, "1h").build();
    let all = files(&w);
    std::os::unix::fs::symlink(&all[0], w.backing().join("latest")).unwrap();
    let dirs = [all[0].parent().unwrap(), all[all.len() - 1].parent().unwrap()];
    assert_ne!(dirs[0], dirs[1]);
    std::os::unix::fs::symlink(dirs[0], w.backing().join("part")).unwrap();
    w.settle();
    let root = w.root().to_owned();
    let point = |name: &str, to: &Path| {
        std::os::unix::fs::symlink(to, w.backing().join("tmp")).unwrap();
        fs::rename(w.backing().join("tmp"), w.backing().join(name)).unwrap();
    };
    // Before any question; the targets are asked about, by their own names.
    let mut job = Asks::new(&w);
    assert_eq!(job.path("read", &root.join(&all[0])), now(&w.backing().join(&all[0])));
    point("latest", &all[1]);
    assert_eq!(job.path("read", &root.join("latest")), now(&w.backing().join(&all[1])));
    assert_eq!(job.path("read", &root.join(&all[0])), now(&w.backing().join(&all[0])));
    point("part", dirs[1]);
    let name = all[all.len() - 1].file_name().unwrap();
    assert_eq!(job.path("read", &root.join("part").join(name)), now(&w.backing().join(&all[all.len() - 1])));
    let gone = root.join("part").join(all[0].file_name().unwrap());
    assert_eq!(job.path("read", &gone), "ENOENT");
    // Links whose targets have not changed are served.
    w.pfs().reset().unwrap();
    assert_eq!(job.path("read", &root.join(&all[0])), now(&w.backing().join(&all[0])));
    assert_eq!(w.pfs().counters().unwrap().opens(), 0);
}

#[test]
fn a_question_that_fails_makes_a_plain_call() {
    for kind in [FaultKind::EIO, FaultKind::ESTALE] {
        let mut w = plan(6, "0s").build();
        w.settle();
        let mut job = Asks::new(&w);
        let rel = &files(&w)[1];
        let path = w.root().join(rel);
        let bytes = job.path("read", &path);
        w.pfs().fault(FaultSpec::new(kind).ops(&[Op::Getattr]).path(rel.to_str().unwrap())).unwrap();
        let bare = w.bare(&Job::new("cat").arg(&path));
        assert!(bare.status.success(), "{bare:?}");
        w.pfs().reset().unwrap();
        assert_eq!(job.path("read", &path), bytes);
        assert_eq!(w.pfs().counters().unwrap().opens(), 1);
        w.pfs().clear().unwrap();
        w.pfs().reset().unwrap();
        assert_eq!((job.path("read", &path), w.pfs().counters().unwrap().opens()), (bytes, 0), "served again");
    }
}

#[test]
fn a_large_file_that_is_being_fetched_is_asked_about_too() {
    let maker = Job::new("python3").arg(crate::harness::sources().join("large.py"));
    let mut w = plan(0, "0s")
        .made_by(maker.args(["make", "--sizes", "6000000,3000000"]))
        .set("source.chunk_threshold=64KiB")
        .set("source.chunk_size=256KiB")
        .set("prefetch.enabled=false")
        .build();
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    let mut job = Asks::new(&w);
    for (n, rel) in files(&w).iter().enumerate() {
        let (path, truth) = (w.root().join(rel), w.backing().join(rel));
        let old = now(&truth);
        // The first file is still a partial copy when it changes, the second is complete.
        if n == 0 {
            let mut head = [0; 1000];
            fs::File::open(&path).unwrap().read_exact(&mut head).unwrap();
            job.path("open", &path);
        } else {
            assert_eq!(job.path("read", &path), old);
            w.until("the copy", |s| s.tiers[0].files >= 1);
        }
        change(&w, rel, MutationKind::Replace);
        assert_eq!(job.path("read", &path), now(&truth), "{n}");
        if n == 0 {
            assert_eq!(job.path("rest", &path), old);
        }
    }
    w.until("the end of both copies", |s| s.tiers[0].files == 0 && s.agent["filling"] == 0);
}

#[test]
fn a_change_that_one_job_found_is_seen_by_another_job() {
    let mut w = plan(12, "1h").build();
    w.settle();
    let (mut one, mut two) = (Asks::new(&w), Asks::new(&w));
    let rel = &files(&w)[0];
    let path = w.root().join(rel);
    change(&w, rel, MutationKind::Replace);
    assert_eq!(one.path("read", &path), now(&w.backing().join(rel)));
    assert_eq!(two.path("read", &path), now(&w.backing().join(rel)));
    assert_eq!(w.counter("checks"), 1);
    // No job changed it: the root can be scanned again, and the new version is served.
    let out = w.monarch("refresh").args(["--set", &format!("runtime_dir={}", w.runtime().display())]).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    w.until("all copies", |s| s.roots[0].state == "ready" && s.tiers[0].files == 12);
    w.pfs().reset().unwrap();
    assert_eq!(one.path("read", &path), now(&w.backing().join(rel)));
    assert_eq!(w.pfs().counters().unwrap().opens(), 0);
}

#[test]
fn immutable_asks_nothing_and_sees_nothing() {
    let mut w = World::plan().files(8).args(&["--plain"]).build();
    w.settle();
    let mut job = Asks::new(&w);
    let rel = &files(&w)[3];
    let path = w.root().join(rel);
    let old = job.path("read", &path);
    change(&w, rel, MutationKind::Replace);
    w.pfs().reset().unwrap();
    for what in ["read", "stat", "there"] {
        job.path(what, &path);
    }
    assert_eq!(job.path("read", &path), old);
    let c = w.pfs().counters().unwrap();
    assert_eq!((c.metadata(), c.opens(), c.read, w.counter("checks")), (0, 0, 0, 0), "{c:?}");
    assert_eq!(w.agent().unwrap().roots[0].consistency, "immutable");
}

#[test]
fn a_job_is_told_when_another_job_wants_another_consistency_of_its_root() {
    let mut w = World::plan().files(8).args(&["--plain"]).build();
    w.settle();
    let cat = Job::new("cat").arg(w.root().join(&files(&w)[0]));
    let ended = w.run(&cat.clone().option("--set").option("dataset.consistency=close-to-open"));
    let said = ended.errors();
    assert!(said.contains("running without Monarch"), "{said}");
    assert!(said.contains("consistency immutable") && said.contains("consistency close-to-open"), "{said}");
    assert_eq!(ended.good().out, fs::read(w.backing().join(&files(&w)[0])).unwrap());
    drop(w);
    // A job that asks for less, or for less often, gets more; a job that asks for more often makes
    // it so for all.
    let mut w = plan(8, "30m").build();
    w.settle();
    for (set, then) in [("consistency=immutable", "30m"), ("revalidate=1h", "30m"), ("revalidate=7s", "7s")] {
        let cat = Job::new("cat").arg(w.root().join(&files(&w)[0])).option("--set").option(format!("dataset.{set}"));
        let said = w.run(&cat).good().errors();
        assert!(!said.contains("without Monarch"), "{set}: {said}");
        assert_eq!(w.agent().unwrap().roots[0].consistency, format!("close-to-open, checked every {then}"), "{set}");
    }
}

#[test]
fn the_library_asks_as_well() {
    let mut w = plan(8, "0s").build();
    w.settle();
    let reader = Reader::open(&control(&w)).unwrap();
    let rel = &files(&w)[5];
    let path = w.root().join(rel);
    assert_eq!(reader.open_file(&path).unwrap().place, Place::Copy(0));
    assert_eq!(reader.explain(&path).verdict, Verdict::Hit);
    change(&w, rel, MutationKind::ReplaceSame);
    let said = reader.explain(&path);
    assert_eq!(said.verdict, Verdict::Changed { differs: true });
    assert_eq!(said.served.unwrap().consistency, "close-to-open, checked every 0s");
    let mut opened = reader.open_file(&path).unwrap();
    let mut bytes = Vec::new();
    opened.file.read_to_end(&mut bytes).unwrap();
    assert_eq!((opened.place, sum(&bytes)), (Place::Pfs, now(&w.backing().join(rel))));
    assert_eq!(reader.open_file(&w.root().join(&files(&w)[4])).unwrap().place, Place::Copy(0));
}

/// Whichever job has the agent started again: each root keeps the mode of its own jobs.
#[test]
fn modes_outlive_the_agent() {
    let mut w = World::plan().files(8).args(&["--plain"]).build();
    w.keep();
    let other = w.scratch().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), "old").unwrap();
    let mut second = w.monarch("run");
    let words = w.words();
    // The same tier and settings, another root.
    second.arg("--quiet").arg("--root").arg(&other).args(&words[2..]);
    second.args(["--set", "dataset.consistency=close-to-open", "--set", "dataset.revalidate=0s", "--"]);
    let job = w.python("asks.py");
    second.args(job.words());
    let mut job = Asks { running: Running::new(second), answers: 0 };
    assert_eq!(job.path("read", &other.join("file")), sum(b"old"));
    let modes = || -> Vec<String> {
        w.agent().map(|s| s.roots.iter().map(|r| r.consistency.clone()).collect()).unwrap_or_default()
    };
    let expected = ["immutable", "close-to-open, checked every 0s"];
    assert_eq!(modes(), expected);
    w.until("all copies", |s| s.roots.len() == 2 && s.tiers[0].files == 9);
    let old = agent_pid(&w);
    assert!(kill(old, libc::SIGKILL));
    w.until("another agent", |s| s.pid as i32 != old && s.jobs == 2 && s.roots.iter().all(|r| r.state == "ready"));
    assert_eq!(modes(), expected);
    let write = |text: &str| {
        fs::write(other.join("new"), text).unwrap();
        fs::rename(other.join("new"), other.join("file")).unwrap();
    };
    write("new");
    assert_eq!(job.path("read", &other.join("file")), sum(b"new"));
    // So does a root that is scanned again.
    let mut refresh = w.monarch("refresh");
    refresh.arg(&other).args(["--set", &format!("runtime_dir={}", w.runtime().display())]);
    Running::new(refresh).end().good();
    w.until("the new index", |s| s.roots.iter().all(|r| r.state == "ready"));
    assert_eq!(modes(), expected);
    assert_eq!(job.path("read", &other.join("file")), sum(b"new"));
    write("newer");
    assert_eq!(job.path("read", &other.join("file")), sum(b"newer"));
}
