//! `monarch agent`: the process per node.

use anyhow::{Context, Result};
use clap::Args;
use monarch_core::agent::server::Agent;
use monarch_core::config::{Config, LogLevel};
use std::io::Read;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

#[derive(Debug, Args)]
pub(crate) struct AgentArgs {}

pub(crate) fn main(_args: &AgentArgs) -> Result<ExitCode> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read the configuration from standard input")?;
    let config: Config = serde_json::from_str(&text).context("standard input is not a configuration as JSON")?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let level = match config.log.level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(std::io::stderr).init();
    let agent = Agent::start(&config).inspect_err(|e| tracing::error!("{e}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
    runtime.block_on(agent.serve())?;
    // Copiers may be inside a PFS call that hangs; nothing is left to be lost.
    std::process::exit(0)
}
