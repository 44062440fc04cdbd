//! The command line of Monarch.
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic; see `say`")]

mod agent;
mod agents;
mod args;
mod chart;
mod cli;
mod cluster;
mod config;
mod du;
mod env;
mod evict;
mod exit_code;
mod explain;
mod hold;
mod index;
mod job;
mod pages;
mod progress;
mod refresh;
mod report;
mod run;
mod say;
mod simulate;
mod stage;
mod status;
mod stop;
mod trace;
mod verify;

fn main() -> std::process::ExitCode {
    cli::main()
}
