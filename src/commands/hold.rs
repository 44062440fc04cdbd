//! `monarch hold`: is the job for as long as a process lives that `run` did not start. The output
//! of `monarch env` calls it.
//!
//! It prints the variables of the job as soon as the agent serves the job. A background process in
//! a session of its own watches over the agent as `run` does. It ends with the process that it was
//! started for, or at `--end` or SIGTERM. (At the end of a script, batch systems kill this process
//! before it can write the report: hence `--end`.)

use crate::args::{ConfigArgs, JobConfigArgs, NoConfig};
use crate::exit_code::EX_NO;
use crate::job::drain::{self, JobOutputs};
use crate::job::service::Service;
use crate::job::{libraries, preflight, service, shim, spawn};
use crate::outputs::found::ANSWER_TIMEOUT;
use crate::shell::Shell;
use crate::{agents, job, say};
use anyhow::{Context, Result};
use clap::Args;
use monarch_core::agent::client::{Attached, Client};
use monarch_core::agent::protocol::OutputStatus;
use monarch_core::cluster::secret;
use monarch_core::config::{Config, Resolved, Run};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    config: JobConfigArgs,
    /// The process; the job lasts as long as it lives
    #[arg(long = "for", value_name = "PID")]
    pid: i32,
    /// The shell that evaluates the variables
    #[arg(long, value_enum, default_value_t = Shell::Sh)]
    shell: Shell,
    /// When it has ended, write what was saved to this file as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The job ends now: waits until the report is written and the agent has given back what it
    /// holds in memory
    #[arg(long, conflicts_with = "report")]
    end: bool,
    /// Be the background process; the configuration comes as JSON on standard input
    #[arg(long, hide = true)]
    stay: bool,
}

/// The first line of the background process: where the job's processes find the agent, or why the
/// job is not served.
type Started = Result<Held, String>;

/// What the shell needs to know of the job.
#[derive(Debug, Serialize, Deserialize)]
struct Held {
    attached: Attached,
    /// Whether the agent knows of shared libraries below a root.
    libraries: bool,
    /// Lines about output roots that are not staged.
    unstaged: Vec<String>,
}

pub(crate) fn main(args: &HoldArgs) -> Result<ExitCode> {
    if args.stay {
        return stay(args);
    }
    if args.end {
        end(args.pid);
        return Ok(ExitCode::SUCCESS);
    }
    // `env` has shown the warnings.
    let arguments = args.config.all();
    let Resolved { mut config, forbidden, .. } = match job::config(&arguments, &[], true) {
        Ok(resolved) => resolved,
        Err(NoConfig::Refused(why)) => return unserved(&why, arguments.is_strict()),
        Err(NoConfig::Wrong(code)) => return Ok(code),
    };
    let strict = config.run.strict;
    let checked = if strict {
        let failed = preflight::check(&config).map_err(|e| say::chain(&e));
        forbidden.into_iter().next().map_or(failed, Err)
    } else {
        Ok(())
    };
    job::follow_links(&mut config, false);
    let started = checked.and_then(|()| start_background(args, &config).unwrap_or_else(|e| Err(say::chain(&e))));
    match started {
        Ok(Held { attached, libraries, unstaged }) => {
            drain::warn_of(&unstaged);
            let shim = shim::find()?;
            let audit = libraries::audit(config.run.libraries, (&config.dataset, libraries), &[], &shim);
            let set = args.shell.set(&service::environment(&shim, audit.as_deref(), &attached));
            let forget = secret::VARIABLES.map(|name| args.shell.forget(name));
            say::out_bytes(&[set, forget.concat()].concat())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => unserved(&why, strict),
    }
}

/// Says that the shell is not served. With `run.strict`, the shell that evaluates the output ends:
/// its commands would read the PFS by themselves.
pub(crate) fn unserved(why: &str, strict: bool) -> Result<ExitCode> {
    if strict {
        say::out(format_args!("exit {EX_NO};\n"))?;
        return Ok(job::refuse(why, "run.strict"));
    }
    job::without(why);
    Ok(ExitCode::FAILURE)
}

/// Starts the background process.
fn start_background(args: &HoldArgs, config: &Config) -> Result<Started> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("hold").arg("--stay").arg("--for").arg(args.pid.to_string());
    if let Some(report) = &args.report {
        command.arg("--report").arg(report);
    }
    let mut child = spawn::apart(&mut command).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A process that has ended already has written why.
        let _ = stdin.write_all(&serde_json::to_vec(config)?);
    }
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    serde_json::from_str(&line).context("the process that watches over the agent did not start")
}

fn stay(args: &HoldArgs) -> Result<ExitCode> {
    // Before any thread is started.
    crate::job::child::block_signals();
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut config: Config = serde_json::from_str(&text).context("standard input is not a configuration as JSON")?;
    let outputs = JobOutputs::of(&config);
    let Run { accounting, strict, .. } = std::mem::take(&mut config.run);
    let started = Instant::now();
    let served =
        watch(args.pid).and_then(|process| Ok((process, Service::start_for(config, u32::try_from(args.pid).ok())?)));
    let (process, mut service) = match served {
        Ok(served) => served,
        Err(e) => {
            tell(&Err(say::chain(&e)))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let unstaged = drain::unstaged(&service);
    if let Some(why) = unstaged.first().filter(|_| strict) {
        tell(&Err(why.clone()))?;
        return Ok(ExitCode::FAILURE);
    }
    tell(&Ok(Held { attached: service.attached().clone(), libraries: service.knows_libraries(), unstaged }))?;
    while is_alive(&process) && !crate::job::child::is_told_to_end() {
        service.keep_alive();
    }
    let (report, wait) = (args.report.as_deref(), crate::job::child::is_told_to_end());
    let (took, accounting) = (started.elapsed(), accounting.as_deref());
    outputs.wait(&mut service, true);
    job::conclude(service, &job::Ending { report, quiet: true, took, command: &[], accounting, wait });
    Ok(ExitCode::SUCCESS)
}

fn tell(started: &Started) -> Result<()> {
    Ok(say::out_bytes(format!("{}\n", serde_json::to_string(started)?).as_bytes())?)
}

/// Opens a handle of a process. (After its end, its number may belong to another process.)
fn watch(pid: i32) -> Result<OwnedFd> {
    let pid_of = Pid::from_raw(pid).with_context(|| format!("{pid} is not the number of a process"))?;
    rustix::process::pidfd_open(pid_of, PidfdFlags::empty()).with_context(|| format!("process {pid}"))
}

/// Ends the jobs that are held for a process, and waits for their background processes.
fn end(pid: i32) {
    let words = format!("hold\0--stay\0--for\0{pid}\0").into_bytes();
    let holds = |holder: &Pid| {
        let line = std::fs::read(format!("/proc/{}/cmdline", holder.as_raw_nonzero())).unwrap_or_default();
        let behind_program = line.iter().position(|&c| c == 0).map_or(&line[..0], |at| &line[at + 1..]);
        behind_program.starts_with(&words)
    };
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    let numbers = processes.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    for holder in numbers.filter_map(Pid::from_raw).filter(holds) {
        // Process numbers are reused: open a handle first, then compare the command line again.
        let Ok(handle) = rustix::process::pidfd_open(holder, PidfdFlags::empty()) else { continue };
        if holds(&holder) && rustix::process::pidfd_send_signal(&handle, Signal::TERM).is_ok() {
            let start = Instant::now();
            while is_alive(&handle) && (start.elapsed() < service::LEAVE_TIMEOUT || is_something_pending()) {}
        }
    }
}

/// Whether an agent of this user publishes something: what the job has written is waited for.
fn is_something_pending() -> bool {
    let pending = |client: &mut Client| Ok(client.outputs(&[])?.iter().any(OutputStatus::is_pending));
    let asked = agents::ask(&ConfigArgs::default(), ANSWER_TIMEOUT, pending);
    asked.is_ok_and(|(answers, _)| answers.given.contains(&true))
}

/// Waits 200 ms for the end of a process. Returns whether it still runs.
fn is_alive(process: &OwnedFd) -> bool {
    let pause = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    let mut list = [PollFd::new(process, PollFlags::IN)];
    // A signal may interrupt the wait; the caller asks again.
    !matches!(rustix::event::poll(&mut list, Some(&pause)), Ok(1..))
}
