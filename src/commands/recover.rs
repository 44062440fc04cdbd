//! `monarch recover`: publishes what earlier jobs have left on this node.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NOT_PUBLISHED;
use crate::outputs::recovery::{self, Recovered, recover};
use crate::outputs::waiting::{Goal, Waiting};
use crate::outputs::{found, lines};
use crate::progress::Bar;
use crate::say;
use anyhow::Result;
use bytesize::ByteSize;
use clap::Args;
use monarch_core::agent::protocol::OutputStatus;
use monarch_core::shown::ShowPath;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

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

pub(crate) fn main(args: &RecoverArgs) -> Result<ExitCode> {
    let outputs = match found::all(&args.config, &args.dirs) {
        Ok(outputs) => outputs,
        Err(code) => return Ok(code),
    };
    let all: Vec<PathBuf> = outputs.found.iter().map(|found| found.status.staging.clone()).collect();
    let (drained, left): (Vec<_>, Vec<_>) = outputs.found.into_iter().partition(|found| found.is_drained);
    for found in drained.iter().filter(|found| found.status.is_pending()) {
        say::note(format_args!(
            "an agent publishes {}: {}; `monarch flush` waits for it",
            found.status.path.shown(),
            lines::summary(&found.status)
        ));
    }
    if left.is_empty() && !args.json {
        say::note(format_args!("no earlier job has left anything to publish; name its tier with --tier"));
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
    failed |= !remove_orphans(args, &all)?;
    let rest: Vec<&OutputStatus> = done.iter().map(|r| &r.rest).filter(|s| s.is_pending()).collect();
    rest.iter().for_each(|s| say::err(format_args!("{}", lines::rest(s))));
    Ok(match (rest.is_empty(), failed) {
        (false, _) => ExitCode::from(EX_NOT_PUBLISHED),
        (true, true) => ExitCode::FAILURE,
        (true, false) => ExitCode::SUCCESS,
    })
}

/// Removes part files below the directories that are named whose staged files are gone with their
/// tier. Returns whether all of them could be read.
fn remove_orphans(args: &RecoverArgs, staging: &[PathBuf]) -> Result<bool> {
    let mut all_read = true;
    for dir in &args.dirs {
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
    let recovered = recover(left, &mut |now| {
        let now = std::slice::from_ref(now);
        let _ = waiting.look(start.elapsed(), now);
        waiting.show(&bar, now);
        ControlFlow::Continue(())
    })?;
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
