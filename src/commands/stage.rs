//! `monarch stage`: copies a data set, or parts of it, to this node, and waits until it is there.
//!
//! It is a job like `run`: it finds or starts the agent, asks it to fetch the named files first,
//! and counts them by what has become of their copies.

use crate::args::{ConfigArgs, NoConfig};
use crate::exit_code::{EX_NO, EX_USAGE};
use crate::job::child::{self, EndSignal, Ended};
use crate::job::{self, service::Service};
use crate::progress::Bar;
use crate::say::{self, UNEXPECTED_REPLY};
use anyhow::{Result, bail};
use clap::Args;
use monarch_core::agent::protocol::{Ahead, Census, Range, Reply, Request, Tally};
use monarch_core::config::{Config, Persist, Tier};
use monarch_core::index::root_id;
use monarch_core::reader::Reader;
use monarch_core::shown::ShowPath;
use monarch_core::tier::working_sets_in;
use monarch_core::working_set::WorkingSet;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

mod outcome;
mod unread;

use outcome::{at_most, code, less, shown, sum, summary};
use unread::UnreadDirs;

#[derive(Debug, Args)]
pub(crate) struct StageArgs {
    /// Files, or directories with all that lies below them, in this order; without any, all roots.
    /// Where no root is configured, these are the roots
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Only the files that the last job of each root opened in its first minutes
    #[arg(long)]
    working_set: bool,
    /// Copy nothing; say what would be copied and how much of it there is room for
    #[arg(long)]
    dry_run: bool,
    /// How long files are tried again that fail, or that were changed a moment ago
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = crate::args::time)]
    retry: Duration,
    /// Print what came of it as an object
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Most files named that were not staged.
const MAX_FILES_NAMED: usize = 20;
/// Shortest pause between two requests for the counts.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest pause between two requests for the counts.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// When no copy was completed for this time, the files are requested again.
const REQUEST_INTERVAL: Duration = Duration::from_secs(3);
/// How long there may be no agent.
const MAX_AGENT_ABSENCE: Duration = Duration::from_secs(60);

pub(crate) fn main(args: &StageArgs) -> Result<ExitCode> {
    let (settings, paths) = args.wanted();
    let mut config = match job::config(&settings, &[], args.quiet) {
        Ok(resolved) => resolved.config,
        Err(NoConfig::Refused(why)) => {
            say::err(format_args!("monarch: nothing is staged: {why}\n"));
            return Ok(ExitCode::from(EX_NO));
        }
        Err(NoConfig::Wrong(code)) => return Ok(code),
    };
    if config.dataset.roots.is_empty() {
        say::err(format_args!("monarch: nothing is staged: the configuration names no root of a data set\n"));
        return Ok(ExitCode::from(EX_USAGE));
    }
    config.outputs.clear();
    job::follow_links(&mut config, args.quiet);
    if args.dry_run || args.working_set {
        config.prefetch.enabled = false;
    }
    let start = Instant::now();
    let service = Service::start(config.clone())?;
    let end_signal = EndSignal::watch();
    let mut stage = Stage { service, config, ranges: Vec::new(), working_set: args.working_set, start, end_signal };
    if let Some(unknown) = stage.find(&paths, args.quiet)? {
        say::err(format_args!(
            "monarch: {} is not below a root, or not in its index; see `monarch explain`\n",
            unknown.shown()
        ));
        return Ok(ExitCode::from(EX_USAGE));
    }
    if args.working_set && stage.ranges.is_empty() {
        say::err(format_args!("monarch: no job has left a working set of this root on this node; nothing is staged\n"));
        stage.service.leave(false);
        return Ok(ExitCode::from(EX_NO));
    }
    let code = if args.dry_run { stage.plan(args)? } else { stage.copy(args, &paths)? };
    let signal = stage.end_signal.received();
    stage.service.leave(false);
    Ok(signal.map_or(code, |signal| child::end_like(Ended::Killed(signal))))
}

impl StageArgs {
    /// The configuration, and what is to be staged of it.
    fn wanted(&self) -> (ConfigArgs, Vec<PathBuf>) {
        let mut settings = self.config.clone();
        let given = !settings.root.is_empty()
            || settings.config.is_some()
            || settings.set.iter().any(|(key, _)| key == "dataset.roots")
            || std::env::var_os("MONARCH_DATASET__ROOTS").is_some();
        if given || self.paths.is_empty() {
            return (settings, self.paths.clone());
        }
        settings.root.clone_from(&self.paths);
        (settings, Vec::new())
    }
}

struct Stage {
    service: Service,
    config: Config,
    ranges: Vec<Range>,
    /// Whether only the working sets of the roots are staged.
    working_set: bool,
    start: Instant,
    end_signal: EndSignal,
}

impl Stage {
    /// Waits for the index and finds the paths in it. Returns the first path that is not there.
    fn find(&mut self, paths: &[PathBuf], quiet: bool) -> Result<Option<PathBuf>> {
        let progress = Bar::new(quiet);
        let roots: Vec<PathBuf> = self.config.dataset.roots.iter().map(|r| r.real_path.clone()).collect();
        loop {
            let Reply::Status(status) = self.ask(&Request::Status)? else { bail!("{UNEXPECTED_REPLY}") };
            let ours = || status.roots.iter().filter(|r| roots.contains(&r.path));
            if let Some(failed) = ours().find(|r| r.state.starts_with("failed")) {
                bail!("{}: {}", failed.path.shown(), failed.state);
            }
            if ours().filter(|r| r.state == "ready").count() == roots.len() {
                break;
            }
            if self.end_signal.received().is_some() {
                bail!("interrupted before the roots were scanned; nothing was staged");
            }
            progress.scanning(ours().map(|r| r.entries).sum());
            std::thread::sleep(MIN_POLL_INTERVAL);
        }
        let reader = self.reader()?;
        let wanted = if paths.is_empty() { &roots[..] } else { paths };
        self.ranges.clear();
        for path in wanted {
            if self.working_set {
                if !self.ranges_of_set(&reader, path) {
                    return Ok(Some(path.clone()));
                }
                continue;
            }
            match reader.range(path) {
                Ok(range) => self.ranges.push(range),
                Err(_) => return Ok(Some(path.clone())),
            }
        }
        Ok(None)
    }

    /// Adds the files of the working set of a root. Returns whether `path` is a root.
    fn ranges_of_set(&mut self, reader: &Reader, path: &Path) -> bool {
        let Some(root) = path.canonicalize().ok().filter(|real| reader.roots().contains(real)) else { return false };
        let sets: Vec<WorkingSet> = reader.tiers().iter().flat_map(|tier| working_sets_in(tier)).collect();
        let set = sets.into_iter().find(|set| set.root == root_id(&root)).unwrap_or_default();
        let of_last_job = set.files.iter().filter(|f| f.history & 1 == 1);
        // Files that are gone are left out.
        self.ranges.extend(of_last_job.filter_map(|f| reader.range(&root.join(OsStr::from_bytes(&f.path))).ok()));
        true
    }

    fn reader(&self) -> Result<Reader> {
        Ok(Reader::open(self.service.control())?)
    }

    /// Asks the agent. While there is none, waits until the job's service has started another.
    fn ask(&mut self, request: &Request) -> Result<Reply> {
        let start = Instant::now();
        loop {
            match self.service.ask(request) {
                Some(Reply::Stopping) => bail!("`monarch stop` has ended the agent"),
                Some(Reply::Error { message }) => bail!("{message}"),
                Some(reply) => return Ok(reply),
                None if start.elapsed() > MAX_AGENT_ABSENCE => bail!("the agent has ended and does not start again"),
                None => std::thread::sleep(MIN_POLL_INTERVAL),
            }
        }
    }

    fn census(&mut self, plan: bool, list: usize) -> Result<Census> {
        match self.ask(&Request::Census { ranges: self.ranges.clone(), plan, list })? {
            Reply::Census(census) => Ok(*census),
            _ => bail!("{UNEXPECTED_REPLY}"),
        }
    }

    /// What would be copied.
    fn plan(&mut self, args: &StageArgs) -> Result<ExitCode> {
        let c = self.census(true, 0)?;
        let missing = less(c.all, &[c.resident, c.bypassed, c.on_tape, c.owned_by_peers]);
        let rest = less(missing, &[c.fits]);
        let unread = UnreadDirs::find(&self.reader()?, &self.ranges);
        if args.json {
            let object = json!({"all": c.all, "resident": c.resident, "to_copy": missing, "fits": c.fits,
                "does_not_fit": rest, "on_tape": c.on_tape, "bypassed": c.bypassed, "owned_by_peers": c.owned_by_peers,
                "unread_directories": unread.json()});
            say::json(&object)?;
        } else {
            let mut text = format!("{} in all, {} resident\n", shown(c.all), shown(c.resident));
            if c.on_tape.files > 0 {
                let _ = writeln!(text, "on tape, copied only by their own names: {}", shown(c.on_tape));
            }
            if c.owned_by_peers.files > 0 {
                let _ = writeln!(text, "staged by other nodes of the job: {}", shown(c.owned_by_peers));
            }
            let _ = writeln!(text, "to be copied: {}; there is room for {}", shown(missing), shown(c.fits));
            if rest.files > 0 {
                let _ = writeln!(text, "no room for {}: give the tiers more capacity, or stage less", shown(rest));
            }
            say::out(format_args!("{text}{}", unread.text()))?;
        }
        Ok(match rest.files {
            _ if unread.has_failures() => ExitCode::FAILURE,
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(EX_NO),
        })
    }

    /// Has everything copied and waits for it.
    fn copy(&mut self, args: &StageArgs, paths: &[PathBuf]) -> Result<ExitCode> {
        self.warn_of_tiers_that_do_not_last();
        let mut generation = self.service.generation();
        let progress = Bar::new(args.quiet);
        let first = self.census(false, 0)?.resident;
        // The prefetch that began with the index may have made some of these.
        let ahead = at_most(self.copied()?, first);
        self.ask(&Request::Prefetch { ranges: self.ranges.clone() })?;
        // Since when only files are left that are to be tried again.
        let mut tried_since: Option<Instant> = None;
        let mut last = Progress { files: 0, chunk_bytes: 0, at: Instant::now() };
        loop {
            let asked = Instant::now();
            let census = self.census(false, 0)?;
            let took = asked.elapsed();
            if generation != self.service.generation() || census.retired {
                // Another agent, which has no request of this job; or the roots were scanned again.
                generation = self.service.generation();
                if let Some(path) = self.find(paths, true)? {
                    bail!("{} is not in the index any more", path.shown());
                }
                self.ask(&Request::Prefetch { ranges: self.ranges.clone() })?;
                continue;
            }
            let prefetch = self.prefetch()?;
            progress.staged(&census, held_up(&prefetch).as_deref());
            if (census.resident.files, census.chunks) != (last.files, last.chunk_bytes) {
                last = Progress { files: census.resident.files, chunk_bytes: census.chunks, at: asked };
            }
            if last.at.elapsed() >= REQUEST_INTERVAL && census.under_way.files > 0 {
                // The agent fetches a file whose pause has not ended only when it is asked again.
                self.ask(&Request::Prefetch { ranges: self.ranges.clone() })?;
                let rests = matches!(prefetch, Ahead::TiersRest | Ahead::MemoryPressure { stopped: true, .. });
                if rests && last.at.elapsed() >= args.retry.max(REQUEST_INTERVAL) {
                    break;
                }
            }
            if census.under_way.files == 0 {
                let again = census.unsettled.files + census.failing.files + census.dropped.files;
                if again == 0 || tried_since.get_or_insert(asked).elapsed() >= args.retry {
                    break;
                }
            }
            if self.end_signal.received().is_some() {
                break;
            }
            std::thread::sleep((took * 10).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL));
        }
        let (took, after) = (self.start.elapsed(), self.census(false, MAX_FILES_NAMED)?);
        drop(progress);
        let copied = sum(less(after.resident, &[first]), ahead);
        let unread = UnreadDirs::find(&self.reader()?, &self.ranges);
        let is_interrupted = self.end_signal.received().is_some();
        if args.json {
            let object = json!({"copied": copied, "census": after, "seconds": took.as_secs_f64(), "unread_directories": unread.json(),
                "interrupted": is_interrupted});
            say::json(&object)?;
        } else {
            say::out(format_args!("{}", summary(copied, &after, &unread, took)))?;
        }
        if is_interrupted {
            say::err(format_args!("{}", kept(&self.config.tiers)));
        }
        Ok(code(&after, &unread))
    }

    /// Returns what the agent has copied since this job attached to it; an agent that was started
    /// later has counted from 0.
    fn copied(&mut self) -> Result<Tally> {
        let Reply::Status(now) = self.ask(&Request::Status)? else { return Ok(Tally::default()) };
        let before = if self.service.generation() == 1 { Some(&self.service.before.agent) } else { None };
        let sum = |names: &[&str]| {
            let of = |all: &BTreeMap<String, u64>| names.iter().filter_map(|n| all.get(*n)).sum::<u64>();
            of(&now.agent).saturating_sub(before.map_or(0, of))
        };
        Ok(Tally { files: sum(&["copied_ahead", "copied_on_demand"]), bytes: sum(&["bytes_copied"]) })
    }

    /// Returns the state of the agent's prefetch.
    fn prefetch(&mut self) -> Result<Ahead> {
        let Reply::Status(status) = self.ask(&Request::Status)? else { return Ok(Ahead::Idle) };
        Ok(status.prefetch)
    }

    fn warn_of_tiers_that_do_not_last(&self) {
        let passing = |t: &&monarch_core::config::Tier| t.persist == Persist::Job;
        let names: Vec<&str> = self.config.tiers.iter().filter(passing).map(|t| t.name.as_str()).collect();
        if !names.is_empty() && self.service.before.jobs <= 1 {
            say::warn(format_args!(
                "copies in {} go when the last job does, and this is the only one: set `persist: node` for a tier that is to \
                 keep them for the next",
                names.join(", ")
            ));
        }
    }
}

/// What had been staged when staging last made progress.
struct Progress {
    files: u64,
    /// Bytes of large files whose copies are not complete.
    chunk_bytes: u64,
    at: Instant,
}

/// Returns why nothing is fetched at present, if so.
fn held_up(prefetch: &Ahead) -> Option<String> {
    (!matches!(prefetch, Ahead::Idle | Ahead::Running)).then(|| prefetch.to_string())
}

/// Returns what a stage that was interrupted says about the copies that there are.
fn kept(tiers: &[Tier]) -> String {
    let names = |persist| {
        let of: Vec<&str> = tiers.iter().filter(|t| t.persist == persist).map(|t| t.name.as_str()).collect();
        of.join(", ")
    };
    let (stay, go) = (names(Persist::Node), names(Persist::Job));
    let stay =
        if stay.is_empty() { stay } else { format!("; copies in {stay} stay, and the next stage continues there") };
    let go = if go.is_empty() { go } else { format!("; copies in {go} go with the last job (persist: job)") };
    format!("monarch: interrupted{stay}{go}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_an_agent_with_the_former_names_are_read() {
        let counts = |n| Tally { files: n, bytes: 10 * n };
        let now = Census { bypassed: counts(1), owned_by_peers: counts(2), ..Census::default() };
        let text = serde_json::to_string(&now).unwrap();
        let former = text.replace("bypassed", "left").replace("owned_by_peers", "elsewhere");
        assert!(former.contains(r#""left":{"#) && former.contains(r#""elsewhere":{"#), "{former}");
        assert_eq!(serde_json::from_str::<Census>(&former).unwrap(), now);
    }
}
