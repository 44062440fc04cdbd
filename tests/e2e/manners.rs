//! The load on the PFS: a slowdown is reported with its reason, files on tape are left there, scans
//! keep within the limits, and files that the site will remove cause a warning and are not touched.

use crate::commands::config;
use crate::faults::{Tmpfs, monarch, reads, regular, wait_for};
use crate::harness::{Job, Running, World};
use monarch_core::agent::protocol::{Ahead, Status};
use monarch_core::reader::Verdict;
use monarch_core::session::Session;
use slowfs::{FaultKind, FaultSpec, Op, Settings, Time};
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

const DAY: Duration = Duration::from_hours(24);

fn status(w: &World) -> String {
    String::from_utf8(monarch(w, &["status"]).stdout).unwrap()
}

fn until_logged(w: &World, text: &str) {
    wait_for(text, || w.log().contains(text));
}

#[test]
fn status_reports_slowing_down_and_recovering_with_figures() {
    let mut w = World::plan().files(2500).size(1000).args(&["--plain"]).set("source.max_inflight=2").build();
    let latency = |w: &World, ms| {
        let meta_latency = Some(Time(Duration::from_millis(ms)));
        w.pfs().set(Settings { meta_latency, ..Settings::default() }).unwrap();
    };
    latency(&w, 4);
    w.keep();
    w.until("some copies", |s| s.agent["copied_ahead"] > 40 && s.prefetch == Ahead::Running);
    assert!(!status(&w).contains("notice"), "{}", status(&w));
    latency(&w, 300);
    let slow =
        |s: &Status| matches!(s.prefetch, Ahead::Slowed { divisor: 2.., opens_us: 50_000.., best_us: 4000..50_000 });
    w.until("slowing down", slow);
    let text = status(&w);
    assert!(text.contains("prefetching slowed to 1/") && text.contains(" ms at best"), "{text}");
    until_logged(&w, "prefetching slowed to 1/");
    latency(&w, 4);
    w.until("full pace", |s| s.prefetch == Ahead::Running);
    until_logged(&w, "prefetching goes on at full pace");
    let log = w.log();
    assert!(log.matches("prefetching slowed").count() <= 2, "once per change, and seldom: {log}");
    assert!(!status(&w).contains("notice"), "{}", status(&w));
}

#[test]
fn status_reports_a_failing_pfs_until_it_works_again() {
    let mut w = World::plan().files(60).args(&["--plain"]).build();
    w.pfs().fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Open])).unwrap();
    w.keep();
    w.until("the gate", |s| matches!(s.prefetch, Ahead::PfsFails { .. }));
    let text = status(&w);
    assert!(text.contains("prefetching held back: the PFS fails; next try in "), "{text}");
    until_logged(&w, "prefetching held back: the PFS fails; next try in ");
    w.pfs().clear().unwrap();
    w.until("all copies", |s| s.tiers[0].files == 60 && s.prefetch == Ahead::Idle);
    let log = |w: &World| w.log();
    wait_for("its end in the log", || {
        log(&w).contains("prefetching goes on at full pace") || log(&w).contains("nothing is left to prefetch")
    });
}

#[test]
fn status_reports_tiers_that_take_no_copies() {
    let Some(tmpfs) = Tmpfs::mount("size=64m") else { return };
    let tier = tmpfs.path().join("tier");
    let w = World::plan().files(60).size(1 << 20).args(&["--plain"]).tier_dir(tier).tier_size("40MiB");
    let mut w = w.set("tiers.0.keep_free=16MiB").build();
    let filler = tmpfs.path().join("filler");
    fs::write(&filler, vec![1; 56 << 20]).unwrap();
    w.keep();
    w.until("rest", |s| s.prefetch == Ahead::TiersRest);
    until_logged(&w, "prefetching held back: no tier takes copies");
    fs::remove_file(&filler).unwrap();
    w.until("copies", |s| s.tiers[0].files > 10 && s.prefetch != Ahead::TiersRest);
}

/// A file of holes, as one that was released to tape looks.
fn on_tape(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(100_000).unwrap();
    file.set_times(FileTimes::new().set_modified(SystemTime::now() - DAY)).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 0);
}

#[test]
fn files_on_tape_are_fetched_on_demand_only() {
    let mut w = World::plan().files(20).args(&["--plain"]).tier_size("64MiB").patient().build();
    let disk = regular(w.root())[0].clone();
    let names = ["one.tape", "two.tape", "three.tape"];
    names.iter().for_each(|n| on_tape(&w.backing().join(n)));
    let [one, two, _] = names.map(|n| w.root().join(n));
    w.keep();
    w.until("all others", |s| s.tiers[0].files == 20 && s.prefetch == Ahead::Idle);
    let opens =
        |w: &World| w.pfs().paths().unwrap().iter().filter(|(p, _)| p.ends_with("tape")).map(|(_, c)| c.opens).sum();
    let (known, recalled): (u64, u64) = (w.agent().unwrap().roots[0].released, opens(&w));
    assert_eq!((known, recalled), (3, 0));
    let text = status(&w);
    assert!(text.contains("3 files (293.0 KiB) released to tape: fetched on demand only"), "{text}");
    assert!(w.log().contains("files released to tape are fetched on demand only"));

    // A demand.
    assert_eq!(w.run(&Job::new("cat").arg(&one)).good().out, vec![0; 100_000]);
    w.until("its copy", |s| s.tiers[0].files == 21 && s.agent["copied_on_demand"] == 1);
    // A copy that is lost: the other files are copied again at once.
    let session = Session::start(&config(&w)).unwrap();
    for path in [&one, &disk] {
        fs::remove_file(session.explain(path).copy.unwrap()).unwrap();
    }
    wait_for("the other's copy", || session.explain(&disk).verdict == Verdict::Hit);
    w.until("damage", |s| s.agent["damaged"] == 2 && s.prefetch == Ahead::Idle);
    assert_eq!((session.explain(&one).verdict, opens(&w)), (Verdict::Absent, 1u64));
    // A request for all, and one for a file.
    assert_eq!(session.prefetch(&[w.root()]).unwrap().files, 20);
    assert_eq!(session.prefetch(&[&two]).unwrap().files, 1);
    wait_for("what was named", || session.explain(&two).verdict == Verdict::Hit);
    w.until("the end", |s| s.prefetch == Ahead::Idle);
    assert_eq!((session.explain(&one).verdict, opens(&w)), (Verdict::Absent, 2u64));
}

#[test]
fn a_reader_waits_for_the_tape_and_prefetching_does_not_slow_down() {
    let plan = World::plan().files(2500).size(1000).args(&["--plain"]);
    let mut w = plan.set("source.max_inflight=2").patient().build();
    on_tape(&w.backing().join("one.tape"));
    w.pfs().set(Settings { meta_latency: Some(Time(Duration::from_millis(4))), ..Settings::default() }).unwrap();
    let tape =
        FaultSpec::new(FaultKind::Stall(Some(Duration::from_secs(6)))).ops(&[Op::Open]).path("one.tape").count(1);
    w.pfs().fault(tape).unwrap();
    w.keep();
    w.until("some copies", |s| s.agent["copied_ahead"] > 40);
    let start = Instant::now();
    assert_eq!(w.run(&Job::new("cat").arg(w.root().join("one.tape"))).good().out, vec![0; 100_000]);
    assert!(start.elapsed() > Duration::from_secs(6), "{:?}", start.elapsed());
    // An open of 6 s among those of 4 ms would show for a while. (One that a busy machine held up
    // shows for a moment.)
    let looks: Vec<_> = (0..10).map(|_| w.agent().unwrap().prefetch).collect();
    assert!(looks.iter().filter(|p| **p == Ahead::Running).count() >= 8, "{looks:?}");
    assert_eq!((w.counter("waited"), w.counter("deadline")), (1, 0));
}

#[test]
fn a_file_system_that_shows_no_blocks_is_prefetched() {
    let mut w = World::plan().files(3).args(&["--plain"]).build();
    (0..97).for_each(|n| on_tape(&w.backing().join(format!("{n}.hole"))));
    w.settle();
    let status = w.agent().unwrap();
    assert_eq!((status.tiers[0].files, status.roots[0].released), (100, 0));
    assert!(w.log().contains("none is taken for released to tape"));
}

#[test]
fn a_scan_keeps_within_iops_limit() {
    let mut w = World::plan()
        .files(300)
        .size(100)
        .args(&["--plain"])
        .set("source.iops_limit=200")
        .set("prefetch.enabled=false")
        .build();
    let start = Instant::now();
    w.keep();
    w.until("the index", |s| s.roots[0].state == "ready");
    let took = start.elapsed();
    assert!((Duration::from_millis(1400)..Duration::from_secs(20)).contains(&took), "{took:?} for 300 names at 200/s");
    w.run(&reads(&w)).good();
}

/// Sets when files were last read.
fn last_read(files: &[PathBuf], ago: Duration) {
    for f in files {
        let at = SystemTime::now() - ago;
        File::open(f).unwrap().set_times(FileTimes::new().set_accessed(at).set_modified(at)).unwrap();
    }
}

fn days_since_read(file: &Path) -> u64 {
    let at = fs::metadata(file).unwrap().accessed().unwrap();
    SystemTime::now().duration_since(at).unwrap_or_default().as_secs() / 86_400
}

#[test]
fn the_agent_warns_about_files_that_the_site_will_remove() {
    let plan = World::plan().files(12).args(&["--plain"]).disk();
    let mut w = plan.set("prefetch.enabled=false").set("source.purge_age=30d").build();
    let files = regular(w.root());
    last_read(&files, DAY * 3);
    last_read(&files[..4], DAY * 25 + DAY / 2);
    last_read(&files[..1], DAY * 28 + DAY / 2);
    w.keep();
    w.until("the index", |s| s.roots[0].state == "ready");
    let near = |w: &World| w.agent().unwrap().roots[0].near_purge.map(|n| (n.files, n.oldest_days, n.purge_days));
    assert_eq!(near(&w), Some((4, 28, 30)));
    let said = "4 files have not been read on the PFS for up to 28 days, and this site removes them after 30";
    assert!(status(&w).contains(said), "{}", status(&w));
    until_logged(&w, said);
    // A file that is read is in use again.
    w.run(&Job::new("cat").arg(&files[0])).good();
    assert_eq!((near(&w), days_since_read(&files[0])), (Some((3, 25, 30)), 0));
    let mut run = w.monarch("run");
    run.args(w.words()).args(["--", "true"]);
    let said = Running::new(run).end().good().errors();
    assert!(said.contains("3 files have not been read on the PFS for up to 25 days"), "{said}");
    assert_eq!(w.log().matches("have not been read on the PFS").count(), 1, "once a day");
    // The agent touches no other file.
    assert!(files[1..4].iter().all(|f| days_since_read(f) == 25));
}

#[test]
fn reads_by_the_agent_set_access_times_and_reads_of_copies_do_not() {
    for engine in ["threads", "uring"] {
        let plan = World::plan().files(30).args(&["--plain"]).disk().set(&format!("io.engine={engine}"));
        let mut w = plan.set("source.purge_age=30d").build();
        let files = regular(w.root());
        last_read(&files, DAY * 26);
        w.settle();
        assert!(files.iter().all(|f| days_since_read(f) == 0), "{engine}: read as if nobody did");
        w.until("the figures", |s| s.roots[0].near_purge.is_none());
        // Set back: the copies are still served, and the PFS does not notice.
        last_read(&files, DAY * 26);
        w.run(&reads(&w).args(["--rounds", "2"])).good();
        assert!(files.iter().all(|f| days_since_read(f) == 26), "{engine}");
    }
}
