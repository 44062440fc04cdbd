//! The calls of frameworks, libraries and tools, replayed: direct against staged.
//!
//! A family is a program of `tests/programs/outputs` with one function a row; each runs in a
//! directory of its own and prints what it sees. Rows that must wait for publications (directory
//! renames, hard links, executing) are left out while the drain is held.

use super::world::{Drain, Outputs};
use crate::harness::{cases, has_command, sources};
use std::process::Command;

/// Runs a family in all ways.
#[track_caller]
fn same(w: &Outputs, program: &str, least: usize) {
    w.same(&w.program(program), &[Drain::Quick, Drain::Slow], least);
    w.same(&w.program(program).arg("--no-barriers"), &[Drain::Held], least);
}

#[test]
fn checkpoints_of_frameworks() {
    same(&Outputs::new(), "saves.py", 80);
}

#[test]
fn checkpoints_of_frameworks_on_a_disk_tier() {
    let w = Outputs::disk();
    w.same(&w.program("saves.py"), &[Drain::Quick, Drain::Slow], 80);
}

#[test]
fn arrays_and_chunks() {
    same(&Outputs::new(), "arrays.py", 80);
}

#[test]
fn names_links_and_listings() {
    same(&Outputs::new(), "names.py", 80);
}

/// The kernel follows the links of the PFS, of which one may lead to a link that is pending.
#[test]
fn links_on_the_way_are_those_that_the_job_has_made() {
    let w = Outputs::new();
    w.same(&w.program("links.py"), &[Drain::Quick, Drain::Slow], 15);
}

/// While what a process has made is being published, another one that found nothing of that name
/// made it, too.
#[test]
fn a_name_is_made_or_taken_by_one_of_two_processes() {
    let w = Outputs::new();
    let staged = w.staged(&w.program("claims.py").arg(cases("40", "150")), Drain::Quick);
    let told = staged.ended.text();
    let wrong: Vec<&str> = told.lines().filter(|line| !line.ends_with(": 0")).collect();
    assert!(wrong.is_empty() && told.lines().count() == 23, "{wrong:?} {}", staged.ended.errors());
    assert!(w.parts() >= cases(120, 500), "{} files were staged", w.parts());
}

/// What a process sets of a file, and the other name that it gives it, are those of the file that
/// another one cuts and writes at the same moment: in the order of the calls, or in the other one.
#[test]
fn what_is_set_of_a_file_is_kept_while_another_process_writes_it() {
    let w = Outputs::new();
    let options = format!(
        r#"{{"first": ["write", "rename"], "second": ["chmod", "chown", "setxattr", "link of it"],
            "before": ["pending", "published"], "rounds": {}, "seconds": 300, "seed": 1, "settle": 0.05}}"#,
        cases(20, 60)
    );
    let outside = tempfile::Builder::new().prefix("e2e-outside-").tempdir().expect("temporary directory");
    let reference = outside.path().join("reference");
    let ended = w.start(&w.program("pairs.py").arg(&reference).arg(options)).end();
    assert!(ended.text().contains("16 of 16 pairs, 0 wrong"), "{}{}", ended.text(), ended.errors());
    // What both processes have seen is what is published.
    let compare = r#"
import json, sys
sys.path.insert(0, sys.argv[1])
from see import names_in
for line in open(f"{sys.argv[2]}.seen"):
    directory, *pair, seen = json.loads(line)
    published = names_in(f"{sys.argv[3]}/{directory}")
    if published != seen:
        print(pair, seen, published)
"#;
    let mut python = Command::new("python3");
    python.args(["-B", "-c", compare]).arg(sources().join("outputs")).arg(&reference).arg(w.published());
    let compared = python.output().expect("python3");
    assert!(compared.status.success() && compared.stdout.is_empty(), "{compared:?}");
    w.clear();
}

/// Each output root has an order and an overlay of its own.
#[test]
fn links_lead_from_one_output_root_to_another() {
    let w = Outputs::new();
    let sibling = w.root().with_file_name("sibling");
    let job = w.program("links_between_roots.py");
    let job = job.option("--output").option(sibling).option("--set").option("outputs.1.volatile=true");
    w.same(&job, &[Drain::Quick, Drain::Slow], 15);
}

#[test]
fn modes_owners_times_and_reopened_files() {
    let w = Outputs::new();
    let job = || w.program("attributes.py").arg("--but=another_user");
    w.same(&job(), &[Drain::Quick, Drain::Slow], 30);
    w.same(&job().arg("--no-barriers"), &[Drain::Held], 30);
}

#[test]
#[ignore = "fails: docs/OUTPUTS.md, Known gaps"]
fn another_user() {
    let w = Outputs::new();
    w.same(&w.program("attributes.py").arg("another_user"), &[Drain::Slow], 1);
}

#[test]
fn logs_databases_and_mutexes_go_through() {
    let w = Outputs::new();
    let job = w.program("loggers.py");
    w.same(&job, &Drain::ALL, 1);
    if !super::world::is_built() {
        return;
    }
    // Each is written to the PFS itself.
    w.staged(&job, Drain::Quick);
    let paths = w.pfs().paths().unwrap();
    let event = "event_files/events.out.tfevents.1500000000.host";
    for name in ["a_csv_that_is_appended_to/metrics.csv", event, "sqlite/study.db", "flags_that_go_through/synced"] {
        let counts = paths.get(&format!("out/{name}")).copied().unwrap_or_default();
        assert!(counts.writes > 0, "{name} was not written to the PFS itself: {counts:?}");
    }
}

/// cp, mv, install, tar, rsync, sed, shells, git and make.
#[test]
fn tools_of_the_system() {
    let w = Outputs::new();
    w.same(&w.program("tools.sh"), &[Drain::Quick, Drain::Slow], 60);
}

#[test]
fn a_root_that_is_also_read_as_a_data_set() {
    // The output root lies in a data root: what is written is seen there, too.
    let w = Outputs::new();
    let inside = w.root().parent().expect("the mount").to_owned();
    let job = w.program("saves.py").option("--root").option(inside);
    w.same(&job, &[Drain::Quick], 80);
    let job = w.program("names.py").option("--root").option(w.root());
    w.same(&job, &[Drain::Quick], 80);
}

#[test]
fn closed_files_are_on_the_pfs_when_fsync_publishes() {
    let w = Outputs::new().set("outputs.0.fsync=publish");
    w.same(&w.program("saves.py"), &[Drain::Quick, Drain::Slow], 80);
    if has_command("sync") {
        let script = "echo one > a && sync a && cat \"$0/a\" && echo '## end'";
        let job = w.here(crate::harness::Job::new("sh").args(["-c", script]).arg(w.published()));
        w.same(&job, &[Drain::Quick, Drain::Slow], 1);
    }
}
