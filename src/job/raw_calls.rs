//! Changes that the job makes by raw system calls (`run.raw_calls`): the filter in its processes,
//! and the supervisor in this one.
//!
//! Without it the job runs all the same, after a line on standard error.

use super::accounting::speaks_for_node;
use super::service::{Service, Variables};
use super::spawn;
use crate::say;
use monarch_core::config::Config;
use monarch_rawcalls::helper;
use monarch_rawcalls::link::{let_all_pass, supervise};
use monarch_rawcalls::scope::Scope;
use monarch_rawcalls::trap::{self, Installer, Trap};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// Watches the raw calls of a job.
#[derive(Debug)]
pub(crate) struct Watch {
    trap: Trap,
    scope: Scope,
    /// That of the helper.
    env: Variables,
}

impl Watch {
    /// Prepares it for a job whose processes have `env`.
    pub(crate) fn prepare(service: &Service, env: &Variables) -> Option<(Self, Installer)> {
        let prepared = trap::prepare().inspect_err(not_caught).ok();
        prepared.map(|(trap, installer)| {
            let (config, shim) = service.for_raw_calls();
            (Self { trap, scope: scope(config), env: helper_environment(shim, env) }, installer)
        })
    }

    /// Answers the calls of the command, which has been started, from now on.
    pub(crate) fn begin(self) {
        let Self { trap, scope, env } = self;
        let started = trap.listener().and_then(|listener| {
            let last_resort = listener.try_clone();
            let start = Box::new(move |control| helper(&env, control));
            supervise(listener, scope, start).inspect_err(|_| last_resort.into_iter().for_each(let_all_pass))
        });
        if let Err(e) = started {
            not_caught(&e);
        }
    }
}

fn not_caught(e: &io::Error) {
    if !speaks_for_node() {
        return;
    }
    let why = match e.raw_os_error() {
        Some(libc::EBUSY) => "another filter with a listener is installed".to_owned(),
        _ if e.kind() == io::ErrorKind::Unsupported => {
            "the kernel has no seccomp filter of this kind (Linux 5.19)".to_owned()
        }
        _ => e.to_string(),
    };
    say::warn(format_args!("raw system calls are not caught (run.raw_calls): {why}"));
}

/// The directories of a job, in all spellings.
fn scope(config: &Config) -> Scope {
    let mut scope = Scope::default();
    let all = |path: &Path| [path.to_owned(), path.canonicalize().unwrap_or_else(|_| path.to_owned())];
    scope.tiers.extend(config.tiers.iter().flat_map(|tier| all(&tier.path)));
    let roots = config.dataset.roots.iter().map(|root| (&root.real_path, &root.path, &root.aliases));
    let outputs = config.outputs.iter().map(|output| (&output.real_path, &output.path, &output.aliases));
    for (real, path, aliases) in roots.chain(outputs) {
        scope.roots.extend([real, path].into_iter().chain(aliases).cloned());
    }
    scope
}

/// Returns what of the job's environment a helper needs: where the agent is, and the shim alone. A
/// raw system call passes by the other libraries that the job preloads.
fn helper_environment(shim: &Path, env: &Variables) -> Variables {
    let own = env.iter().filter(|(name, _)| name.starts_with("MONARCH_")).cloned();
    own.chain([("LD_PRELOAD", shim.as_os_str().to_owned()), (helper::VARIABLE, "1".into())]).collect()
}

/// Starts a helper.
fn helper(env: &[(&'static str, OsString)], control: OwnedFd) -> io::Result<std::process::Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("raw-calls");
    spawn::apart(&mut command).stdin(Stdio::from(control)).stdout(Stdio::null());
    command.envs(env.iter().map(|(name, value)| (name, value)));
    command.spawn()
}
