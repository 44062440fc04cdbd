//! `monarch status`: what the agents of this user hold.

mod cluster;
mod kept_copies;

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO_AGENT;
use crate::{agents, kept, say};
use anyhow::Result;
use bytesize::ByteSize;
use clap::Args;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::{Savings, Status};
use monarch_core::shown::ShowPath;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print an array of objects, one per agent
    #[arg(long)]
    json: bool,
    /// Show the nodes that share copies: what they own and hold, what went between them (with
    /// --json one object per node)
    #[arg(long)]
    cluster: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Most epochs shown of each root.
const MAX_EPOCHS_SHOWN: usize = 3;
/// How long an agent may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn main(args: &StatusArgs) -> Result<ExitCode> {
    if args.cluster {
        return cluster::main(&args.config, args.json);
    }
    let (agents, places) = match agents::ask(&args.config, ANSWER_TIMEOUT, Client::status) {
        Ok(asked) => asked,
        Err(code) => return Ok(code),
    };
    if args.json {
        say::json(&agents.given)?;
    } else {
        say::out(format_args!("{}", agents.given.iter().map(text).collect::<String>()))?;
    }
    agents::warn_of_silent(&agents.missing);
    if !agents.given.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if !agents.all_answered() {
        return Ok(ExitCode::FAILURE);
    }
    if !args.json {
        match kept::read(&places) {
            Ok(copies) if !copies.tiers.is_empty() => {
                say::err(format_args!("monarch: {}; earlier jobs have left:\n", agents::none(&args.config, &places)));
                say::out(format_args!("{}", kept_copies::text(&copies)))?;
            }
            Ok(_) => say::err(format_args!("monarch: {}\n", kept::nothing(&args.config, &places))),
            Err(code) => return Ok(code),
        }
    }
    Ok(ExitCode::from(EX_NO_AGENT))
}

fn text(s: &Status) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "agent {} ({}), {} job(s), up {:.0} s, policy {}",
        s.pid, s.version, s.jobs, s.uptime_s, s.policy
    );
    let _ = writeln!(out, "  engine   {}: {}", s.engine, s.engine_why);
    let _ = writeln!(out, "  runtime  {}", s.runtime_dir.shown());
    if let Some(url) = &s.metrics.url {
        let _ = writeln!(out, "  metrics  {url}");
    }
    if let Some(file) = &s.metrics.textfile {
        let _ = writeln!(out, "  metrics  {}", file.shown());
    }
    if let Some(trouble) = &s.metrics.trouble {
        let _ = writeln!(out, "  notice   no metrics: {trouble}");
    }
    if let Some(trouble) = s.prefetch.trouble() {
        let _ = writeln!(out, "  notice   {trouble}");
    }
    // Of a new agent on a block with counters of an earlier one, the two do not belong together.
    if s.incarnation == 1 {
        let savings = Savings::of(&s.counters, &s.agent, &s.pfs_opens);
        if savings.opens > 0 {
            let _ = writeln!(out, "  so far   {savings}");
        }
    }
    for r in &s.roots {
        let _ = writeln!(
            out,
            "  root     {}: {}, {} files, {}, index {}",
            r.path.shown(),
            r.state,
            r.files,
            ByteSize(r.bytes),
            ByteSize(r.index_bytes)
        );
        let verified = if r.verify_on_open { ", copies verified at each open" } else { "" };
        let _ = writeln!(out, "           {}{verified}", r.consistency);
        if s.engine == "auto" && !r.engine.is_empty() {
            let _ = writeln!(out, "           engine {}", r.engine);
        }
        // The last epochs; the JSON has all of them.
        for epoch in r.epochs.iter().rev().take(MAX_EPOCHS_SHOWN).rev() {
            let _ = writeln!(out, "           {epoch}");
        }
        for notice in r.notices() {
            let _ = writeln!(out, "           notice {notice}");
        }
    }
    for t in &s.tiers {
        let rest = if t.resting { ", resting (its disk is full, an error, or the job's memory is short)" } else { "" };
        let _ = writeln!(
            out,
            "  tier     {} {}: {} copies, {} of {}{rest}",
            t.name,
            t.path.shown(),
            t.files,
            ByteSize(t.used),
            ByteSize(t.capacity)
        );
        if t.packed.files > 0 {
            let (files, bytes, stored) = (t.packed.files, t.packed.bytes, t.packed.stored.max(1));
            let ratio = bytes as f64 / stored as f64;
            let _ = writeln!(
                out,
                "           {files} of them compressed: {} in {} ({ratio:.2} times smaller)",
                ByteSize(bytes),
                ByteSize(stored)
            );
        }
    }
    let list = |m: &std::collections::BTreeMap<String, u64>| {
        m.iter().filter(|(_, v)| **v > 0).map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>().join(", ")
    };
    let _ = writeln!(out, "  jobs     {}", list(&s.counters));
    let _ = writeln!(out, "  agent    {}", list(&s.agent));
    out
}
