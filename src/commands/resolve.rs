//! `monarch resolve`: looks up a path, for a command that must not hang with its file system. A
//! process that waits in a system call of some file systems cannot even be killed.

use crate::outputs::named::Lookup;
use crate::say;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct ResolveArgs {
    /// The path
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

pub(crate) fn main(args: &ResolveArgs) -> Result<ExitCode> {
    say::out_bytes(&Lookup::of(&args.path).encode())?;
    Ok(ExitCode::SUCCESS)
}
