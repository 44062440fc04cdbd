//! The end of a job that has written below output roots: waits until that is published.
//!
//! A signal during the wait leaves what is pending on the node: the journal of the staging
//! directory has all of it, for the next job there or for `monarch recover`.

use super::accounting::speaks_for_node;
use super::child;
use super::service::Service;
use crate::outputs::found;
use crate::outputs::lines;
use crate::outputs::waiting::{Goal, Verdict, Waiting};
use crate::progress::Bar;
use crate::say;
use monarch_core::agent::protocol::{OutputStatus, Reply, Request};
use monarch_core::config::Config;
use monarch_core::shown::ShowPath;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the agent is asked how far it is.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long there may be no agent that answers.
const MAX_AGENT_ABSENCE: Duration = Duration::from_secs(60);
/// A wait that is longer than this is announced.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(1);

/// What a job writes: as much of its configuration as its end needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobOutputs {
    /// Real paths of the output roots.
    roots: Vec<PathBuf>,
    /// Directories of the tiers.
    tiers: Vec<PathBuf>,
    /// How long the drain is waited for; `None`: as long as it takes.
    limit: Option<Duration>,
}

/// Warns of output roots that cannot be staged: the job writes to the PFS there.
pub(super) fn warn_of_unstaged(service: &Service) {
    let outputs = service.outputs();
    let of_job =
        service.before.outputs.iter().filter(|s| outputs.contains(&s.path) && s.staging.as_os_str().is_empty());
    for s in of_job.filter(|_| speaks_for_node()) {
        let why = s.held.as_deref().unwrap_or("no staging directory");
        say::warn(format_args!("output root {}: {why}", s.path.shown()));
    }
}

impl JobOutputs {
    /// Those of a configuration.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            roots: config.outputs.iter().map(|output| output.real_path.clone()).collect(),
            tiers: config.tiers.iter().map(|tier| tier.path.clone()).collect(),
            limit: config.run.output_wait,
        }
    }

    /// Waits until all of it is published, or until a signal comes, the time is over, or the PFS
    /// refuses it. Returns whether all is published; otherwise standard error says what is not.
    /// With `quiet` there is no progress.
    pub(crate) fn wait(&self, service: &mut Service, quiet: bool) -> bool {
        if self.roots.is_empty() {
            return true;
        }
        // Those that ended the job.
        child::drop_signals();
        let (verdict, last) = self.watch(service, quiet || !speaks_for_node());
        if verdict == Verdict::Done {
            return true;
        }
        // Without an agent that answers, the staging directories tell.
        let rest = last.unwrap_or_else(|| found::left(&self.tiers).0);
        let rest: Vec<&OutputStatus> = rest.iter().filter(|s| s.is_pending() && self.roots.contains(&s.path)).collect();
        if speaks_for_node() {
            rest.iter().for_each(|s| say::err(format_args!("{}", lines::rest(s))));
        }
        rest.is_empty()
    }

    /// Whether the agent drains each output root of the job that was staged when the job began.
    fn has_all(&self, service: &Service, found: &[OutputStatus]) -> bool {
        let is_drained = |root: &PathBuf| found.iter().any(|s| s.path == *root && !s.staging.as_os_str().is_empty());
        let was_staged = |root: &PathBuf| {
            let before = service.before.outputs.iter().find(|s| s.path == *root);
            before.is_some_and(|s| !s.staging.as_os_str().is_empty())
        };
        self.roots.iter().all(|root| is_drained(root) || !was_staged(root))
    }

    /// Watches the drain. Returns why the wait is over, and what the agent said last.
    fn watch(&self, service: &mut Service, quiet: bool) -> (Verdict, Option<Vec<OutputStatus>>) {
        let (start, mut bar) = (Instant::now(), None);
        let mut waiting = Waiting::new(Goal::Drained, self.limit);
        let (mut last, mut heard) = (None, start);
        loop {
            match service.ask(&Request::Outputs { roots: self.roots.clone() }) {
                // An agent that was started again may not have all of them yet.
                Some(Reply::Outputs { outputs }) if self.has_all(service, &outputs) => {
                    heard = Instant::now();
                    last = Some(outputs);
                }
                // `monarch stop`.
                Some(Reply::Stopping) => return (Verdict::Stuck, None),
                _ if heard.elapsed() > MAX_AGENT_ABSENCE => {
                    say::warn(format_args!("the agent does not answer"));
                    return (Verdict::Stuck, None);
                }
                _ => {}
            }
            let verdict = match &last {
                Some(roots) => waiting.look(start.elapsed(), roots),
                None if self.limit.is_some_and(|limit| start.elapsed() >= limit) => Verdict::Late,
                None => Verdict::Wait,
            };
            if verdict != Verdict::Wait {
                return (verdict, last);
            }
            if let Some(roots) = last.as_ref().filter(|_| start.elapsed() >= ANNOUNCED_AFTER) {
                let bar = bar.get_or_insert_with(|| {
                    if !quiet {
                        announce(roots);
                    }
                    Bar::new(quiet)
                });
                waiting.show(bar, roots);
            }
            if child::take_signal(POLL_INTERVAL).is_some() {
                return (Verdict::Late, last);
            }
        }
    }
}

fn announce(roots: &[OutputStatus]) {
    for s in roots.iter().filter(|s| s.is_pending()) {
        say::note(format_args!(
            "the command has ended; {} below {} to be published; Ctrl-C leaves the rest on this node",
            lines::amount(s),
            s.path.shown()
        ));
    }
}
