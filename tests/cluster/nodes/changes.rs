//! Changes by the job of one node are seen by the other nodes within a second, also where they have
//! copies.

use super::{all_hold, patient};
use crate::harness::{Job, Running, built, sources};
use crate::plan::Plan;
use crate::world::Cluster;
use std::fs;
use std::time::{Duration, Instant};

/// How soon another node has to see a change.
const MAX_CHANGE_DELAY: Duration = Duration::from_secs(1);

/// A job that does what its standard input says (`obey.py`).
pub(super) struct Puppet {
    job: Running,
    asked: usize,
}

impl Puppet {
    pub(super) fn start(c: &Cluster, node: usize) -> Self {
        let mut job = c.node(node).start(&Job::new("python3").arg(sources().join("obey.py")).arg(c.root()));
        job.until_written("ready");
        Self { job, asked: 0 }
    }
    #[track_caller]
    pub(super) fn ask(&mut self, words: &str) -> String {
        self.job.write(format!("{words}\n").as_bytes());
        let mark = format!("#{} ", self.asked);
        self.asked += 1;
        let answer = |text: &str| {
            let (_, rest) = text.split_once(&mark)?;
            Some(rest.split_once('\n')?.0.to_owned())
        };
        self.job.until_written(&mark);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(answer) = answer(&self.job.written()) {
                return answer;
            }
            assert!(Instant::now() < deadline, "no answer to {words}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    /// Asks until the answer is right; returns the last answer and the time that it took.
    fn until(&mut self, words: &str, right: impl Fn(&str) -> bool) -> (String, Duration) {
        let start = Instant::now();
        loop {
            let answer = self.ask(words);
            // Longer than allowed, so that a late answer differs from one that never comes.
            if right(&answer) || start.elapsed() > 3 * MAX_CHANGE_DELAY {
                return (answer, start.elapsed());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

pub(super) struct Stage {
    pub(super) c: Cluster,
    pub(super) all: Vec<Puppet>,
    /// Changes that a node did not see in time.
    late: Vec<String>,
}

impl Stage {
    pub(super) const fn of(c: Cluster, all: Vec<Puppet>) -> Self {
        Self { c, all, late: Vec::new() }
    }
    /// Three nodes, each with a copy of every file.
    fn set(placement: &str) -> Option<Self> {
        let c = patient(Plan::new(3).files(40).placement(placement)).build()?;
        let all: Vec<Puppet> = (0..3).map(|i| Puppet::start(&c, i)).collect();
        c.all().for_each(|n| n.indexed());
        let mut stage = Self { c, all, late: Vec::new() };
        for node in 0..3 {
            for rel in stage.files() {
                assert_eq!(stage.all[node].ask(&format!("read {rel}")), "1");
            }
        }
        if placement != "sharded" {
            all_hold(&stage.c, stage.c.files());
        }
        Some(stage)
    }
    fn files(&self) -> Vec<String> {
        let inside = |dir: &std::path::Path| fs::read_dir(dir).unwrap().flatten().map(|e| e.path());
        let all = inside(self.c.backing()).flat_map(|dir| inside(&dir).collect::<Vec<_>>());
        let mut all: Vec<String> =
            all.map(|p| p.strip_prefix(self.c.backing()).unwrap().display().to_string()).collect();
        all.sort();
        all
    }
    #[track_caller]
    pub(super) fn done(&mut self, node: usize, words: &str) {
        assert_eq!(self.all[node].ask(words), "done", "{words}");
    }
    /// Every node gets this answer soon; the node that made the change, at once.
    pub(super) fn seen(&mut self, by: usize, words: &str, right: impl Fn(&str) -> bool) {
        let own = self.all[by].ask(words);
        if !right(&own) {
            self.late.push(format!("{words} on node {by}, which made the change: {own}"));
        }
        for node in (0..3).filter(|n| *n != by) {
            let (answer, took) = self.all[node].until(words, &right);
            if !right(&answer) {
                self.late.push(format!("{words} on node {node}: still {answer} after {took:?}"));
            } else if took > MAX_CHANGE_DELAY {
                self.late.push(format!("{words} on node {node}: {took:?}"));
            }
        }
    }
    #[track_caller]
    pub(super) fn end(self) {
        assert!(self.late.is_empty(), "{:#?}", self.late);
        self.all.into_iter().for_each(|puppet| drop(puppet.job.end().good()));
    }
}

#[test]
fn rewritten_files_are_seen_by_all() {
    for placement in ["hybrid", "sharded"] {
        let Some(mut stage) = Stage::set(placement) else { return };
        for (n, rel) in stage.files().into_iter().take(12).enumerate() {
            stage.done(n % 3, &format!("write {rel} 2"));
            stage.seen(n % 3, &format!("read {rel}"), |a| a == "2");
        }
        // The other files are unchanged.
        let rel = stage.files().pop().unwrap();
        stage.seen(0, &format!("read {rel}"), |a| a == "1");
        stage.end();
    }
}

#[test]
fn a_file_that_has_grown_has_its_new_size_everywhere() {
    let Some(mut stage) = Stage::set("hybrid") else { return };
    let rel = stage.files().remove(3);
    let size = fs::metadata(stage.c.backing().join(&rel)).unwrap().len() + 8;
    stage.done(0, &format!("append {rel}"));
    stage.seen(0, &format!("stat {rel}"), |a| a == size.to_string());
    stage.seen(0, &format!("read {rel}"), |a| a == "appended");
    stage.end();
}

#[test]
fn a_deleted_file_is_gone_everywhere() {
    let Some(mut stage) = Stage::set("hybrid") else { return };
    for (n, rel) in stage.files().into_iter().take(3).enumerate() {
        let (dir, name) = rel.split_once('/').unwrap();
        stage.done(n, &format!("delete {rel}"));
        stage.seen(n, &format!("read {rel}"), |a| a == "ENOENT");
        stage.seen(n, &format!("stat {rel}"), |a| a == "ENOENT");
        stage.seen(n, &format!("list {dir}"), |a| !a.contains(name));
    }
    stage.end();
}

#[test]
fn a_new_file_is_there_and_listed_everywhere() {
    let Some(mut stage) = Stage::set("hybrid") else { return };
    let dir = stage.files()[0].split_once('/').unwrap().0.to_owned();
    // Listed before, so that the listing is one that is served.
    stage.seen(0, &format!("list {dir}"), |a| !a.contains("new"));
    let rel = format!("{dir}/new.z1000.bin");
    stage.done(1, &format!("write {rel} 3"));
    stage.seen(1, &format!("read {rel}"), |a| a == "3");
    stage.seen(1, &format!("list {dir}"), |a| a.contains("new.z1000.bin"));
    stage.done(1, "mkdir later");
    stage.done(1, "write later/new.z1000.bin 2");
    stage.seen(1, "read later/new.z1000.bin", |a| a == "2");
    stage.seen(1, "list .", |a| a.contains("later"));
    stage.end();
}

#[test]
fn renamed_files_and_directories_have_their_new_names_everywhere() {
    let Some(mut stage) = Stage::set("hybrid") else { return };
    let files = stage.files();
    let (rel, last) = (files[0].clone(), files[files.len() - 1].clone());
    let (dir, _) = rel.split_once('/').unwrap();
    stage.done(0, &format!("rename {rel} {dir}/other"));
    stage.seen(0, &format!("read {rel}"), |a| a == "ENOENT");
    stage.seen(0, &format!("stat {dir}/other"), |a| a.parse::<u64>().is_ok());
    stage.seen(0, &format!("list {dir}"), |a| a.ends_with("other") || a.contains("other "));
    let (dir, name) = last.split_once('/').unwrap();
    stage.done(2, &format!("rename {dir} moved"));
    stage.seen(2, &format!("read {last}"), |a| a == "ENOENT");
    stage.seen(2, &format!("stat moved/{name}"), |a| a.parse::<u64>().is_ok());
    stage.seen(2, "list .", |a| a.contains("moved") && !a.contains(dir));
    stage.end();
}

#[test]
fn a_node_that_stands_still_keeps_no_other_from_hearing_of_changes() {
    let Some(mut stage) = Stage::set("hybrid") else { return };
    stage.c.node(2).signal(libc::SIGSTOP);
    let files: Vec<String> = stage.files().into_iter().take(6).collect();
    for rel in &files {
        stage.done(0, &format!("write {rel} 2"));
        let (answer, took) = stage.all[1].until(&format!("read {rel}"), |a| a == "2");
        if answer != "2" || took > MAX_CHANGE_DELAY {
            stage.late.push(format!("{rel} on node 1: {answer} after {took:?}"));
        }
    }
    stage.c.node(2).signal(libc::SIGCONT);
    // It hears of the changes that it missed.
    for rel in &files {
        let deadline = Instant::now() + 10 * MAX_CHANGE_DELAY;
        while stage.all[2].ask(&format!("read {rel}")) != "2" {
            assert!(Instant::now() < deadline, "{rel} on node 2, which stood still");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    stage.end();
}

/// Changes go to the nodes that are up; a node that was not hears of them when it comes back.
#[test]
fn changes_while_an_agent_is_killed_and_a_link_is_cut() {
    let Some(mut stage) = Stage::set("hybrid") else { return };
    let files: Vec<String> = stage.files().into_iter().take(6).collect();
    let old = stage.c.node(2).signal(libc::SIGKILL);
    for rel in &files[..3] {
        stage.done(0, &format!("write {rel} 2"));
    }
    stage.c.node(2).successor(old);
    stage.c.net().cut(1);
    for rel in &files[3..] {
        stage.done(0, &format!("write {rel} 2"));
    }
    stage.c.net().join(1);
    for rel in &files {
        for node in 0..3 {
            let deadline = Instant::now() + 20 * MAX_CHANGE_DELAY;
            while stage.all[node].ask(&format!("read {rel}")) != "2" {
                assert!(Instant::now() < deadline, "{rel} on node {node}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    stage.end();
}

/// One node loads it, the other nodes get it from there: none of them believes it.
#[test]
fn each_node_compares_entries_of_a_saved_index() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("set.idx");
    let plan = patient(Plan::new(3).files(20)).set(&format!("index.file={}", file.display()));
    let Some(c) = plan.build() else { return };
    let at = |name: &str| c.backing().join(name);
    fs::create_dir(at("gains")).unwrap();
    for (name, size) in [("gains/large", 5000), ("gains/small", 50), ("gains/cut", 700)] {
        fs::write(at(name), vec![b'x'; size]).unwrap();
    }
    std::os::unix::fs::symlink("gains/large", at("latest")).unwrap();
    let saved =
        std::process::Command::new(built("monarch")).args(["index", "build", "-o"]).arg(&file).arg(c.root()).output();
    assert!(saved.unwrap().status.success());
    std::os::unix::fs::symlink("gains/small", at("tmp")).unwrap();
    fs::rename(at("tmp"), at("latest")).unwrap();
    fs::write(at("gains/cut"), "short").unwrap();
    fs::write(at("gains/new"), "new").unwrap();
    let mut all: Vec<Puppet> = (0..3).map(|i| Puppet::start(&c, i)).collect();
    c.all().for_each(|n| n.indexed());
    for (node, puppet) in all.iter_mut().enumerate() {
        assert_eq!(puppet.ask("stat latest"), "50", "node {node}");
        assert_eq!(puppet.ask("list gains"), "cut large new small", "node {node}");
        assert_eq!(puppet.ask("stat gains/cut"), "5", "node {node}");
        assert_eq!(puppet.ask("stat gains/large"), "5000", "node {node}");
    }
    all.into_iter().for_each(|puppet| drop(puppet.job.end().good()));
}
