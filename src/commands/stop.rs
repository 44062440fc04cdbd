//! `monarch stop`: ends agents, and removes copies.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO_AGENT;
use crate::outputs::lines;
use crate::{agents, kept, say};
use anyhow::{Result, anyhow, bail};
use bytesize::ByteSize;
use clap::Args;
use monarch_core::agent::client::{Client, agent_alive};
use monarch_core::agent::protocol::{Reply, Request, Status};
use monarch_core::config::Places;
use monarch_core::held_dir::Removed;
use monarch_core::kept::{KeptCopies, Sum};
use monarch_core::left_outputs;
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
    let (mut good, mut purged) = (agents.all_answered(), 0);
    if args.purge {
        let (tiers, all) = purge_tiers(&agents.given, &places)?;
        (purged, good) = (tiers, good && all);
    }
    if agents.given.is_empty() && good && purged == 0 {
        let none = if args.purge { kept::nothing } else { agents::none };
        let why = none(&args.config, &places);
        say::err(format_args!("monarch: {why}\n"));
        return Ok(ExitCode::from(EX_NO_AGENT));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Removes the tiers of these agents, which have ended, and those of the configuration. Returns how
/// many, and whether all went.
fn purge_tiers(ended: &[Status], places: &Places) -> Result<(usize, bool)> {
    // A tier's own directory lies in the configured directory.
    let used = ended.iter().flat_map(|s| &s.tiers).filter_map(|t| t.path.parent());
    let named: Vec<PathBuf> = places.tiers.iter().map(|t| agents::real(&t.path)).collect();
    let mut dirs: Vec<PathBuf> = used.chain(places.default_tier.as_deref()).map(agents::real).collect();
    dirs.extend(named.iter().cloned());
    dirs.sort();
    dirs.dedup();
    let gone = with_their_agents(ended)?;
    let (mut purged, mut good, mut never) = (0, true, Vec::new());
    for dir in dirs {
        match purge(&dir) {
            Ok(Some(tier)) => {
                purged += 1;
                good &= tier.say()?;
            }
            Ok(None) if named.contains(&dir) && !gone.contains(&dir) => never.push(dir),
            Ok(None) => {}
            Err(e) => {
                say::warn(format_args!("not purged: {e}"));
                good = false;
            }
        }
    }
    // (Otherwise the message that nothing was there names them.)
    if purged > 0 || !ended.is_empty() {
        for dir in never {
            say::note(format_args!("nothing is removed in {}: no agent has made a tier of yours there", dir.shown()));
        }
    }
    Ok((purged, good))
}

/// Says which tiers agents removed themselves when they ended (`persist: job`). Returns the
/// directories that they lay in.
fn with_their_agents(ended: &[Status]) -> io::Result<Vec<PathBuf>> {
    let mut gone = Vec::new();
    for t in ended.iter().flat_map(|s| &s.tiers).filter(|t| !t.path.join("copies").exists()) {
        let (copies, bytes) = (say::counted(t.files, "copy"), ByteSize(t.used));
        say::out(format_args!("removed {} with its agent: {copies}, {bytes} of the disk or memory\n", t.path.shown()))?;
        gone.extend(t.path.parent().map(agents::real));
    }
    Ok(gone)
}

/// A tier that was removed.
struct Purged {
    path: PathBuf,
    /// The copies that it had.
    copies: Sum,
    removed: Removed,
    /// The first thing that could not be removed.
    failed: io::Result<()>,
}

impl Purged {
    /// Prints what went. Returns whether that is all of it.
    fn say(&self) -> io::Result<bool> {
        let (path, removed) = (self.path.shown(), &self.removed);
        say::out(format_args!(
            "removed {path}: {} of {}; {} of {} and {} in all\n",
            say::counted(self.copies.files, "copy"),
            ByteSize(self.copies.bytes),
            say::counted(removed.files, "file"),
            ByteSize(removed.bytes),
            say::counted(removed.directories, "directory"),
        ))?;
        if let Err(e) = &self.failed {
            say::warn(format_args!("not all of {path} is removed: {e}"));
        }
        Ok(self.failed.is_ok())
    }
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

/// Removes a tier under its lock, since another agent may use the tier by now. Returns what went,
/// `None` when no agent has made a tier there.
fn purge(dir: &Path) -> Result<Option<Purged>> {
    let copies = KeptCopies::read(std::iter::once(dir)).map_err(|(dir, e)| anyhow!("{}: {e}", dir.shown()))?;
    let Some(tier) = copies.tiers.first() else { return Ok(None) };
    let path = tier.view.path().to_owned();
    if let Some(left) = left_outputs::read(&path)?.iter().find(|left| left.is_pending()) {
        bail!(
            "{} holds what was written below {} and is not published: {}; `monarch recover` publishes it",
            path.shown(),
            left.path.shown(),
            lines::amount(left)
        );
    }
    if !tier.view.is_of_an_agent() {
        bail!("{} has no lock of an agent, and was never a tier; remove it with `rm -r` if it is yours", path.shown());
    }
    let start = Instant::now();
    loop {
        match TierDir::open("to purge", dir, u64::MAX, 0) {
            // The agent that was just stopped holds its tiers until its process has ended.
            Err(TierError::Locked { ending: true, .. }) if start.elapsed() < TIER_LOCK_TIMEOUT => {
                std::thread::sleep(POLL_INTERVAL);
            }
            held => {
                let (removed, failed) = held?.remove_all();
                return Ok(Some(Purged { path, copies: tier.sum(), removed, failed: failed.map_err(io::Error::from) }));
            }
        }
    }
}
