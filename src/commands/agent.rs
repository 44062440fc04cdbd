//! `monarch agent`: the process of a node that makes and keeps copies.

use crate::say;
use anyhow::{Context, Result};
use clap::Args;
use monarch_core::agent::server::Agent;
use monarch_core::config::{Config, LogLevel};
use monarch_core::shown::LogLines;
use rustix::process::{Resource, Rlimit};
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
    // A full disk must not end the agent: lines that cannot be logged are dropped without a
    // message.
    let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).log_internal_errors(false);
    log.with_writer(|| LogLines(std::io::stderr())).init();
    // Each copy in progress holds two descriptors.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    may_write_all();
    let agent = match Agent::start_logging(&config) {
        Ok(agent) => agent,
        Err(e) => {
            tracing::error!("{e}");
            // For the process that started the agent; see `job::spawn`.
            let _ = say::out(format_args!("{e}\n"));
            return Ok(ExitCode::from(e.exit_code()));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(32).build()?;
    runtime.block_on(agent.serve())?;
    // Copiers may hang in a call to the PFS; nothing is lost when they end here.
    std::process::exit(0)
}

/// A limit of the shell for the length of files (`ulimit -f`) is meant for the files of the job:
/// the agent's own are as long as they have to be, and its end is no answer.
fn may_write_all() {
    let limit = rustix::process::getrlimit(Resource::Fsize);
    let none = Rlimit { current: None, maximum: None };
    if limit.current.is_some() && rustix::process::setrlimit(Resource::Fsize, none).is_err() {
        let _ = rustix::process::setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, ..limit });
    }
    // SAFETY: no handler is set.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
