//! The configuration: one YAML file, `MONARCH_*` variables over it, flags over both; resolved once,
//! by the command line.
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
mod paths;
mod probe;
mod raw;
mod renamed;
mod render;
mod resolve;
mod roots;
mod schema;
mod screen;
mod shape;
mod site;
mod suggest;
#[cfg(test)]
mod tests;
mod tiers;
pub mod trusted;
mod units;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use checks::Checks;
pub use env::SECRET_VARIABLE;
pub use error::{ConfigError, ErrorKind};
pub use flags::Overrides;
pub use model::{
    Cluster, Compression, Config, Consistency, Dataset, Direct, Discovery, Engine, Index, Io, Log, LogLevel, Medium,
    Metrics, Persist, Placement, Policy, Prefetch, Root, Source, Spread, Tier, Trust, Wait,
};
pub use origin::{Origin, Origins};
pub use probe::memory::left as memory_left;
pub use probe::mounts::{Points as MountPoints, any_below as mounted_below, points as mount_points};
pub use probe::{FakeProbe, FsClass, FsInfo, LocalDisk, Memory, Meta, Probe, SystemProbe};
pub use render::render_with_origins;
pub use schema::schema;
pub use screen::screen;

/// A configuration, the origin of its values, and warnings.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    /// Where each value came from.
    pub origins: Origins,
    /// What works but the user should know, one line each.
    pub warnings: Vec<String>,
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
    let (mut cx, raw) = layered(file, env, overrides, probe)?;
    let config = resolve::resolve(&mut cx, &raw)?;
    Ok(Resolved { config, origins: cx.layers.origins, warnings: cx.layers.warnings })
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
    let (mut cx, raw) = layered(file, env, overrides, probe)?;
    let tiers = raw.tiers.as_deref().map_or(Ok(Vec::new()), |tiers| tiers::resolve(&mut cx, tiers, &[]))?;
    let default_tier = if raw.tiers.is_some() { None } else { default_tier::left(probe) };
    Ok(Places { runtime_dir: resolve::runtime_dir(&cx, &raw)?, tiers, default_tier })
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
    let (cx, raw) = layered(file, env, overrides, probe)?;
    resolve::source(&cx, &raw.source.unwrap_or_default())
}

fn layered<'a>(
    file: Option<&Path>,
    env: impl Iterator<Item = (OsString, OsString)>,
    overrides: &Overrides,
    probe: &'a dyn Probe,
) -> Result<(context::Context<'a>, raw::RawConfig), ConfigError> {
    let mut layers = layers::Layers::default();
    if let Some(file) = file {
        layers.file(file)?;
    }
    env::apply(&mut layers, env)?;
    flags::apply(&mut layers, overrides)?;
    let raw = layers.raw()?;
    Ok((context::Context { layers, probe }, raw))
}
