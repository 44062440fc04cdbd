//! `monarch config show | check`: the configuration, and where each setting comes from.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO;
use crate::job::preflight;
use crate::say;
use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting, its value and where it came from
    #[command(after_help = "Example:\n  monarch config show --root /scratch/imagenet")]
    Show(ConfigArgs),
    /// Check the configuration against this machine: list each root, write a probe file into each
    /// tier. Exit 0 when a job could be served, 2 for a mistake, 3 when a root or tier fails
    #[command(after_help = "Example:\n  monarch config check --config monarch.yaml")]
    Check(ConfigArgs),
}

pub(crate) fn main(command: &ConfigCommand) -> Result<ExitCode> {
    let (ConfigCommand::Show(args) | ConfigCommand::Check(args)) = command;
    let resolved = match args.load() {
        Ok(r) => r,
        Err(code) => return Ok(code),
    };
    for w in &resolved.warnings {
        say::warn(format_args!("{w}"));
    }
    match command {
        ConfigCommand::Show(_) => {
            say::out(format_args!("{}", monarch_core::config::render_with_origins(&resolved)))?;
        }
        ConfigCommand::Check(_) => {
            let c = &resolved.config;
            if let Err(e) = preflight::check(c) {
                say::err(format_args!("monarch: a job would not be served: {}\n", say::chain(&e)));
                return Ok(ExitCode::from(EX_NO));
            }
            say::out(format_args!("ok: {} root(s), {} tier(s)\n", c.dataset.roots.len(), c.tiers.len()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
