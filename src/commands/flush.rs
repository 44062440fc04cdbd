//! `monarch flush`: waits until what jobs have written so far is on the parallel file system.

use crate::args::{ConfigArgs, time};
use crate::exit_code::EX_NOT_PUBLISHED;
use crate::outputs::found::ANSWER_TIMEOUT;
use crate::outputs::named::is_about;
use crate::outputs::waiting::{Goal, Verdict, Waiting};
use crate::outputs::{lines, named};
use crate::progress::Bar;
use crate::{agents, say};
use anyhow::Result;
use clap::Args;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::OutputStatus;
use monarch_core::shown::ShowPath;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(crate) struct FlushArgs {
    /// Output roots, or directories below them; without any, all
    #[arg(value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Also publish what this file has at the moment, though a process has it open for writing; may
    /// be given several times
    #[arg(long, value_name = "FILE")]
    open: Vec<PathBuf>,
    /// Wait no longer than this, such as 30s or 10min
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// Print an array of objects, one per output root, as they are at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// How often the agents are asked how far they are.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long copying open files may take, if no time is given.
const MAX_SNAPSHOT_TIME: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn main(args: &FlushArgs) -> Result<ExitCode> {
    let start = Instant::now();
    let statuses = match agents::need(&args.config, ANSWER_TIMEOUT, |client| client.outputs(&[])) {
        Ok(answers) => answers.given.into_iter().flatten().collect::<Vec<OutputStatus>>(),
        Err(code) => return Ok(code),
    };
    let known: Vec<PathBuf> = statuses.iter().map(|status| status.path.clone()).collect();
    let dirs = named::existing(&args.dirs, &statuses.iter().collect::<Vec<_>>());
    let resolved = dirs.and_then(|dirs| Ok((dirs, named::resolve(&args.open, &known)?)));
    let (dirs, open) = match resolved {
        Ok(paths) => paths,
        Err(code) => return Ok(code),
    };
    let is_in = |path: &Path| known.iter().any(|root| is_about(&[path.to_owned()], root));
    if let Some(unknown) = dirs.iter().chain(&open).find(|path| !is_in(path)) {
        say::err(format_args!(
            "monarch: {} is below no output root of an agent; `monarch outputs` lists them\n",
            unknown.shown()
        ));
        return Ok(ExitCode::FAILURE);
    }
    let patience = if open.is_empty() { ANSWER_TIMEOUT } else { args.timeout.unwrap_or(MAX_SNAPSHOT_TIME) };
    let begun = match agents::need(&args.config, patience, move |client| begin(client, &dirs, &open, patience)) {
        Ok(answers) => answers,
        Err(code) => return Ok(code),
    };
    let flushed: Vec<OutputStatus> = begun.given.iter().flatten().cloned().collect();
    // A warning has said why.
    if flushed.is_empty() && !begun.all_answered() {
        return Ok(ExitCode::FAILURE);
    }
    let roots: Vec<PathBuf> = flushed.iter().map(|s| s.path.clone()).collect();
    let (verdict, rest) = match wait(args, start, &roots) {
        Ok(waited) => waited,
        Err(code) => return Ok(code),
    };
    if args.json {
        say::json(&rest)?;
    }
    if verdict == Verdict::Done {
        if !args.quiet && !args.json {
            rest.iter()
                .for_each(|s| say::note(format_args!("{}: all that was written so far is published", s.path.shown())));
        }
        return Ok(if begun.all_answered() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    rest.iter().filter(|s| s.pending > 0).for_each(|s| say::err(format_args!("{}", lines::rest(s))));
    Ok(ExitCode::from(EX_NOT_PUBLISHED))
}

/// Has an agent publish what is pending below its output roots that are meant.
fn begin(client: &mut Client, dirs: &[PathBuf], open: &[PathBuf], patience: Duration) -> io::Result<Vec<OutputStatus>> {
    let about: Vec<PathBuf> = dirs.iter().chain(open).cloned().collect();
    let known = client.outputs(&[])?.into_iter().map(|s| s.path);
    let roots: Vec<PathBuf> = known.filter(|root| is_about(&about, root)).collect();
    if roots.is_empty() {
        return Ok(Vec::new());
    }
    let own: Vec<PathBuf> = open.iter().filter(|file| roots.iter().any(|r| file.starts_with(r))).cloned().collect();
    client.set_patience(patience)?;
    client.flush(&roots, &own)
}

/// Waits until what was pending at the start is published. Returns the state of the output roots at
/// the end. An output root that no agent has any more is left out.
fn wait(args: &FlushArgs, start: Instant, roots: &[PathBuf]) -> Result<(Verdict, Vec<OutputStatus>), ExitCode> {
    let (bar, mut waiting) = (Bar::new(args.quiet || args.json), Waiting::new(Goal::Flushed, args.timeout));
    let mut last: Vec<OutputStatus> = Vec::new();
    loop {
        let asked = roots.to_vec();
        let answers = agents::ask(&args.config, ANSWER_TIMEOUT, move |client| client.outputs(&asked))?.0;
        if answers.all_answered() {
            // (An agent ends with its last job only when all is published, or by force.)
            let is_gone = |s: &OutputStatus| !answers.given.iter().flatten().any(|now| now.path == s.path);
            if let Some(gone) = last.iter().find(|s| s.pending > 0 && is_gone(s)) {
                say::warn(format_args!("the agent that published {} has ended", gone.path.shown()));
                return Ok((Verdict::Stuck, last));
            }
            last = answers.given.into_iter().flatten().filter(|s| roots.contains(&s.path)).collect();
        }
        let verdict = waiting.look(start.elapsed(), &last);
        if verdict != Verdict::Wait {
            return Ok((verdict, last));
        }
        waiting.show(&bar, &last);
        std::thread::sleep(POLL_INTERVAL);
    }
}
