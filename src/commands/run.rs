//! `monarch run`: finds or starts the agent, runs the command under the shim, restarts an agent
//! that dies, and reports what was saved.
//!
//! No failure of Monarch keeps the job from running: without an agent the job runs as it would have
//! without Monarch, after a line on standard error. With `--strict` such a job is not started.

use crate::args::{JobConfigArgs, NoConfig};
use crate::exit_code::{EX_NOT_EXECUTABLE, EX_NOT_FOUND, EX_NOT_PUBLISHED};
use crate::job::child::{self, Child};
use crate::job::drain::JobOutputs;
use crate::job::{preflight, preload, raw_calls};
use crate::{job, say};
use anyhow::Result;
use clap::Args;
use monarch_core::config::{RawCalls, Resolved, Run};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    config: JobConfigArgs,
    /// Write nothing to standard error unless something is wrong
    #[arg(long, short)]
    quiet: bool,
    /// Do not start the command when Monarch cannot serve it: exit code 3 (setting run.strict)
    #[arg(long)]
    strict: bool,
    /// Write the results of the run, and what to change, to this file: a page (.html), otherwise
    /// JSON (see `monarch report`)
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write which files are opened when to this file (see `monarch trace`)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Catch changes that programs make by raw system calls: `seccomp`, or `off` (setting
    /// run.raw_calls)
    #[arg(long, value_name = "HOW")]
    raw_calls: Option<String>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: &RunArgs) -> Result<ExitCode> {
    child::block_signals();
    let mut arguments = args.config.all();
    arguments.set.extend(args.raw_calls.iter().map(|how| ("run.raw_calls".to_owned(), how.clone())));
    let (mut service, mut settings, mut outputs) = (None, Run::default(), JobOutputs::default());
    // Where Monarch is disabled, a wrong configuration must not matter either.
    if !job::is_disabled() {
        match job::config(&arguments, &args.command, args.quiet) {
            Ok(Resolved { mut config, forbidden, .. }) => {
                outputs = JobOutputs::of(&config);
                // (The agent, which other jobs may share, is not concerned.)
                settings = std::mem::take(&mut config.run);
                let strict = settings.strict || args.strict;
                let strict_by = strict_by(args);
                if strict {
                    let failed = preflight::check(&config).map_err(|e| say::chain(&e));
                    let refused = forbidden.into_iter().next().or(failed.err());
                    if let Some(why) = refused.or_else(|| preload::obstacle(&args.command)) {
                        return Ok(job::refuse(&why, strict_by));
                    }
                }
                job::follow_links(&mut config, args.quiet);
                match job::serve(config, strict) {
                    Ok(started) => service = Some(started),
                    Err(why) if strict => return Ok(job::refuse(&why, strict_by)),
                    Err(why) => job::without(&why),
                }
            }
            Err(NoConfig::Refused(why)) if args.strict || arguments.is_strict() => {
                return Ok(job::refuse(&why, strict_by(args)));
            }
            Err(NoConfig::Refused(why)) => job::without(&why),
            Err(NoConfig::Wrong(code)) => return Ok(code),
        }
    }
    if let (Some(s), Some(path)) = (&mut service, &args.trace)
        && job::is_rank_0()
    {
        s.trace(path);
    }
    if let (Some(_), Some(path)) = (&service, &args.report) {
        job::check_report(path);
    }
    let env = service.as_ref().map_or_else(Vec::new, |s| job::environment(s, settings.libraries, &args.command));
    let started = Instant::now();
    let catches = service.as_ref().filter(|_| settings.raw_calls == RawCalls::Seccomp);
    let (watch, filter) = catches.and_then(|s| raw_calls::Watch::prepare(s, &env)).unzip();
    let child = match Child::start(&args.command, &env, filter) {
        Ok(c) => c,
        Err(e) => return Ok(cannot_start(&args.command, &e)),
    };
    watch.into_iter().for_each(raw_calls::Watch::begin);
    let end = child.wait(|| {
        if let Some(s) = &mut service {
            s.keep_alive();
        }
    })?;
    let (took, mut is_published) = (started.elapsed(), true);
    if let Some(mut s) = service {
        is_published = outputs.wait(&mut s, args.quiet);
        s.hurry();
        s.end_trace(args.quiet);
        let (report, command) = (args.report.as_deref(), &args.command[..]);
        let accounting = settings.accounting.as_deref();
        job::conclude(s, &job::Ending { report, quiet: args.quiet, took, command, accounting, wait: false });
    }
    Ok(if is_published { child::end_like(end) } else { ExitCode::from(EX_NOT_PUBLISHED) })
}

/// Returns which flag or setting makes a strict job strict.
fn strict_by(args: &RunArgs) -> &'static str {
    if args.strict { "--strict" } else { "run.strict" }
}

fn cannot_start(command: &[OsString], e: &std::io::Error) -> ExitCode {
    let name = command.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
    say::err(format_args!("monarch: cannot run {name}: {e}\n"));
    ExitCode::from(if e.kind() == std::io::ErrorKind::NotFound { EX_NOT_FOUND } else { EX_NOT_EXECUTABLE })
}
