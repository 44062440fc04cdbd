//! `monarch stop`: ends agents, and removes copies.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO_AGENT;
use crate::{agents, say};
use anyhow::Result;
use clap::Args;
use monarch_core::agent::client::{Client, agent_alive};
use monarch_core::agent::protocol::{Reply, Request, Status};
use monarch_core::shown::ShowPath;
use monarch_core::tier::{TierDir, TierError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Also remove the copies that stay on disk for the next job: those of these agents, and those
    /// in the tiers named here or, if none is named, in the default tier
    #[arg(long)]
    purge: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// How long an agent may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an agent that is ending may hold its tiers.
const TIER_LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a tier that is held is tried again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn main(args: &StopArgs) -> Result<ExitCode> {
    let (agents, places) = match agents::ask(&args.config, STOP_TIMEOUT, stop) {
        Ok(asked) => asked,
        Err(code) => return Ok(code),
    };
    for s in &agents.given {
        say::out(format_args!("stopped agent {}\n", s.pid))?;
    }
    for dir in &agents.missing {
        say::warn(format_args!("the agent in {} does not end", dir.shown()));
    }
    let mut good = agents.missing.is_empty();
    let mut purged = 0;
    if args.purge {
        // A tier's own directory lies in the configured directory.
        let used = agents.given.iter().flat_map(|s| &s.tiers).filter_map(|t| t.path.parent());
        let named = places.tiers.iter().map(|t| t.path.as_path()).chain(places.default_tier.as_deref());
        let mut dirs: Vec<PathBuf> = used.chain(named).map(real).collect();
        dirs.sort();
        dirs.dedup();
        for dir in &dirs {
            match purge(dir) {
                Ok(true) => {
                    say::out(format_args!("purged {}\n", dir.shown()))?;
                    purged += 1;
                }
                Ok(false) => {}
                Err(e) => {
                    say::warn(format_args!("not purged: {e}"));
                    good = false;
                }
            }
        }
    }
    if agents.given.is_empty() && good && purged == 0 {
        say::err(format_args!("monarch: no agent of yours is running on this node\n"));
        return Ok(ExitCode::from(EX_NO_AGENT));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ends an agent and waits until it has ended. Returns its last status.
fn stop(client: &mut Client) -> io::Result<Status> {
    let status = client.status()?;
    if let Reply::Error { message } = client.ask(&Request::Stop)? {
        say::warn(format_args!("{message}"));
        return Err(io::Error::other(message));
    }
    while agent_alive(&client.dir) {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(status)
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Removes the content of a tier under its lock, since another agent may use the tier by now.
/// Returns `false` when there is no such directory.
fn purge(dir: &Path) -> Result<bool, TierError> {
    if !dir.is_dir() {
        return Ok(false);
    }
    let start = Instant::now();
    loop {
        match TierDir::open("to purge", dir, u64::MAX, 0) {
            // The agent that was just stopped holds its tiers until its process has ended.
            Err(TierError::Locked { ending: true, .. }) if start.elapsed() < TIER_LOCK_TIMEOUT => {
                std::thread::sleep(POLL_INTERVAL);
            }
            held => {
                held?.remove_all();
                return Ok(true);
            }
        }
    }
}
