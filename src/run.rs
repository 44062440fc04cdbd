//! `monarch run`: finds or starts the agent, runs the command under the shim, keeps the agent alive, says what was saved.
//!
//! Nothing that goes wrong here keeps the job from running: without an agent it runs as it would have without us, with one
//! line on standard error.

use crate::child::{self, Child};
use crate::cli::ConfigArgs;
use crate::service::Service;
use crate::{aliases, say, summary};
use anyhow::Result;
use clap::Args;
use monarch_core::config::Config;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Say nothing on standard error unless something is wrong
    #[arg(long, short)]
    quiet: bool,
    /// Write what was saved to this file as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: &RunArgs) -> Result<ExitCode> {
    child::block_signals();
    let resolved = match args.config.load() {
        Ok(r) => r,
        Err(code) => return Ok(code),
    };
    let mut config = resolved.config;
    if is_rank_0() && !args.quiet {
        for w in &resolved.warnings {
            say::warn(format_args!("{w}"));
        }
    }
    add_aliases(&mut config, &args.command);
    let mut service = if is_disabled() { None } else { serve(config) };
    let env = service.as_ref().map_or_else(Vec::new, Service::environment);
    let started = Instant::now();
    let child = match Child::start(&args.command, &env) {
        Ok(c) => c,
        Err(e) => return Ok(cannot_start(&args.command, &e)),
    };
    let end = child.wait(|| {
        if let Some(s) = &mut service {
            s.keep_alive();
        }
    })?;
    if let Some(s) = &mut service {
        conclude(s, args, started.elapsed());
    }
    Ok(child::end_like(end))
}

/// Whether Monarch is turned off; the preload library looks at the same variable.
fn is_disabled() -> bool {
    std::env::var_os("MONARCH_DISABLE").is_some_and(|v| !v.is_empty() && v != "0")
}

fn serve(config: Config) -> Option<Service> {
    match Service::start(config) {
        Ok(s) => Some(s),
        Err(e) => {
            let text = format!("{e:#}");
            say::warn(format_args!("running without Monarch: {}", text.lines().next().unwrap_or_default()));
            None
        }
    }
}

/// Says what was saved.
fn conclude(service: &mut Service, args: &RunArgs, took: Duration) {
    let speaks = is_rank_0();
    let Some(after) = service.end() else {
        if speaks {
            say::warn(format_args!("the agent has gone, there are no figures"));
        }
        return;
    };
    let saved = summary::Saved::between(&service.before, &after, took);
    if let Some(path) = &args.report {
        let text = serde_json::to_string_pretty(&saved.json(&after)).unwrap_or_default();
        if let Err(e) = std::fs::write(path, text + "\n") {
            say::warn(format_args!("cannot write the report {}: {e}", path.display()));
        }
    }
    if !args.quiet && speaks {
        say::err(format_args!("{}", saved.text(&after)));
    }
}

fn cannot_start(command: &[OsString], e: &std::io::Error) -> ExitCode {
    let name = command.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
    say::err(format_args!("monarch: cannot run {name}: {e}\n"));
    ExitCode::from(if e.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Whether this is the process that speaks for the job.
fn is_rank_0() -> bool {
    let names = ["MONARCH_RANK", "SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];
    names.iter().find_map(|n| std::env::var(n).ok()).is_none_or(|v| v.trim() == "0")
}

/// Adds links in the working directory, arguments and environment that lead into a root.
fn add_aliases(config: &mut Config, command: &[OsString]) {
    let roots: Vec<PathBuf> = config.dataset.roots.iter().map(|r| r.real_path.clone()).collect();
    let env: Vec<OsString> = std::env::vars_os().map(|(_, v)| v).collect();
    let words = command.iter().chain(&env).map(OsString::as_os_str);
    for (n, path) in aliases::find(&roots, words) {
        if let Some(root) = config.dataset.roots.get_mut(n)
            && !root.aliases.contains(&path)
        {
            root.aliases.push(path);
        }
    }
}
