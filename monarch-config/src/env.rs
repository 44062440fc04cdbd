//! The environment layer: `MONARCH_SOURCE__MAX_INFLIGHT=8` is `source.max_inflight: 8`.
//!
//! Two underscores go one level down; digits pick an element of a list
//! (`MONARCH_TIERS__0__CAPACITY`). `MONARCH_RUNTIME_DIR` is the setting at the top,
//! `MONARCH_DATASET__ROOTS=/a:/b` all roots, separated by `:`; `MONARCH_OUTPUTS` likewise. A value
//! that begins with `[` or `{` is YAML. An empty value counts as none. Names without two
//! underscores that are not settings belong to Monarch itself, a module system or Kubernetes
//! service links, and are ignored.

use std::ffi::OsString;

use serde_yaml::Value;

use super::error::{ConfigError, ErrorKind, Place, wrong};
use super::flags::value;
use super::key::Key;
use super::layers::Layers;
use super::origin::Origin;

/// The variable with the user's secret, which goes before the file.
pub const SECRET_VARIABLE: &str = "MONARCH_CLUSTER_SECRET";

/// The variable with the job's secret, which goes before `cluster.job_secret`.
pub const JOB_SECRET_VARIABLE: &str = "MONARCH_CLUSTER_JOB_SECRET";

/// Names that carry something other than configuration.
const INTERNAL: &[&str] = &[
    "MONARCH_CTL",
    "MONARCH_JOB",
    monarch_abi::foreign_changes::VARIABLE,
    "MONARCH_DISABLE",
    "MONARCH_SHIM",
    "MONARCH_LOG",
    "MONARCH_RANK",
    SECRET_VARIABLE,
    JOB_SECRET_VARIABLE,
];

/// Settings at the top, whose names need no double underscore.
const TOP: &[&str] = &["MONARCH_RUNTIME_DIR", "MONARCH_TIERS", "MONARCH_OUTPUTS"];

/// Sections. A name that continues with one underscore is most likely a mistake.
const SECTIONS: &[&str] = &[
    "dataset",
    "source",
    "io",
    "tiers",
    "outputs",
    "drain",
    "placement",
    "prefetch",
    "index",
    "wait",
    "metrics",
    "run",
    "cluster",
    "log",
];

/// Lays the environment over the layers.
pub(super) fn apply(layers: &mut Layers, env: impl Iterator<Item = (OsString, OsString)>) -> Result<(), ConfigError> {
    let mut ours: Vec<(String, OsString)> = env
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, value)| name.starts_with("MONARCH_") && !INTERNAL.contains(&name.as_str()) && !value.is_empty())
        .collect();
    ours.sort();
    for (name, value) in ours {
        if name.contains("__") || TOP.contains(&name.as_str()) {
            one(layers, &name, value)?;
        } else {
            suspect(layers, &name);
        }
    }
    Ok(())
}

fn one(layers: &mut Layers, name: &str, text: OsString) -> Result<(), ConfigError> {
    let key = Key::from_env(name.trim_start_matches("MONARCH_"));
    let fail = |kind, wrong| ConfigError::new(kind, &key, wrong, Place::Env(name.to_owned()));
    let text = text.into_string().map_err(|text| {
        fail(
            ErrorKind::WrongType,
            wrong(format!("{} is not UTF-8", text.display()), "write it in UTF-8, or give the path another name"),
        )
    })?;
    let is_output = key == Key::new("outputs");
    let value = if (is_output || key == Key::new("dataset.roots")) && !text.starts_with('[') {
        // (A section, so that `MONARCH_OUTPUTS__0__FSYNC` can add to it.)
        let section = |path: &str| Value::Mapping([(Value::from("path"), Value::from(path))].into_iter().collect());
        let element = |path: &str| if is_output { section(path) } else { Value::from(path) };
        Value::Sequence(text.split(':').filter(|path| !path.is_empty()).map(element).collect())
    } else {
        value(&text).map_err(|wrong| fail(ErrorKind::Syntax, wrong))?
    };
    layers.set(&key, value, &Origin::Env(name.to_owned()))
}

fn suspect(layers: &mut Layers, name: &str) {
    let lower = name.trim_start_matches("MONARCH_").to_ascii_lowercase();
    let section =
        SECTIONS.iter().find(|section| lower.strip_prefix(**section).is_some_and(|rest| rest.starts_with('_')));
    if let Some(section) = section {
        let section = section.to_ascii_uppercase();
        layers.warnings.push(format!(
            "{name} is ignored: if it is meant as a setting, write MONARCH_{section}__, with two underscores"
        ));
    }
}
