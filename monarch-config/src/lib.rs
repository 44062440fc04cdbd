//! The configuration: defaults of the site, a YAML file over them, then `MONARCH_*` variables, then
//! flags; resolved once, by the command line.
//!
//! * The [layers](Overrides) are laid over each other as trees, with the origin of every value.
//! * The result is read *as written* (`raw.rs`: every field optional, scalars as text), then turned
//!   into the [`Config`] *as meant*: units, defaults, bounds.
//! * Rules ask the machine through a [`Probe`]: a tier is a local disk, a root exists, a capacity
//!   fits.
//! * Any mistake is a [`ConfigError`] that shows the line, says why, and what to write instead.
//!   Mistakes are found on a compute node after an hour in the queue, so the error has to suffice.
//! * The shim and the agent never parse YAML: the command line hands the [`Config`] to the agent as
//!   JSON. Environment variables are described in `env.rs`.

mod caps;
mod checks;
mod choice;
mod context;
mod default_tier;
mod env;
mod error;
mod flags;
mod given;
pub mod hostlist;
mod keep_free;
mod key;
mod layers;
pub mod listen;
mod locate;
mod model;
mod origin;
mod outputs;
mod paths;
mod probe;
mod raw;
mod raw_site;
mod renamed;
mod render;
mod resolve;
mod roots;
mod schema;
mod screen;
mod shape;
mod site;
mod site_file;
mod source_text;
mod suggest;
#[cfg(test)]
mod tests;
mod tiers;
pub mod trusted;
mod units;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use checks::{AbsentNames, AbsentRule, Checks};
use context::Context;
pub use env::{JOB_SECRET_VARIABLE, SECRET_VARIABLE};
pub use error::{ConfigError, ErrorKind};
pub use flags::Overrides;
use layers::Layers;
pub use model::{
    Cluster, Compression, Config, Consistency, Dataset, Direct, Discovery, Distributed, Drain, Encryption, Engine,
    Extent, Follow, Index, Io, JobSecretSource, Libraries, Log, LogLevel, MAX_BATCH_FILES, Medium, Metrics, OutputRoot,
    OutputSync, Persist, Placement, Policy, Prefetch, RawCalls, Root, Run, Source, Spread, Tier, Trust, Wait,
    WorkingSets,
};
pub use origin::{Origin, Origins};
pub use probe::memory::MemoryWatch;
pub use probe::mounts::{Points as MountPoints, any_below as mounted_below, points as mount_points};
pub use probe::pressure::PressureWatch;
pub use probe::{FakeProbe, FsClass, FsInfo, LocalDisk, Memory, Meta, Probe, SystemProbe};
use raw::RawConfig;
pub use render::render_with_origins;
pub use schema::{schema, site_schema};
pub use screen::screen;
pub use site_file::{SITE_FILE, SiteSettings, SiteStamp};
use source_text::SourceText;

/// A configuration, the origin of its values, and warnings.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    /// Where each value came from.
    pub origins: Origins,
    /// What works but the user should know, one line each.
    pub warnings: Vec<String>,
    /// Why roots are left out that the site forbids, one line each.
    pub forbidden: Vec<String>,
}

/// Directories of agents and of copies, as far as a configuration names them: for commands that
/// need no data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Places {
    /// Directory of the runtime directories.
    pub runtime_dir: Option<PathBuf>,
    /// The tiers, if any are named.
    pub tiers: Vec<Tier>,
    /// If no tier is named: the directory in which a job without a tier of its own has left copies.
    pub default_tier: Option<PathBuf>,
}

/// Reads, merges, resolves and checks the configuration.
///
/// `file` is the one named with `--config`; `env` the process environment, in which names other
/// than `MONARCH_*` are ignored; `probe` the machine, usually [`SystemProbe`].
///
/// # Errors
/// The first mistake, in the order file, environment, flags, then section by section.
pub fn load(
    file: Option<&Path>,
    env: impl Iterator<Item = (OsString, OsString)>,
    overrides: &Overrides,
    probe: &dyn Probe,
) -> Result<Resolved, ConfigError> {
    let make = |mut cx: Context<'_>, raw: RawConfig| {
        let config = resolve::resolve(&mut cx, &raw)?;
        let Context { layers, forbidden, .. } = cx;
        Ok(Resolved { config, origins: layers.origins, warnings: layers.warnings, forbidden })
    };
    layered(file, env, overrides, probe, make)
}

/// Whether a job that cannot be served is not started (`run.strict`); arguments and errors as for
/// [`load`].
///
/// # Errors
/// A mistake in a layer, or in this setting.
pub fn load_strict(
    file: Option<&Path>,
    env: impl Iterator<Item = (OsString, OsString)>,
    overrides: &Overrides,
    probe: &dyn Probe,
) -> Result<bool, ConfigError> {
    layered(file, env, overrides, probe, |cx, raw| resolve::strict(&cx, &raw))
}

/// The [`Places`] of a configuration that need not be complete; arguments and errors as for
/// [`load`].
///
/// # Errors
/// A mistake in a layer, or in the settings that are used.
pub fn load_places(
    file: Option<&Path>,
    env: impl Iterator<Item = (OsString, OsString)>,
    overrides: &Overrides,
    probe: &dyn Probe,
) -> Result<Places, ConfigError> {
    layered(file, env, overrides, probe, |mut cx, raw| {
        let tiers = raw.tiers.as_deref().map_or(Ok(Vec::new()), |tiers| tiers::resolve(&mut cx, tiers, &[]))?;
        let default_tier = if raw.tiers.is_some() { None } else { default_tier::left(probe) };
        Ok(Places { runtime_dir: resolve::runtime_dir(&cx, &raw)?, tiers, default_tier })
    })
}

/// How the PFS is to be read, for commands that need only that of a configuration; arguments and
/// errors as for [`load`].
///
/// # Errors
/// A mistake in a layer, or in the settings of the section `source`.
pub fn load_source(
    file: Option<&Path>,
    env: impl Iterator<Item = (OsString, OsString)>,
    overrides: &Overrides,
    probe: &dyn Probe,
) -> Result<Source, ConfigError> {
    layered(file, env, overrides, probe, |mut cx, raw| resolve::source(&mut cx, &raw.source.unwrap_or_default()))
}

/// The section `cluster`, for commands that need only that of a configuration; arguments and errors
/// as for [`load`].
///
/// # Errors
/// A mistake in a layer, or in the settings of the section `cluster`.
pub fn load_cluster(
    file: Option<&Path>,
    env: impl Iterator<Item = (OsString, OsString)>,
    overrides: &Overrides,
    probe: &dyn Probe,
) -> Result<Cluster, ConfigError> {
    layered(file, env, overrides, probe, |mut cx, raw| resolve::cluster(&mut cx, &raw.cluster.unwrap_or_default()))
}

/// Lays the layers over each other and makes something of them. Where the defaults of the site do
/// not fit this node or the user's settings, they are left out, with a warning.
fn layered<'a, T>(
    file: Option<&Path>,
    env: impl Iterator<Item = (OsString, OsString)>,
    overrides: &Overrides,
    probe: &'a dyn Probe,
    make: impl Fn(Context<'a>, RawConfig) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let (site, env) = (probe.site(), env.collect::<Vec<_>>());
    let attempt = |defaults: Option<&(SourceText, serde_yaml::Value)>, more: Option<String>| {
        let mut layers = Layers::default();
        layers.warnings.extend(site.mistakes.first().map(|mistake| format!("{mistake}; {}", mistake.remedy())));
        layers.warnings.extend(more);
        if let Some((source, defaults)) = defaults {
            layers.site(source, defaults.clone())?;
        }
        if let Some(file) = file {
            layers.file(file)?;
        }
        env::apply(&mut layers, env.iter().cloned())?;
        flags::apply(&mut layers, overrides)?;
        let raw = layers.raw()?;
        make(Context { layers, probe, caps: site.caps.clone(), forbidden: Vec::new() }, raw)
    };
    let Some(defaults) = &site.defaults else { return attempt(None, None) };
    let error = match attempt(Some(defaults), None) {
        Err(error) if error.kind() != ErrorKind::Forbidden => error,
        done => return done,
    };
    // A mistake of the user is there without the defaults, too.
    attempt(None, Some(format!("the defaults of the site do not fit this job and are left out: {error}")))
}
