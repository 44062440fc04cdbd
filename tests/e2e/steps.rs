//! Large files against a model: proptest makes up steps, which a job does under Monarch, and the
//! same job without it on the same data. Both must give the same answers, whatever else happens
//! meanwhile: copies evicted, the agent killed, the PFS failing, the job writing.
//!
//! What [SEMANTICS](../../docs/SEMANTICS.md) leaves open is not tested: a writer closes its
//! descriptors and mappings first, because those of a complete copy keep the old version. A read
//! that the PFS fails may succeed or give EIO, and then has to leave the offset alone: the program
//! repeats it until it has all bytes. Mappings are not touched while the PFS fails.
//!
//! `PROPTEST_CASES` asks for more cases than the few of every day. Cases that failed once are in
//! `tests/regressions/steps.txt` and are tried first.

use crate::faults::kill;
use crate::harness::{Job, Running, World};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use slowfs::{FaultKind, FaultSpec};
use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

/// The second file ends inside a chunk and a page; the third is larger than the tier; the last is
/// not large.
const FILE_BYTES: [u64; 4] = [1_500_000, 700_001, 11_000_000, 5_000];
const DEFAULT_CASES: u32 = 20;
const MAX_SLOTS: usize = 6;
const MAX_MAPS: usize = 3;

/// A step. Slots count among those in use.
#[derive(Clone, Debug)]
enum Op {
    Open(usize, usize),
    Close(usize),
    Dup(usize, usize),
    Stat(usize),
    Read(usize, u64),
    /// Reads in order, a number of times.
    Sweep(usize, u64, u32),
    Pread(usize, u64, u64),
    Readv(usize, Vec<u64>),
    Preadv(usize, Vec<u64>, u64),
    Seek(usize, i64, &'static str),
    /// A child reads from the offset that it shares.
    Fork(usize, u64),
    Map(usize, usize),
    Peek(usize, u64, u64),
    Unmap(usize),
    Write(usize, u64, u64, u8),
    Append(usize, u64, u8),
    Evict(usize),
    /// The agent dies.
    Kill,
    /// A number of reads of the PFS fail, after a number that do not.
    Fault(u64, u64),
    Calm,
}

/// The same, ready to be done.
#[derive(Clone, Debug)]
enum Step {
    /// A command for the program: its line, and the number of lines of its answer.
    Say(String, usize),
    Evict(usize),
    Kill,
    Fault(u64, u64),
    Calm,
}

#[derive(Clone, Debug)]
struct Case {
    chunk: u64,
    prefetch: bool,
    /// Whether the job begins before there is an index.
    early: bool,
    ops: Vec<Op>,
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (0..24u64, 0..7u64).prop_map(|(chunk, by)| (chunk * 65_536 + by).saturating_sub(3)),
        2 => 0..11_100_000u64,
        2 => 0..710_000u64,
        1 => Just(0),
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => prop::sample::select(vec![1, 100, 4096, 65_536, 100_001, 262_144]),
        1 => prop::sample::select(vec![0, 1_000_000, 3_000_000]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let slot = || 0..MAX_SLOTS;
    let file = || 0..FILE_BYTES.len();
    let parts = || prop::collection::vec(prop_oneof![Just(0u64), Just(1), 0..70_000u64, Just(300_000)], 1..6);
    let seek = prop_oneof![
        (offset().prop_map(|o| o as i64), Just("set")),
        (-400_000..400_000i64, Just("cur")),
        (-900_000..1_000i64, Just("end")),
    ];
    prop_oneof![
        8 => (slot(), file()).prop_map(|(s, f)| Op::Open(s, f)),
        2 => slot().prop_map(Op::Close),
        2 => (slot(), slot()).prop_map(|(s, t)| Op::Dup(s, t)),
        1 => slot().prop_map(Op::Stat),
        10 => (slot(), length()).prop_map(|(s, n)| Op::Read(s, n)),
        5 => (slot(), prop::sample::select(vec![50_000u64, 131_072, 262_144]), 2..30u32).prop_map(|(s, n, t)| Op::Sweep(s, n, t)),
        10 => (slot(), length(), offset()).prop_map(|(s, n, o)| Op::Pread(s, n, o)),
        4 => (slot(), parts()).prop_map(|(s, p)| Op::Readv(s, p)),
        4 => (slot(), parts(), offset()).prop_map(|(s, p, o)| Op::Preadv(s, p, o)),
        6 => (slot(), seek).prop_map(|(s, (o, w))| Op::Seek(s, o, w)),
        4 => (slot(), length()).prop_map(|(s, n)| Op::Fork(s, n)),
        2 => (0..MAX_MAPS, slot()).prop_map(|(m, s)| Op::Map(m, s)),
        3 => (0..MAX_MAPS, offset(), length()).prop_map(|(m, o, n)| Op::Peek(m, o, n)),
        1 => (0..MAX_MAPS).prop_map(Op::Unmap),
        1 => (file(), offset(), 1..5_000u64, any::<u8>()).prop_map(|(f, o, n, b)| Op::Write(f, o, n, b)),
        1 => (file(), 1..5_000u64, any::<u8>()).prop_map(|(f, n, b)| Op::Append(f, n, b)),
        4 => file().prop_map(Op::Evict),
        1 => Just(Op::Kill),
        2 => (1..4u64, 0..6u64).prop_map(|(n, after)| Op::Fault(n, after)),
        2 => Just(Op::Calm),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let chunk = prop::sample::select(vec![65_536u64, 131_072, 262_144]);
    let ops = prop::collection::vec(op(), 20..80);
    (chunk, any::<bool>(), prop::bool::weighted(0.2), ops).prop_map(|(chunk, prefetch, early, ops)| Case {
        chunk,
        prefetch,
        early,
        ops,
    })
}

/// The job's open files, while steps are made out of ops.
#[derive(Default)]
struct Plan {
    fds: [Option<usize>; MAX_SLOTS],
    maps: [Option<usize>; MAX_MAPS],
    faulty: bool,
    steps: Vec<Step>,
}

fn name(file: usize) -> String {
    format!("l{file}.bin")
}

fn list(parts: &[u64]) -> String {
    parts.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

impl Plan {
    fn say(&mut self, line: String) {
        let lines = 1 + usize::from(line.starts_with("fork"));
        self.steps.push(Step::Say(line, lines));
    }

    /// The slot in use that is meant, and its file. If there is none, one is opened.
    fn used(&mut self, slot: usize) -> (usize, usize) {
        let used: Vec<_> = self.fds.iter().enumerate().filter_map(|(s, f)| Some((s, (*f)?))).collect();
        if used.is_empty() {
            self.open(slot, slot % FILE_BYTES.len());
            return (slot, slot % FILE_BYTES.len());
        }
        used[slot % used.len()]
    }

    fn open(&mut self, slot: usize, file: usize) {
        self.close(slot);
        self.fds[slot] = Some(file);
        self.say(format!("open {slot} {}", name(file)));
    }

    fn close(&mut self, slot: usize) {
        if self.fds[slot].take().is_some() {
            self.say(format!("close {slot}"));
        }
    }

    fn unmap(&mut self, map: usize) {
        if self.maps[map].take().is_some() {
            self.say(format!("unmap {map}"));
        }
    }

    fn calm(&mut self) {
        if std::mem::take(&mut self.faulty) {
            self.steps.push(Step::Calm);
            self.say("faulty 0".to_owned());
        }
    }

    /// Closes a file that is about to change.
    fn changes(&mut self, file: usize) {
        (0..MAX_SLOTS)
            .filter(|&s| self.fds[s] == Some(file))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|s| self.close(s));
        (0..MAX_MAPS)
            .filter(|&m| self.maps[m] == Some(file))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|m| self.unmap(m));
    }

    /// A line about a slot in use.
    fn about(&mut self, what: &str, slot: usize, rest: &str) {
        let (slot, _) = self.used(slot);
        self.say(format!("{what} {slot} {rest}"));
    }

    fn add(&mut self, op: &Op) {
        match op {
            &Op::Open(s, f) => self.open(s, f),
            &Op::Close(s) => {
                let (s, _) = self.used(s);
                self.close(s);
            }
            &Op::Dup(s, to) => {
                let (s, f) = self.used(s);
                if s != to {
                    self.close(to);
                    self.fds[to] = Some(f);
                    self.say(format!("dup {s} {to}"));
                }
            }
            &Op::Stat(s) => self.about("stat", s, ""),
            &Op::Read(s, n) => self.about("read", s, &n.to_string()),
            &Op::Sweep(s, n, times) => self.about("sweep", s, &format!("{n} {times}")),
            &Op::Pread(s, n, off) => self.about("pread", s, &format!("{n} {off}")),
            Op::Readv(s, parts) => self.about("readv", *s, &list(parts)),
            Op::Preadv(s, parts, off) => self.about("preadv", *s, &format!("{} {off}", list(parts))),
            &Op::Seek(s, off, whence) => self.about("lseek", s, &format!("{off} {whence}")),
            &Op::Fork(s, n) => self.about("fork", s, &n.to_string()),
            &Op::Map(m, s) => {
                let (s, f) = self.used(s);
                self.unmap(m);
                self.maps[m] = Some(f);
                self.say(format!("map {m} {s}"));
            }
            &Op::Peek(m, off, n) => {
                if self.maps[m].is_some() {
                    self.calm();
                    self.say(format!("peek {m} {off} {n}"));
                }
            }
            &Op::Unmap(m) => self.unmap(m),
            &Op::Write(f, off, n, byte) => {
                self.changes(f);
                self.say(format!("write {} {off} {n} {byte}", name(f)));
            }
            &Op::Append(f, n, byte) => {
                self.changes(f);
                self.say(format!("append {} {n} {byte}", name(f)));
            }
            &Op::Evict(f) => self.steps.push(Step::Evict(f)),
            Op::Kill => self.steps.push(Step::Kill),
            &Op::Fault(n, after) => {
                self.faulty = true;
                self.say("faulty 1".to_owned());
                self.steps.push(Step::Fault(n, after));
            }
            Op::Calm => self.calm(),
        }
    }
}

fn steps(ops: &[Op]) -> Vec<Step> {
    let mut plan = Plan::default();
    ops.iter().for_each(|op| plan.add(op));
    plan.calm();
    plan.steps
}

fn world(case: &Case) -> World {
    let sizes = FILE_BYTES.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let data = Job::new("python3").arg(crate::harness::sources().join("large.py")).args(["make", "--sizes", &sizes]);
    World::plan()
        .made_by(data)
        .pfs(|b| b.data_latency(Duration::from_micros(300)))
        .tier_size("9MiB")
        .set("source.chunk_threshold=64KiB")
        .set(&format!("source.chunk_size={}KiB", case.chunk >> 10))
        .set(&format!("prefetch.enabled={}", case.prefetch))
        .set("wait.pickup=1s")
        .set("wait.stall=5s")
        .build()
}

/// The answer of the job to a line; `None` when it gives none.
fn answer(running: &mut Running, line: &str, lines: usize) -> Option<()> {
    let before = running.written().lines().count();
    running.write(format!("{line}\n").as_bytes());
    let start = Instant::now();
    while running.written().lines().count() < before + lines {
        if start.elapsed() > Duration::from_secs(15) {
            return None;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    Some(())
}

/// Does the steps under Monarch; returns the answers of the job.
fn ours(w: &World, case: &Case, steps: &[Step]) -> Result<String, String> {
    let mut running = w.start(&w.program("steps").arg(w.root()));
    // It is there, or has ended with a message.
    if answer(&mut running, "faulty 0", 1).is_none() {
        return Err(running.end().errors());
    }
    if !case.early {
        w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    }
    for step in steps {
        match step {
            Step::Say(line, lines) => answer(&mut running, line, *lines)
                .ok_or_else(|| format!("no answer to {line:?} after\n{}", running.written()))?,
            Step::Evict(file) => {
                // There may be no agent just now.
                let _ = w.monarch("evict").args(w.words()).arg("--").arg(w.root().join(name(*file))).output();
            }
            Step::Kill => {
                if let Some(agent) = w.agent() {
                    kill(agent.pid as i32, libc::SIGKILL);
                }
            }
            Step::Fault(n, after) => {
                w.pfs().fault(FaultSpec::new(FaultKind::EIO).ops(&[slowfs::Op::Read]).after(*after).count(*n)).unwrap();
            }
            Step::Calm => w.pfs().clear().unwrap(),
        }
    }
    Ok(running.end().good().text())
}

/// Does them without Monarch, on a copy of the data.
fn bare(w: &World, steps: &[Step]) -> String {
    let truth = w.scratch().join("truth");
    fs::create_dir(&truth).unwrap();
    for file in (0..FILE_BYTES.len()).map(name) {
        fs::copy(w.backing().join(&file), truth.join(&file)).unwrap();
    }
    let mut running = w.start_bare(&w.program("steps").arg(&truth));
    running.write(b"faulty 0\n");
    for step in steps {
        if let Step::Say(line, _) = step {
            running.write(format!("{line}\n").as_bytes());
        }
    }
    running.end().good().text()
}

/// The first step to which the job gives another answer.
fn difference(bare: &str, ours: &str, steps: &[Step]) -> Option<String> {
    if bare == ours {
        return None;
    }
    let same = bare.lines().zip(ours.lines()).take_while(|(a, b)| a == b).count();
    // The first line is every job's greeting.
    let mut lines = 1;
    let at = steps.iter().position(|s| {
        lines += if let Step::Say(_, n) = s { *n } else { 0 };
        lines > same
    });
    let (a, b) = (bare.lines().nth(same), ours.lines().nth(same));
    Some(format!("{a:?} without us, {b:?} with us, at {:#?}", &steps[..=at.unwrap_or(steps.len() - 1)]))
}

/// The difference, if any; and how many reads were served from chunks.
fn differs(case: &Case) -> (Option<String>, u64) {
    let steps = steps(&case.ops);
    let w = world(case);
    let bare = bare(&w, &steps);
    let failure = match ours(&w, case, &steps) {
        Err(e) => Some(e),
        Ok(ours) => difference(&bare, &ours, &steps),
    };
    let served = w.counter("chunk_reads");
    let same = |f: usize| {
        fs::read(w.backing().join(name(f))).unwrap() == fs::read(w.scratch().join("truth").join(name(f))).unwrap()
    };
    let other = || (0..FILE_BYTES.len()).find(|&f| !same(f)).map(|f| format!("{} has other bytes on the PFS", name(f)));
    let failure = failure.or_else(other).map(|e| format!("{e}\nagent's log:\n{}", w.log()));
    (failure, served)
}

#[test]
fn a_job_does_the_same_with_and_without_monarch() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/regressions/steps.txt");
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok());
    let config = Config {
        cases: asked.unwrap_or(DEFAULT_CASES),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(kept))),
        max_shrink_iters: 60,
        ..Config::default()
    };
    let all = Cell::new(0);
    let done = TestRunner::new(config).run(&case(), |case| {
        let (difference, served) = differs(&case);
        all.set(all.get() + served);
        difference.map_or(Ok(()), |failure| Err(TestCaseError::fail(failure)))
    });
    if let Err(e) = done {
        panic!("{e}");
    }
    println!("{} reads served from chunks", all.get());
    assert!(all.get() > 0, "nothing was tested");
}
