//! `monarch run`: finds or starts the agent, runs the command under the shim, keeps the agent alive, says what was saved.
//!
//! Nothing that goes wrong here keeps the job from running: without an agent it runs as it would have without us, with one
//! line on standard error.

use crate::child::{self, Child};
use crate::cli::ConfigArgs;
use crate::{aliases, shim, spawn, summary};
use anyhow::Result;
use clap::Args;
use monarch_core::agent::client::{self, Client, ClientError};
use monarch_core::agent::protocol::Status;
use monarch_core::config::Config;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Say nothing on standard error unless something is wrong
    #[arg(long, short)]
    quiet: bool,
    /// Write what was saved to this file as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: &RunArgs) -> Result<ExitCode> {
    child::block_signals();
    let resolved = match args.config.load() {
        Ok(r) => r,
        Err(code) => return Ok(code),
    };
    let mut config = resolved.config;
    if is_rank_0() && !args.quiet {
        for w in &resolved.warnings {
            eprintln!("monarch: warning: {w}");
        }
    }
    add_aliases(&mut config, &args.command);
    let mut service = Service::start(config);
    let env = match &service {
        Ok(s) => s.environment(),
        Err(why) => {
            eprintln!("monarch: warning: running without Monarch: {why}");
            Ok(Vec::new())
        }
    };
    let env = env.unwrap_or_else(|e| {
        eprintln!("monarch: warning: running without Monarch: {e}");
        Vec::new()
    });
    let started = Instant::now();
    let child = match Child::start(&args.command, &env) {
        Ok(c) => c,
        Err(e) => return Ok(cannot_start(&args.command, &e)),
    };
    let end = child.wait(|| {
        if let Ok(s) = &mut service {
            s.keep_alive();
        }
    })?;
    if let Ok(s) = &mut service {
        s.conclude(args, started.elapsed());
    }
    Ok(child::end_like(end))
}

fn cannot_start(command: &[OsString], e: &std::io::Error) -> ExitCode {
    let name = command.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
    eprintln!("monarch: cannot run {name}: {e}");
    ExitCode::from(if e.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Whether this is the process that speaks for the job.
fn is_rank_0() -> bool {
    let names = ["MONARCH_RANK", "SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];
    names.iter().find_map(|n| std::env::var(n).ok()).is_none_or(|v| v.trim() == "0")
}

/// Adds links in the working directory, arguments and environment that lead into a root.
fn add_aliases(config: &mut Config, command: &[OsString]) {
    let roots: Vec<PathBuf> = config.dataset.roots.iter().map(|r| r.real_path.clone()).collect();
    let env: Vec<OsString> = std::env::vars_os().map(|(_, v)| v).collect();
    let words = command.iter().chain(&env).map(OsString::as_os_str);
    for (n, path) in aliases::find(&roots, words) {
        if let Some(root) = config.dataset.roots.get_mut(n)
            && !root.aliases.contains(&path)
        {
            root.aliases.push(path);
        }
    }
}

/// The agent, as this job sees it.
struct Service {
    config: Config,
    client: Client,
    control: PathBuf,
    before: Status,
    down_since: Option<Instant>,
    _lock: Option<rustix::fd::OwnedFd>,
}

impl Service {
    fn start(config: Config) -> Result<Self, ClientError> {
        let lock = client::job_lock(&config);
        let mut client = client::find_or_start(&config, || spawn::agent(&config))?;
        let control = client.attach(&config)?;
        let before = client.status()?;
        Ok(Self { config, client, control, before, down_since: None, _lock: lock })
    }

    /// What the job's processes need.
    fn environment(&self) -> Result<Vec<(&'static str, OsString)>> {
        let shim = shim::find()?;
        let mut preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        if !preload.is_empty() {
            preload.push(":");
        }
        preload.push(&shim);
        Ok(vec![("LD_PRELOAD", preload), ("MONARCH_CTL", self.control.clone().into_os_string())])
    }

    /// Starts the agent again when it has gone.
    fn keep_alive(&mut self) {
        if !hung_up(self.client.stream().as_fd()) {
            return;
        }
        // A restart that fails is not tried more than once a second.
        if self.down_since.is_some_and(|t| t.elapsed() < Duration::from_secs(1)) {
            return;
        }
        self.down_since = Some(Instant::now());
        if let Ok(mut c) = client::find_or_start(&self.config, || spawn::agent(&self.config))
            && c.attach(&self.config).is_ok()
        {
            self.client = c;
        }
    }

    /// Says what was saved.
    fn conclude(&mut self, args: &RunArgs, took: Duration) {
        let Ok(after) = self.client.status() else {
            eprintln!("monarch: warning: the agent has gone, there are no figures");
            return;
        };
        let saved = summary::Saved::between(&self.before, &after, took);
        if let Some(path) = &args.report {
            let text = serde_json::to_string_pretty(&saved.json(&after)).unwrap_or_default();
            if let Err(e) = std::fs::write(path, text + "\n") {
                eprintln!("monarch: warning: cannot write the report {}: {e}", path.display());
            }
        }
        if !args.quiet && is_rank_0() {
            eprint!("{}", saved.text(&after));
        }
    }
}

/// Whether the other end of a connection has gone.
fn hung_up(fd: rustix::fd::BorrowedFd<'_>) -> bool {
    let mut byte = [0u8; 1];
    // SAFETY: looks at the connection without taking anything from it.
    let n = unsafe {
        libc::recv(
            std::os::fd::AsRawFd::as_raw_fd(&fd),
            byte.as_mut_ptr().cast(),
            1,
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        )
    };
    n == 0 || (n < 0 && std::io::Error::last_os_error().kind() != std::io::ErrorKind::WouldBlock)
}
