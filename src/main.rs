//! The command line of Monarch.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line")]

mod agent;
mod aliases;
mod child;
mod cli;
mod config;
mod index;
mod run;
mod service;
mod shim;
mod spawn;
mod status;
mod stop;
mod summary;

fn main() -> std::process::ExitCode {
    cli::main()
}
