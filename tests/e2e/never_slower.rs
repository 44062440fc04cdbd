//! No job costs the PFS more than it would by itself, beyond 5 %: the bytes that slowfs sends, for
//! each kind of root and of job. `prefetch.ahead` is `auto`, the default.

use crate::faults::regular;
use crate::harness::{Job, Plan, World};
use monarch_core::agent::protocol::Ahead;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Makes $1 directories of $2 files of $3 bytes below $4, as a data set has them.
const DATA: &str = "import os,sys\ndirs,files,size=map(int,sys.argv[1:4])\nfor d in range(dirs):\n    \
    os.makedirs(f'{sys.argv[4]}/class{d:03}')\n    for n in range(files):\n        \
    open(f'{sys.argv[4]}/class{d:03}/{n:04}.bin','wb').write(os.urandom(size))";

/// Reads the files that standard input names, in this order.
const READS: &str = "import sys\nfor line in sys.stdin:\n    open(line.rstrip('\\n'),'rb',buffering=0).read()";

fn data(dirs: usize, files: usize, size: usize) -> Plan {
    let [dirs, files, size] = [dirs, files, size].map(|n| n.to_string());
    World::plan().made_by(Job::new("python3").args(["-c", DATA, &dirs, &files, &size]))
}

fn software(marker: &str) -> Plan {
    let tree = "set -e; for d in $(seq 20); do mkdir -p \"$2/lib/p$d\"; for f in $(seq 10); do\n\
        head -c 30000 /dev/urandom > \"$2/lib/p$d/f$f.py\"; done; done; [ -z \"$1\" ] || echo 1 > \"$2/$1\"";
    World::plan().made_by(Job::new("sh").args(["-c", tree, "sh", marker]))
}

fn world(plan: Plan) -> World {
    plan.set("prefetch.ahead=auto").patient().build()
}

fn bytes<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> u64 {
    files.into_iter().map(|f| f.metadata().unwrap().len()).sum()
}

/// The files of the data set by name.
fn sorted(root: &Path) -> Vec<PathBuf> {
    let mut files = regular(root);
    files.sort();
    files
}

/// In an order that chance made, the same each time.
fn shuffled(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..files.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        files.swap(at, (seed >> 33) as usize % (at + 1));
    }
    files
}

/// The bytes that the PFS sends for a job that reads these files, and for what is prefetched until
/// nothing is left to prefetch.
fn sent(w: &mut World, files: &[PathBuf]) -> u64 {
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    w.pfs().reset().unwrap();
    let list = w.scratch().join("list");
    let lines: Vec<String> = files.iter().map(|f| format!("{}\n", f.display())).collect();
    std::fs::write(&list, lines.concat()).unwrap();
    let job = Job::new("sh").args(["-c", "exec python3 -c \"$1\" < \"$2\"", "sh", READS]).arg(&list);
    w.run(&job).good();
    w.until("the end of prefetch", |s| s.prefetch == Ahead::Idle && s.load.running == 0);
    w.pfs().counters().unwrap().bytes_read
}

/// The bytes that the job itself reads, each file once.
fn own(files: &[PathBuf]) -> u64 {
    bytes(files.iter().collect::<BTreeSet<_>>())
}

#[track_caller]
fn costs_no_more(w: &mut World, files: &[PathBuf]) {
    let (sent, own) = (sent(w, files), own(files));
    assert!(sent * 20 <= own * 21, "the PFS sent {sent} bytes for a job that reads {own}");
    assert!(sent >= own, "{sent} of {own}");
}

#[test]
fn an_environment_of_which_a_part_is_opened() {
    for marker in ["pyvenv.cfg", ""] {
        let mut w = world(software(marker));
        let files: Vec<PathBuf> = sorted(w.root()).into_iter().step_by(9).collect();
        costs_no_more(&mut w, &files);
    }
}

#[test]
fn a_job_that_reads_nothing() {
    let mut w = world(data(4, 10, 20_000));
    assert_eq!(sent(&mut w, &[]), 0);
}

#[test]
fn a_data_set_that_is_read_as_a_whole_once_and_left() {
    for files in [sorted, |root: &Path| shuffled(sorted(root))] {
        let mut w = world(data(8, 25, 20_000));
        let files = files(w.root());
        costs_no_more(&mut w, &files);
    }
}

#[test]
fn a_few_directories_of_a_data_set() {
    for order in [|files| files, shuffled] {
        let mut w = world(data(20, 20, 20_000));
        let files: Vec<PathBuf> = sorted(w.root()).into_iter().take(3 * 20).collect();
        costs_no_more(&mut w, &order(files));
    }
}

#[test]
fn a_few_files_of_each_directory() {
    let mut w = world(data(20, 20, 20_000));
    let files: Vec<PathBuf> = sorted(w.root()).chunks(20).flat_map(|dir| dir[..3].to_vec()).collect();
    costs_no_more(&mut w, &files);
    // In the order of the PFS.
    let mut w = world(data(20, 20, 20_000));
    let files: Vec<PathBuf> = regular(w.root()).into_iter().step_by(5).collect();
    costs_no_more(&mut w, &files);
}

#[test]
fn the_first_part_of_a_data_set_in_order() {
    let mut w = world(data(4, 100, 20_000));
    let files: Vec<PathBuf> = sorted(w.root()).into_iter().take(130).collect();
    costs_no_more(&mut w, &files);
}

#[test]
fn one_shard_of_many() {
    let shards = data(1, 16, 1_000_000).set("source.chunk_threshold=64KiB").set("source.chunk_size=256KiB");
    let mut w = world(shards);
    let files = sorted(w.root())[5..6].to_vec();
    costs_no_more(&mut w, &files);
}

/// A sample in random order looks like the begin of an epoch: the first two jobs are prefetched for
/// to a bounded extent, the third one is known to read a part.
#[test]
fn a_random_sample_is_known_after_two_jobs() {
    let mut w = world(data(20, 100, 2000).set("tiers[0].persist=node"));
    let files = shuffled(sorted(w.root()));
    for (job, sample) in files.chunks(20).take(3).enumerate() {
        let (sent, own) = (sent(&mut w, sample), own(sample));
        w.release();
        crate::faults::wait_for("the end of the agent", || w.agent().is_none());
        match job {
            0 | 1 => assert!(sent <= 17 * own, "job {job}: {sent} of {own}"),
            _ => assert!(sent * 20 <= own * 21, "job {job}: {sent} of {own}"),
        }
    }
}

#[test]
fn a_data_set_that_the_last_job_read_as_a_whole_is_prefetched_at_once() {
    let mut w = world(data(8, 25, 20_000).set("tiers[0].persist=node"));
    let files = sorted(w.root());
    costs_no_more(&mut w, &files);
    let copies = w.copies();
    w.release();
    crate::faults::wait_for("the end of the agent", || w.agent().is_none());
    regular(&copies).iter().for_each(|copy| std::fs::remove_file(copy).unwrap());
    w.keep();
    w.until("all copies", |s| s.tiers[0].files == 200);
}
