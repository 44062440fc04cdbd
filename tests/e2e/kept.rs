//! Commands that find no agent: what earlier jobs left is shown, verified and dropped all the same.

use crate::faults::{agent_pid, copies, kill, monarch, reads, regular};
use crate::harness::{Job, World};
use crate::warm::{hurt, staged, until_gone};
use serde_json::Value;
use slowfs::Op;
use std::fs;
use std::path::{Path, PathBuf};

/// A command about the tier of a world: exit code, standard output, standard error.
fn asked(w: &World, words: &[&str]) -> (i32, String, String) {
    let tier = w.tier().display().to_string();
    let words: Vec<&str> = words.iter().copied().chain(["--tier", &tier]).collect();
    let out = monarch(w, &words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
}

fn json(w: &World, words: &[&str]) -> Value {
    let (_, out, err) = asked(w, words);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out} {err}"))
}

/// The verdict of `explain`.
fn verdict(w: &World, path: &Path) -> String {
    json(w, &["explain", "--json", path.to_str().unwrap()])[0]["verdict"]["is"].as_str().unwrap().to_owned()
}

/// The log that the last agent left.
fn last_log(w: &World) -> PathBuf {
    fs::read_dir(w.tier()).unwrap().map(|e| e.unwrap().path().join("agent.log")).find(|log| log.is_file()).unwrap()
}

#[test]
fn status_and_du_show_what_jobs_have_left() {
    let (w, _disk) = staged(40, &[]);
    let files = regular(w.root());
    let bytes: u64 = files.iter().map(|f| f.metadata().unwrap().len()).sum();
    w.pfs().reset().unwrap();
    let (code, out, err) = asked(&w, &["status"]);
    assert_eq!(code, 4, "no agent is running: {err}");
    assert!(err.contains("no agent of yours") && err.contains("earlier jobs have left"), "{err}");
    for words in [format!("{}: {} copies", w.root().display(), files.len()), last_log(&w).display().to_string()] {
        assert!(out.contains(&words), "{words} in {out}");
    }
    let all = json(&w, &["du", "--json"]);
    assert_eq!(all[0]["path"], w.root().to_str().unwrap());
    assert_eq!(all[0]["resident"], serde_json::json!({"files": files.len(), "bytes": bytes}));
    assert!(all[0]["all"].is_null());
    let calls = w.pfs().counters().unwrap();
    assert_eq!((calls.opens(), calls.get(Op::Readdir), calls.get(Op::Getattr)), (0, 0, 0), "without the PFS");
    assert!(fs::read_to_string(last_log(&w)).unwrap().contains("ended"));

    // Of named paths, the PFS is asked which files there are.
    fs::write(w.backing().join("new"), vec![1; 5000]).unwrap();
    let of_root = &json(&w, &["du", "--json", w.root().to_str().unwrap()])[0];
    assert_eq!(of_root["all"], serde_json::json!({"files": files.len() + 1, "bytes": bytes + 5000}));
    assert_eq!(of_root["resident"]["files"], files.len());
    let (code, _, err) = asked(&w, &["du", "/etc"]);
    assert!(code == 3 && err.contains("/etc is below no root"), "{code} {err}");
}

#[test]
fn explain_says_what_the_next_job_finds() {
    let (w, _disk) = staged(8, &[]);
    let files = regular(w.root());
    let (code, out, _) = asked(&w, &["explain", files[0].to_str().unwrap()]);
    let copy = out.lines().find_map(|l| l.trim().strip_prefix("copy")).unwrap().trim().to_owned();
    assert_eq!((code, fs::read(&copy).unwrap()), (0, fs::read(&files[0]).unwrap()), "{out}");
    fs::write(&files[1], "other").unwrap();
    let paths = [&files[0], &files[1], &w.root().join("never"), w.root(), Path::new("/etc/passwd")];
    let said: Vec<String> = paths.iter().map(|p| verdict(&w, p)).collect();
    assert_eq!(said, ["kept", "not_kept", "missing", "no_file", "outside"]);
    assert_eq!(asked(&w, &["explain", files[1].to_str().unwrap()]).0, 3);
    let missing = tempfile::tempdir().unwrap();
    let empty = missing.path().display().to_string();
    let out = monarch(&w, &["explain", files[0].to_str().unwrap(), "--tier", &empty]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(4) && said.contains(&empty) && said.contains("--tier"), "{said}");
}

#[test]
fn evict_drops_what_jobs_have_left_and_the_next_job_copies_it_again() {
    let (w, _disk) = staged(20, &[]);
    let files = regular(w.root());
    let all = files.len();
    let (code, out, err) = asked(&w, &["evict", files[3].to_str().unwrap()]);
    assert!(code == 0 && out.starts_with("copies evicted: 1, "), "{out} {err}");
    assert_eq!((copies(&w).len(), verdict(&w, &files[3])), (all - 1, "not_kept".to_owned()));
    let dropped = json(&w, &["evict", "--json", files[4].parent().unwrap().to_str().unwrap()]);
    let below = regular(files[4].parent().unwrap()).len() - usize::from(files[3].parent() == files[4].parent());
    assert_eq!(dropped["files"], below);
    asked(&w, &["evict", "--all"]);
    assert_eq!(copies(&w).len(), 0);
    w.start_indexed(&reads(&w)).end().good();
    until_gone(&w);
    let held: u64 = json(&w, &["du", "--json"])[0]["resident"]["files"].as_u64().unwrap();
    assert_eq!((copies(&w).len(), held), (all, all as u64));
}

#[test]
fn verify_names_the_files_of_copies_and_compares_them_with_the_pfs() {
    let (w, _disk) = staged(20, &[]);
    let files = regular(w.root());
    let found = json(&w, &["verify", "--json", "--source"]);
    assert_eq!((&found["copies"], &found["with_source"]), (&files.len().into(), &files.len().into()));
    let (_, out, _) = asked(&w, &["explain", files[2].to_str().unwrap()]);
    let copy = out.lines().find_map(|l| l.trim().strip_prefix("copy")).unwrap().trim().to_owned();
    hurt(Path::new(&copy), &[0; 64]);
    let (code, out, _) = asked(&w, &["verify", files[3].to_str().unwrap()]);
    assert!(code == 0 && out.starts_with("1 copy, "), "{out}");
    let (code, out, err) = asked(&w, &["verify", "--repair", w.root().to_str().unwrap()]);
    assert!(code == 1 && out.contains(files[2].to_str().unwrap()), "{out}");
    assert!(err.contains("the next job makes the damaged copies again"), "{err}");
    assert_eq!((copies(&w).len(), verdict(&w, &files[2])), (files.len() - 1, "not_kept".to_owned()));
}

#[test]
fn the_log_of_a_killed_agent_is_kept_with_that_of_the_next() {
    let (w, _disk) = staged(4, &[]);
    let mut job = w.start(&Job::new("sh").args(["-c", "echo up; cat"]));
    job.until_written("up");
    let agent = agent_pid(&w);
    // Both at once, so that no `run` starts another agent.
    assert!(kill(job.pid() as i32, libc::SIGKILL) && kill(agent, libc::SIGKILL));
    drop(job);
    w.start_indexed(&reads(&w)).end().good();
    until_gone(&w);
    let log = fs::read_to_string(last_log(&w)).unwrap();
    // That of the agent of `stage` is not continued: it has ended by itself.
    assert_eq!((log.matches("copy engine:").count(), log.matches("no job left; ending").count()), (2, 1), "{log}");
}

#[test]
fn a_tier_on_the_command_line_chooses_the_agent() {
    let mut w = World::plan().files(4).args(&["--plain"]).build();
    w.settle();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = elsewhere.path().display().to_string();
    let stopped = monarch(&w, &["stop", "--tier", &other]);
    assert_eq!(stopped.status.code(), Some(4), "{stopped:?}");
    assert!(w.agent().is_some());
    assert_eq!(monarch(&w, &["status", "--root", &other]).status.code(), Some(4));
    let none = monarch(&w, &["top", "--once", "--root", &other, "--tier", &other]);
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    let words = format!("no agent of yours on this node serves {other} and holds a tier in {other}");
    assert!(none.status.code() == Some(4) && said.contains(&words), "{said}");
    let below = w.root().join("below");
    fs::create_dir(&below).unwrap();
    assert_eq!(monarch(&w, &["status", "--root", below.to_str().unwrap()]).status.code(), Some(0));
    assert_eq!(monarch(&w, &["status", "--root", w.root().to_str().unwrap()]).status.code(), Some(0));
    assert_eq!(monarch(&w, &["stop", "--tier", w.tier().to_str().unwrap()]).status.code(), Some(0));
    until_gone(&w);
}

#[test]
fn a_root_is_known_by_any_spelling_when_no_agent_runs() {
    let (w, _disk) = staged(4, &[]);
    let aside = tempfile::tempdir().unwrap();
    let link = aside.path().join("link");
    std::os::unix::fs::symlink(w.root(), &link).unwrap();
    for (root, found) in [(link.as_path(), 1), (w.root(), 1), (aside.path(), 0)] {
        let all = json(&w, &["du", "--json", "--root", root.to_str().unwrap()]);
        assert_eq!(all.as_array().unwrap().len(), found, "{}: {all}", root.display());
    }
    let found = json(&w, &["verify", "--json", "--source", "--root", link.to_str().unwrap()]);
    assert_eq!(found["with_source"], regular(w.root()).len());
}
