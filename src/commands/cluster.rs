//! `monarch cluster`: looks at the nodes of a job that share copies, and replaces the secret that
//! they share.

use crate::args::{ClusterArgs, ConfigArgs};
use crate::exit_code::EX_NO;
use crate::{agents, nodes, say};
use anyhow::Result;
use bytesize::ByteSize;
use clap::{Args, Subcommand};
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::ClusterView;
use monarch_core::cluster::node::{Link, Said};
use monarch_core::cluster::secret::UserSecret;
use monarch_core::shown::ShowPath;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;

/// Clocks that are further apart than this many milliseconds are a problem for the files' own
/// times.
const MAX_CLOCK_DIFFERENCE_MS: i64 = 1000;

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Find out whether every pair of nodes can talk, how fast, and whether clocks, versions and
    /// indexes agree
    #[command(after_help = "Example, on any node of a running job:\n  monarch cluster check\n\n\
        8 MB go over each link in each direction. Exit code 0 when all is well, 3 when not, 4 when no agent is running here.")]
    Check(CheckArgs),
    /// Replace your secret by a new one; jobs that start later still find the copies of earlier
    /// jobs
    #[command(
        after_help = "Example, while no job of yours runs on several nodes:\n  monarch cluster rotate-secret\n\n\
        The file is the one of cluster.secret_file. It keeps the former secret, from which names of copies are derived."
    )]
    RotateSecret(ClusterArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Print an array of objects, one per node, each with its links
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn main(command: &ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Check(args) => check(args),
        ClusterCommand::RotateSecret(args) => rotate_secret(args),
    }
}

fn rotate_secret(args: &ClusterArgs) -> Result<ExitCode> {
    let cluster = match args.load() {
        Ok(cluster) => cluster,
        Err(code) => return Ok(code),
    };
    let path = UserSecret::rotate(cluster.secret_file.as_deref(), &|name| std::env::var(name).ok())?;
    say::out(format_args!(
        "{} holds a new secret, and the former one to find copies by. Jobs that run keep the former keys: let them end before others start on their nodes\n",
        path.shown()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn check(args: &CheckArgs) -> Result<ExitCode> {
    let question = |client: &mut Client| nodes::ask(client, true);
    let (views, silent) = match agents::need(&args.config, nodes::ANSWER_TIMEOUT, question) {
        Ok(answers) => {
            let silent = !answers.all_answered();
            (answers.given, silent)
        }
        Err(code) => return Ok(code),
    };
    let checks: Vec<Vec<Said<Vec<Link>>>> = views
        .iter()
        .filter_map(|view| match view {
            ClusterView::Links(links) => Some(links.clone()),
            _ => None,
        })
        .collect();
    if args.json {
        say::json(&checks.concat())?;
    }
    if checks.is_empty() {
        return if silent { Ok(ExitCode::FAILURE) } else { nodes::alone(&views) };
    }
    let mut well = true;
    for links in &checks {
        let (text, faults) = (table(links), faults(links));
        if !args.json {
            say::out(format_args!("{text}"))?;
        }
        for fault in &faults {
            say::warn(format_args!("{fault}"));
        }
        well &= faults.is_empty();
    }
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(EX_NO) })
}

fn table(nodes: &[Said<Vec<Link>>]) -> String {
    let mut out = String::new();
    for node in nodes {
        let links = match &node.said {
            Ok(links) => links,
            Err(e) => {
                let _ = writeln!(out, "{}\n  does not answer: {e}", node.node);
                continue;
            }
        };
        let _ = writeln!(out, "{}", node.node);
        for l in links {
            let _ = match &l.error {
                Some(e) => writeln!(out, "  {:<24} {e}", l.to),
                None => writeln!(
                    out,
                    "  {:<24} {:>7} us, {:>9}/s, clock {:+} ms, version {}",
                    l.to,
                    l.round_trip_us,
                    ByteSize(l.bytes_per_second),
                    l.clock_ahead_ms,
                    l.version
                ),
            };
        }
    }
    out
}

/// What is not as it should be.
fn faults(nodes: &[Said<Vec<Link>>]) -> Vec<String> {
    let mut out = Vec::new();
    let said = || nodes.iter().filter_map(|n| Some((&n.node, n.said.as_ref().ok()?)));
    for n in nodes {
        if let Err(e) = &n.said {
            out.push(format!("{} does not answer: {e}", n.node));
        }
    }
    for (from, links) in said() {
        for l in links {
            match &l.error {
                Some(e) => out.push(format!("{from} cannot reach {}: {e}", l.to)),
                None if l.clock_ahead_ms.abs() > MAX_CLOCK_DIFFERENCE_MS => {
                    out.push(format!(
                        "the clocks of {from} and {} are {} ms apart; have them set by NTP",
                        l.to, l.clock_ahead_ms
                    ));
                }
                None => {}
            }
        }
    }
    let all = || said().flat_map(|(_, links)| links.iter().filter(|l| l.error.is_none()));
    let versions: BTreeSet<&str> = all().map(|l| l.version.as_str()).collect();
    if versions.len() > 1 {
        out.push(format!("the nodes run different versions of Monarch: {}", Vec::from_iter(versions).join(", ")));
    }
    let indexes: BTreeSet<&Vec<String>> = all().map(|l| &l.indexes).collect();
    if indexes.len() > 1 {
        out.push("the nodes serve different indexes: some are still being sent, or their roots differ; try again, then see their logs".to_owned());
    }
    out
}
