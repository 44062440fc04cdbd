//! One node of a cluster: its directories, its configuration, its jobs, its agent.

use crate::harness::{Job, Running, built};
use crate::site::Site;
use crate::wait::wait_for;
use monarch_core::agent::protocol::Status;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One node of a cluster.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    pub site: &'a Site,
    pub index: usize,
}

impl Node<'_> {
    fn dir(&self, below: &Path) -> PathBuf {
        below.join(format!("node{}", self.index))
    }
    /// Directory of its tier.
    pub fn tier(&self) -> PathBuf {
        self.dir(&self.site.tiers).join("tier")
    }
    /// Base of its runtime directories.
    pub fn runtime(&self) -> PathBuf {
        self.dir(&self.site.memory).join("run")
    }
    fn config(&self) -> PathBuf {
        self.dir(&self.site.shared).join("monarch.yaml")
    }
    /// The report of the job that ended last.
    pub fn report(&self) -> PathBuf {
        self.dir(&self.site.shared).join("report.json")
    }
    pub fn address(&self) -> String {
        self.site.net.address(self.index)
    }

    /// Makes its directories and its configuration.
    pub(crate) fn prepare(&self) {
        let on_disk = self.dir(&self.site.shared);
        for dir in [on_disk.join("tmp"), self.runtime(), self.dir(&self.site.tiers)] {
            fs::create_dir_all(dir).expect("own directory");
        }
        self.configure("secret");
    }

    /// Writes its configuration, with the secret of this name: another name is another secret.
    pub fn configure(&self, secret: &str) {
        let text = format!(
            "dataset:\n  roots: [{}]\n  min_file_age: 0s\ntiers:\n  - {{ path: {}, capacity: {} }}\nprefetch: {{ ahead: all }}\nruntime_dir: {}\n{}",
            self.site.root.display(),
            self.tier().display(),
            self.site.configuration.tier_size,
            self.runtime().display(),
            self.site.section(secret),
        );
        fs::write(self.config(), text).expect("own file");
    }

    /// A command in its namespace, without variables that would reach Monarch.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut c = match self.site.mounted(self.index) {
            None => self.site.net.inside(self.index, program),
            Some(dir) => {
                let mut c = self.site.net.inside(self.index, "unshare");
                c.args(["--mount", "sh", "-c", "mount --bind \"$0\" \"$1\" && shift && exec \"$@\""]).arg(dir);
                c.arg(&self.site.root).arg(program);
                c
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"MONARCH") || name == "LD_PRELOAD" {
                c.env_remove(name);
            }
        }
        let tmp = self.dir(&self.site.shared).join("tmp");
        c.env("TMPDIR", &tmp).current_dir(tmp);
        c
    }

    /// A command of Monarch that finds this node's agent only.
    pub fn monarch(&self, command: &str) -> Command {
        let mut c = self.command(built("monarch"));
        c.env("MONARCH_RUNTIME_DIR", self.runtime()).arg(command);
        c
    }

    /// Starts a job under `monarch run`.
    pub fn start(&self, job: &Job) -> Running {
        let mut c = self.command(built("monarch"));
        c.args(["run", "--quiet", "--config"]).arg(self.config()).arg("--report").arg(self.report());
        c.args(self.site.settings.iter().flat_map(|s| ["--set", s]));
        Running::new({
            c.arg("--").args(job.words());
            c
        })
    }

    /// Starts a job without Monarch.
    pub fn start_bare(&self, job: &Job) -> Running {
        let mut c = self.command(&job.words()[0]);
        c.args(&job.words()[1..]);
        Running::new(c)
    }

    /// The process of its agent, found by the namespace: also when it is stopped.
    pub fn agent(&self) -> Option<i32> {
        let is_agent = |words: &[&str]| words.len() == 2 && words[0].ends_with("monarch") && words[1] == "agent";
        self.site.net.processes(self.index, is_agent).first().copied()
    }

    /// Sends its agent a signal; returns the agent's process.
    #[track_caller]
    pub fn signal(&self, signal: i32) -> i32 {
        let pid = self.agent().expect("an agent");
        // SAFETY: an agent in a namespace of this test.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "signal {signal} to agent {pid}");
        pid
    }

    /// Waits for another agent than `old`; returns its process.
    #[track_caller]
    pub fn successor(&self, old: i32) -> i32 {
        let mut pid = None;
        wait_for("the next agent", || {
            pid = self.agent().filter(|pid| *pid != old);
            pid.is_some()
        });
        pid.unwrap_or(old)
    }

    /// The status of its agent.
    pub fn status(&self) -> Option<Status> {
        let out = self.monarch("status").arg("--json").output().expect("monarch status");
        let all: Vec<Status> = serde_json::from_slice(&out.stdout).unwrap_or_default();
        all.into_iter().find(|s| s.runtime_dir.starts_with(self.runtime()))
    }

    /// Polls the agent's status until `done` says so.
    #[track_caller]
    pub fn until(&self, what: &str, done: impl Fn(&Status) -> bool) {
        let what = format!("{what} on node {}", self.index);
        wait_for(&what, || self.status().as_ref().is_some_and(&done));
    }

    /// Waits until its agent has the index of every root.
    #[track_caller]
    pub fn indexed(&self) {
        self.until("the index", |s| !s.roots.is_empty() && s.roots.iter().all(|r| r.state == "ready"));
    }

    /// Blocks of its tier on disk, in bytes.
    pub fn used(&self) -> u64 {
        files(&self.tier()).iter().filter_map(|p| p.symlink_metadata().ok()).map(|m| blocks(&m)).sum()
    }

    /// The end of its agent's log.
    pub fn log_tail(&self) -> String {
        let logs = files(&self.runtime()).into_iter().filter(|p| p.ends_with("agent.log"));
        let text: String = logs.filter_map(|p| fs::read_to_string(p).ok()).collect();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

fn blocks(m: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(m) * 512
}

/// The complete copies in a tier, in no particular order.
pub fn copies(tier: &Path) -> Vec<PathBuf> {
    let is_copy = |path: &PathBuf| path.components().any(|part| part.as_os_str() == "copies");
    files(tier).into_iter().filter(is_copy).collect()
}

/// Everything below a directory that is no directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .flat_map(|e| if e.file_type().is_ok_and(|t| t.is_dir()) { files(&e.path()) } else { vec![e.path()] })
        .collect()
}
