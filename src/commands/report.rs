//! `monarch report`: shows again what `run --report` wrote, or what agents have done so far.

use crate::args::ConfigArgs;
use crate::exit_code::{EX_NO_AGENT, EX_USAGE};
use crate::report::{self, Report};
use crate::{agents, say};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::Status;
use monarch_core::shown::ShowPath;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// A report of `monarch run --report FILE.json`; without it: what the agents of this node have
    /// done so far
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Write it to this file: a page (.html) that opens in any browser and needs nothing from
    /// elsewhere, otherwise JSON
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print it as JSON: the report of a file, or a list of those of the agents
    #[arg(long, conflicts_with = "output")]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
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
        std::fs::write(path, report::document(first, path))
            .with_context(|| format!("cannot write {}", path.shown()))?;
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
    for r in &reports {
        say::out(format_args!("{}{}", report::text(r), report::advice_lines(r)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<Report> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.shown()))?;
    // What the parser expected says nothing to a user.
    serde_json::from_str(&text).map_err(|_| {
        anyhow!(
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
            report::between(
                &Status { incarnation: s.incarnation, ..Status::default() },
                s.clone(),
                Duration::from_secs_f64(s.uptime_s.max(0.0)),
                &[],
                (false, None),
            )
        })
        .collect())
}
