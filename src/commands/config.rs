//! `monarch config show | check`: the configuration, and where each setting comes from.

use crate::args::JobConfigArgs;
use crate::exit_code::{EX_NO, EX_USAGE};
use crate::job::{follow, preflight};
use crate::say;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use monarch_core::config::{Follow, SITE_FILE, SiteSettings, screen};
use monarch_core::shown::ShowPath;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting, its value and where it came from
    #[command(after_help = "Example:\n  monarch config show --root /scratch/imagenet")]
    Show(JobConfigArgs),
    /// Check the configuration against this machine: list each root, write a probe file into each
    /// tier. Exit 0 when a job could be served, 2 for a mistake, 3 when a root or tier fails
    #[command(after_help = "Examples:\n  monarch config check --config monarch.yaml\n  \
        monarch config check --site                 # the file of the site, /etc/monarch/monarch.yaml\n  \
        monarch config check --site new.yaml        # before it is installed there")]
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    config: JobConfigArgs,
    /// Check the settings of the site instead, in this file or in /etc/monarch/monarch.yaml. Exit 0
    /// when all of them hold, 2 for a mistake
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["config", "root", "tier", "set", "output"])]
    site: Option<Option<PathBuf>>,
}

pub(crate) fn main(command: &ConfigCommand) -> Result<ExitCode> {
    let args = match command {
        ConfigCommand::Show(args) => args,
        ConfigCommand::Check(CheckArgs { site: Some(file), .. }) => return check_site(file.as_deref()),
        ConfigCommand::Check(args) => &args.config,
    };
    let resolved = match args.all().load() {
        Ok(r) => r,
        Err(code) => return Ok(code),
    };
    let off = SiteSettings::load().off;
    for w in resolved.warnings.iter().chain(&resolved.forbidden).chain(&off) {
        say::warn(format_args!("{w}"));
    }
    match command {
        ConfigCommand::Show(_) => {
            say::out(format_args!("{}", monarch_core::config::render_with_origins(&resolved)))?;
        }
        ConfigCommand::Check(_) => {
            let c = &resolved.config;
            if let Some(why) = off {
                say::err(format_args!("monarch: a job would not be served: {why}\n"));
                return Ok(ExitCode::from(EX_NO));
            }
            if let Err(e) = preflight::check(c) {
                say::err(format_args!("monarch: a job would not be served: {}\n", say::chain(&e)));
                return Ok(ExitCode::from(EX_NO));
            }
            for outside in follow::find(&c.dataset.roots, follow::Depth::Everywhere) {
                say::note(format_args!("{}", outside.text(c.dataset.follow == Follow::Auto)));
            }
            let (roots, tiers) = (c.dataset.roots.len(), c.tiers.len());
            let outputs = match c.outputs.len() {
                0 => String::new(),
                n => format!(", {}", say::counted(n, "output root")),
            };
            say::out(format_args!("ok: {}, {}{outputs}\n", say::counted(roots, "root"), say::counted(tiers, "tier")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks the settings of the site.
fn check_site(file: Option<&Path>) -> Result<ExitCode> {
    let path = file.unwrap_or(Path::new(SITE_FILE));
    let site = match file {
        Some(file) => SiteSettings::check(file).with_context(|| format!("cannot read {}", file.shown()))?,
        None => SiteSettings::load(),
    };
    for mistake in &site.mistakes {
        say::err(format_args!("{}", screen(mistake)));
    }
    if !site.mistakes.is_empty() {
        return Ok(ExitCode::from(EX_USAGE));
    }
    let off = site.off.map_or_else(String::new, |why| format!(": {why}"));
    let is_there = if path.exists() { "ok" } else { "ok, not there" };
    say::out(format_args!("{}: {is_there}{off}\n", path.shown()))?;
    Ok(ExitCode::SUCCESS)
}
