//! The end of a job that has written below output roots: waits until that is published.
//!
//! A signal during the wait leaves what is pending on the node: the journal of the staging
//! directory has all of it, for the next job there or for `monarch recover`.

use super::accounting::speaks_for_node;
use super::child;
use super::service::Service;
use crate::outputs::named::is_about;
use crate::outputs::waiting::{Goal, Verdict, Waiting};
use crate::outputs::{found, lines};
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

/// How much younger than it is an entry may seem, as the agent finds by itself that a process which
/// was killed has closed its files.
const AGE_TOLERANCE: Duration = Duration::from_secs(1);

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

/// Returns a line for each output root of the job that cannot be staged: the job writes to the PFS
/// there.
pub(crate) fn unstaged(service: &Service) -> Vec<String> {
    let outputs = service.outputs();
    let of_job =
        service.before.outputs.iter().filter(|s| outputs.contains(&s.path) && s.staging.as_os_str().is_empty());
    let line = |s: &OutputStatus| {
        let why = s.held.as_deref().unwrap_or("no staging directory");
        format!("output root {}: {why}", s.path.shown())
    };
    of_job.map(line).collect()
}

/// Warns of output roots that cannot be staged.
pub(crate) fn warn_of(unstaged: &[String]) {
    unstaged.iter().filter(|_| speaks_for_node()).for_each(|line| say::warn(format_args!("{line}")));
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
        let rest: Vec<&OutputStatus> =
            rest.iter().filter(|s| s.is_pending() && is_about(&self.roots, &s.path)).collect();
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

    /// What of the agent's output roots the job may have written, `waited` after its end. Its files
    /// are staged in one of the roots of all jobs of the agent that hold them: so roots that hold
    /// one of its own, or lie below one, concern it as well.
    ///
    /// Another job may go on to write to a root that it has declared: of this only what was there
    /// at the end of this job is left. In a root around this job's, files that are open count as
    /// the other job's, once the agent has had the time to find those that were closed.
    fn concerning(&self, all: Vec<OutputStatus>, waited: Duration) -> Vec<OutputStatus> {
        let mut own = all;
        own.retain(|s| is_about(&self.roots, &s.path));
        for s in own.iter_mut().filter(|s| !self.roots.contains(&s.path)) {
            let age = s.oldest_ms.map(|ms| Duration::from_millis(ms) + AGE_TOLERANCE);
            if age.is_some_and(|age| age < waited) {
                (s.pending, s.pending_bytes) = (0, 0);
            }
            let is_below = self.roots.iter().any(|root| s.path.starts_with(root));
            if !is_below && waited > AGE_TOLERANCE {
                s.open = 0;
            }
        }
        own
    }

    /// Watches the drain. Returns why the wait is over, and what the agent said last.
    fn watch(&self, service: &mut Service, quiet: bool) -> (Verdict, Option<Vec<OutputStatus>>) {
        let (start, mut bar) = (Instant::now(), None);
        let mut waiting = Waiting::new(Goal::Drained, self.limit);
        let (mut last, mut heard) = (None, start);
        // (An agent that was started again counts ages from its start.)
        let mut ages_from = (service.generation(), start);
        loop {
            match service.ask(&Request::Outputs { roots: self.roots.clone() }) {
                // An agent that was started again may not have all of them yet.
                Some(Reply::Outputs { outputs }) if self.has_all(service, &outputs) => {
                    heard = Instant::now();
                    if ages_from.0 != service.generation() {
                        ages_from = (service.generation(), heard);
                    }
                    last = Some(self.concerning(outputs, ages_from.1.elapsed()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn job(roots: &[&str]) -> JobOutputs {
        JobOutputs { roots: roots.iter().map(PathBuf::from).collect(), ..JobOutputs::default() }
    }

    fn root(path: &str, age_ms: u64) -> OutputStatus {
        OutputStatus { path: path.into(), pending: 2, oldest_ms: Some(age_ms), ..OutputStatus::default() }
    }

    #[test]
    fn run_waits_for_every_output_root_that_is_holds_or_lies_below_one_of_its_own() {
        let all = ["/a", "/a/b", "/a/b/c", "/a/other", "/z"].map(|path| root(path, 5000));
        let own = job(&["/a/b"]).concerning(all.into(), Duration::ZERO);
        let paths: Vec<&Path> = own.iter().map(|s| s.path.as_path()).collect();
        assert_eq!(paths, ["/a", "/a/b", "/a/b/c"].map(Path::new));
        assert!(own.iter().all(OutputStatus::is_pending), "{own:?}");
    }

    #[test]
    fn run_does_not_wait_for_what_another_job_writes_later() {
        let all = vec![root("/a", 5000), root("/a/b", 5000)];
        let own = job(&["/a/b"]).concerning(all.clone(), Duration::from_millis(5500));
        assert!(own.iter().all(OutputStatus::is_pending), "an age may be too low by a second: {own:?}");
        let own = job(&["/a/b"]).concerning(all, Duration::from_secs(7));
        assert_eq!(own.iter().map(|s| s.pending).collect::<Vec<_>>(), [0, 2]);
        let unknown = OutputStatus { oldest_ms: None, ..root("/a", 0) };
        assert!(job(&["/a/b"]).concerning(vec![unknown], Duration::from_secs(70))[0].is_pending());
    }

    #[test]
    fn files_that_another_job_has_open_in_a_root_around_are_not_waited_for() {
        let open = |path: &str| OutputStatus { path: path.into(), open: 1, ..OutputStatus::default() };
        let all = vec![open("/a"), open("/a/b"), open("/a/b/c")];
        let count = |waited| job(&["/a/b"]).concerning(all.clone(), waited).iter().map(|s| s.open).collect::<Vec<_>>();
        assert_eq!(count(Duration::ZERO), [1, 1, 1]);
        assert_eq!(count(Duration::from_secs(2)), [0, 1, 1]);
    }
}
