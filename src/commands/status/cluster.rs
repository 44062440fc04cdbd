//! `monarch status --cluster`: the nodes that share copies, a line each.

use crate::args::ConfigArgs;
use crate::{agents, nodes, say};
use anyhow::Result;
use bytesize::ByteSize;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::ClusterView;
use monarch_core::cluster::node::{NodeStatus, PeerStatus, Said};
use std::fmt::Write;
use std::process::ExitCode;

/// Shows the nodes.
pub(super) fn main(config: &ConfigArgs, json: bool) -> Result<ExitCode> {
    let views = match agents::need(config, nodes::ANSWER_TIMEOUT, |client: &mut Client| nodes::ask(client, false)) {
        Ok(views) => views,
        Err(code) => return Ok(code),
    };
    let states = |view: &ClusterView| match view {
        ClusterView::Nodes(states) => Some(states.clone()),
        _ => None,
    };
    let silent = !views.all_answered();
    let all: Vec<Vec<Said<NodeStatus>>> = views.given.iter().filter_map(states).collect();
    if json {
        say::json(&all.concat())?;
    }
    if all.is_empty() {
        return if silent { Ok(ExitCode::FAILURE) } else { nodes::alone(&views.given) };
    }
    if !json {
        all.iter().try_for_each(|states| say::out(format_args!("{}", table(states))))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(nodes: &[Said<NodeStatus>]) -> String {
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
