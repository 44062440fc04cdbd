//! `monarch recover`: publishes what earlier jobs have left on this node.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NOT_PUBLISHED;
use crate::outputs::found::Outputs;
use crate::outputs::recovery::{self, Recovered, recover};
use crate::outputs::waiting::{Goal, Verdict, Waiting};
use crate::outputs::{found, lines, named};
use crate::progress::Bar;
use crate::say;
use anyhow::Result;
use bytesize::ByteSize;
use clap::Args;
use monarch_core::agent::protocol::OutputStatus;
use monarch_core::left_outputs;
use monarch_core::outputs::errors::OutputsError;
use monarch_core::shown::ShowPath;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// Output roots, or directories below them; without any, all
    #[arg(value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// Print an array of objects, one per output root
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// How often the agents are asked how far they are.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn main(args: &RecoverArgs) -> Result<ExitCode> {
    let outputs = match settled(args) {
        Ok(outputs) => outputs,
        Err(code) => return Ok(code),
    };
    let dirs = outputs.dirs;
    let all: Vec<PathBuf> = outputs.found.iter().map(|found| found.status.staging.clone()).collect();
    let (drained, left): (Vec<_>, Vec<_>) = outputs.found.into_iter().partition(|found| found.is_drained);
    if left.is_empty() && !args.json {
        let hint = match &outputs.missing_tier {
            // (In an epilog: its user has no tier on this node.)
            Some(tier) => format!(": {} does not exist", tier.shown()),
            None if args.config.names_tiers() => String::new(),
            None => "; name its tier with --tier".to_owned(),
        };
        say::note(format_args!("no earlier job has left anything to publish{hint}"));
    }
    let (mut done, mut failed) = (Vec::new(), !outputs.is_complete);
    for found in &left {
        match one(args, &found.status) {
            Ok(recovered) => done.push(recovered),
            Err(e) => {
                say::err(format_args!("monarch: {}: {}\n", found.status.path.shown(), say::chain(&e)));
                failed = true;
            }
        }
    }
    if args.json {
        say::json(&done)?;
    }
    failed |= !remove_orphans(args, &dirs, &all)?;
    let refused = drained.iter().map(|found| &found.status).filter(|status| status.is_refused);
    let rest: Vec<&OutputStatus> = done.iter().map(|r| &r.rest).chain(refused).filter(|s| s.is_pending()).collect();
    rest.iter().for_each(|s| say::err(format_args!("{}", lines::rest(s))));
    Ok(match (rest.is_empty(), failed) {
        (false, _) => ExitCode::from(EX_NOT_PUBLISHED),
        (true, true) => ExitCode::FAILURE,
        (true, false) => ExitCode::SUCCESS,
    })
}

/// Finds what is left, once the agents that still run have published what was there at the start,
/// have ended, or cannot go on.
fn settled(args: &RecoverArgs) -> Result<Outputs, ExitCode> {
    let (start, bar) = (Instant::now(), Bar::new(args.quiet || args.json));
    let mut waiting = Waiting::new(Goal::Flushed, None);
    let mut outputs = found::all(&args.config, &args.dirs)?;
    let mut is_first = true;
    loop {
        let drained = outputs.found.iter().filter(|found| found.is_drained).map(|found| &found.status);
        let pending: Vec<OutputStatus> = drained.filter(|status| status.is_pending()).cloned().collect();
        if std::mem::take(&mut is_first) {
            pending.iter().for_each(|status| {
                say::note(format_args!(
                    "an agent publishes {}: {}; waiting for it",
                    status.path.shown(),
                    lines::summary(status)
                ));
            });
        }
        if waiting.look(start.elapsed(), &pending) != Verdict::Wait {
            return Ok(outputs);
        }
        waiting.show(&bar, &pending);
        std::thread::sleep(POLL_INTERVAL);
        outputs = found::again(&args.config, outputs.dirs)?;
    }
}

/// Removes part files below the directories that are named whose staged files are gone with their
/// tier. Returns whether all of them could be read.
fn remove_orphans(args: &RecoverArgs, dirs: &[PathBuf], staging: &[PathBuf]) -> Result<bool> {
    let mut all_read = true;
    for dir in dirs {
        wait_for_answer(dir);
        match recovery::remove_orphans(dir, staging) {
            Ok(0) => {}
            Ok(_) if args.json => {}
            Ok(removed) => say::out(format_args!(
                "{}: {} removed whose staged files are gone\n",
                dir.shown(),
                say::counted(removed, "part file")
            ))?,
            Err(e) => {
                say::err(format_args!("monarch: {}: {}\n", dir.shown(), say::chain(&e)));
                all_read = false;
            }
        }
    }
    Ok(all_read)
}

/// Publishes what one staging directory holds, with progress.
fn one(args: &RecoverArgs, left: &OutputStatus) -> Result<Recovered> {
    let (start, bar) = (Instant::now(), Bar::new(args.quiet || args.json));
    let mut waiting = Waiting::new(Goal::Drained, None);
    wait_for_answer(&left.path);
    let mut holder = None;
    let recovered = loop {
        let recovered = recover(left, &mut |now| {
            let now = std::slice::from_ref(now);
            let _ = waiting.look(start.elapsed(), now);
            waiting.show(&bar, now);
            ControlFlow::Continue(())
        });
        let Err(e) = &recovered else { break recovered? };
        let Some(OutputsError::InUse { pid, .. }) = e.downcast_ref() else {
            // The other process has published all and removed it.
            if holder.is_some() && !left.staging.exists() {
                say::note(format_args!("{}: the other process has published it", left.path.shown()));
                let rest = OutputStatus { path: left.path.clone(), ..OutputStatus::default() };
                return Ok(Recovered { root: left.path.clone(), published: 0, bytes: 0, parts_removed: 0, rest });
            }
            break recovered?;
        };
        if holder.replace(*pid) != Some(*pid) {
            say::note(format_args!(
                "process {pid} publishes {}: {}; waiting for it",
                left.path.shown(),
                lines::summary(left)
            ));
        }
        let now = left_outputs::read(left.staging.ancestors().nth(2).unwrap_or(&left.staging)).unwrap_or_default();
        let now: Vec<OutputStatus> = now.into_iter().filter(|s| s.staging == left.staging).collect();
        let _ = waiting.look(start.elapsed(), &now);
        waiting.show(&bar, &now);
        std::thread::sleep(POLL_INTERVAL);
    };
    drop(bar);
    if !args.json {
        let parts = match recovered.parts_removed {
            0 => String::new(),
            n => format!("; {} without an owner removed", say::counted(n, "part file")),
        };
        say::out(format_args!(
            "{}: {} ({}) published{parts}\n",
            recovered.root.shown(),
            say::counted(recovered.published, "file"),
            ByteSize(recovered.bytes)
        ))?;
    }
    Ok(recovered)
}

/// Says so when the file system of a directory does not answer, and waits for it.
fn wait_for_answer(dir: &Path) {
    if !named::answers(dir) {
        say::warn(format_args!("the file system of {} does not answer; waiting for it", dir.shown()));
    }
}
