//! What `run` and `env` share: whether Monarch is on, the configuration of a job, its agent, and
//! the report at its end.
//!
//! | module | what it does |
//! |---|---|
//! | [`service`] | the agent as a job sees it: attaches, watches, starts again |
//! | [`spawn`] | starts processes of Monarch that outlive the process that starts them |
//! | [`child`] | the job's own process |
//! | [`drain`] | waits at the end until what the job wrote is published |
//! | [`found`] | the signals and descriptors that this process was started with, for the job |
//! | [`accounting`] | the line that a job appends to the file of its site |
//! | [`output`] | the files that a job leaves: reports, traces |
//! | [`aliases`] | links by which the job will name its files |
//! | [`follow`] | links below a root that lead out of it |
//! | [`preflight`] | whether roots can be listed and tiers take files |
//! | [`libraries`] | whether shared libraries are mapped from their copies |
//! | [`preload`] | programs that load no preload library |
//! | [`sanitizer`] | programs that require their own library first |
//! | [`raw_calls`] | changes by raw system calls |
//! | [`shim`] | where the preload library is |

mod accounting;
mod aliases;
pub(crate) mod child;
pub(crate) mod drain;
pub(crate) mod follow;
mod found;
pub(crate) mod libraries;
mod output;
pub(crate) mod preflight;
pub(crate) mod preload;
pub(crate) mod raw_calls;
mod sanitizer;
pub(crate) mod service;
pub(crate) mod shim;
pub(crate) mod spawn;

use crate::args::{ConfigArgs, NoConfig};
use crate::exit_code::{EX_NO, EX_USAGE};
use crate::nodes;
use crate::report;
use crate::say;
use monarch_core::cluster::discovery;
use monarch_core::config::{Config, Follow, Libraries, Resolved, SiteSettings};
use monarch_core::shown::ShowPath;
use service::Service;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Whether Monarch is disabled; the preload library reads the same variable.
pub(crate) fn is_disabled() -> bool {
    std::env::var_os("MONARCH_DISABLE").is_some_and(|v| !v.is_empty() && v != "0")
}

/// Whether this is the process that speaks for the job. A launcher within another has numbers of
/// its own: mpirun in a batch script of Slurm starts all its processes as Slurm's task 0.
pub(crate) fn is_rank_0() -> bool {
    let is_0 = |name: &str| std::env::var(name).ok().map(|v| v.trim() == "0");
    let launchers = ["SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];
    is_0("MONARCH_RANK").unwrap_or_else(|| launchers.into_iter().filter_map(is_0).all(|zero| zero))
}

/// Loads the configuration of a job with this command, and adds other spellings of its roots.
///
/// # Errors
/// [`NoConfig`].
pub(crate) fn config(args: &ConfigArgs, command: &[OsString], quiet: bool) -> Result<Resolved, NoConfig> {
    if let Some(why) = SiteSettings::load().off {
        return Err(NoConfig::Refused(why));
    }
    let mut resolved = args.load_allowed()?;
    let config = &mut resolved.config;
    if is_rank_0() && !quiet {
        resolved.warnings.iter().chain(&resolved.forbidden).for_each(|w| say::warn(format_args!("{w}")));
    }
    add_aliases(config, command);
    let environment = |name: &str| std::env::var(name).ok();
    if let Err(e) = discovery::discover(&mut config.cluster, &environment, &discovery::SystemLocal) {
        say::err(format_args!("monarch: {e}\n"));
        return Err(NoConfig::Wrong(ExitCode::from(EX_USAGE)));
    }
    Ok(resolved)
}

/// Adds the directories that links of the roots lead to as roots. An index that was saved is loaded
/// to spare the PFS a scan: then no links are looked for.
pub(crate) fn follow_links(config: &mut Config, quiet: bool) {
    if config.index.file.is_some() {
        return;
    }
    let outside = follow::add(config, accounting::speaks_for_node());
    if is_rank_0() && !quiet {
        let is_on = config.dataset.follow == Follow::Auto;
        outside.iter().for_each(|o| say::note(format_args!("{}", o.text(is_on))));
    }
}

/// Adds links in the working directory, arguments and environment that lead into a root or an
/// output root.
fn add_aliases(config: &mut Config, command: &[OsString]) {
    let data = config.dataset.roots.iter().map(|root| root.real_path.clone());
    let outputs = config.outputs.iter().map(|root| root.real_path.clone());
    let roots: Vec<PathBuf> = data.chain(outputs).collect();
    let env: Vec<OsString> = std::env::vars_os().map(|(_, v)| v).collect();
    let words = command.iter().chain(&env).map(OsString::as_os_str);
    for (n, path) in aliases::find(&roots, words) {
        let data = config.dataset.roots.iter_mut().map(|root| &mut root.aliases);
        let mut all = data.chain(config.outputs.iter_mut().map(|root| &mut root.aliases));
        if let Some(aliases) = all.nth(n)
            && !aliases.contains(&path)
        {
            aliases.push(path);
        }
    }
}

/// Attaches to the agent, or starts one. A strict job requires that its output roots are staged.
///
/// # Errors
/// Why the job cannot be served: [`without`] or [`refuse`] says so.
pub(crate) fn serve(config: Config, strict: bool) -> Result<Service, String> {
    let service = Service::start(config).map_err(|e| say::chain(&e))?;
    if let Some(why) = service.before.alone_because.as_deref().filter(|_| accounting::speaks_for_node()) {
        say::warn(format_args!("{}", nodes::unshared(why)));
    }
    let unstaged = drain::unstaged(&service);
    match unstaged.first().filter(|_| strict) {
        Some(why) => return Err(why.clone()),
        None => drain::warn_of(&unstaged),
    }
    Ok(service)
}

/// Says that a job is not started which is strict by this flag or setting; returns its exit code.
pub(crate) fn refuse(why: &str, strict_by: &str) -> ExitCode {
    let why = why.lines().next().unwrap_or_default();
    say::err(format_args!("monarch: the command was not started, as Monarch cannot serve it ({strict_by}): {why}\n"));
    ExitCode::from(EX_NO)
}

/// Warns that a job is not served.
pub(crate) fn without(why: &str) {
    say::warn(format_args!("running without Monarch: {}", why.lines().next().unwrap_or_default()));
}

/// Returns what the processes of this command need in their environment.
pub(crate) fn environment(service: &Service, libraries: Libraries, command: &[OsString]) -> service::Variables {
    service.environment(libraries, command).into_iter().chain(sanitizer::environment(command)).collect()
}

/// The end of a job.
#[derive(Debug)]
pub(crate) struct Ending<'a> {
    /// File of the report.
    pub(crate) report: Option<&'a Path>,
    /// Whether only the report is to be written.
    pub(crate) quiet: bool,
    /// How long it took.
    pub(crate) took: Duration,
    /// Its command, if it is known.
    pub(crate) command: &'a [OsString],
    /// Where a line about the job is appended (`run.accounting`).
    pub(crate) accounting: Option<&'a Path>,
    /// Whether to wait until the agent has released the memory that it holds, also where no batch
    /// system would kill the agent.
    pub(crate) wait: bool,
}

/// Writes the report to a file and to standard error, and detaches from the agent.
pub(crate) fn conclude(mut service: Service, ending: &Ending<'_>) {
    service.hurry();
    report_savings(&mut service, ending);
    service.leave(ending.wait);
}

fn report_savings(service: &mut Service, ending: &Ending<'_>) {
    let speaks = is_rank_0();
    let Some(after) = service.end() else {
        if speaks {
            let why = if service.is_silent() { "does not answer" } else { "has ended" };
            say::warn(format_args!("the agent {why}, there are no figures"));
        }
        return;
    };
    let mut report =
        report::between(&service.before, after, ending.took, ending.command, (true, preload::obstacle(ending.command)));
    report.roots = service.real_roots().iter().map(|root| root.to_string_lossy().into_owned()).collect();
    if let Some(path) = ending.report
        && let Err(e) = output::write_whole(path, &report::document(&report, path))
    {
        say::warn(format_args!("cannot write the report {}: {e}", path.shown()));
    }
    if let Some(path) = ending.accounting
        && accounting::speaks_for_node()
        && let Err(e) = accounting::append(path, &report, &service.roots())
    {
        say::warn(format_args!("no line is appended to {} (run.accounting): {e}", path.shown()));
    }
    if speaks {
        let text = if ending.quiet { report::failures(&report) } else { report::text(&report) };
        say::err(format_args!("{text}"));
    }
}

/// Warns before the job when its report cannot be written: after hours it would be too late.
pub(crate) fn check_report(path: &Path) {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let access = rustix::fs::access(above, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    let (cause, why) = match access {
        Err(e) => (above, e.to_string()),
        Ok(()) if path.is_dir() => (path, "a directory".to_owned()),
        Ok(()) => return,
    };
    say::warn(format_args!(
        "the report {} will not be written: {}: {why}; the job runs, and its figures go to standard error only",
        path.shown(),
        cause.shown()
    ));
}
