//! `monarch du`: how much of which directories has copies on this node, with and without an agent.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO;
use crate::say::UNEXPECTED_REPLY;
use crate::{agents, kept, say};
use anyhow::Result;
use bytesize::ByteSize;
use clap::Args;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::{Census, Reply, Request, Tally};
use monarch_core::agent::runtime_dir;
use monarch_core::kept::Sum;
use monarch_core::reader::Reader;
use monarch_core::shown::ShowPath;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct DuArgs {
    /// Files, or directories with all that lies below them; without any, all roots of all agents.
    /// When no agent is running: those of the jobs that have left copies in the tiers
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print an array of objects, one per path
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// How long an agent may take to answer. (Counting a million files takes less than a second.)
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn main(args: &DuArgs) -> Result<ExitCode> {
    let asked: Arc<[PathBuf]> = args.paths.iter().cloned().collect();
    let agents = match agents::ask(&args.config, ANSWER_TIMEOUT, move |client| count(client, &asked)) {
        Ok((agents, _)) if agents.is_none() => return Ok(without_agent(args)?.unwrap_or_else(|code| code)),
        Ok((agents, _)) => agents,
        Err(code) => return Ok(code),
    };
    agents::warn_of_silent(&agents.missing);
    let all_answered = agents.all_answered();
    let found: Vec<(PathBuf, Census)> = agents.given.into_iter().flatten().collect();
    if args.json {
        let objects: Vec<_> = found
            .iter()
            .map(|(path, c)| json!({"path": path.to_string_lossy(), "all": c.all, "resident": c.resident}))
            .collect();
        say::json(&objects)?;
    } else {
        for (path, c) in &found {
            say::out(format_args!("{}", line(path, Some(&c.all), &c.resident)))?;
        }
    }
    let unknown: Vec<&PathBuf> = args.paths.iter().filter(|p| !found.iter().any(|(path, _)| path == *p)).collect();
    for path in &unknown {
        say::warn(format_args!("{} is not in the index of any root; see `monarch explain`", path.shown()));
    }
    Ok(match (all_answered, unknown.is_empty()) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(EX_NO),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// The line of a path; how many files there are may be unknown.
fn line(path: &Path, all: Option<&Tally>, resident: &Tally) -> String {
    let here = ByteSize(resident.bytes).to_string();
    let Some(all) = all else {
        return format!("{here:>10}  {}  {}\n", say::counted(resident.files, "file"), path.shown());
    };
    let whole = ByteSize(all.bytes).to_string();
    let files = format!("{} of {}", say::count(resident.files), say::counted(all.files, "file"));
    format!("{here:>10} of {whole:>10}  {files}  {}\n", path.shown())
}

/// Counts what jobs have left. Of the roots, when no path is named, without a call to the PFS: then
/// the files that have no copy are not known.
fn without_agent(args: &DuArgs) -> Result<Result<ExitCode, ExitCode>> {
    let (limits, copies) = match args.config.limits().and_then(|limits| Ok((limits, kept::need(&args.config)?))) {
        Ok(both) => both,
        Err(code) => return Ok(Err(code)),
    };
    let (mut found, mut good) = (Vec::new(), true);
    if args.paths.is_empty() {
        for root in kept::roots(&args.config, &copies) {
            found.push((root.to_owned(), None, tally(copies.of_root(root))));
        }
    }
    for path in &args.paths {
        let (mut all, mut resident) = (Sum::default(), Sum::default());
        let counted = kept::each_file(&copies, path, &limits, |file| {
            all.add(file.size);
            file.copy.iter().for_each(|_| resident.add(file.size));
        });
        match counted {
            Ok(()) => found.push((path.clone(), Some(tally(all)), tally(resident))),
            Err(e) => {
                say::warn(format_args!("{e}"));
                good = false;
            }
        }
    }
    if args.json {
        let object = |(path, all, resident): &(PathBuf, Option<Tally>, Tally)| json!({"path": path.to_string_lossy(), "all": all, "resident": resident});
        say::json(&found.iter().map(object).collect::<Vec<_>>())?;
    } else {
        for (path, all, resident) in &found {
            say::out(format_args!("{}", line(path, all.as_ref(), resident)))?;
        }
    }
    Ok(Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(EX_NO) }))
}

fn tally(sum: Sum) -> Tally {
    Tally { files: sum.files, bytes: sum.bytes }
}

/// Asks an agent about the paths that it knows.
fn count(client: &mut Client, paths: &[PathBuf]) -> io::Result<Vec<(PathBuf, Census)>> {
    let reader = Reader::open(&client.dir.join(runtime_dir::CONTROL)).map_err(io::Error::other)?;
    let wanted = if paths.is_empty() { reader.roots() } else { paths.to_vec() };
    let mut found = Vec::new();
    for path in wanted {
        let Ok(range) = reader.range(&path) else { continue };
        match client.ask(&Request::Census { ranges: vec![range], plan: false, list: 0 })? {
            Reply::Census(census) => found.push((path, *census)),
            Reply::Error { message } => return Err(io::Error::other(message)),
            _ => return Err(io::Error::other(UNEXPECTED_REPLY)),
        }
    }
    Ok(found)
}
