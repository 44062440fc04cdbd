//! The headline of a run beside what slowfs itself has counted.

use crate::harness::{Ended, Job, Plan, World};
use serde_json::Value;
use std::process::Command;

const FILE_BYTES: u64 = 100_000;
/// What the kernel reads ahead of a reader by default, for each open file.
const READAHEAD_BYTES: u64 = 128 << 10;

/// Reads all files below argv[1] in each of argv[2] epochs.
const READS: &str = "import os,sys\nfor epoch in range(int(sys.argv[2])):\n    for d,_,names in os.walk(sys.argv[1]):\n        \
     for n in sorted(names):\n            with open(os.path.join(d,n),'rb',buffering=0) as f:\n                \
     while f.read(50000): pass";

fn reads(w: &World, epochs: u32) -> Job {
    Job::new("python3").args(["-c", READS]).arg(w.root()).arg(epochs.to_string())
}

/// Large files of these sizes: every file above 64 KiB is one.
fn large(sizes: &str) -> Plan {
    let maker = Job::new("python3").arg(crate::harness::sources().join("large.py")).args(["make", "--sizes", sizes]);
    World::plan().made_by(maker).set("source.chunk_threshold=64KiB").set("source.chunk_size=256KiB").patient()
}

/// What a job said and reported, and the bytes that slowfs sent meanwhile.
struct Told {
    savings: Value,
    sent: u64,
    ended: Ended,
}

impl Told {
    fn number(&self, name: &str) -> u64 {
        self.savings[name].as_u64().unwrap()
    }

    /// The headline may claim that the PFS sent more than it did, never less, except for what the
    /// kernel reads ahead of the job's own reads, which Monarch does not see.
    #[track_caller]
    fn is_true(&self) {
        let (said, ahead) = (self.number("sent_bytes"), self.number("opens") * READAHEAD_BYTES);
        assert!(said + ahead >= self.sent, "said {said}, sent {}: {:#}", self.sent, self.savings);
    }
}

/// Runs a job under an agent that has its index, and that stays until the PFS is idle again.
fn run(w: &mut World, job: Job) -> Told {
    let file = w.scratch().join("headline.json");
    w.pfs().reset().unwrap();
    let ended = w.start_indexed(&job.option("--report").option(&file)).end().good();
    let sent = w.pfs().counters().unwrap().bytes_read;
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let shown = w.monarch("report").arg(&file).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.starts_with("monarch: the PFS sent "), "{shown}");
    Told { savings: report["savings"].clone(), sent, ended }
}

#[test]
fn small_files_that_fit_are_sent_once() {
    let mut w = World::plan().files(40).size(FILE_BYTES as usize).args(&["--plain", "--exact"]).patient().build();
    let job = reads(&w, 3);
    let told = run(&mut w, job);
    let all = 40 * FILE_BYTES;
    assert_eq!((told.number("read_bytes"), told.number("sent_bytes"), told.sent), (3 * all, all, all));
    assert_eq!((told.number("opens"), told.number("pfs_opens")), (120, 40));
    assert!(told.ended.errors().is_empty(), "--quiet");
}

#[test]
fn a_tier_that_is_too_small_saves_no_more_than_it_does() {
    let plan = World::plan().files(40).size(FILE_BYTES as usize).args(&["--plain", "--exact"]).tier_size("2300KiB");
    let mut w = plan.patient().build();
    let job = reads(&w, 3);
    let told = run(&mut w, job);
    told.is_true();
    assert_eq!((told.number("read_bytes"), told.number("sent_bytes")), (120 * FILE_BYTES, told.sent));
    assert!(told.sent > 60 * FILE_BYTES, "{}", told.sent);
}

#[test]
fn chunks_of_large_files_count_as_the_small_files_do() {
    let mut w = large("3000001,2097152").set("prefetch.enabled=false").build();
    // (In chunks, in the first epoch; as complete copies in the second.)
    let job = reads(&w, 2);
    let told = run(&mut w, job);
    let all = 3_000_001 + 2_097_152;
    assert_eq!((told.number("sent_bytes"), told.sent), (all, all), "{:#}", told.savings);
    assert_eq!(told.number("read_bytes"), 2 * all, "{:#}", told.savings);
}

#[test]
fn streams_through_a_window_are_counted() {
    let mut w = large("25165824").tier_size("10MiB").build();
    let job = reads(&w, 2);
    let told = run(&mut w, job);
    told.is_true();
    assert!(told.number("read_bytes") == 2 * 25_165_824 && told.sent > 25_165_824, "{:#}", told.savings);
}

#[test]
fn a_mapping_counts_with_its_length_and_as_uncertain() {
    let mut w = large("3000001").set("wait.complete=20s").build();
    let script =
        "import mmap,os,sys; f=os.open(sys.argv[1]+'/l0.bin',0); m=mmap.mmap(f,0,prot=mmap.PROT_READ); sum(m[::4096])";
    let job = Job::new("python3").args(["-c", script]).arg(w.root());
    let told = run(&mut w, job);
    told.is_true();
    assert_eq!((told.number("read_bytes"), told.number("uncertain_bytes")), (3_000_001, 3_000_001));
    assert_eq!(told.number("opens"), 1, "the mapping is no open");
}

#[test]
fn a_mapping_that_the_pfs_has_to_serve_is_sent_by_it() {
    let mut w = large("25165824").tier_size("10MiB").build();
    let script =
        "import mmap,os,sys; f=os.open(sys.argv[1]+'/l0.bin',0); m=mmap.mmap(f,0,prot=mmap.PROT_READ); sum(m[::4096])";
    let job = Job::new("python3").args(["-c", script]).arg(w.root());
    let told = run(&mut w, job);
    told.is_true();
    assert!(told.number("sent_bytes") >= 25_165_824, "{:#}", told.savings);
}

/// What `monarch run` itself writes about a job.
fn loud(w: &World, job: &[&str]) -> String {
    let mut c: Command = w.monarch("run");
    let out = c.args(w.words()).arg("--").args(job).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn a_job_that_opens_nothing_gets_no_headline_and_a_longer_one_the_reason() {
    let w = World::plan().files(4).args(&["--plain"]).build();
    assert_eq!(loud(&w, &["true"]), "");
    let said = loud(&w, &["sleep", "1.2"]);
    let expected = format!("monarch: nothing below {} was opened: the job opened no file there", w.root().display());
    assert!(said.lines().count() == 1 && said.starts_with(&expected), "{said}");
}

#[test]
fn jobs_that_shared_an_agent_are_counted_in_the_lines_of_each() {
    let mut w = World::plan().files(4).args(&["--plain"]).build();
    let root = w.root().to_str().unwrap().to_owned();
    let read = ["find", &root, "-type", "f", "-exec", "cat", "{}", "+"];
    assert!(!loud(&w, &read).contains("shared this agent"));
    w.keep();
    let said = loud(&w, &read);
    assert!(said.contains("monarch: 2 jobs shared this agent"), "{said}");
}

/// Runs a shell script with the root as `$0` in a job that gives its report.
fn reported(w: &World, script: &str, name: &str) -> (Job, std::path::PathBuf) {
    let file = w.scratch().join(name);
    (Job::new("sh").arg("-c").arg(script).arg(w.root()).option("--report").option(&file), file)
}

fn own(file: &std::path::Path) -> (u64, u64) {
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(report["shared_with_other_jobs"], true);
    let get = |name: &str| report["own"][name].as_u64().unwrap_or_else(|| panic!("{name} in {:#}", report["own"]));
    (get("opens"), get("read_bytes"))
}

#[test]
fn jobs_that_share_an_agent_get_their_own_figures() {
    let w = World::plan().files(40).size(FILE_BYTES as usize).args(&["--plain", "--exact"]).patient().build();
    let all = "find \"$0\" -type f -exec cat {} + > /dev/null";
    let (long, long_file) = reported(&w, &format!("{all}; echo ready; read -r line; {all}"), "long.json");
    let mut long = w.start_indexed(&long);
    long.until_written("ready");
    let (brief, brief_file) =
        reported(&w, "set -- $(find \"$0\" -type f | head -n 5); cat \"$@\" > /dev/null", "brief.json");
    w.run(&brief).good();
    let (idle, idle_file) = reported(&w, "true", "idle.json");
    w.run(&idle).good();
    long.end().good();
    assert_eq!(own(&brief_file), (5, 5 * FILE_BYTES));
    assert_eq!(own(&idle_file), (0, 0));
    assert_eq!(own(&long_file), (80, 80 * FILE_BYTES));
}

#[test]
fn a_job_whose_processes_lose_their_variable_gets_the_figures_of_all() {
    let w = World::plan().files(4).size(FILE_BYTES as usize).args(&["--plain", "--exact"]).patient().build();
    let (long, _) = reported(&w, "echo ready; read -r line || true", "long.json");
    let mut long = w.start_indexed(&long);
    long.until_written("ready");
    let (other, file) = reported(&w, "env -u MONARCH_JOB find \"$0\" -type f -exec cat {} + > /dev/null", "other.json");
    w.run(&other).good();
    long.end().good();
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((report["own"].is_null(), report["savings"]["opens"].as_u64()), (true, Some(4)), "{report:#}");
}
