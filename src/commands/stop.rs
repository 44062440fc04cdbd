//! `monarch stop`: ends agents, and removes copies.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO_AGENT;
use crate::{agents, kept, say};
use anyhow::{Result, anyhow};
use bytesize::ByteSize;
use clap::Args;
use monarch_core::agent::client::{Client, agent_alive};
use monarch_core::agent::protocol::{Reply, Request, Status};
use monarch_core::kept::{KeptCopies, Sum};
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
    let mut good = agents.all_answered();
    let mut purged = 0;
    if args.purge {
        // A tier's own directory lies in the configured directory.
        let used = agents.given.iter().flat_map(|s| &s.tiers).filter_map(|t| t.path.parent());
        let named = places.tiers.iter().map(|t| t.path.as_path()).chain(places.default_tier.as_deref());
        let mut dirs: Vec<PathBuf> = used.chain(named).map(agents::real).collect();
        dirs.sort();
        dirs.dedup();
        for dir in &dirs {
            match purge(dir) {
                Ok(Some((path, sum))) => {
                    let bytes = ByteSize(sum.bytes);
                    say::out(format_args!("removed {}: {}, {bytes}\n", path.shown(), say::counted(sum.files, "copy")))?;
                    purged += 1;
                }
                Ok(None) => {}
                Err(e) => {
                    say::warn(format_args!("not purged: {e}"));
                    good = false;
                }
            }
        }
    }
    if agents.given.is_empty() && good && purged == 0 {
        let none = if args.purge { kept::nothing } else { agents::none };
        let why = none(&args.config, &places);
        say::err(format_args!("monarch: {why}\n"));
        return Ok(ExitCode::from(EX_NO_AGENT));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ends an agent and waits until it has ended. Returns its last status.
fn stop(client: &mut Client) -> io::Result<Status> {
    let status = client.status()?;
    if let Reply::Error { message } = client.ask(&Request::Stop)? {
        return Err(io::Error::other(message));
    }
    while agent_alive(&client.dir) {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(status)
}

/// Removes a tier under its lock, since another agent may use the tier by now. Returns the
/// directory and the copies that went, `None` when no agent has made a tier there.
fn purge(dir: &Path) -> Result<Option<(PathBuf, Sum)>> {
    let copies = KeptCopies::read(std::iter::once(dir)).map_err(|(dir, e)| anyhow!("{}: {e}", dir.shown()))?;
    let Some(tier) = copies.tiers.first() else { return Ok(None) };
    let start = Instant::now();
    loop {
        match TierDir::open("to purge", dir, u64::MAX, 0) {
            // The agent that was just stopped holds its tiers until its process has ended.
            Err(TierError::Locked { ending: true, .. }) if start.elapsed() < TIER_LOCK_TIMEOUT => {
                std::thread::sleep(POLL_INTERVAL);
            }
            held => {
                held?.remove_all();
                return Ok(Some((tier.view.path().to_owned(), tier.sum())));
            }
        }
    }
}
