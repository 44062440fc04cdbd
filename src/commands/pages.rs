//! What packagers and login scripts need of the command line's own description: completions and man
//! pages.

use crate::say;
use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages; made if it is not there
    dir: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, mut of: Command) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut of, "monarch", &mut text);
    say::out(format_args!("{}", String::from_utf8_lossy(&text)))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &ManArgs, of: Command) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("cannot make {}", args.dir.display()))?;
    clap_mangen::generate_to(of, &args.dir).with_context(|| format!("cannot write to {}", args.dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
