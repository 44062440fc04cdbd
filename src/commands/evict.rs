//! `monarch evict`: drops copies of files that are no longer needed on this node, with and without
//! an agent.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO;
use crate::{agents, kept, say};
use anyhow::Result;
use bytesize::ByteSize;
use clap::Args;
use monarch_core::agent::client::{Client, ClientError};
use monarch_core::agent::protocol::{Range, Request, Tally};
use monarch_core::agent::runtime_dir;
use monarch_core::index::root_id;
use monarch_core::kept::{KeptCopies, KeptTier};
use monarch_core::reader::Reader;
use monarch_core::shown::ShowPath;
use monarch_core::tier::Lying;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    /// Files, or directories with all that lies below them
    #[arg(required_unless_present = "all", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// All copies of all roots, and copies of earlier jobs
    #[arg(long, conflicts_with = "paths")]
    all: bool,
    /// Print what was dropped as an object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// How long an agent may take to answer. (A million files take a few seconds.)
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// What an agent did: the copies that it dropped, and the positions of the paths that it knew.
struct Done {
    tally: Tally,
    known: Vec<usize>,
}

pub(crate) fn main(args: &EvictArgs) -> Result<ExitCode> {
    let all = args.all;
    let paths: Arc<[PathBuf]> = args.paths.iter().cloned().collect();
    let asked = paths.clone();
    let agents = match agents::ask(&args.config, ANSWER_TIMEOUT, move |client| evict(client, &asked, all)) {
        Ok((agents, _)) if agents.is_none() => return without_agent(args),
        Ok((agents, _)) => agents,
        Err(code) => return Ok(code),
    };
    agents::warn_of_silent(&agents.missing);
    let sum = |of: fn(&Tally) -> u64| agents.given.iter().map(|d| of(&d.tally)).sum::<u64>();
    let (files, bytes) = (sum(|t| t.files), sum(|t| t.bytes));
    tell(args, &Tally { files, bytes })?;
    let is_unknown = |n: &usize| !agents.given.iter().any(|d| d.known.contains(n));
    let unknown: Vec<usize> = (0..paths.len()).filter(is_unknown).collect();
    for path in unknown.iter().filter_map(|&n| paths.get(n)) {
        say::warn(format_args!("{} is not in the index of any root; see `monarch explain`", path.shown()));
    }
    Ok(match (unknown.is_empty(), agents.all_answered()) {
        (_, false) => ExitCode::FAILURE,
        (false, _) => ExitCode::from(EX_NO),
        _ => ExitCode::SUCCESS,
    })
}

fn tell(args: &EvictArgs, dropped: &Tally) -> Result<()> {
    if args.json {
        say::out(format_args!("{}\n", serde_json::to_string(dropped)?))?;
    } else {
        say::out(format_args!("copies evicted: {}, {}\n", dropped.files, ByteSize(dropped.bytes)))?;
    }
    Ok(())
}

/// Drops copies that jobs have left.
fn without_agent(args: &EvictArgs) -> Result<ExitCode> {
    let (limits, copies) = match args.config.limits().and_then(|limits| Ok((limits, kept::need(&args.config)?))) {
        Ok(both) => both,
        Err(code) => return Ok(code),
    };
    let mut good = true;
    let mut wanted: Vec<Vec<Lying>> = copies.tiers.iter().map(|_| Vec::new()).collect();
    if args.all {
        wanted = copies.tiers.iter().map(KeptTier::names).collect();
    }
    for path in &args.paths {
        let found = kept::each_file(&copies, path, &limits, |file| {
            if let Some(copy) = file.copy
                && let Some(of_tier) = wanted.get_mut(copy.tier)
            {
                of_tier.push(copy.copy);
            }
        });
        if let Err(e) = found {
            say::warn(format_args!("{e}"));
            good = false;
        }
    }
    let mut dropped = Tally::default();
    for (tier, names) in copies.tiers.iter().zip(wanted).filter(|(_, names)| !names.is_empty()) {
        let held = kept::hold(tier)?;
        for copy in names {
            held.copies.remove(copy.name, copy.is_packed());
            dropped.files += 1;
            dropped.bytes += tier.size_of(copy.name).unwrap_or(0);
        }
    }
    forget_working_sets(args, &copies)?;
    tell(args, &dropped)?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(EX_NO) })
}

/// Removes the working sets of the roots that are named, or all.
fn forget_working_sets(args: &EvictArgs, copies: &KeptCopies) -> Result<()> {
    let roots: Vec<u64> = args.paths.iter().filter_map(|p| p.canonicalize().ok()).map(|p| root_id(&p)).collect();
    for tier in &copies.tiers {
        let sets = tier.view.working_sets();
        let left: Vec<_> = sets.iter().filter(|set| !args.all && !roots.contains(&set.root)).cloned().collect();
        if left.len() < sets.len() {
            kept::hold(tier)?.keep_working_sets(&left);
        }
    }
    Ok(())
}

/// Has an agent drop the copies of `paths`, or all copies.
fn evict(client: &mut Client, paths: &[PathBuf], all: bool) -> io::Result<Done> {
    let reader = Reader::open(&client.dir.join(runtime_dir::CONTROL)).map_err(io::Error::other)?;
    let wanted = if all { reader.roots() } else { paths.to_vec() };
    let found: Vec<(usize, Range)> =
        wanted.iter().enumerate().filter_map(|(n, p)| Some((n, reader.range(p).ok()?))).collect();
    let (known, ranges): (Vec<usize>, Vec<Range>) = found.into_iter().unzip();
    if ranges.is_empty() && !all {
        return Ok(Done { tally: Tally::default(), known });
    }
    match client.tally(&Request::Evict { ranges, unclaimed: all, copies: Vec::new() }) {
        Ok(tally) => Ok(Done { tally, known }),
        Err(ClientError::Io(e)) => Err(e),
        Err(e) => Err(io::Error::other(e)),
    }
}
