//! `monarch env`: the environment of a job whose command cannot be written behind `monarch run`.
//!
//! It prints a command for the shell: to evaluate what `monarch hold` prints. `hold` replaces `run`
//! for as long as that shell lives: to the agent it is the job, and it starts the agent again when
//! the agent dies. It prints the variables once the job is served. The shell itself fills in its
//! process number, since the caller of `env` may be a subshell that ends at once. `env` starts
//! nothing: a job that attaches and ends would have the root scanned twice.
//!
//! A shell sees only what `env` prints, not its exit code. A mistake in its words is therefore also
//! a line that fails. What fails later is no mistake: `hold` then prints nothing, which succeeds.

use crate::args::{JobConfigArgs, NoConfig};
use crate::commands::hold;
use crate::exit_code::EX_USAGE;
use crate::shell::Shell;
use crate::{job, say};
use anyhow::Result;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    config: JobConfigArgs,
    /// For which shell
    #[arg(long, value_enum, default_value_t = Shell::Sh)]
    shell: Shell,
    /// When the shell has ended, write what was saved to this file as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print what takes it back: commands started after that read the parallel file system
    #[arg(long)]
    off: bool,
    /// Print what ends it: takes it back, writes the report, and waits until nothing is left in
    /// memory. The last line of a batch script, which the batch system ends together with all
    /// that it has started
    #[arg(long, conflicts_with = "off")]
    end: bool,
}

pub(crate) fn main(args: &EnvArgs) -> Result<ExitCode> {
    if args.off {
        say::out_bytes(&args.shell.unset())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.end {
        let hold = [std::env::current_exe()?.into_os_string(), "hold".into(), "--end".into()];
        say::out_bytes(&[args.shell.unset(), args.shell.evaluate(&hold)].concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    if job::is_disabled() {
        return Ok(ExitCode::SUCCESS);
    }
    // Shows mistakes and warnings of the configuration; `hold` does not repeat them.
    let arguments = args.config.all();
    match job::config(&arguments, &[], false) {
        Ok(_) => {}
        Err(NoConfig::Refused(why)) if arguments.is_strict() => return hold::unserved(&why, true),
        Err(NoConfig::Refused(why)) => {
            job::without(&why);
            return Ok(ExitCode::SUCCESS);
        }
        Err(NoConfig::Wrong(_)) => return Ok(mistaken(args.shell)),
    }
    let mut hold = vec![std::env::current_exe()?.into_os_string(), "hold".into(), "--shell".into()];
    hold.extend(args.shell.to_possible_value().map(|v| OsString::from(v.get_name())));
    hold.extend(arguments.words());
    if let Some(report) = &args.report {
        job::check_report(report);
        hold.extend(["--report".into(), std::path::absolute(report)?.into_os_string()]);
    }
    say::out_bytes(&args.shell.evaluate(&hold))?;
    Ok(ExitCode::SUCCESS)
}

/// Has the shell that evaluates the output see that the words were wrong. Returns the exit code.
fn mistaken(shell: Shell) -> ExitCode {
    // (An output that nothing reads is evaluated by nothing.)
    let _ = say::out_bytes(&shell.fail(EX_USAGE));
    ExitCode::from(EX_USAGE)
}

/// Returns the exit code for words that cannot be parsed. Where they call `env`, the shell sees it,
/// too: the shell that they name, as far as they do.
pub(crate) fn unparsed(words: &[OsString]) -> ExitCode {
    if words.get(1).is_none_or(|command| command != "env") {
        return ExitCode::from(EX_USAGE);
    }
    let words: Vec<&str> = words.iter().filter_map(|w| w.to_str()).collect();
    let joined = words.iter().find_map(|w| w.strip_prefix("--shell="));
    let apart = words.windows(2).find(|pair| pair[0] == "--shell").map(|pair| pair[1]);
    mistaken(joined.or(apart).and_then(|name| Shell::from_str(name, false).ok()).unwrap_or(Shell::Sh))
}
