//! `monarch kernel install | list | remove`: Jupyter kernels that run under Monarch.
//!
//! A kernel specification is a directory with a `kernel.json`, whose `argv` Jupyter starts for each
//! notebook. A specification of ours is that of another kernel with `monarch run ... --` before its
//! command: a notebook needs no change, and `Restart` starts a fresh job. A mark in its `metadata`
//! tells `list` and `remove` that this program wrote it.

mod data_dirs;
mod spec;

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO;
use crate::say;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use data_dirs::{DataDirs, Python};
use monarch_core::shown::ShowPath;
use spec::Spec;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum KernelCommand {
    /// Write a kernel specification whose notebooks run under Monarch
    #[command(after_help = "Examples:\n  \
        monarch kernel install --root /scratch/imagenet                       # the Python of PATH, for this user\n  \
        monarch kernel install --sys-prefix --root /scratch/imagenet          # into the environment of that Python\n  \
        monarch kernel install --wrap ir --config monarch.yaml                # an installed kernel, here that of R\n  \
        monarch kernel install --name set-b --display-name 'Python, set B' --root /scratch/set-b\n\n\
        Then choose the kernel in Jupyter, or: jupyter nbconvert --execute --ExecutePreprocessor.kernel_name=monarch N.ipynb. \
        Copies in memory end with the kernel unless the tier has `persist: node`, so that a restarted kernel reads again.")]
    Install(Box<InstallArgs>),
    /// List the kernel specifications that run under Monarch
    #[command(after_help = "Example:\n  monarch kernel list")]
    List {
        /// The Python whose environment is searched as well
        #[arg(long, value_name = "PYTHON", default_value = "python3")]
        python: PathBuf,
        /// Print an array of objects
        #[arg(long)]
        json: bool,
    },
    /// Remove a kernel specification that `install` wrote
    #[command(after_help = "Example:\n  monarch kernel remove")]
    Remove {
        /// The name it was installed by
        #[arg(default_value = DEFAULT_NAME)]
        name: String,
        /// The Python whose environment is searched as well
        #[arg(long, value_name = "PYTHON", default_value = "python3")]
        python: PathBuf,
    },
}

const DEFAULT_NAME: &str = "monarch";

#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Name of the kernel, as `jupyter kernelspec list` shows it
    #[arg(long, default_value = DEFAULT_NAME, value_parser = kernel_name)]
    name: String,
    /// Name that notebooks show
    #[arg(long, value_name = "TEXT")]
    display_name: Option<String>,
    /// The Python that runs the notebooks; it must have ipykernel
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// An installed kernel to run instead: its name, or the directory of its kernel.json
    #[arg(long, value_name = "KERNEL")]
    wrap: Option<String>,
    /// Install into the environment of the Python (venv, conda) instead of the user's directory
    #[arg(long, conflicts_with = "prefix")]
    sys_prefix: bool,
    /// Install below this directory: DIR/share/jupyter/kernels
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Replace a specification of this name that `monarch kernel install` did not write
    #[arg(long)]
    replace: bool,
}

pub(crate) fn main(command: &KernelCommand) -> Result<ExitCode> {
    match command {
        KernelCommand::Install(args) => install(args),
        KernelCommand::List { python, json } => list(python, *json),
        KernelCommand::Remove { name, python } => remove(name, python),
    }
}

/// Jupyter takes names of ASCII letters, digits, `-`, `.` and `_`.
fn kernel_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if text.is_empty() || text.starts_with('.') || !text.chars().all(good) {
        return Err("a kernel's name has letters, digits, '-', '_' and '.'".into());
    }
    // Jupyter's file systems may not tell cases apart; it compares names in lower case.
    Ok(text.to_ascii_lowercase())
}

fn install(args: &InstallArgs) -> Result<ExitCode> {
    // A mistake in the settings would otherwise show in the log of Jupyter's server only.
    if let Err(code) = args.config.load() {
        return Ok(code);
    }
    let python = Python::ask(&args.python);
    let kernels = match (&args.prefix, args.sys_prefix) {
        (Some(prefix), _) => std::path::absolute(prefix)?.join(DataDirs::KERNELS_BELOW_PREFIX),
        (None, true) => python.as_ref().map_err(clone)?.prefix.join(DataDirs::KERNELS_BELOW_PREFIX),
        (None, false) => DataDirs::of_user()?,
    };
    let at = kernels.join(&args.name);
    if at.exists() && !Spec::read(&at).is_ok_and(|s| s.is_ours()) && !args.replace {
        bail!(
            "{} is a kernel that `monarch kernel install` did not write: choose another --name, or --replace it",
            at.shown()
        );
    }
    let mut spec = match &args.wrap {
        Some(name) => Spec::read(&DataDirs::all(python.as_ref().ok()).find(name)?)?,
        None => Spec::of_python(&python?)?,
    };
    if spec.is_ours() {
        bail!(
            "the kernel {} runs under Monarch already: --wrap the one that it runs",
            args.wrap.as_deref().unwrap_or("?")
        );
    }
    let mut run = vec![std::env::current_exe()?.into_os_string(), "run".into()];
    run.extend(args.config.words());
    run.push("--".into());
    spec.put_before(&run)?;
    spec.display_as(args.display_name.as_deref());
    spec.write(&kernels, &args.name)?;
    say::out(format_args!("{} is kernel {:?} ({})\n", at.shown(), args.name, spec.display_name()))?;
    Ok(ExitCode::SUCCESS)
}

/// An error of the interpreter once more: two uses of it may each need it.
fn clone(e: &anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{e:#}")
}

/// A kernel of ours as `list` shows it.
#[derive(serde::Serialize)]
struct Listed {
    name: String,
    display_name: String,
    directory: PathBuf,
    command: Vec<String>,
}

/// Returns the kernels of ours in all directories, those found first before.
fn ours(python: &Path) -> Vec<Listed> {
    let python = Python::ask(python).ok();
    let mut found = Vec::new();
    for (name, at) in DataDirs::all(python.as_ref()).kernels() {
        let Ok(spec) = Spec::read(&at) else { continue };
        if spec.is_ours() {
            let (display_name, command) = (spec.display_name().to_owned(), spec.command());
            found.push(Listed { name, display_name, directory: at, command });
        }
    }
    found
}

fn list(python: &Path, json: bool) -> Result<ExitCode> {
    let found = ours(python);
    if json {
        say::out(format_args!("{}\n", serde_json::to_string_pretty(&found)?))?;
    }
    for k in found.iter().filter(|_| !json) {
        say::out(format_args!("{}  {}  {}\n", k.name, k.display_name, k.directory.shown()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(name: &str, python: &Path) -> Result<ExitCode> {
    let found: Vec<_> = ours(python).into_iter().filter(|k| k.name == name).collect();
    if found.is_empty() {
        say::err(format_args!("monarch: there is no kernel {name:?} that `monarch kernel install` wrote\n"));
        return Ok(ExitCode::from(EX_NO));
    }
    for k in found {
        std::fs::remove_dir_all(&k.directory).with_context(|| format!("cannot remove {}", k.directory.shown()))?;
        say::out(format_args!("removed {}\n", k.directory.shown()))?;
    }
    Ok(ExitCode::SUCCESS)
}
