//! `monarch du`: how much of which directories has copies on this node.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO;
use crate::{agents, say};
use anyhow::Result;
use bytesize::ByteSize;
use clap::Args;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::{Census, Reply, Request};
use monarch_core::agent::runtime_dir;
use monarch_core::reader::Reader;
use monarch_core::shown::ShowPath;
use serde_json::json;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct DuArgs {
    /// Files, or directories with all that lies below them; without any, all roots of all agents
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
    let agents = match agents::need(&args.config, ANSWER_TIMEOUT, move |client| count(client, &asked)) {
        Ok(answers) => answers,
        Err(code) => return Ok(code),
    };
    let found: Vec<(PathBuf, Census)> = agents.given.into_iter().flatten().collect();
    if args.json {
        let objects: Vec<_> = found
            .iter()
            .map(|(path, c)| json!({"path": path.to_string_lossy(), "all": c.all, "resident": c.resident}))
            .collect();
        say::json(&objects)?;
    } else {
        for (path, c) in &found {
            say::out(format_args!(
                "{:>10} of {:>10}  {} of {} files  {}\n",
                ByteSize(c.resident.bytes).to_string(),
                ByteSize(c.all.bytes).to_string(),
                c.resident.files,
                c.all.files,
                path.shown()
            ))?;
        }
    }
    let unknown: Vec<&PathBuf> = args.paths.iter().filter(|p| !found.iter().any(|(path, _)| path == *p)).collect();
    for path in &unknown {
        say::warn(format_args!("{} is not in the index of any root; see `monarch explain`", path.shown()));
    }
    Ok(match (agents.missing.is_empty(), unknown.is_empty()) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(EX_NO),
        (true, true) => ExitCode::SUCCESS,
    })
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
            other => return Err(io::Error::other(format!("{other:?}"))),
        }
    }
    Ok(found)
}
