//! Damage in a staging directory: nothing that a job has written is removed without having been
//! published.

use super::{World, tree};
use monarch_abi::outputs::record::{self, HEADER};
use monarch_outputs::kept;
use monarch_outputs::recovery::{RecoverReport, recover};
use monarch_outputs::target::doubles::Call;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const FILES: usize = 6;

/// A world whose agent was killed with files pending: two are published, one was renamed, one was
/// replaced, one removed.
fn killed() -> World {
    let mut world = World::new();
    let shim = world.shim();
    for at in 0..2 {
        shim.write(&format!("published{at}"), b"early");
    }
    world.drained();
    world.fault(Call::Open, 0, u64::MAX, Errno::IO);
    for at in 0..FILES {
        shim.write(&format!("f{at}"), format!("precious {at}").as_bytes());
    }
    shim.write("m.tmp", b"renamed");
    shim.rename("m.tmp", "m");
    shim.write("r", b"first version");
    shim.write("r", b"second version");
    shim.write("gone", b"removed");
    shim.unlink("gone");
    world.crash();
    world.faults.clear();
    world
}

fn reboot(world: &World) {
    let info = world.attached.staging.join("root");
    let text = std::fs::read_to_string(&info).unwrap();
    std::fs::write(&info, text.replace(&monarch_outputs::staging::boot_id(), "another-boot")).unwrap();
}

/// What the job had last.
fn wanted() -> BTreeMap<String, String> {
    let mut want = tree(&[("m", "renamed"), ("published0", "early"), ("published1", "early"), ("r", "second version")]);
    want.extend((0..FILES).map(|at| (format!("f{at}"), format!("precious {at}"))));
    want
}

fn recovered(staging: &Path) -> RecoverReport {
    let mut turns = 0;
    recover(staging, |_| {
        turns += 1;
        if turns > 500 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap()
}

/// Each content that the job had last is on the PFS, under its last name or one that it had before,
/// or lies in the staging directory.
fn nothing_is_lost(world: &World, what: &str) {
    let staging = &world.attached.staging;
    let mut left = BTreeSet::new();
    for dir in ["data", "kept"] {
        for entry in std::fs::read_dir(staging.join(dir)).into_iter().flatten() {
            left.insert(String::from_utf8_lossy(&std::fs::read(entry.unwrap().path()).unwrap()).into_owned());
        }
    }
    let pfs = world.pfs();
    for (name, text) in wanted() {
        let is_there = pfs.values().any(|found| *found == text);
        assert!(is_there || left.contains(&text), "{what}: {name} is lost; PFS {pfs:?}, left {left:?}");
    }
}

fn flip(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

/// Where the records of a journal begin.
fn offsets(journal: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(header) = record::whole(&journal[at..]) {
        found.push(at);
        at += header.len as usize;
    }
    found
}

#[test]
fn a_flipped_bit_in_the_record_of_a_file_loses_no_file() {
    for of_this_boot in [true, false] {
        let world = killed();
        let staging = world.attached.staging.clone();
        if !of_this_boot {
            reboot(&world);
        }
        let journal = staging.join("journal");
        let bytes = std::fs::read(&journal).unwrap();
        let of_f2 = offsets(&bytes).into_iter().find(|at| bytes[at + HEADER..].starts_with(b"f2")).unwrap();
        flip(&journal, of_f2 + HEADER);
        let report = recovered(&staging);
        assert!(!report.is_done && report.parts_removed == 0, "{report:?}");
        let mut want = wanted();
        want.remove("f2");
        let mut pfs = world.pfs();
        pfs.retain(|name, _| !name.starts_with(".monarch-part-"));
        assert_eq!(pfs, want);
        let kept = kept::list(&staging).unwrap();
        let f2 = kept.iter().find(|kept| kept.name.as_deref() == Some(b"f2")).unwrap();
        assert_eq!(std::fs::read(&f2.path).unwrap(), b"precious 2");
        assert!(kept.iter().any(|kept| kept.id.is_none() && kept.bytes > 0), "no copy of the journal");
        assert!(report.rest.is_pending() && report.rest.entries.iter().any(|entry| entry.path == "f2"), "{report:?}");
        // Until a person has decided, nothing changes; then all goes.
        assert!(!recovered(&staging).is_done && f2.path.exists());
        std::fs::rename(&f2.path, world.root().join("f2")).unwrap();
        std::fs::remove_dir_all(staging.join(kept::KEPT)).unwrap();
        assert!(recovered(&staging).is_done);
        assert_eq!(world.pfs(), wanted());
    }
}

#[test]
fn a_flipped_bit_anywhere_in_the_journal_loses_nothing() {
    let len = std::fs::metadata(killed().attached.staging.join("journal")).unwrap().len() as usize;
    for (turn, at) in (0..len).step_by(13).enumerate() {
        let world = killed();
        if turn % 2 == 1 {
            reboot(&world);
        }
        flip(&world.attached.staging.join("journal"), at);
        recovered(&world.attached.staging);
        nothing_is_lost(&world, &format!("byte {at} of the journal"));
    }
}

#[test]
fn an_agent_that_starts_with_a_damaged_journal_loses_nothing_and_refuses_it() {
    for of_this_boot in [true, false] {
        let mut world = killed();
        if !of_this_boot {
            reboot(&world);
        }
        let staging = world.attached.staging.clone();
        let data = || std::fs::read_dir(staging.join("data")).unwrap().count();
        let before = data();
        let of_first = 70;
        flip(&staging.join("journal"), of_first);
        let start = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.restart()));
        assert!(start.is_err(), "the agent has taken it in");
        assert_eq!(data(), before);
        recovered(&staging);
        nothing_is_lost(&world, "after the agent");
    }
}

#[test]
fn a_journal_that_was_cut_or_zeroed_loses_nothing() {
    let len = std::fs::metadata(killed().attached.staging.join("journal")).unwrap().len() as usize;
    for (turn, at) in (0..len).step_by(71).enumerate() {
        for zeroed in [true, false] {
            let world = killed();
            if turn % 2 == 1 {
                reboot(&world);
            }
            let journal = world.attached.staging.join("journal");
            let mut bytes = std::fs::read(&journal).unwrap();
            if zeroed {
                bytes[at..].fill(0);
            } else {
                bytes.truncate(at);
            }
            std::fs::write(&journal, bytes).unwrap();
            recovered(&world.attached.staging);
            nothing_is_lost(&world, &format!("cut at {at}, zeroed {zeroed}"));
        }
    }
}

#[test]
fn links_of_the_overlay_that_are_missing_lose_nothing() {
    for damaged in [None, Some(70), Some(300)] {
        for of_this_boot in [true, false] {
            let world = killed();
            if !of_this_boot {
                reboot(&world);
            }
            let staging = &world.attached.staging;
            let links = staging.join("tree");
            std::fs::remove_dir_all(&links).unwrap();
            std::fs::create_dir(&links).unwrap();
            std::fs::set_permissions(&links, PermissionsExt::from_mode(0o700)).unwrap();
            if let Some(at) = damaged {
                flip(&staging.join("journal"), at);
            }
            recovered(staging);
            nothing_is_lost(&world, &format!("no overlay, damaged {damaged:?}"));
        }
    }
}

#[test]
fn a_log_that_is_damaged_publishes_and_removes_nothing() {
    let len = std::fs::metadata(killed().attached.staging.join("published")).unwrap().len() as usize;
    for at in (0..len).step_by(17) {
        let world = killed();
        let staging = &world.attached.staging;
        flip(&staging.join("published"), at);
        let before = std::fs::read_dir(staging.join("data")).unwrap().count();
        match recover(staging, |_| ControlFlow::Continue(())) {
            Ok(report) => assert!(report.is_done, "{report:?}"),
            Err(e) => {
                assert!(e.to_string().contains("which staged files are published is not known"), "{e}");
                assert_eq!(std::fs::read_dir(staging.join("data")).unwrap().count(), before);
            }
        }
        nothing_is_lost(&world, &format!("byte {at} of the log"));
    }
}

#[test]
fn a_journal_of_a_newer_version_is_left_alone() {
    let world = killed();
    let staging = &world.attached.staging;
    let journal = staging.join("journal");
    let count = || std::fs::read_dir(staging.join("data")).unwrap().count();
    let before = count();
    let mut bytes = std::fs::read(&journal).unwrap();
    let at = offsets(&bytes)[4];
    let len = record::whole(&bytes[at..]).unwrap().len as usize;
    bytes[at + 40] = 99;
    bytes[at + 8..at + 16].fill(0);
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[at..at + len]);
    bytes[at + 8..at + 16].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&journal, bytes).unwrap();
    let e = recover(staging, |_| ControlFlow::Continue(())).unwrap_err();
    assert!(e.to_string().contains("written by a newer version of Monarch"), "{e}");
    assert_eq!(count(), before);
    nothing_is_lost(&world, "a newer version");
}
