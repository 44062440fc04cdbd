//! What an agent says of the nodes of its job.

use crate::exit_code::EX_NO;
use crate::say;
use anyhow::Result;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::{ClusterView, Reply, Request};
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// How long the nodes may take to look at each other: one after the other, so that they do not slow
/// each other down.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Asks an agent for the state of the nodes; with `check`, has the nodes measure their links first.
pub(crate) fn ask(client: &mut Client, check: bool) -> io::Result<ClusterView> {
    match client.ask(&Request::Cluster { check })? {
        Reply::Cluster(view) => Ok(*view),
        Reply::Error { message } => Err(io::Error::other(message)),
        _ => Err(io::Error::other(say::UNEXPECTED_REPLY)),
    }
}

/// Says that the job of this node's agent has no other nodes.
pub(crate) fn alone() -> Result<ExitCode> {
    say::err(format_args!(
        "monarch: the agent of this node works alone: its job names no other nodes (`cluster: {{ discovery: auto }}`), or it cannot share with them, and `agent.log` in its runtime directory says why\n"
    ));
    Ok(ExitCode::from(EX_NO))
}
