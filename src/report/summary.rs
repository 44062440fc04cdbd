//! The figures of a run, as a report file keeps them.

use monarch_core::agent::protocol::{Opens, OutputStatus, RootStatus, Savings, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, SystemTime};

/// Why opens went to the PFS: the name of the counter, and the reason in words.
pub(super) const REASONS: [(&str, &str); 8] = [
    ("absent", "before there was an index"),
    ("large", "large and not complete"),
    ("no_room", "no space in tiers"),
    ("refused", "temporarily refused: a failure, or changed a moment ago"),
    ("changed", "changed since the scan, or not readable"),
    ("written", "written by the job"),
    ("deadline", "wait timed out"),
    ("vanished", "copy dropped"),
];

/// Opens below the roots that copies are not meant for.
pub(super) const OTHERS: [(&str, &str); 3] = [
    ("flags", "to write, to create, with O_DIRECT"),
    ("unknown", "of what is not in the index: made after the scan"),
    ("other_mount", "in processes that have another mount there"),
];

/// The report of a run. (Fields that are added need a default: users keep report files.)
///
/// Fields: 20, because they are those of one JSON object.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Name of the node.
    #[serde(default)]
    pub(crate) host: String,
    /// The command, if it is known.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// When it ended: milliseconds since 1970.
    #[serde(default)]
    pub(crate) ended_ms: u64,
    /// How long it took.
    pub(crate) seconds: f64,
    /// What the job read, and what the PFS sent for it.
    #[serde(default)]
    pub(crate) savings: Savings,
    /// What this job alone read, where it shared its agent: there, `savings` are those of all jobs,
    /// since the bytes that the PFS sent for copies are for all. Its `sent_bytes` and `pfs_opens`
    /// are those of its own processes.
    #[serde(default)]
    pub(crate) own: Option<Savings>,
    /// Whether the job has ended.
    #[serde(default)]
    pub(crate) ended: bool,
    /// Why the processes of the command cannot be served, where that is known.
    #[serde(default)]
    pub(crate) not_served: Option<String>,
    /// Opens that found a copy, or waited for one.
    pub(crate) opens_local: u64,
    /// Opens that went to the PFS.
    pub(crate) opens_pfs: u64,
    /// Opens of large files that were served in chunks.
    pub(crate) opens_chunked: u64,
    /// What to change.
    #[serde(default)]
    pub(crate) advice: Vec<String>,
    /// Counters of the job's processes.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Counters of the agent.
    pub(crate) agent: BTreeMap<String, u64>,
    /// How often the agent was started again.
    pub(crate) agent_restarts: u32,
    /// Whether the figures include other jobs.
    pub(crate) shared_with_other_jobs: bool,
    /// Jobs that the figures are of.
    #[serde(default)]
    pub(crate) jobs: u64,
    /// The roots of this job, as they were given; the agent may serve more. Empty: all of them.
    #[serde(default)]
    pub(crate) roots: Vec<String>,
    /// How long the agent's opens at the PFS took.
    #[serde(default)]
    pub(crate) pfs_opens: Vec<Opens>,
    /// The agent's status at the end.
    pub(crate) status: Status,
}

fn minus(a: &BTreeMap<String, u64>, b: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    a.iter().map(|(k, v)| (k.clone(), v.saturating_sub(b.get(k).copied().unwrap_or(0)))).collect()
}

fn opens_since(after: &[Opens], before: &[Opens]) -> Vec<Opens> {
    let earlier = before.iter().map(|o| o.opens).chain(std::iter::repeat(0));
    after.iter().zip(earlier).map(|(o, earlier)| Opens { opens: o.opens.saturating_sub(earlier), ..*o }).collect()
}

/// Returns the state of output roots, with the counts since an earlier state.
fn outputs_since(after: &[OutputStatus], before: &[OutputStatus]) -> Vec<OutputStatus> {
    let none = OutputStatus::default();
    let since = |s: &OutputStatus| {
        let earlier = before.iter().find(|earlier| earlier.path == s.path).unwrap_or(&none);
        OutputStatus {
            published: s.published.saturating_sub(earlier.published),
            published_bytes: s.published_bytes.saturating_sub(earlier.published_bytes),
            waited_ms: s.waited_ms.saturating_sub(earlier.waited_ms),
            no_space: s.no_space.saturating_sub(earlier.no_space),
            open_ms: s.open_ms.saturating_sub(earlier.open_ms),
            copy_ms: s.copy_ms.saturating_sub(earlier.copy_ms),
            ..s.clone()
        }
    };
    after.iter().map(since).collect()
}

/// Returns what the processes of one job read. `None` where processes may have counted elsewhere.
fn own_savings(before: &Status, after: &Status) -> Option<Savings> {
    let (before, after) = (before.job_counters.as_ref()?, after.job_counters.as_ref()?);
    let is_complete = before.unassigned_opens == after.unassigned_opens;
    is_complete.then(|| Savings::of(&minus(&after.own, &before.own), &BTreeMap::new(), &[]))
}

impl Report {
    /// Reports what happened between two states of the agent, without advice.
    pub(super) fn between(before: &Status, after: Status, took: Duration, command: &[OsString]) -> Self {
        let restarts = after.incarnation.saturating_sub(before.incarnation);
        // A new agent counts from 0; the counters of the job's processes are in shared memory and
        // continue.
        let earlier = if restarts == 0 { before } else { &Status::default() };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut new = Self {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            ended_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            seconds: took.as_secs_f64(),
            counters: minus(&after.counters, &before.counters),
            agent: minus(&after.agent, &earlier.agent),
            agent_restarts: restarts,
            pfs_opens: opens_since(&after.pfs_opens, &earlier.pfs_opens),
            // A node may have left before the end.
            status: Status {
                nodes: after.nodes.max(before.nodes),
                outputs: outputs_since(&after.outputs, &earlier.outputs),
                ..after
            },
            ..Self::default()
        };
        // Jobs that were there at the begin, this one among them, and those that came since. (An
        // agent without the counter had one at least.)
        new.jobs = (before.jobs as u64 + new.agent("jobs_attached")).max(1);
        new.shared_with_other_jobs = new.jobs > 1;
        new.savings = Savings::of(&new.counters, &new.agent, &new.pfs_opens);
        if new.shared_with_other_jobs {
            new.own = own_savings(before, &new.status);
        }
        new.opens_local = new.get("hits") + new.get("waited");
        new.opens_pfs = REASONS.iter().map(|(name, _)| new.get(name)).sum();
        new.opens_chunked = new.get("chunked");
        new
    }

    /// A counter.
    pub(super) fn get(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// A counter of the agent.
    pub(super) fn agent(&self, name: &str) -> u64 {
        self.agent.get(name).copied().unwrap_or(0)
    }

    /// Returns the sums of a report. Reports of earlier versions have none; then they are computed
    /// from the counters.
    pub(crate) fn savings(&self) -> Savings {
        if self.savings == Savings::default() {
            return Savings::of(&self.counters, &self.agent, &self.pfs_opens);
        }
        self.savings
    }

    /// Whether nothing below the roots was opened.
    pub(super) fn is_empty(&self) -> bool {
        let savings = self.savings();
        savings.opens + savings.unknown_opens == 0
    }

    /// Whether a root is one of this job, not of another one that shares the agent.
    pub(super) fn is_of_job(&self, root: &RootStatus) -> bool {
        self.roots.is_empty() || self.roots.iter().any(|ours| *ours == root.path.to_string_lossy())
    }

    /// Whether no process has used a root. Calls about names are not counted by root: they count as
    /// use only where a single root is served.
    pub(super) fn is_unused(&self, root: &RootStatus) -> bool {
        let asked = self.status.roots.len() == 1 && self.get("stats") + self.get("lists") > 0;
        self.is_of_job(root) && root.state == "ready" && root.opens == 0 && !asked
    }

    /// Returns the number of opens below the roots that copies are for.
    pub(super) const fn opens(&self) -> u64 {
        self.opens_local + self.opens_pfs + self.opens_chunked
    }

    /// Returns the seconds that all readers together have waited for copies.
    pub(super) fn waited_s(&self) -> f64 {
        self.get("wait_us") as f64 / 1e6
    }
}
