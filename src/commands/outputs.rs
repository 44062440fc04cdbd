//! `monarch outputs`: what is pending below output roots, since when and why.

use crate::args::ConfigArgs;
use crate::exit_code::{EX_NO, EX_USAGE};
use crate::outputs::found::Found;
use crate::outputs::{found, lines};
use crate::say;
use anyhow::Result;
use clap::Args;
use monarch_core::shown::ShowPath;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct OutputsArgs {
    /// Output roots, or directories below them; without any, all
    #[arg(value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// List also what earlier jobs have left in which nothing is pending
    #[arg(long)]
    all: bool,
    /// Print an array of objects, one per output root
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn main(args: &OutputsArgs) -> Result<ExitCode> {
    let outputs = match found::all(&args.config, &args.dirs) {
        Ok(outputs) => outputs,
        Err(code) => return Ok(code),
    };
    if let Some(tier) = outputs.missing_tier {
        say::err(format_args!("monarch: {} does not exist\n", tier.shown()));
        return Ok(ExitCode::from(EX_USAGE));
    }
    if args.json {
        say::json(&outputs.found)?;
    } else if outputs.found.is_empty() {
        say::note(format_args!("nothing is staged on this node; name the tier of another job with --tier"));
    } else {
        let is_shown = |f: &&Found| args.all || !args.dirs.is_empty() || f.is_drained || f.status.is_pending();
        let shown: Vec<String> = outputs.found.iter().filter(is_shown).map(lines::text).collect();
        if shown.is_empty() {
            say::note(format_args!("nothing is pending; `monarch outputs --all` lists what earlier jobs have used"));
        } else {
            say::out(format_args!("{}", shown.join("\n")))?;
        }
    }
    Ok(match (outputs.found.iter().any(|found| found.status.is_pending()), outputs.is_complete) {
        (true, _) => ExitCode::from(EX_NO),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}
