//! Arguments that several commands share.

use crate::exit_code::EX_USAGE;
use crate::say;
use anyhow::Result;
use clap::Args;
use monarch_core::config::{self, Cluster, ConfigError, ErrorKind, Overrides, Places, Resolved, SystemProbe};
use monarch_core::engine::Limits;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What is served and where copies go.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file (YAML); see `monarch config show` for all settings
    #[arg(long, short, value_name = "FILE", env = "MONARCH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Directory of the data set; may be given several times
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Vec<PathBuf>,
    /// Directory for copies with its quota, fastest first; may be given several times
    #[arg(long, value_name = "DIR[:SIZE]")]
    pub(crate) tier: Vec<String>,
    /// Any other setting, such as source.max_inflight=8; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) set: Vec<(String, String)>,
    /// Directories that the job writes to: `--output` of commands that start a job.
    #[arg(skip)]
    output: Vec<PathBuf>,
}

/// The configuration of a job: what is served, where copies go, and where it writes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct JobConfigArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Directory that the job writes to: files that it creates there are kept on the node and
    /// copied to the parallel file system in the background; may be given several times
    #[arg(long, value_name = "DIR")]
    output: Vec<PathBuf>,
}

impl JobConfigArgs {
    /// Returns the arguments as one.
    pub(crate) fn all(&self) -> ConfigArgs {
        ConfigArgs { output: self.output.clone(), ..self.config.clone() }
    }
}

/// Why a job has no configuration.
#[derive(Debug)]
pub(crate) enum NoConfig {
    /// It is wrong, as a message has said.
    Wrong(ExitCode),
    /// The site allows no job, or not this one, for this reason.
    Refused(String),
}

/// Nodes that share copies, for commands that need nothing else.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClusterArgs {
    /// Configuration file (YAML): its section `cluster`
    #[arg(long, short, value_name = "FILE", env = "MONARCH_CONFIG")]
    config: Option<PathBuf>,
    /// A setting, such as cluster.secret_file=/home/me/secret; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

impl ClusterArgs {
    /// Returns the section `cluster` of the configuration.
    ///
    /// # Errors
    /// The exit code for a configuration that is wrong, after a screen that explains the mistake.
    pub(crate) fn load(&self) -> Result<Cluster, ExitCode> {
        let overrides = Overrides { set: self.set.clone(), ..Overrides::default() };
        config::load_cluster(self.config.as_deref(), environment(), &overrides, &SystemProbe).map_err(|e| wrong(&e))
    }
}

/// How the PFS is read, for commands that need neither roots nor tiers.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SourceArgs {
    /// Configuration file (YAML): its source.iops_limit holds here, too
    #[arg(long, short, value_name = "FILE", env = "MONARCH_CONFIG")]
    config: Option<PathBuf>,
    /// A setting, such as source.iops_limit=500; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

impl SourceArgs {
    /// Returns the limits of the configuration.
    ///
    /// # Errors
    /// The exit code for a configuration that is wrong, after a screen that explains the mistake.
    pub(crate) fn limits(&self) -> Result<Limits, ExitCode> {
        let overrides = Overrides { set: self.set.clone(), ..Overrides::default() };
        let source = config::load_source(self.config.as_deref(), environment(), &overrides, &SystemProbe);
        let source = source.map_err(|e| wrong(&e))?;
        Ok(Limits::new(source.bandwidth_limit, source.iops_limit.map(|n| n as u64)))
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (k, v) = text.split_once('=').ok_or("expected KEY=VALUE, such as source.max_inflight=8")?;
    Ok((k.to_owned(), v.to_owned()))
}

/// Parses a time as settings do.
///
/// # Errors
/// What is wrong.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is not a duration; write a number and a unit, such as 50ms, 2s or 1m 30s"))
}

impl ConfigArgs {
    /// Whether they say where the tiers are.
    pub(crate) fn names_tiers(&self) -> bool {
        self.config.is_some() || !self.tier.is_empty()
    }

    /// Loads and checks the configuration.
    ///
    /// # Errors
    /// The exit code for a configuration that is wrong, after a screen that explains the mistake.
    pub(crate) fn load(&self) -> Result<Resolved, ExitCode> {
        config::load(self.config.as_deref(), environment(), &self.overrides(), &SystemProbe).map_err(|e| wrong(&e))
    }

    /// [`ConfigArgs::load`], with roots that the site forbids told apart from mistakes.
    ///
    /// # Errors
    /// [`NoConfig`].
    pub(crate) fn load_allowed(&self) -> Result<Resolved, NoConfig> {
        let loaded = config::load(self.config.as_deref(), environment(), &self.overrides(), &SystemProbe);
        loaded.map_err(|e| match e.kind() {
            ErrorKind::Forbidden => NoConfig::Refused(e.message().to_owned()),
            _ => NoConfig::Wrong(wrong(&e)),
        })
    }

    /// Whether the configuration has `run.strict`, as far as it can be read.
    pub(crate) fn is_strict(&self) -> bool {
        config::load_strict(self.config.as_deref(), environment(), &self.overrides(), &SystemProbe).unwrap_or(false)
    }

    /// Returns the limits on reads of the PFS.
    ///
    /// # Errors
    /// As [`ConfigArgs::load`].
    pub(crate) fn limits(&self) -> Result<Limits, ExitCode> {
        SourceArgs { config: self.config.clone(), set: self.set.clone() }.limits()
    }

    /// Returns the directories of agents and copies, for commands that need no data set.
    ///
    /// # Errors
    /// As [`ConfigArgs::load`].
    pub(crate) fn places(&self) -> Result<Places, ExitCode> {
        config::load_places(self.config.as_deref(), environment(), &self.overrides(), &SystemProbe)
            .map_err(|e| wrong(&e))
    }

    /// Returns these arguments for a process that may have another working directory.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let absolute = |p: &Path| std::path::absolute(p).unwrap_or_else(|_| p.to_owned()).into_os_string();
        let mut out = Vec::new();
        let mut add = |flag: &str, value: OsString| out.extend([OsString::from(flag), value]);
        if let Some(file) = &self.config {
            add("--config", absolute(file));
        }
        let overrides = self.overrides();
        overrides.roots.into_iter().for_each(|r| add("--root", r.into_os_string()));
        overrides.tiers.into_iter().for_each(|t| add("--tier", t.into()));
        overrides.outputs.into_iter().for_each(|o| add("--output", o.into_os_string()));
        overrides.set.into_iter().for_each(|(k, v)| add("--set", format!("{k}={v}").into()));
        out
    }

    /// Returns the settings of the command line, with paths as the shell means them.
    pub(crate) fn overrides(&self) -> Overrides {
        let text = |t: &str| typed(Path::new(t)).to_string_lossy().into_owned();
        let set = |(key, value): &(String, String)| match key.as_str() {
            "index.file" | "runtime_dir" | "run.accounting" if !value.starts_with(['[', '{']) => {
                (key.clone(), text(value))
            }
            _ => (key.clone(), value.clone()),
        };
        Overrides {
            roots: self.root.iter().map(|p| typed(p)).collect(),
            // Without a path, an empty one: not the working directory.
            tiers: self.tier.iter().map(|t| if t.starts_with(':') { t.clone() } else { text(t) }).collect(),
            outputs: self.output.iter().map(|p| typed(p)).collect(),
            set: self.set.iter().map(set).collect(),
        }
    }
}

/// Makes a path of the command line absolute, as the shell would: `..` behind a link leads to the
/// parent of the link's target. (Paths in a configuration file begin with a slash.)
fn typed(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // What follows the last `..` need not exist yet.
    let parts: Vec<Component<'_>> = path.components().collect();
    let Some(last) = parts.iter().rposition(|c| *c == Component::ParentDir) else { return path };
    let (there, rest) = parts.split_at(last + 1);
    there.iter().collect::<PathBuf>().canonicalize().map_or(path.clone(), |p| p.join(rest.iter().collect::<PathBuf>()))
}

fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(k, _)| k != "MONARCH_CONFIG")
}

fn wrong(e: &ConfigError) -> ExitCode {
    say::err(format_args!("{}", config::screen(e)));
    ExitCode::from(EX_USAGE)
}
