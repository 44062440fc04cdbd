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

/// Says that this node's agent works alone, and why, as far as agents have said so.
pub(crate) fn alone(views: &[ClusterView]) -> Result<ExitCode> {
    let mut reasons = views.iter().filter_map(|view| match view {
        ClusterView::Alone { why } => why.as_deref(),
        _ => None,
    });
    match reasons.next() {
        Some(why) => say::warn(format_args!("{}", unshared(why))),
        None => say::err(format_args!(
            "monarch: the agent of this node works alone: its job names no other nodes (`cluster: {{ discovery: auto }}`)\n"
        )),
    }
    Ok(ExitCode::from(EX_NO))
}

/// Says that this node cannot share, and why.
pub(crate) fn unshared(why: &str) -> String {
    format!("this node shares nothing with the others of its job: {why}")
}
