//! `monarch raw-calls`: the process that makes changes for raw system calls of a job, with the
//! preload library (`run.raw_calls`).

use anyhow::Result;
use clap::Args;
use std::os::fd::AsFd;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct RawCallsArgs {}

pub(crate) fn main(_args: &RawCallsArgs) -> Result<ExitCode> {
    let control = std::io::stdin().as_fd().try_clone_to_owned()?;
    monarch_rawcalls::helper::main(&control)?;
    Ok(ExitCode::SUCCESS)
}
