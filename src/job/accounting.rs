//! The line that a job appends at its end to a file of its site (`run.accounting`): what it read,
//! and what the PFS sent for it.
//!
//! * One write with `O_APPEND`, of at most [`MAX_LINE_BYTES`]: lines of jobs that end at the same
//!   time do not mix on a local file system.
//! * A directory has a file for each user. A file there that another user owns is refused.
//! * One task of each node writes, since all of them have the figures of the node's agent.

use crate::report::Report;
use rustix::fs::{CWD, Mode, OFlags};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Most bytes of a line.
const MAX_LINE_BYTES: usize = 4096;
/// How long the file system may take: the job is at its end.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Variables in which batch systems number jobs.
const JOB_VARIABLES: [&str; 5] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "FLUX_JOB_ID"];
/// Variables in which launchers number the tasks of a node.
const LOCAL_RANK_VARIABLES: [&str; 5] =
    ["SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "LOCAL_RANK"];

/// The line. Fields: 15, because they are those of one JSON object. Fields may be added.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// Of this form of the line.
    version: u32,
    uid: u32,
    /// Number in the batch system; `None`: there is none.
    job: Option<String>,
    node: &'a str,
    roots: Vec<String>,
    /// Roots that are left out, as the line would be too long.
    more_roots: usize,
    /// Seconds since 1970.
    start: f64,
    end: f64,
    /// Bytes read below the roots.
    read_bytes: u64,
    /// Bytes that the PFS sent for that, copies included.
    pfs_bytes: u64,
    /// Bytes read less bytes sent; 0 when the PFS sent more.
    spared_bytes: u64,
    /// Opens of the job, and opens at the PFS by job and agent.
    opens: u64,
    pfs_opens: u64,
    /// Seconds that readers waited for copies, all together.
    wait_s: f64,
    /// Jobs that the figures are of: those that shared the agent.
    jobs: u64,
}

/// Whether this is the process that writes for its node.
pub(super) fn speaks_for_node() -> bool {
    let rank = |name: &&str| std::env::var(name).ok();
    LOCAL_RANK_VARIABLES.iter().find_map(rank).is_none_or(|rank| rank.trim() == "0")
}

/// Appends a line about a job with these roots.
///
/// # Errors
/// When the file cannot be opened or written, is another user's, or its file system does not answer
/// within [`APPEND_TIMEOUT`].
pub(super) fn append(path: &Path, report: &Report, roots: &[PathBuf]) -> io::Result<()> {
    let line = line(report, roots, JOB_VARIABLES.iter().find_map(|name| std::env::var(name).ok()));
    let path = path.to_owned();
    let (send, receive) = channel();
    std::thread::Builder::new().spawn(move || send.send(write(&path, &line)))?;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the file system does not answer");
    receive.recv_timeout(APPEND_TIMEOUT).map_err(late)?
}

fn line(report: &Report, roots: &[PathBuf], job: Option<String>) -> String {
    let (uid, savings) = (rustix::process::geteuid().as_raw(), &report.savings);
    let end = report.ended_ms as f64 / 1000.0;
    let job = job.map(|job| job.chars().take(64).collect());
    let of = |shown: usize| Line {
        version: 1,
        uid,
        job: job.clone(),
        node: &report.host,
        roots: roots.iter().take(shown).map(|root| root.to_string_lossy().into_owned()).collect(),
        more_roots: roots.len() - shown,
        start: end - report.seconds,
        end,
        read_bytes: savings.read_bytes,
        pfs_bytes: savings.sent_bytes,
        spared_bytes: savings.read_bytes.saturating_sub(savings.sent_bytes),
        opens: savings.opens,
        pfs_opens: savings.pfs_opens,
        wait_s: savings.wait_s,
        jobs: report.jobs,
    };
    let text = |shown: usize| serde_json::to_string(&of(shown)).unwrap_or_default() + "\n";
    (0..=roots.len()).rev().map(text).find(|line| line.len() <= MAX_LINE_BYTES).unwrap_or_default()
}

fn write(path: &Path, line: &str) -> io::Result<()> {
    let uid = rustix::process::geteuid().as_raw();
    let is_dir = path.is_dir();
    let path = if is_dir { path.join(format!("monarch-{uid}.jsonl")) } else { path.to_owned() };
    // A pipe without a reader is an error, and not waited for.
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, &path, flags, Mode::from_raw_mode(0o640))?;
    if is_dir && rustix::fs::fstat(&file)?.st_uid != uid {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a file of another user is there"));
    }
    match std::fs::File::from(file).write(line.as_bytes())? {
        n if n == line.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_core::agent::protocol::Savings;

    fn report() -> Report {
        let savings = Savings { read_bytes: 1000, sent_bytes: 400, opens: 10, pfs_opens: 4, ..Savings::default() };
        Report { host: "node7".into(), ended_ms: 2_000_500, seconds: 100.5, savings, jobs: 1, ..Report::default() }
    }

    #[test]
    fn lines_of_jobs_that_end_at_the_same_time_do_not_mix() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.jsonl");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20).for_each(|_| append(&path, &report(), &["/data/set".into()]).unwrap()));
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 160);
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let figures =
                ["read_bytes", "pfs_bytes", "spared_bytes", "opens", "pfs_opens", "jobs"].map(|k| line[k].as_u64());
            assert_eq!(figures, [1000, 400, 600, 10, 4, 1].map(Some), "{line}");
            assert_eq!((line["start"].as_f64(), line["end"].as_f64()), (Some(1900.0), Some(2000.5)));
            assert_eq!((&line["node"], &line["roots"][0]), (&"node7".into(), &"/data/set".into()));
        }
    }

    #[test]
    fn a_line_is_bounded_whatever_roots_and_job_are_called() {
        let roots: Vec<PathBuf> = (0..32).map(|n| format!("/{n}/{}", "\u{1}é".repeat(200)).into()).collect();
        let line = line(&report(), &roots, Some("x".repeat(10_000)));
        assert!(line.len() <= MAX_LINE_BYTES && line.ends_with("}\n") && line.matches('\n').count() == 1, "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        let shown = read["roots"].as_array().unwrap().len();
        assert!(shown < 32 && read["more_roots"] == 32 - shown, "{line}");
    }

    #[test]
    fn a_directory_has_a_file_for_each_user_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), &report(), &[]).unwrap();
        let own = dir.path().join(format!("monarch-{}.jsonl", rustix::process::geteuid().as_raw()));
        assert_eq!(std::fs::read_to_string(&own).unwrap().lines().count(), 1);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&own, Some(4242), None).unwrap();
            assert_eq!(append(dir.path(), &report(), &[]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            assert_eq!(std::fs::read_to_string(&own).unwrap().lines().count(), 1);
        }
        std::fs::remove_file(&own).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &own).unwrap();
        assert!(append(dir.path(), &report(), &[]).is_err() && !dir.path().join("elsewhere").exists());
    }
}
