//! `monarch cluster`: the nodes of a job that share copies; and `monarch status --cluster`.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO;
use crate::{agents, say};
use anyhow::Result;
use bytesize::ByteSize;
use clap::{Args, Subcommand};
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::{ClusterView, Reply, Request};
use monarch_core::cluster::node::{Link, NodeStatus, PeerStatus, Said};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// How long the nodes may take to look at each other: one after the other, so that they do not slow
/// each other down.
const PATIENCE: Duration = Duration::from_secs(600);
/// Clocks that are further apart than this are a problem for the files' own times.
const CLOCKS: i64 = 1000;

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Find out whether every pair of nodes can talk, how fast, and whether clocks, versions and
    /// indexes agree
    #[command(after_help = "Example, on any node of a running job:\n  monarch cluster check\n\n\
        8 MB go over each link in each direction. Exit code 0 when all is well, 3 when not, 4 when no agent is running here.")]
    Check(CheckArgs),
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
    let ClusterCommand::Check(args) = command;
    let question = |client: &mut Client| ask(client, true);
    let (views, silent) = match agents::need(&args.config, PATIENCE, question) {
        Ok(answers) => (answers.given, !answers.missing.is_empty()),
        Err(code) => return Ok(code),
    };
    let checks: Vec<Vec<Said<Vec<Link>>>> = views
        .into_iter()
        .filter_map(|view| match view {
            ClusterView::Links(links) => Some(links),
            _ => None,
        })
        .collect();
    if args.json {
        say::json(&checks.concat())?;
    }
    if checks.is_empty() {
        return if silent { Ok(ExitCode::FAILURE) } else { alone() };
    }
    let mut well = true;
    for nodes in &checks {
        let (text, complaints) = (table(nodes), complaints(nodes));
        if !args.json {
            say::out(format_args!("{text}"))?;
        }
        for complaint in &complaints {
            say::warn(format_args!("{complaint}"));
        }
        well &= complaints.is_empty();
    }
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(EX_NO) })
}

fn ask(client: &mut Client, check: bool) -> io::Result<ClusterView> {
    match client.ask(&Request::Cluster { check })? {
        Reply::Cluster(view) => Ok(*view),
        Reply::Error { message } => Err(io::Error::other(message)),
        _ => Err(io::Error::other("the agent is of another version")),
    }
}

fn alone() -> Result<ExitCode> {
    say::err(format_args!(
        "monarch: the agent of this node works alone; give its job the nodes with `cluster: {{ discovery: auto }}` (its log says why, if it has them)\n"
    ));
    Ok(ExitCode::from(EX_NO))
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
fn complaints(nodes: &[Said<Vec<Link>>]) -> Vec<String> {
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
                None if l.clock_ahead_ms.abs() > CLOCKS => {
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

/// `monarch status --cluster`.
pub(crate) fn status(config: &ConfigArgs, json: bool) -> Result<ExitCode> {
    let views = match agents::need(config, PATIENCE, |client: &mut Client| ask(client, false)) {
        Ok(views) => views,
        Err(code) => return Ok(code),
    };
    let nodes = |view| match view {
        ClusterView::Nodes(nodes) => Some(nodes),
        _ => None,
    };
    let silent = !views.missing.is_empty();
    let all: Vec<Vec<Said<NodeStatus>>> = views.given.into_iter().filter_map(nodes).collect();
    if json {
        say::json(&all.concat())?;
    }
    if all.is_empty() {
        return if silent { Ok(ExitCode::FAILURE) } else { alone() };
    }
    if !json {
        all.iter().try_for_each(|nodes| say::out(format_args!("{}", status_table(nodes))))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn status_table(nodes: &[Said<NodeStatus>]) -> String {
    let mut out = format!(
        "{:<24} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n",
        "node", "state", "owned", "held", "of others", "tiers", "received", "sent"
    );
    let seen = nodes.first().and_then(|n| n.said.as_ref().ok());
    let state = |name: &str| -> &str {
        let peer: Option<&PeerStatus> = seen.and_then(|s| s.peers.iter().find(|p| p.name == name));
        peer.map_or("here", |p| p.state.as_str())
    };
    for n in nodes {
        let s = match &n.said {
            Ok(s) => s,
            Err(e) => {
                let _ = writeln!(out, "{:<24} {:>10} {e}", n.node, state(&n.node));
                continue;
            }
        };
        let sum = |of: fn(&PeerStatus) -> u64| s.peers.iter().map(of).sum::<u64>();
        let _ = writeln!(
            out,
            "{:<24} {:>10} {:>10} {:>10} {:>10} {:>9.0}% {:>10} {:>10}",
            s.name,
            state(&n.node),
            ByteSize(s.owned.1).to_string(),
            ByteSize(s.held.1).to_string(),
            ByteSize(s.held_of_others.1).to_string(),
            s.capacity.1 as f64 / s.capacity.0.max(1) as f64 * 100.0,
            ByteSize(sum(|p| p.traffic.received_bytes)).to_string(),
            ByteSize(sum(|p| p.traffic.sent_bytes)).to_string()
        );
    }
    // These are not asked.
    for p in seen.iter().flat_map(|s| &s.peers).filter(|p| p.state == "left") {
        let _ = writeln!(out, "{:<24} {:>10}", p.name, p.state);
    }
    out
}
