//! `monarch stop --purge`: says exactly what it removed, and removes nothing but tiers.

use super::{Place, Said, path};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes what an agent that has ended has left in a directory: a lock, and a file among the copies.
fn tier_in(dir: &Path) -> PathBuf {
    let own = dir.join(format!("monarch-{}", rustix::process::geteuid().as_raw()));
    fs::create_dir_all(own.join("copies/00")).expect("mkdir");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).expect("chmod");
    fs::write(own.join("lock"), "1\n").expect("write");
    fs::write(own.join("copies/00/copy"), vec![1; 100_000]).expect("write");
    own
}

fn purge(p: &Place, tiers: &[&Path]) -> Said {
    let tiers: Vec<String> = tiers.iter().flat_map(|t| ["--tier".to_owned(), path(t)]).collect();
    p.monarch(["stop", "--purge"].into_iter().map(str::to_owned).chain(tiers))
}

#[test]
fn copies_of_a_job_without_a_tier_are_purged_without_naming_one() {
    let p = Place::new();
    let own = tier_in(&p.at("tmp"));
    let mut c = Command::new(env!("CARGO_BIN_EXE_monarch"));
    c.env("MONARCH_RUNTIME_DIR", p.at("run")).env("TMPDIR", p.at("tmp")).args(["stop", "--purge"]);
    let said = Said::from(c.current_dir(p.dir.path()).output().expect("monarch starts"));
    assert!(said.code == Some(0) && said.out.contains("removed "), "{said:#?}");
    assert!(!own.exists(), "{said:#?}");
}

#[test]
fn what_went_is_counted() {
    let p = Place::new();
    let own = tier_in(&p.at("tier"));
    let said = purge(&p, &[&p.at("tier")]);
    // The file is of no copy that the log knows. Who holds a tier makes what it lacks: here a
    // seed, and all but one of 256 directories of copies, with 5 above and beside them.
    let start = format!("removed {}: 0 copies of 0 B; 3 files of ", path(&own));
    assert!(said.code == Some(0) && said.out.starts_with(&start), "{said:#?}");
    assert!(said.out.ends_with(" KiB and 261 directories in all\n"), "{said:#?}");
    let kib: f64 = said.out[start.len()..].split(' ').next().expect("a number").parse().expect("a number");
    assert!((97.0..140.0).contains(&kib), "{said:#?}");
    assert!(!own.exists() && p.at("tier").is_dir(), "the directory that the user named stays: {said:#?}");
}

#[test]
fn a_directory_that_was_never_a_tier_is_named_and_left_alone() {
    let p = Place::new();
    fs::write(p.at("root/a/mine"), "x").expect("write");
    // Alone: nothing was there at all.
    purge(&p, &[&p.at("root/a")]).failed(4, &["no agent", &path(&p.at("root/a"))]);
    // Beside a tier.
    tier_in(&p.at("tier"));
    let said = purge(&p, &[&p.at("tier"), &p.at("root/a")]);
    let note = format!("nothing is removed in {}: no agent has made a tier of yours there", path(&p.at("root/a")));
    assert!(said.code == Some(0) && said.err.contains(&note), "{said:#?}");
    assert_eq!(said.out.lines().count(), 1, "{said:#?}");
    assert!(p.at("root/a/mine").exists());
}

#[test]
fn a_directory_that_only_has_the_name_of_a_tier_is_not_purged() {
    let p = Place::new();
    let own = tier_in(&p.at("tier"));
    fs::remove_file(own.join("lock")).expect("a lock");
    let said = purge(&p, &[&p.at("tier")]);
    said.failed(1, &["not purged: ", "has no lock of an agent, and was never a tier"]);
    assert!(own.join("copies/00/copy").exists(), "{said:#?}");
}

#[test]
fn what_cannot_be_removed_is_said() {
    let p = Place::new();
    let own = tier_in(&p.at("tier"));
    // A mount: not even root removes it. Without the right to mount there is nothing to see.
    let script = "mount -t tmpfs none \"$1/copies/00\" && \"$2\" stop --purge --tier \"$3\"";
    let mut c = Command::new("unshare");
    c.args(["--mount", "sh", "-c", script, "sh", &path(&own), env!("CARGO_BIN_EXE_monarch"), &path(&p.at("tier"))]);
    let out = c.env("MONARCH_RUNTIME_DIR", p.at("run")).env("TMPDIR", p.at("tmp")).output();
    let Ok(out) = out.map(Said::from) else { return };
    if out.err.contains("Operation not permitted") || out.err.contains("permission denied") {
        return;
    }
    assert!(out.code == Some(1) && out.err.contains("not all of "), "{out:#?}");
    assert!(own.join("copies/00").is_dir());
}
