//! `monarch stop`.

use crate::cli::EX_NO_AGENT;
use anyhow::Result;
use clap::Args;
use monarch_core::agent::protocol::Request;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Also remove the copies that stay on disk for the next job
    #[arg(long)]
    purge: bool,
}

pub(crate) fn main(args: &StopArgs) -> Result<ExitCode> {
    let mut stopped = 0;
    for mut client in crate::status::clients() {
        let status = client.status()?;
        client.ask(&Request::Stop)?;
        let start = Instant::now();
        while monarch_core::agent::client::agent_alive(&client.dir) && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if args.purge {
            for t in &status.tiers {
                if let Err(e) = std::fs::remove_dir_all(&t.path)
                    && e.kind() != std::io::ErrorKind::NotFound
                {
                    eprintln!("monarch: warning: cannot remove {}: {e}", t.path.display());
                }
            }
        }
        println!("stopped agent {}", status.pid);
        stopped += 1;
    }
    if stopped == 0 {
        eprintln!("monarch: no agent of yours is running on this node");
        return Ok(ExitCode::from(EX_NO_AGENT));
    }
    Ok(ExitCode::SUCCESS)
}
