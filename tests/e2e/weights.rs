//! Weights of models: large files that are mapped while their copies are being made, read past the
//! page cache, and loaded by the Python package.

use crate::faults::wait_for;
use crate::harness::{Job, Plan, Running, World, sources};
use slowfs::{CacheMode, FaultKind, FaultSpec, Op};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Larger than what a mapping waits for at the rate that the agent assumes before it has measured.
const SIZE: u64 = 280_000_001;
const MS: Duration = Duration::from_millis(1);

fn make(size: u64, names: &[&str]) -> Job {
    let script = "weights.py";
    let maker = Job::new("sh").args(["-c", "python3 \"$0\" make \"$3\" \"$1\" $2"]);
    maker.arg(sources().join(script)).arg(size.to_string()).arg(names.join(" "))
}

fn plan(size: u64, names: &[&str]) -> Plan {
    World::plan().made_by(make(size, names)).tier_size("512MiB").patient()
}

/// A world in which copies are made of what readers ask for, and the PFS takes its time.
fn cold(cache: CacheMode) -> World {
    let plan = plan(SIZE, &["model.safetensors"]).set("prefetch.enabled=false");
    plan.pfs(move |b| b.data_latency(MS).bandwidth(500_000_000).cache(cache)).build()
}

fn reads(w: &World, ways: &[&str]) -> Job {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    w.python("weights.py").arg("read").arg(w.root()).arg(w.backing()).args(ways).env("PYTHONPATH", python)
}

/// A job that has begun, after the index was ready.
fn begun(w: &World, job: &Job) -> Running {
    w.pfs().reset().unwrap();
    w.start_indexed(job)
}

fn bytes(w: &World) -> u64 {
    w.pfs().counters().unwrap().bytes_read
}

fn right(w: &World, ways: &[&str]) {
    let text = begun(w, &reads(w, ways)).end().good().text();
    assert_eq!(text.matches("right ").count(), ways.len(), "{text}");
}

#[test]
fn a_mapping_that_is_read_whole_takes_each_byte_once_and_leaves_a_copy() {
    for cache in [CacheMode::NoKeep, CacheMode::Keep] {
        let mut w = cold(cache);
        w.keep();
        right(&w, &["all"]);
        let got = bytes(&w);
        assert!(got <= SIZE + SIZE / 50, "{cache}: {got} of {SIZE}");
        w.until("the copy", |s| s.tiers[0].files == 1);
        let before = bytes(&w);
        right(&w, &["all", "part", "private"]);
        assert_eq!(bytes(&w), 0, "{cache}, after {before}: the copy is mapped");
    }
}

#[test]
fn a_mapping_that_is_read_in_parts_takes_little_more_than_these() {
    for cache in [CacheMode::NoKeep, CacheMode::Keep] {
        let w = cold(cache);
        right(&w, &["part"]);
        let got = bytes(&w);
        assert!(got < SIZE / 2, "{cache}: {got} of {SIZE}, an eighth was read");
    }
}

#[test]
fn each_way_alone_takes_hardly_a_byte_twice() {
    for way in ["back", "advised", "populated", "private", "stream", "load", "load_file"] {
        let w = cold(CacheMode::Keep);
        right(&w, &[way]);
        let got = bytes(&w);
        assert!(got <= SIZE + SIZE / 20, "{way}: {got} of {SIZE}");
    }
}

#[test]
fn four_and_eight_processes_take_each_byte_once() {
    for processes in [4, 8] {
        let w = cold(CacheMode::Keep);
        let script = "n=$1; shift; for i in $(seq $n); do \"$@\" & done; wait";
        let job = reads(&w, &["all"]);
        let all = Job::new("sh").args(["-c", script, "sh", &processes.to_string()]).args(job.words());
        let text = begun(&w, &all).end().good().text();
        assert_eq!(text.matches("right all").count(), processes, "{text}");
        let got = bytes(&w);
        assert!(got <= SIZE + SIZE / 20, "{processes}: {got} of {SIZE}");
    }
}

#[test]
fn with_prefetch_a_mapping_is_right_and_the_copy_comes() {
    for cache in [CacheMode::NoKeep, CacheMode::Keep] {
        let plan = plan(SIZE, &["model.safetensors"]);
        let mut w = plan.pfs(move |b| b.data_latency(MS).bandwidth(500_000_000).cache(cache)).build();
        w.keep();
        right(&w, &["part", "all"]);
        w.until("the copy", |s| s.tiers[0].files == 1);
    }
}

#[test]
fn a_fill_that_stalls_keeps_no_mapping_waiting() {
    let w = plan(60_000_000, &["model.safetensors"]).set("prefetch.enabled=false").build();
    // The agent's reads hang: those of more than a page fault asks for.
    w.pfs().fault(FaultSpec::new(FaultKind::STALL).ops(&[Op::Read]).after(4)).unwrap();
    let script = "import mmap,os,sys,time; f=os.open(sys.argv[1]+'/model.safetensors',0); t=time.time()\n\
        m=mmap.mmap(f,0,prot=mmap.PROT_READ); print(time.time()-t, flush=True); os._exit(0)";
    let mut job = begun(&w, &Job::new("python3").args(["-c", script]).arg(w.root()));
    job.until_written(".");
    let took: f64 = job.written().lines().last().unwrap().parse().unwrap();
    w.pfs().clear().unwrap();
    job.end().good();
    assert!(took < 10.0, "{took} s");
}

#[test]
fn a_file_larger_than_the_tier_is_mapped_at_once() {
    let w = plan(60_000_000, &["model.safetensors"]).tier_size("20MiB").build();
    let start = Instant::now();
    right(&w, &["all", "part"]);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn the_parts_of_a_checkpoint_follow_each_other() {
    let names: Vec<String> = (1..=4).map(|i| format!("model-{i:05}-of-00004.safetensors")).collect();
    let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
    all.push("aaa.bin");
    let mut w = plan(20_000_000, &all).pfs(|b| b.data_latency(MS)).build();
    w.keep();
    let text = begun(&w, &reads(&w, &["all"])).end().good().text();
    assert_eq!(text.matches("right all").count(), 5, "{text}");
    w.until("all copies", |s| s.tiers[0].files == 5);
    let got = bytes(&w);
    assert!(got <= 5 * 20_000_000 * 21 / 20, "{got}");
}

#[test]
fn reads_past_the_page_cache_come_from_complete_copies() {
    let disk = tempfile::tempdir().unwrap();
    for (tier, odd) in [(None, 0), (Some(disk.path().join("tier")), 1), (None, 4095)] {
        let mut plan = plan(20_000_000 + odd, &["model.safetensors"]).set("source.chunk_threshold=1MiB");
        if let Some(tier) = tier {
            plan = plan.tier_dir(tier);
        }
        let mut w = plan.build();
        right(&w, &["direct"]);
        w.settle();
        w.pfs().reset().unwrap();
        let text = w.run(&reads(&w, &["direct", "all"])).good().text();
        assert_eq!(text.matches("right ").count(), 2, "{text}");
        assert_eq!(bytes(&w), 0, "{odd}");
    }
}

#[test]
fn a_descriptor_that_turns_past_the_page_cache_reads_the_same() {
    let mut w = plan(3_000_001, &["model.bin"]).build();
    w.settle();
    let script = "import fcntl,mmap,os,sys\n\
        fd=os.open(sys.argv[1]+'/model.bin',os.O_RDONLY); a=os.pread(fd,4096,4096)\n\
        fcntl.fcntl(fd,fcntl.F_SETFL,os.O_DIRECT)\n\
        assert fcntl.fcntl(fd,fcntl.F_GETFL)&os.O_DIRECT\n\
        m=mmap.mmap(-1,8192); assert os.preadv(fd,[m],4096)==8192 and m[:4096]==a\n\
        for flags in (os.O_DIRECT, os.O_DIRECT|os.O_NOFOLLOW|os.O_CLOEXEC):\n\
        \x20   g=os.open(sys.argv[1]+'/model.bin',os.O_RDONLY|flags); assert os.preadv(g,[m],4096)==8192 and m[:4096]==a\n\
        # Not aligned: whatever the tier asks for, the answer is that of the PFS.\n\
        h=os.open(sys.argv[1]+'/model.bin',os.O_RDONLY|os.O_DIRECT); print(os.pread(h,100,4097)==os.pread(os.open(sys.argv[2]+'/model.bin',0),100,4097))";
    let job = Job::new("python3").args(["-c", script]).arg(w.root()).arg(w.backing());
    w.same(&job);
}

#[test]
fn the_package_loads_a_file_whose_copy_is_being_made_and_without_monarch() {
    let w = cold(CacheMode::NoKeep);
    let bare = w.bare(&reads(&w, &["load", "load_file"])).good().text();
    let ours = begun(&w, &reads(&w, &["load", "load_file"])).end().good().text();
    assert_eq!(ours, format!("ready\n{bare}"));
    assert_eq!(bytes(&w), SIZE, "each byte once");
    wait_for("the tier", || fs::read_dir(w.tier()).is_ok());
}
