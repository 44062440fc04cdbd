//! Changes by system calls that no preload library sees, with `run.raw_calls=seccomp`: below an
//! output root as if they were written directly, below a data root seen at once.

use super::world::{Drain, Outputs};
use crate::faults::{kill, wait_for};
use crate::harness::{Job, Running, World, built, cases, has_program};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The line of a job whose raw calls are not caught.
const NOT_CAUGHT: &str = "raw system calls are not caught";

/// A PFS with an output root, whose jobs' raw calls are caught.
fn caught() -> Outputs {
    Outputs::new().set("run.raw_calls=seccomp")
}

fn job(w: &Outputs, rows: &[&str]) -> Job {
    w.here(w.world().program("raw-calls")).args(rows)
}

#[test]
fn safetensors_is_staged_though_its_rename_is_a_raw_call() {
    let w = caught();
    // Two generations are replaced before they are published.
    w.same(&job(&w, &["safetensors"]), &Drain::ALL, 2);
}

#[test]
fn without_the_filter_such_files_go_through() {
    let w = Outputs::new();
    w.same(&job(&w, &["safetensors"]), &[Drain::Held], 1);
    assert_eq!(w.parts(), 1, "trainer_state.json alone is staged");
}

#[test]
fn raw_changes_of_pending_names() {
    let w = caught();
    w.same(&job(&w, &["family", "relative", "children"]), &Drain::ALL, 5);
    // These wait for publications.
    w.same(&job(&w, &["links_and_directories", "outside", "errors"]), &[Drain::Quick, Drain::Slow], 2);
}

#[test]
fn raw_changes_on_a_disk_tier() {
    let w = Outputs::disk().set("run.raw_calls=seccomp");
    w.same(&job(&w, &["safetensors", "family", "relative"]), &[Drain::Slow, Drain::Held], 5);
}

#[test]
fn what_a_sandbox_forbids_is_not_done_for_it() {
    let w = caught();
    w.same(&job(&w, &["sandbox"]), &[Drain::Quick, Drain::Held], 1);
}

#[test]
fn many_threads_at_once() {
    let w = caught();
    let job = job(&w, &["threads"]).env("ROUNDS", cases("100", "500"));
    w.same(&job, &[Drain::Quick, Drain::Held], 80);
}

#[test]
fn a_static_program_changes_names_as_directly() {
    if !has_program("raw-calls-static") {
        println!("skipped: no static libc");
        return;
    }
    let w = caught();
    let job = w.here(w.world().program("raw-calls-static")).args(["family", "relative", "outside", "errors"]);
    w.same(&job, &[Drain::Quick], 0);
}

/// Processes that make changes for a job, by the number of its `run`.
fn helpers(run: u32) -> Vec<i32> {
    let is_helper = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (state, parent) = (fields.next(), fields.next());
        words.split(|&c| c == 0).nth(1) == Some(b"raw-calls") && state != Some("Z") && parent == Some(&run.to_string())
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(is_helper).collect()
}

fn helper(run: &Running) -> i32 {
    let mut found = Vec::new();
    wait_for("a helper", || {
        found = helpers(run.pid());
        found.len() == 1
    });
    found[0]
}

/// A job that renames, makes and removes until a file appears.
fn until(w: &Outputs) -> (Job, PathBuf) {
    let stop = w.world().scratch().join("stop");
    (w.here(w.world().program("raw-calls")).arg("until").arg(&stop), stop)
}

#[test]
fn a_helper_that_is_killed_costs_the_job_nothing() {
    let w = caught();
    let (job, stop) = until(&w);
    let mut running = w.start(&job);
    running.until_written("ready");
    for _ in 0..8 {
        let pid = helper(&running);
        assert!(kill(pid, libc::SIGKILL));
        wait_for("another helper", || helpers(running.pid()).iter().any(|p| *p != pid));
        std::thread::sleep(Duration::from_millis(30));
    }
    fs::write(&stop, "").unwrap();
    let ended = running.end().good();
    assert!(ended.text().contains("failed: 0\nmany\n"), "{}", ended.text());
}

#[test]
fn processes_that_outlive_run_go_on() {
    let w = caught();
    let (inner, stop) = until(&w);
    let said = w.world().scratch().join("said");
    let words = inner.words().iter().map(|word| word.to_str().unwrap().to_owned());
    let script = format!("{} > {} 2>&1 & wait", words.collect::<Vec<_>>().join(" "), said.display());
    let running = w.start(&w.here(Job::new("sh").arg("-c").arg(script)));
    let text = || fs::read_to_string(&said).unwrap_or_default();
    wait_for("the job", || text().contains("ready"));
    helper(&running);
    std::thread::sleep(Duration::from_millis(50));
    assert!(kill(running.pid() as i32, libc::SIGKILL));
    std::thread::sleep(Duration::from_millis(300));
    fs::write(&stop, "").unwrap();
    wait_for("its end", || text().contains("## end"));
    assert!(text().contains("failed: 0\nmany\n"), "{}", text());
}

#[test]
fn a_second_filter_with_a_listener_leaves_the_calls_to_the_first() {
    let w = caught();
    let mut outer: Vec<_> = vec![built("monarch").into_os_string(), "run".into(), "--quiet".into()];
    outer.extend(w.world().words());
    outer.extend(w.words());
    outer.push("--".into());
    outer.extend_from_slice(job(&w, &["safetensors"]).words());
    let mut words = outer.into_iter();
    let job = w.here(Job::new(words.next().unwrap()).args(words));
    let ended = w.start(&job).end().good();
    assert!(ended.errors().contains(NOT_CAUGHT) && ended.errors().contains("another filter"), "{}", ended.errors());
    assert!(ended.text().contains("one file\n") && !ended.text().contains("ANOTHER"), "{}", ended.text());
}

#[test]
fn wrong_words_are_explained() {
    for words in [["--raw-calls", "yes"], ["--set", "run.raw_calls=on"]] {
        let out = Command::new(built("monarch")).arg("run").args(words).args(["--root", "/tmp", "--", "true"]).output();
        let out = out.unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains("raw system calls") && said.contains("seccomp"), "{said}");
    }
}

#[test]
fn raw_changes_below_a_data_root_are_seen_at_once() {
    let w = World::plan().files(12).disk().build();
    let mut files: Vec<PathBuf> = crate::faults::regular(w.root());
    files.retain(|path| fs::metadata(path).is_ok_and(|m| m.len() > 1000));
    files.truncate(6);
    let job = w.program("raw-calls").arg("data").args(files).option("--raw-calls").option("seccomp");
    let ended = w.start_indexed(&job).end().good();
    assert!(ended.text().ends_with("seen at once: 6 of 6\n## end\n"), "{}", ended.text());
}
