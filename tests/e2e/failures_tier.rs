//! Tiers that are full, that fail, that another process empties.

use crate::faults::{Loop, MIB, Tmpfs, Watch, agent_pid, charged, copies, du, reads, wait_for};
use crate::harness::{World, built};
use slowfs::{CacheMode, FaultKind, FaultSpec, Op, Slowfs};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Waits until the agent has looked at every file: nothing is being copied any more.
fn quiet(w: &World) {
    let mut last = (u64::MAX, 0);
    wait_for("the agent's rest", || {
        let Some(s) = w.agent() else { return false };
        let now = s.tiers.iter().map(|t| t.used + t.reserved).sum();
        last = if now == last.0 { (now, last.1 + 1) } else { (now, 0) };
        std::thread::sleep(Duration::from_millis(30));
        last.1 > 10
    });
}

#[test]
fn a_full_tier_takes_no_more_than_its_quota() {
    let Some(tmpfs) = Tmpfs::mount("size=64m") else { return };
    let mut w = World::plan()
        .files(100)
        .size(2 << 20)
        .args(&["--plain"])
        .tier_dir(tmpfs.path().join("tier"))
        .tier_size("60MiB")
        .build();
    let (at, before) = (tmpfs.path().to_owned(), tmpfs.used());
    let on_disk = Watch::new(move || du(&at));
    w.run(&reads(&w).args(["--procs", "2"]).args(["--rounds", "2"])).good();
    w.keep();
    quiet(&w);
    let hits = w.counter("hits");
    w.run(&reads(&w)).good();
    let (_, most) = on_disk.end();
    let tier = &w.agent().unwrap().tiers[0];
    assert!(most <= 60 * MIB && before == 0, "{most} bytes on disk");
    assert!(tier.used > 50 * MIB && tier.used <= 60 * MIB, "{tier:?}");
    assert!(w.counter("hits") > hits + 20, "what fits is served");
    let (no_room, refused) = (w.counter("no_room"), w.counter("refused"));
    assert!(
        no_room > 20 && refused == 0,
        "the rest is waited for: {no_room} without space, {refused} temporarily refused"
    );
}

#[test]
fn other_programs_fill_its_disk_and_get_their_space_back() {
    let Some(tmpfs) = Tmpfs::mount("size=64m") else { return };
    let w = World::plan()
        .files(60)
        .size(1 << 20)
        .args(&["--plain"])
        .tier_dir(tmpfs.path().join("tier"))
        .tier_size("40MiB")
        .set("tiers.0.keep_free=16MiB")
        .build();
    let readers = Loop::start(&w, &["--procs", "2"]);
    quiet(&w);
    assert!(tmpfs.used() > 30 * MIB);
    // Half of what is left above keep_free and half of what is below it.
    let filler = fs::File::create(tmpfs.path().join("filler")).unwrap();
    let chunk = vec![1u8; 1 << 20];
    let mut at = 0;
    while tmpfs.free() > 8 * MIB {
        filler.write_all_at(&chunk, at).unwrap();
        at += 1 << 20;
    }
    let took = wait_for("space", || tmpfs.free() >= 16 * MIB);
    assert!(took < Duration::from_secs(10), "{took:?}");
    // No copy is written below it: the refused copies are not tried again at once.
    let path = tmpfs.path().to_owned();
    let least = Watch::new(move || {
        let v = rustix::fs::statvfs(&path).unwrap();
        v.f_bavail * v.f_frsize
    });
    readers.more(3);
    std::thread::sleep(Duration::from_secs(1));
    assert!(least.end().0 >= 16 * MIB);
    assert!(w.agent().unwrap().agent["evicted"] > 0);
    readers.end();
    assert!(w.agent().unwrap().tiers[0].used <= 64 * MIB - 16 * MIB - at);
}

#[test]
fn nothing_is_written_below_keep_free_from_the_beginning() {
    let Some(tmpfs) = Tmpfs::mount("size=64m") else { return };
    let w = World::plan()
        .files(100)
        .size(1 << 20)
        .args(&["--plain"])
        .tier_dir(tmpfs.path().join("tier"))
        .tier_size("63MiB")
        .set("tiers.0.keep_free=40MiB")
        .build();
    let path = tmpfs.path().to_owned();
    let least = Watch::new(move || {
        let v = rustix::fs::statvfs(&path).unwrap();
        v.f_bavail * v.f_frsize
    });
    w.run(&reads(&w).args(["--procs", "4"]).args(["--rounds", "3"])).good();
    let (least, _) = least.end();
    assert!((40 * MIB..50 * MIB).contains(&least), "{least} left");
}

#[test]
fn a_tier_without_free_inodes_takes_no_copies() {
    let Some(tmpfs) = Tmpfs::mount("size=64m,nr_inodes=400") else { return };
    let w = World::plan()
        .files(300)
        .size(4000)
        .args(&["--plain"])
        .tier_dir(tmpfs.path().join("tier"))
        .tier_size("60MiB")
        .build();
    let readers = Loop::start(&w, &["--procs", "2"]);
    quiet(&w);
    let n = copies(&w).len();
    assert!((50..140).contains(&n), "{n} copies");
    readers.more(2);
    readers.end();
}

/// A tier on a slow file system of its own. Bound in this order, so that the world is dropped
/// first.
fn on_slowfs(prefetch: bool) -> (tempfile::TempDir, Slowfs, World) {
    let dir = tempfile::Builder::new().prefix("monarch-e2e-").tempdir().unwrap();
    let (back, mount) = (dir.path().join("back"), dir.path().join("mount"));
    fs::create_dir(&back).unwrap();
    fs::create_dir(&mount).unwrap();
    let disk = Slowfs::builder(&back, &mount)
        .program(built("slowfs"))
        .cache(CacheMode::Direct)
        .attr_ttl(Duration::ZERO)
        .spawn()
        .unwrap();
    let w = World::plan()
        .files(40)
        .args(&["--plain"])
        .tier_dir(mount.join("tier"))
        .tier_size("64MiB")
        .set("tiers.0.allow_network=true")
        .set(&format!("prefetch.enabled={prefetch}"))
        .build();
    (dir, disk, w)
}

#[test]
fn the_disk_of_a_tier_fails_when_written() {
    let (_dir, disk, mut w) = on_slowfs(true);
    disk.fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Write])).unwrap();
    w.run(&reads(&w).args(["--rounds", "2"])).good();
    w.keep();
    w.until("errors", |s| s.agent["tier_errors"] > 0 && s.tiers[0].files == 0);
    let tier = &w.agent().unwrap().tiers[0];
    // Directories take 260 blocks.
    assert!(tier.used < MIB + 64 * 1024, "failed copies are not charged: {tier:?}");
    disk.clear().unwrap();
    // The tier is suspended for 5 s, then takes copies.
    w.until("copies", |s| s.tiers[0].files == 40);
    w.run(&reads(&w)).good();
}

#[test]
fn while_a_tier_is_suspended_its_readers_request_no_copies() {
    let (_dir, disk, mut w) = on_slowfs(false);
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    disk.fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Write])).unwrap();
    // (On a busy machine the suspension may be over before the job is: then another round shows
    // it.)
    let rested = || {
        w.run(&reads(&w)).good();
        let before = w.agent().unwrap();
        w.run(&reads(&w).args(["--rounds", "2"])).good();
        let after = w.agent().unwrap();
        let all_the_time = before.tiers[0].resting && after.tiers[0].resting;
        if !all_the_time || before.agent["tier_errors"] != after.agent["tier_errors"] {
            return false;
        }
        let of = |name: &str| (before.counters[name], after.counters[name]);
        let ((waited, wait), (refused, refusals)) = (of("wait_us"), of("refused"));
        assert_eq!((wait, refusals), (waited, refused + 80));
        true
    };
    assert!((0..20).any(|_| rested()), "it never rested as long as a job");
    // After its suspension a few readers find out that nothing has changed.
    w.until("its end of rest", |s| !s.tiers[0].resting);
    let asked = w.agent().unwrap().agent["refused"];
    w.run(&reads(&w).args(["--rounds", "2"])).good();
    let asked = w.agent().unwrap().agent["refused"] - asked;
    assert!(asked < 25, "{asked} files were asked for");
    disk.clear().unwrap();
    wait_for("copies", || {
        w.run(&reads(&w)).good();
        w.agent().unwrap().tiers[0].files == 40
    });
}

#[test]
fn the_disk_of_a_tier_fails_when_read() {
    let (_dir, disk, mut w) = on_slowfs(true);
    w.settle();
    let readers = Loop::start(&w, &["--procs", "2"]);
    // Open descriptors move to the PFS; later opens do not even try the copy.
    disk.fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Read])).unwrap();
    readers.more(2);
    disk.clear().unwrap();
    readers.end();
}

#[test]
fn the_disk_of_a_tier_fails_when_opened() {
    let (dir, disk, mut w) = on_slowfs(true);
    w.settle();
    let readers = Loop::start(&w, &["--procs", "2"]);
    disk.fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Open, Op::Lookup, Op::Getattr])).unwrap();
    readers.more(2);
    // Some rounds of the audit: a copy that the audit cannot read is not gone, and stays charged.
    std::thread::sleep(Duration::from_secs(2));
    disk.clear().unwrap();
    readers.end();
    w.until("its end of rest", |s| !s.tiers[0].resting && s.tiers[0].files == 40);
    let status = w.agent().unwrap();
    charged(&w, 0, &dir.path().join("back/tier"));
    assert_eq!((status.agent["damaged"], copies(&w).len()), (0, 40), "{status:#?}");
}

#[test]
fn copies_that_the_disk_does_not_remove_stay_charged() {
    let (dir, disk, mut w) = on_slowfs(true);
    w.settle();
    let all = copies(&w);
    // Damaged copies that can neither be moved away nor removed for some time.
    disk.fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Rename, Op::Unlink])).unwrap();
    for p in &all[..10] {
        fs::File::options().write(true).open(p).unwrap().set_len(100).unwrap();
    }
    w.until("them found", |s| s.agent["damaged"] == 10);
    w.run(&reads(&w)).good();
    let back = dir.path().join("back/tier");
    let used = w.agent().unwrap().tiers[0].used;
    assert!(used >= du(&back), "{used} charged");
    disk.clear().unwrap();
    w.until("them again", |s| s.tiers[0].files == 40 && s.tiers[0].reserved == 0);
    wait_for("the sweep", || copies(&w).len() == 40);
    w.run(&reads(&w)).good();
    charged(&w, 0, &back);
}

#[test]
fn a_tier_is_deleted_under_a_job_and_filled_again() {
    let mut w = World::plan().files(60).args(&["--plain"]).build();
    w.settle();
    let readers = Loop::start(&w, &["--procs", "2"]);
    let pid = agent_pid(&w);
    fs::remove_dir_all(w.tier()).unwrap();
    readers.more(1);
    wait_for("the next agent", || w.agent().is_some_and(|s| s.pid as i32 != pid));
    w.until("all copies", |s| s.tiers[0].files == 60);
    assert_eq!(copies(&w).len(), 60);
    let hits = w.counter("hits");
    readers.more(2);
    assert!(w.counter("hits") > hits + 60);
    readers.end();
}

#[test]
fn copies_are_removed_or_cut_under_a_job() {
    let mut w = World::plan().files(60).args(&["--plain"]).build();
    w.settle();
    let readers = Loop::start(&w, &[]);
    let all = copies(&w);
    all[..20].iter().for_each(|p| fs::remove_file(p).unwrap());
    readers.more(2);
    w.until("them again", |s| s.agent["damaged"] == 20 && s.tiers[0].files == 60);
    readers.more(1);
    readers.end();
    // The agent cannot keep a reader from the bytes of a copy that is cut this very moment; it does
    // not last.
    let all = copies(&w);
    assert_eq!(all.len(), 60);
    for p in &all[20..40] {
        fs::File::options().write(true).open(p).unwrap().set_len(10).unwrap();
    }
    w.until("them again", |s| s.agent["damaged"] == 40 && s.tiers[0].files == 60);
    w.run(&reads(&w)).good();
    charged(&w, 0, w.tier());
}

/// A tier on disk whose agent has ended; it holds 60 copies.
fn left_behind() -> World {
    let disk = tempfile::Builder::new().prefix("monarch-e2e-").tempdir().unwrap().keep();
    let w =
        World::plan().files(60).args(&["--plain"]).tier_dir(disk.join("tier")).set("tiers.0.keep_free=1MiB").build();
    let readers = Loop::start(&w, &[]);
    w.until("all copies", |s| s.tiers[0].files == 60);
    readers.end();
    // (It may have ended by itself.)
    crate::faults::monarch(&w, &["stop"]);
    wait_for("the agent's end", || w.agent().is_none());
    assert_eq!(copies(&w).len(), 60);
    w
}

/// Copies that the next job's agent adopts; its bytes are checked.
fn adopted_next(mut w: World) -> u64 {
    w.keep();
    w.run(&reads(&w).args(["--rounds", "2"])).good();
    w.until("all copies", |s| s.tiers[0].files == 60);
    let status = w.agent().unwrap();
    let on_disk = du(w.tier());
    assert!(
        status.tiers[0].used >= on_disk && status.tiers[0].used < on_disk + 2 * MIB,
        "{status:#?}, {on_disk} on disk"
    );
    let tier = w.tier().to_owned();
    drop(w);
    let _ = fs::remove_dir_all(tier.parent().unwrap());
    status.agent["adopted"]
}

#[test]
fn copies_on_disk_serve_the_next_job() {
    assert_eq!(adopted_next(left_behind()), 60);
}

#[test]
fn a_smaller_capacity_applies_to_copies_that_are_there_already() {
    let mut w = left_behind();
    assert!(du(w.tier()) > 3 * MIB);
    w.resize_tier("2MiB");
    w.keep();
    let tier = &w.agent().unwrap().tiers[0];
    let on_disk = du(w.tier());
    assert!(tier.capacity == 2 * MIB && tier.used <= tier.capacity && on_disk <= tier.capacity, "{tier:?}, {on_disk}");
    w.run(&reads(&w).args(["--rounds", "2"])).good();
    let status = w.agent().unwrap();
    assert!(status.agent["adopted"] >= 15, "what fits is served: {status:#?}");
    assert!(du(w.tier()) <= 2 * MIB && status.tiers[0].used <= 2 * MIB, "{status:#?}");
    let tier = w.tier().to_owned();
    drop(w);
    let _ = fs::remove_dir_all(tier.parent().unwrap());
}

#[test]
fn copies_that_were_cut_or_touched_between_jobs_are_not_used() {
    let w = left_behind();
    let all = copies(&w);
    for p in &all[..10] {
        fs::File::options().write(true).open(p).unwrap().set_len(10).unwrap();
    }
    for p in &all[10..20] {
        // Other bytes: a writer also moves the stamp.
        fs::File::options().write(true).open(p).unwrap().write_all_at(b"other", 0).unwrap();
    }
    fs::write(all[20].with_file_name("stranger"), "?").unwrap();
    let made: Vec<_> = all[21..24].iter().map(fs::remove_file).collect();
    assert!(made.iter().all(Result::is_ok));
    assert_eq!(adopted_next(w), 37);
}

#[test]
fn copies_of_another_data_set_are_dropped_for_room() {
    let disk = tempfile::Builder::new().prefix("monarch-e2e-").tempdir().unwrap();
    let plan = || {
        World::plan()
            .files(30)
            .size(100_000)
            .args(&["--plain"])
            .tier_dir(disk.path().join("tier"))
            .tier_size("4MiB")
            .set("tiers.0.keep_free=1MiB")
    };
    for _ in 0..2 {
        let mut w = plan().build();
        w.keep();
        w.run(&reads(&w).args(["--rounds", "2"])).good();
        // Directories take 1 MiB; the rest is full of this data set's files.
        w.until("copies", |s| s.tiers[0].files >= 20);
        assert!(w.agent().unwrap().agent["copied_on_demand"] + w.agent().unwrap().agent["copied_ahead"] >= 20);
        assert!(du(w.tier()) <= 4 * MIB);
    }
}
