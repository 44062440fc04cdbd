//! `monarch status`: what the agents of this user hold.

mod cluster;
mod kept_copies;
mod tables;

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO_AGENT;
use crate::outputs::lines;
use crate::{agents, kept, say};
use anyhow::Result;
use clap::Args;
use monarch_core::agent::client::Client;
use monarch_core::left_outputs;
use monarch_core::shown::ShowPath;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print an array of objects, one per agent
    #[arg(long)]
    json: bool,
    /// Show the nodes that share copies: what they own and hold, what went between them (with
    /// --json one object per node)
    #[arg(long)]
    cluster: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// How long an agent may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn main(args: &StatusArgs) -> Result<ExitCode> {
    if args.cluster {
        return cluster::main(&args.config, args.json);
    }
    let (agents, places) = match agents::ask(&args.config, ANSWER_TIMEOUT, Client::status) {
        Ok(asked) => asked,
        Err(code) => return Ok(code),
    };
    if args.json {
        say::json(&agents.given)?;
    } else {
        say::out(format_args!("{}", agents.given.iter().map(tables::text).collect::<Vec<_>>().join("\n")))?;
    }
    agents::warn_of_silent(&agents.missing);
    if !agents.given.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if !agents.all_answered() {
        return Ok(ExitCode::FAILURE);
    }
    if !args.json {
        match kept::read(&places) {
            Ok(copies) if !copies.tiers.is_empty() => {
                say::err(format_args!("monarch: {}; earlier jobs have left:\n", agents::none(&args.config, &places)));
                say::out(format_args!("{}", kept_copies::text(&args.config, &copies)))?;
                for tier in &copies.tiers {
                    let left = left_outputs::read(tier.view.path()).unwrap_or_default();
                    for s in left.iter().filter(|s| s.is_pending()) {
                        say::out(format_args!(
                            "output {}: {}; `monarch recover` publishes it\n",
                            s.path.shown(),
                            lines::summary(s)
                        ))?;
                    }
                }
            }
            Ok(_) => say::err(format_args!("monarch: {}\n", kept::nothing(&args.config, &places))),
            Err(code) => return Ok(code),
        }
    }
    Ok(ExitCode::from(EX_NO_AGENT))
}
