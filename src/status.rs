//! `monarch status`.

use crate::cli::EX_NO_AGENT;
use anyhow::Result;
use bytesize::ByteSize;
use clap::Args;
use monarch_core::agent::client::Client;
use monarch_core::agent::place;
use monarch_core::agent::protocol::Status;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print an array of objects, one per agent
    #[arg(long)]
    json: bool,
}

/// Connections to all agents of this user; only those in `MONARCH_RUNTIME_DIR` when that is set.
pub(crate) fn clients() -> Vec<Client> {
    let bases = std::env::var_os("MONARCH_RUNTIME_DIR").filter(|d| !d.is_empty()).map_or_else(
        || {
            let tmp = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
            vec![PathBuf::from("/dev/shm"), tmp]
        },
        |dir| vec![PathBuf::from(dir)],
    );
    place::all(&bases).iter().filter_map(|d| Client::connect(d).ok()).collect()
}

pub(crate) fn main(args: &StatusArgs) -> Result<ExitCode> {
    let all: Vec<Status> = clients().iter_mut().filter_map(|c| c.status().ok()).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        for s in &all {
            print(s);
        }
    }
    if all.is_empty() {
        if !args.json {
            eprintln!("monarch: no agent of yours is running on this node");
        }
        return Ok(ExitCode::from(EX_NO_AGENT));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(s: &Status) {
    println!(
        "agent {} ({}), {} job(s), up {:.0} s, engine {}, policy {}",
        s.pid, s.version, s.jobs, s.uptime_s, s.engine, s.policy
    );
    println!("  runtime  {}", s.runtime_dir.display());
    for r in &s.roots {
        println!(
            "  root     {}: {}, {} files, {}, index {}",
            r.path.display(),
            r.state,
            r.files,
            ByteSize(r.bytes),
            ByteSize(r.index_bytes)
        );
    }
    for t in &s.tiers {
        let rest = if t.resting { ", resting after an error" } else { "" };
        println!(
            "  tier     {} {}: {} copies, {} of {}{rest}",
            t.name,
            t.path.display(),
            t.files,
            ByteSize(t.used),
            ByteSize(t.capacity)
        );
    }
    let list = |m: &std::collections::BTreeMap<String, u64>| {
        m.iter().filter(|(_, v)| **v > 0).map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>().join(", ")
    };
    println!("  jobs     {}", list(&s.counters));
    println!("  agent    {}", list(&s.agent));
}
