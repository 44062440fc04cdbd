//! `monarch refresh`: has roots scanned again while jobs use them.

use crate::args::ConfigArgs;
use crate::exit_code::EX_USAGE;
use crate::{agents, say};
use anyhow::Result;
use clap::Args;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::{Request, RootStatus};
use monarch_core::shown::ShowPath;
use serde_json::json;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct RefreshArgs {
    /// Roots; without any, all of all agents
    #[arg(value_name = "ROOT")]
    roots: Vec<PathBuf>,
    /// Print an array of objects, one per root
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// How long a scan may take.
const SCAN_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// How often the agent is asked whether the scan is done.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn main(args: &RefreshArgs) -> Result<ExitCode> {
    let wanted: Vec<PathBuf> = args.roots.iter().map(|r| r.canonicalize().unwrap_or_else(|_| r.clone())).collect();
    let asked = wanted.clone();
    let agents = match agents::need(&args.config, SCAN_TIMEOUT, move |client| refresh(client, &asked)) {
        Ok(answers) => answers,
        Err(code) => return Ok(code),
    };
    let all_answered = agents.all_answered();
    let roots: Vec<RootStatus> = agents.given.into_iter().flatten().collect();
    if args.json {
        let objects: Vec<_> = roots
            .iter()
            .map(|r| json!({"root": r.path, "state": r.state, "files": r.files, "bytes": r.bytes}))
            .collect();
        say::json(&objects)?;
    } else {
        for r in &roots {
            say::out(format_args!(
                "{}: {}, {}, {}\n",
                r.path.shown(),
                r.state,
                say::counted(r.files, "file"),
                bytesize::ByteSize(r.bytes)
            ))?;
        }
    }
    let unknown = wanted.iter().find(|w| !roots.iter().any(|r| r.path == **w));
    if let Some(path) = unknown {
        say::err(format_args!("monarch: {} is not a root of any agent; `monarch status` lists them\n", path.shown()));
        return Ok(ExitCode::from(EX_USAGE));
    }
    let good = all_answered && roots.iter().all(|r| r.state == "ready");
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has an agent scan roots again, and waits for the end of the scan. Returns the roots.
fn refresh(client: &mut Client, wanted: &[PathBuf]) -> io::Result<Vec<RootStatus>> {
    let known = client.status()?.roots.into_iter().map(|r| r.path);
    let ours: Vec<PathBuf> = known.filter(|path| wanted.is_empty() || wanted.contains(path)).collect();
    if ours.is_empty() {
        return Ok(Vec::new());
    }
    client.tally(&Request::Refresh { roots: ours.clone() }).map_err(io::Error::other)?;
    loop {
        let mut roots = client.status()?.roots;
        roots.retain(|r| ours.contains(&r.path));
        if roots.iter().all(|r| r.state != "scanning") {
            return Ok(roots);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
