//! What a run came to: the document that `run --report` writes, as JSON or as a page, and `monarch report`, which shows it again.
//!
//! | module | what it does |
//! |---|---|
//! | [`advice`] | what to change |
//! | [`lines`] | at most twelve lines for people, at the end of a run |
//! | [`page`] | one page of HTML with charts, and nothing from elsewhere |
//! | [`bars`] | the charts |

mod advice;
mod bars;
mod lines;
mod page;

use crate::cli::{ConfigArgs, EX_NO_AGENT, EX_USAGE};
use crate::{agents, say};
use anyhow::{Context, Result};
use clap::Args;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::{Opens, RootStatus, Status};
use monarch_core::shown::ShowPath;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A report of `monarch run --report FILE.json`; without it: what the agents of this node have done so far
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Write it to this file: a page (.html) that opens in any browser and needs nothing from elsewhere, otherwise JSON
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print it as JSON: the report of a file, or a list of those of the agents
    #[arg(long, conflicts_with = "output")]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Why opens went to the PFS: the name of the counter, and what it says.
pub(crate) const REASONS: [(&str, &str); 8] = [
    ("absent", "before there was an index"),
    ("large", "large and not complete"),
    ("no_room", "without room"),
    ("refused", "put off: a failure, or changed a moment ago"),
    ("changed", "changed since the scan, or not readable"),
    ("written", "written by the job"),
    ("deadline", "took too long"),
    ("vanished", "copy dropped"),
];

/// Opens below the roots that copies are not meant for.
const OTHERS: [(&str, &str); 3] = [
    ("flags", "to write, to create, with O_DIRECT"),
    ("unknown", "of what is not in the index: made after the scan"),
    ("other_mount", "in processes that have another mount there"),
];

/// What a run came to. (What is added later has to have a default: reports are kept.)
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Name of the node.
    #[serde(default)]
    pub(crate) host: String,
    /// What was run, if that is known.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// When it ended: milliseconds since 1970.
    #[serde(default)]
    pub(crate) ended_ms: u64,
    /// How long it took.
    pub(crate) seconds: f64,
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
    /// How often it was started again.
    pub(crate) agent_restarts: u32,
    /// Whether the figures are those of other jobs, too.
    pub(crate) shared_with_other_jobs: bool,
    /// How long the agent's opens at the PFS took.
    #[serde(default)]
    pub(crate) pfs_opens: Vec<Opens>,
    /// How things were at the end.
    pub(crate) status: Status,
}

fn minus(a: &BTreeMap<String, u64>, b: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    a.iter().map(|(k, v)| (k.clone(), v.saturating_sub(b.get(k).copied().unwrap_or(0)))).collect()
}

fn opens_since(after: &[Opens], before: &[Opens]) -> Vec<Opens> {
    let earlier = before.iter().map(|o| o.opens).chain(std::iter::repeat(0));
    after.iter().zip(earlier).map(|(o, earlier)| Opens { opens: o.opens.saturating_sub(earlier), ..*o }).collect()
}

impl Report {
    /// Of what happened between two looks at the agent.
    pub(crate) fn between(before: &Status, after: Status, took: Duration, command: &[OsString]) -> Self {
        let restarts = after.incarnation.saturating_sub(before.incarnation);
        // A new agent starts its own figures at zero; the counters of the job's processes live on.
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
            shared_with_other_jobs: after.jobs > 1,
            pfs_opens: opens_since(&after.pfs_opens, &earlier.pfs_opens),
            // Nodes may have left that shared all the time.
            status: Status { nodes: after.nodes.max(before.nodes), ..after },
            ..Self::default()
        };
        new.opens_local = new.get("hits") + new.get("waited");
        new.opens_pfs = REASONS.iter().map(|(name, _)| new.get(name)).sum();
        new.opens_chunked = new.get("chunked");
        new.advice = advice::of(&new);
        new
    }

    /// A counter.
    fn get(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// A counter of the agent.
    fn agent(&self, name: &str) -> u64 {
        self.agent.get(name).copied().unwrap_or(0)
    }

    /// Whether no process has used a root. Which root was asked about names is not counted: where one alone is served, such calls speak for it.
    fn is_unused(&self, root: &RootStatus) -> bool {
        let asked = self.status.roots.len() == 1 && self.get("stats") + self.get("lists") > 0;
        root.state == "ready" && root.opens == 0 && !asked
    }

    /// All opens below the roots that copies are for.
    const fn opens(&self) -> u64 {
        self.opens_local + self.opens_pfs + self.opens_chunked
    }

    /// Seconds that readers waited for copies, all together.
    fn waited_s(&self) -> f64 {
        self.get("wait_us") as f64 / 1e6
    }

    pub(crate) fn text(&self) -> String {
        lines::text(self)
    }

    /// As it is written to a file of this name.
    pub(crate) fn document(&self, path: &Path) -> String {
        let is_page = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("html") || e.eq_ignore_ascii_case("htm"));
        if is_page { page::html(self) } else { serde_json::to_string_pretty(self).unwrap_or_default() + "\n" }
    }
}

pub(crate) fn main(args: &ReportArgs) -> Result<ExitCode> {
    let reports = match &args.file {
        Some(file) => match read(file) {
            Ok(report) => vec![report],
            Err(e) => {
                say::err(format_args!("monarch: {}\n", say::chain(&e)));
                return Ok(ExitCode::from(EX_USAGE));
            }
        },
        None => match so_far(&args.config) {
            Ok(reports) => reports,
            Err(code) => return Ok(code),
        },
    };
    let Some(first) = reports.first() else {
        say::err(format_args!(
            "monarch: no agent of yours is running on this node; name a report of `monarch run --report FILE.json`\n"
        ));
        return Ok(ExitCode::from(EX_NO_AGENT));
    };
    if let Some(path) = &args.output {
        if reports.len() > 1 {
            say::warn(format_args!("several agents are running; the page is about the first"));
        }
        std::fs::write(path, first.document(path)).with_context(|| format!("cannot write {}", path.shown()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        if args.file.is_some() {
            say::json(first)?;
        } else {
            say::json(&reports)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    for report in &reports {
        say::out(format_args!("{}{}", report.text(), lines::advice(report)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<Report> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.shown()))?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is no report of `monarch run --report FILE.json` (a page of HTML cannot be read again)",
            file.shown()
        )
    })
}

/// Of the agents that run, since they were started.
fn so_far(config: &ConfigArgs) -> Result<Vec<Report>, ExitCode> {
    let (agents, _) = agents::ask(config, Duration::from_secs(5), Client::status)?;
    let all = agents.given.into_iter();
    Ok(all
        .map(|s| {
            Report::between(
                &Status { incarnation: s.incarnation, ..Status::default() },
                s.clone(),
                Duration::from_secs_f64(s.uptime_s.max(0.0)),
                &[],
            )
        })
        .collect())
}
