//! Epochs, policies and hints: which copies stay, which are dropped, which are fetched just in
//! time, counted by the server of the PFS.

use crate::faults::{agent_pid, charged, kill, wait_for};
use crate::harness::{Job, Plan, Running, World};
use monarch_core::agent::protocol::{Epoch, Status};
use std::time::Duration;

/// Files of one size in bytes: the tier's size in bytes gives the number of files that it holds.
const FILES: u64 = 400;
const FILE_BYTES: u64 = 40_960;

/// A tier for half of the files.
fn half() -> Plan {
    World::plan().files(FILES as usize).size(FILE_BYTES as usize).args(&["--plain", "--exact"]).tier_size("8900KiB")
}

fn passes(w: &World, words: &[&str]) -> Job {
    w.python("passes.py").args(words).arg(w.root())
}

fn epochs(s: &Status) -> &[Epoch] {
    &s.roots[0].epochs
}

/// The epochs of a job that ran alone, once `opens` opens have been counted.
fn epochs_of(w: &World, opens: u64) -> Vec<Epoch> {
    w.until("all opens counted", |s| epochs(s).iter().map(|e| e.opens).sum::<u64>() >= opens);
    w.agent().unwrap().roots.remove(0).epochs
}

/// Opens that reached the PFS while `job` ran.
fn opens_of(w: &World, job: &Job) -> u64 {
    let mut running = w.start(&job.announced());
    running.until_written("ready");
    w.pfs().reset().unwrap();
    running.write(b"\n");
    running.end().good();
    w.pfs().counters().unwrap().opens()
}

#[test]
fn the_agent_detects_and_counts_epochs() {
    let mut w = half().build();
    w.keep();
    w.until("a full tier", |s| s.agent["refused"] > 0);
    let job = passes(&w, &["--epochs", "4", "--pause", "0.1"]);
    w.same(&job);
    let all = epochs_of(&w, 4 * FILES);
    let copies = w.agent().unwrap().tiers[0].files;
    assert_eq!(all.len(), 4, "{all:?}");
    for (n, e) in all.iter().enumerate() {
        assert_eq!((e.number, e.complete), (n as u32 + 1, n < 3), "{all:?}");
        // (The end of an epoch is known to within a few files.)
        assert!(e.opens.abs_diff(FILES) <= 8 && e.local.abs_diff(copies) <= 8, "{all:?}");
        assert_eq!((e.local + e.pfs + e.waited, e.chunked), (e.opens, 0), "{e:?}");
        assert!(e.seconds > 0.0 && e.seconds < 60.0, "{e:?}");
    }
    let shown = String::from_utf8(w.monarch("status").output().unwrap().stdout).unwrap();
    assert!(shown.contains("epoch 4 so far: 400 opens in "), "{shown}");
}

#[test]
fn epochs_that_are_announced_have_the_numbers_of_the_job() {
    let mut w = half().build();
    w.settle_but(FILES);
    w.run(&passes(&w, &["--epochs", "3", "--announce", "marks"])).good();
    let all = epochs_of(&w, 3 * FILES);
    let numbered: Vec<(u32, u64)> = all.iter().map(|e| (e.number, e.opens)).collect();
    assert_eq!(numbered[numbered.len() - 2..], [(2, FILES), (3, FILES)], "{all:?}");
}

#[test]
fn without_hints_later_epochs_read_from_the_pfs_what_does_not_fit() {
    // The kernel caches no attributes: its questions reach the PFS.
    let mut w = half().pfs(|b| b.attr_ttl(Duration::ZERO)).build();
    let job = passes(&w, &["--epochs", "1", "--seed", "7"]);
    w.pfs().reset().unwrap();
    w.bare(&job).good();
    let bare = w.pfs().counters().unwrap();
    w.keep();
    w.until("a full tier", |s| s.agent["refused"] > 0 && s.prefetch == monarch_core::agent::protocol::Ahead::Idle);
    let copies = w.agent().unwrap().tiers[0].files;
    let share = 1.0 - copies as f64 / FILES as f64;
    let mut running = w.start(&passes(&w, &["--epochs", "3", "--seed", "8"]).announced());
    running.until_written("ready");
    w.pfs().reset().unwrap();
    running.write(b"\n");
    running.end().good();
    let ours = w.pfs().counters().unwrap();
    let near = |ours: u64, bare: u64, what: &str| {
        let expected = 3.0 * bare as f64 * share;
        assert!((ours as f64 - expected).abs() <= 0.01 * 3.0 * FILES as f64, "{what}: {ours}, expected {expected:.0}");
    };
    assert_eq!(ours.opens(), 3 * (FILES - copies), "{copies} copies");
    near(ours.opens(), FILES, "opens");
    near(ours.read, bare.read, "reads");
    near(ours.bytes_read / FILE_BYTES, FILES, "bytes");
}

#[test]
fn a_known_order_is_fetched_just_in_time_with_the_bytes_of_a_static_set() {
    let mut w =
        half().pfs(|b| b.meta_latency(Duration::from_millis(1))).set("placement.policy=clairvoyant").patient().build();
    w.keep();
    w.until("an index", |s| s.roots[0].state == "ready");
    w.same(&passes(&w, &["--epochs", "1", "--announce", "yes", "--compute", "10"]));
    charged(&w, 0, w.tier());
    let room = w.agent().unwrap().tiers[0].files;
    let before = w.agent().unwrap();
    w.pfs().reset().unwrap();
    w.run(&passes(&w, &["--epochs", "3", "--announce", "yes", "--compute", "20", "--seed", "5"])).good();
    let opens = w.pfs().counters().unwrap().opens();
    let bound = 3 * (FILES - room);
    // (The directories are listed by the job itself.)
    assert!(opens <= bound + bound / 20, "{opens} opens, {bound} are needed");
    let after = w.agent().unwrap();
    let local = after.counters["hits"] + after.counters["waited"] - before.counters["hits"] - before.counters["waited"];
    assert!(local >= 3 * FILES * 8 / 10, "{local} of {} opens were local", 3 * FILES);
    assert!(after.agent["replaced"] > 0 && after.agent["tier_errors"] == 0, "{:?}", after.agent);
    charged(&w, 0, w.tier());
}

#[test]
fn an_order_that_repeats_is_learned_in_the_second_epoch() {
    let mut w =
        half().pfs(|b| b.meta_latency(Duration::from_millis(1))).set("placement.policy=clairvoyant").patient().build();
    w.keep();
    w.until("an index", |s| s.roots[0].state == "ready");
    w.same(&passes(&w, &["--epochs", "4", "--order", "same", "--compute", "30"]));
    let all = epochs_of(&w, 4 * FILES);
    let last = all[3];
    assert!(last.local + last.waited >= FILES * 7 / 10, "{all:?}");
    let room = w.agent().unwrap().tiers[0].files;
    // (64 files of the start of the next epoch are fetched beforehand; on a busy machine some come
    // late, and count twice.)
    assert!(last.copied + last.pfs <= FILES - room + 64 + FILES / 10, "{all:?}");
}

#[test]
fn wrong_hints_cost_time_only() {
    for how in ["half", "wrong", "missing", "twice"] {
        let mut w = half().set("placement.policy=clairvoyant").build();
        w.keep();
        w.until("an index", |s| s.roots[0].state == "ready");
        w.pfs().reset().unwrap();
        w.same(&passes(&w, &["--epochs", "3", "--announce", how]));
        charged(&w, 0, w.tier());
        let s = w.agent().unwrap();
        assert_eq!((s.agent["tier_errors"], s.agent["source_errors"]), (0, 0), "{how}: {:?}", s.agent);
        assert!(s.agent["hints"] >= 3, "{how}: {:?}", s.agent);
        w.same(&passes(&w, &["--epochs", "1", "--seed", "3"]));
    }
}

#[test]
fn copies_are_replaced_under_each_policy_and_the_quota_holds() {
    for policy in ["lru", "lfu", "random", "static", "ops_per_byte"] {
        let mut w = half().set(&format!("placement.policy={policy}")).build();
        w.keep();
        w.until("an index", |s| s.roots[0].state == "ready");
        w.same(&passes(&w, &["--epochs", "3"]));
        charged(&w, 0, w.tier());
        let s = w.agent().unwrap();
        assert_eq!(s.policy, policy);
        assert_eq!((s.agent["tier_errors"], s.agent["source_errors"]), (0, 0), "{policy}: {:?}", s.agent);
        let replaces = ["lru", "random"].contains(&policy);
        assert!(!replaces || s.agent["replaced"] > FILES / 4, "{policy}: {:?}", s.agent);
        assert!(s.tiers[0].files > FILES / 3, "{policy}: {:?}", s.tiers);
    }
}

#[test]
fn small_files_save_more_operations_for_each_byte() {
    // A quarter of the bytes, as they are charged.
    let plan = |policy: &str| {
        let plan = World::plan()
            .made_by(Job::new("python3").args(["-c", MIXED]))
            .tier_size("6300KiB")
            .pfs(|b| b.attr_ttl(Duration::ZERO));
        plan.set("source.chunk_threshold=64MiB").set(&format!("placement.policy={policy}"))
    };
    let saved = |policy: &str| {
        let mut w = plan(policy).build();
        let job = passes(&w, &["--epochs", "1"]);
        let bare = {
            w.pfs().reset().unwrap();
            w.bare(&job).good();
            let c = w.pfs().counters().unwrap();
            c.opens() + c.read
        };
        w.keep();
        w.run(&passes(&w, &["--epochs", "3"])).good();
        w.until("nothing to prefetch", |s| s.prefetch == monarch_core::agent::protocol::Ahead::Idle);
        opens_of(&w, &job);
        let c = w.pfs().counters().unwrap();
        charged(&w, 0, w.tier());
        bare.saturating_sub(c.opens() + c.read)
    };
    let (first, ops) = (saved("first_epoch"), saved("ops_per_byte"));
    assert!(ops as f64 >= 1.9 * first as f64, "{ops} operations saved, {first} by first_epoch");
}

/// 3,000 files of 4 KiB and 30 of 400 KiB, mixed in the listing.
const MIXED: &str = "
import os, sys, random
rng = random.Random(1)
names = list(range(3030)); rng.shuffle(names)
old = 1_600_000_000
for n, i in enumerate(names):
    d = os.path.join(sys.argv[1], f'{i % 5}'); os.makedirs(d, exist_ok=True)
    p = os.path.join(d, f'{i:05}.bin')
    with open(p, 'wb') as f: f.write(rng.randbytes(409600 if n < 30 else 4096))
    os.utime(p, (old, old))
";

#[test]
fn the_functions_of_monarch_h_do_what_they_say() {
    let mut w = World::plan().files(40).args(&["--plain"]).set("prefetch.enabled=false").build();
    w.keep();
    w.until("an index", |s| s.roots[0].state == "ready");
    let ended = w.run(&w.python("hints_api.py").arg(w.root())).good();
    assert_eq!(ended.text(), "OK\n");
    assert!(w.agent().unwrap().agent["hints"] > 5);
}

#[test]
fn an_agent_that_dies_between_hints_costs_time_only() {
    let mut w = half().pfs(|b| b.meta_latency(Duration::from_millis(1))).set("placement.policy=clairvoyant").build();
    w.keep();
    w.until("an index", |s| s.roots[0].state == "ready");
    let job = passes(&w, &["--epochs", "4", "--announce", "yes", "--compute", "10"]);
    let bare = w.bare(&job).good();
    let mut running = w.start(&job);
    running.until_written("1 400");
    let old = agent_pid(&w);
    assert!(kill(old, libc::SIGKILL));
    let ended = running.end().good();
    assert_eq!(ended.text(), bare.text());
    wait_for("another agent", || w.agent().is_some_and(|s| s.pid as i32 != old));
    charged(&w, 0, w.tier());
}

#[test]
fn a_trace_records_the_opens_and_can_be_simulated() {
    let mut w = half().build();
    w.keep();
    w.until("a full tier", |s| s.agent["refused"] > 0);
    let trace = w.scratch().join("job.trace");
    let job = passes(&w, &["--epochs", "3"]).option("--trace").option(&trace);
    w.run(&job).good();
    let tool = |words: &[&str]| {
        let out =
            std::process::Command::new(crate::harness::built("monarch")).args(words).arg(&trace).output().unwrap();
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let stats: serde_json::Value = serde_json::from_str(&tool(&["trace", "stats", "--json"])).unwrap();
    assert_eq!((stats["accesses"].as_u64(), stats["files"].as_u64()), (Some(1200), Some(FILES)), "{stats:#}");
    assert_eq!(stats["epochs"].as_array().unwrap().len(), 3, "{stats:#}");
    let shown = tool(&["trace", "show", "--csv"]);
    assert_eq!(shown.lines().count(), 1201);
    let bytes = std::fs::metadata(&trace).unwrap().len();
    assert!(bytes < 1200 * 16, "{bytes} bytes for 1,200 opens of {FILES} files");
    // The simulated hits are those that the tier can hold.
    let words = ["simulate", "--json", "--policy", "first_epoch", "--capacity", "50%", "--compute", "1ms", "--trace"];
    let simulated: serde_json::Value = serde_json::from_str(&tool(&words)).unwrap();
    let later = &simulated["rows"][0]["later"];
    // (Of both later epochs together.)
    assert_eq!((later["hits"].as_u64(), later["accesses"].as_u64()), (Some(FILES), Some(2 * FILES)), "{later:#}");
}

#[test]
fn a_trace_that_cannot_be_written_does_not_hold_up_the_job() {
    let w = half().build();
    let job = passes(&w, &["--epochs", "1"]);
    let bare = w.bare(&job).good();
    let ended = w.run(&job.option("--trace").option("/proc/none/job.trace")).good();
    assert_eq!(ended.text(), bare.text());
    assert!(ended.errors().contains("no trace is written: "), "{}", ended.errors());
}

#[test]
fn staging_ends_where_not_everything_fits_whatever_the_policy() {
    for policy in ["lru", "ops_per_byte", "clairvoyant"] {
        let w = half().set(&format!("placement.policy={policy}")).build();
        let mut stage = w.monarch("stage");
        stage.args(w.words());
        let ended = Running::new(stage).end();
        assert_eq!(ended.status.code(), Some(3), "{policy}: {ended:?}");
    }
}

#[test]
fn a_policy_knows_the_copies_of_the_agent_before() {
    let mut w = half().set("placement.policy=lru").build();
    w.keep();
    w.until("an index", |s| s.roots[0].state == "ready");
    w.run(&passes(&w, &["--epochs", "1"])).good();
    let old = agent_pid(&w);
    assert!(kill(old, libc::SIGKILL));
    wait_for("another agent", || w.agent().is_some_and(|s| s.pid as i32 != old && s.roots[0].state == "ready"));
    w.same(&passes(&w, &["--epochs", "2", "--seed", "4"]));
    let s = w.agent().unwrap();
    // The agent replaces copies that it found as it replaces its own.
    assert!(s.agent["replaced"] > FILES, "{:?}", s.agent);
    assert_eq!(s.agent["tier_errors"], 0);
    charged(&w, 0, w.tier());
}

#[test]
fn packed_copies_are_replaced_and_fetched_again() {
    let maker = Job::new("python3").arg(crate::harness::sources().join("packdata.py"));
    let plan = World::plan().made_by(maker).tier_size("3MiB").second_tier("1500KiB").set("tiers.1.compression=lz4");
    let mut w = plan.set("tiers.0.decompression_share=100%").set("placement.policy=lru").build();
    w.keep();
    w.until("an index", |s| s.roots[0].state == "ready");
    for _ in 0..4 {
        w.same(&w.python("packdata.py").args(["--read", "--rounds", "2"]).arg(w.root()));
    }
    let s = w.agent().unwrap();
    assert_eq!(s.agent["tier_errors"], 0, "{:?}", s.agent);
    charged(&w, 1, w.second());
}

#[test]
fn hints_from_python_change_nothing_that_is_read() {
    let w = World::plan().files(40).args(&["--plain"]).set("placement.policy=clairvoyant").build();
    let check = Job::new("python3").arg(crate::harness::sources().join("hints/check.py")).env("HINTS_REAL", "1");
    assert_eq!(w.run(&check.arg("hints")).good().text(), "OK hints\n");
}

#[test]
fn torch_reads_the_same_batches_with_its_order_announced() {
    let w = World::plan().files(40).args(&["--plain"]).set("placement.policy=clairvoyant").build();
    let check = Job::new(crate::frameworks::interpreter("torch")).arg(crate::harness::sources().join("hints/check.py"));
    let ended = w.run(&check.arg("torch").env("HINTS_REAL", "1").env("OMP_NUM_THREADS", "1")).good();
    assert_eq!(ended.text(), "OK torch\n");
}
