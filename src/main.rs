//! The command line of Monarch.
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic; see `say`")]

mod agents;
mod args;
mod chart;
mod cli;
mod commands;
mod exit_code;
mod job;
mod kept;
mod nodes;
mod outputs;
mod page;
mod progress;
mod report;
mod say;
mod shell;

fn main() -> std::process::ExitCode {
    cli::main()
}
