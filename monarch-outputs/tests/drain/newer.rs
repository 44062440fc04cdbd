//! What the PFS has got since the job wrote something, while there was no agent.

use super::shim::Shim;
use super::{World, tree};
use monarch_abi::outputs::names::Staged;
use monarch_outputs::recovery::{RecoverReport, recover};
use monarch_outputs::target::doubles::Call;
use rustix::io::Errno;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// A world whose agent publishes nothing any more.
fn held() -> World {
    let world = World::new();
    let shim = world.shim();
    for name in ["model", "old", "kept", "renamed"] {
        shim.write(name, b"first");
    }
    world.drained();
    world.fault(Call::Open, 0, u64::MAX, Errno::IO);
    world
}

/// Appends records of a file until the agent cuts the journal; its name, and what is staged of it.
fn cut_journal(shim: &Shim) -> (String, Staged) {
    let long = "n".repeat(240);
    let staged = shim.create(&long).staged;
    let cuts = shim.state().generation.load(Ordering::Acquire);
    while shim.state().generation.load(Ordering::Acquire) == cuts {
        shim.chmod(&long, 0o600);
    }
    (long, staged)
}

fn recovered(world: &mut World) -> RecoverReport {
    world.crash();
    world.faults.clear();
    recover(&world.attached.staging, |_| ControlFlow::Continue(())).unwrap()
}

fn content(world: &World, name: &str) -> Option<String> {
    world.pfs().remove(name)
}

/// What lies in `kept`: names and contents.
fn kept(world: &World) -> Vec<(String, String)> {
    let all = monarch_outputs::kept::list(&world.attached.staging).unwrap();
    let of = |kept: &monarch_outputs::kept::Kept| {
        assert!(kept.is_older, "{kept:?}");
        (kept.shown(), std::fs::read_to_string(&kept.path).unwrap())
    };
    all.iter().map(of).collect()
}

#[test]
fn a_newer_file_is_not_replaced_by_what_was_pending() {
    let mut world = held();
    let shim = world.shim();
    shim.write("model", b"second");
    shim.write("new", b"pending");
    shim.write("tmp", b"renamed");
    shim.rename("tmp", "renamed");
    shim.write("after", b"others go on");
    for name in ["model", "new", "renamed"] {
        std::fs::write(world.root().join(name), "newer").unwrap();
    }
    let report = recovered(&mut world);
    for name in ["model", "new", "renamed"] {
        assert_eq!(content(&world, name).as_deref(), Some("newer"), "{name}");
    }
    assert_eq!(content(&world, "after").as_deref(), Some("others go on"));
    let pairs = [("model", "second"), ("new", "pending"), ("renamed", "renamed")];
    assert_eq!(kept(&world), pairs.map(|(name, text)| (name.to_owned(), text.to_owned())));
    assert!(!report.is_done);
    let whys: Vec<_> = report.rest.entries.iter().filter_map(|entry| entry.why.clone()).collect();
    assert_eq!(whys.len(), 3);
    assert!(whys.iter().all(|why| why.contains("newer") && why.contains("kept/")), "{whys:?}");
    // Once more: nothing changes.
    let report = recover(&world.attached.staging, |_| ControlFlow::Continue(())).unwrap();
    assert!(!report.is_done && kept(&world).len() == 3);
    assert_eq!(content(&world, "model").as_deref(), Some("newer"));
    // A person has decided.
    std::fs::remove_dir_all(world.attached.staging.join("kept")).unwrap();
    assert!(recover(&world.attached.staging, |_| ControlFlow::Continue(())).unwrap().is_done);
    assert!(!world.pfs().keys().any(|name| name.contains("monarch")), "{:?}", world.pfs());
}

#[test]
fn a_newer_file_is_not_removed_by_what_was_pending() {
    let mut world = held();
    let shim = world.shim();
    shim.write("first", b"so that removals wait");
    shim.unlink("old");
    shim.unlink("kept");
    shim.symlink("link", "model");
    std::fs::write(world.root().join("kept"), "newer").unwrap();
    std::fs::write(world.root().join("link"), "newer").unwrap();
    let report = recovered(&mut world);
    assert_eq!(content(&world, "old"), None);
    assert_eq!(content(&world, "kept").as_deref(), Some("newer"));
    assert_eq!(content(&world, "link").as_deref(), Some("newer"));
    assert!(report.is_done, "{report:?}");
}

#[test]
fn versions_that_were_published_from_here_are_not_taken_for_newer_ones() {
    for is_cut in [false, true] {
        let mut world = held();
        let shim = world.shim();
        // Opened while another version is pending, which is published then: the PFS has not what
        // it had when the file was opened.
        shim.write("model", b"second");
        shim.write("between", b"x");
        let open = shim.create("model2");
        shim.rename("model2", "model");
        world.faults.clear();
        while content(&world, "between").is_none() {
            std::thread::yield_now();
        }
        world.fault(Call::Open, 0, u64::MAX, Errno::IO);
        if is_cut {
            cut_journal(&shim);
        }
        std::fs::write(shim.data(&open.staged), "third").unwrap();
        shim.close(open);
        shim.write("model", b"fourth");
        let report = recovered(&mut world);
        assert!(report.is_done, "cut: {is_cut}, {report:?}");
        assert_eq!(content(&world, "model").as_deref(), Some("fourth"));
    }
}

#[test]
fn an_agent_replaces_what_others_have_written_unless_calls_of_the_job_went_past_it() {
    for is_overtaken in [false, true] {
        let mut world = held();
        let shim = world.shim();
        shim.write("model", b"second");
        world.crash();
        std::fs::write(world.root().join("model"), "newer").unwrap();
        shim.state().is_overtaken.store(u32::from(is_overtaken), Ordering::Release);
        world.faults.clear();
        world.restart();
        let began = std::time::Instant::now();
        while shim.staged("model").is_some() {
            assert!(began.elapsed().as_secs() < 60);
            std::thread::yield_now();
        }
        let (text, count) = if is_overtaken { ("newer", 1) } else { ("second", 0) };
        assert_eq!(content(&world, "model").as_deref(), Some(text));
        assert_eq!(kept(&world).len(), count);
    }
}

/// A world whose agent has given a name to a file, or made a link, and is killed before it has
/// logged that.
fn unlogged(is_link: bool) -> World {
    let world = World::new();
    std::fs::create_dir(world.root().join("dir")).unwrap();
    let shim = world.shim();
    world.fault(Call::SyncDir, 0, u64::MAX, Errno::IO);
    if is_link {
        shim.symlink("dir/model", "first");
    } else {
        shim.write("dir/model", b"first");
    }
    while content(&world, "dir/model").as_deref() != Some(first(is_link)) {
        std::thread::yield_now();
    }
    // It does nothing more.
    for call in [Call::Rename, Call::Unlink, Call::Symlink] {
        world.fault(call, 0, u64::MAX, Errno::IO);
    }
    world
}

fn first(is_link: bool) -> &'static str {
    if is_link { "-> first" } else { "first" }
}

/// What the job does then, and what there is in the end.
type Change = (fn(&Shim), &'static [(&'static str, &'static str)]);

const CHANGES: [Change; 6] = [
    (|shim| shim.unlink("dir/model"), &[]),
    (
        |shim| {
            shim.write("dir/model", b"second");
        },
        &[("dir/model", "second")],
    ),
    (
        |shim| {
            shim.write("dir/tmp", b"second");
            shim.rename("dir/tmp", "dir/model");
        },
        &[("dir/model", "second")],
    ),
    (
        |shim| {
            shim.unlink("dir/model");
            shim.symlink("dir/model", "other");
        },
        &[("dir/model", "-> other")],
    ),
    (
        |shim| {
            shim.unlink("dir/model");
            shim.write("dir/model", b"second");
            shim.rename("dir/model", "dir/renamed");
        },
        &[("dir/renamed", "second")],
    ),
    (
        |shim| {
            shim.write("dir/other", b"x");
            shim.unlink("dir/model");
            shim.write("dir/model", b"second");
            shim.unlink("dir/model");
            shim.write("dir/model", b"third");
        },
        &[("dir/model", "third"), ("dir/other", "x")],
    ),
];

#[test]
fn what_a_killed_agent_has_not_logged_is_not_taken_for_newer() {
    for is_link in [false, true] {
        for (at, (change, expected)) in CHANGES.iter().enumerate() {
            for agents in 0..3 {
                let mut world = unlogged(is_link);
                change(&world.shim());
                for _ in 0..agents {
                    // It can do nothing.
                    world.crash();
                    world.restart();
                }
                assert_eq!(content(&world, "dir/model").as_deref(), Some(first(is_link)), "{at}, {is_link}");
                let report = recovered(&mut world);
                assert!(report.is_done, "{at}, {is_link}, {agents} agents: {report:?}");
                assert_eq!(world.pfs(), tree(expected), "{at}, {is_link}, {agents} agents");
            }
        }
    }
}

#[test]
fn what_others_put_in_the_place_of_what_was_not_logged_is_newer() {
    for is_link in [false, true] {
        for (at, (change, expected)) in CHANGES.iter().enumerate() {
            let mut world = unlogged(is_link);
            change(&world.shim());
            let path = world.root().join("dir/model");
            // (Its inode number is another one.)
            std::fs::write(world.root().join("new"), "newer").unwrap();
            std::fs::rename(world.root().join("new"), path).unwrap();
            recovered(&mut world);
            assert_eq!(content(&world, "dir/model").as_deref(), Some("newer"), "{at}, {is_link}: {expected:?}");
        }
    }
}

#[test]
fn a_published_file_that_is_renamed_before_that_was_logged_has_its_new_name_only() {
    let mut world = unlogged(false);
    world.shim().rename("dir/model", "dir/renamed");
    let report = recovered(&mut world);
    assert!(report.is_done, "{report:?}");
    assert_eq!(world.pfs(), tree(&[("dir/renamed", "first")]));
}

/// The job has removed a link and made a file there: others may have changed that since.
#[test]
fn a_link_that_was_published_says_nothing_of_what_comes_after_it() {
    let mut world = World::new();
    let shim = world.shim();
    let open = shim.create("open");
    shim.symlink("model", "first");
    while shim.link("model").is_some() {
        std::thread::yield_now();
    }
    world.fault(Call::Open, 0, u64::MAX, Errno::IO);
    std::fs::remove_file(world.root().join("model")).unwrap();
    shim.write("model", b"second");
    std::fs::write(world.root().join("model"), "newer").unwrap();
    drop(open);
    recovered(&mut world);
    assert_eq!(content(&world, "model").as_deref(), Some("newer"));
    assert_eq!(kept(&world), [("model".to_owned(), "second".to_owned())]);
}

#[test]
fn what_stands_in_the_place_of_a_link_that_was_left_out_is_not_removed() {
    let mut world = held();
    let shim = world.shim();
    shim.write("first", b"so that all waits");
    shim.symlink("link", "model");
    shim.write("between", b"x");
    shim.unlink("link");
    std::fs::write(world.root().join("link"), "newer").unwrap();
    let report = recovered(&mut world);
    assert!(report.is_done, "{report:?}");
    assert_eq!(content(&world, "link").as_deref(), Some("newer"));
}

/// The PFS keeps its changes and says that it cannot make them durable: nothing is logged.
#[test]
fn what_a_failed_step_has_put_at_a_name_is_not_newer() {
    for (at, (change, expected)) in CHANGES.iter().enumerate() {
        let mut world = unlogged(false);
        let shim = world.shim();
        change(&shim);
        // The journal is cut meanwhile, and the agent killed.
        let (long, other) = cut_journal(&shim);
        std::fs::remove_file(shim.data(&other)).unwrap();
        shim.unlink(&long);
        let report = recovered(&mut world);
        assert!(report.is_done, "{at}: {report:?}");
        assert_eq!(world.pfs(), tree(expected), "{at}");
    }
}

#[test]
fn a_snapshot_is_not_taken_for_a_newer_file() {
    for is_removed in [false, true] {
        let mut world = World::new();
        let shim = world.shim();
        let mut handle = shim.create("log.txt");
        handle.file.write_all(b"line 1\n").unwrap();
        let path = world.root().join("log.txt");
        world.outputs.as_ref().unwrap().publish_snapshot(&path).unwrap();
        world.fault(Call::Open, 0, u64::MAX, Errno::IO);
        world.fault(Call::Unlink, 0, u64::MAX, Errno::IO);
        handle.file.write_all(b"line 2\n").unwrap();
        shim.close(handle);
        if is_removed {
            shim.unlink("log.txt");
        }
        let report = recovered(&mut world);
        assert!(report.is_done, "{is_removed}: {report:?}");
        let expected = if is_removed { None } else { Some("line 1\nline 2\n") };
        assert_eq!(content(&world, "log.txt").as_deref(), expected);
    }
}
