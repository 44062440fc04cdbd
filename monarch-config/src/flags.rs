//! The layer of the command line: `--root`, `--tier DIR[:SIZE]`, `--output`, `--set KEY=VALUE`.

use std::path::{Path, PathBuf};

use serde_yaml::{Mapping, Value};

use super::error::{ConfigError, ErrorKind, Place, Wrong, wrong};
use super::key::Key;
use super::layers::Layers;
use super::origin::Origin;
use super::units;

/// What the command line says about the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--root DIR`, each; together they replace the roots of file and environment.
    pub roots: Vec<PathBuf>,
    /// `--tier DIR[:SIZE]`, each, fastest first; together they replace the tiers of file and
    /// environment. What follows the last `:` is a size if it begins with a digit or is empty;
    /// otherwise the directory's name holds a `:`.
    pub tiers: Vec<String>,
    /// `--output DIR`, each; together they replace the output roots of file and environment.
    pub outputs: Vec<PathBuf>,
    /// `--set KEY=VALUE`, each, such as `("source.io_size", "1MiB")` or `("tiers.0.capacity",
    /// "5GiB")`. A value that begins with `[` or `{` is YAML.
    pub set: Vec<(String, String)>,
}

/// Lays the flags over the layers.
pub(super) fn apply(layers: &mut Layers, overrides: &Overrides) -> Result<(), ConfigError> {
    if !overrides.roots.is_empty() {
        let text = |path: &PathBuf| path_text(path, ("dataset.roots", "--root")).map(Value::String);
        let roots: Result<Vec<Value>, ConfigError> = overrides.roots.iter().map(text).collect();
        layers.set(&Key::new("dataset.roots"), Value::Sequence(roots?), &Origin::Flag("--root".to_owned()))?;
    }
    if !overrides.tiers.is_empty() {
        let tiers = overrides.tiers.iter().map(|text| tier(text)).collect();
        layers.set(&Key::new("tiers"), Value::Sequence(tiers), &Origin::Flag("--tier".to_owned()))?;
    }
    if !overrides.outputs.is_empty() {
        // (A section, so that `--set outputs.0.fsync=publish` can add to it.)
        let output = |path: &PathBuf| {
            let text = path_text(path, ("outputs", "--output"))?;
            Ok(Value::Mapping([(Value::from("path"), Value::from(text))].into_iter().collect()))
        };
        let outputs: Result<Vec<Value>, ConfigError> = overrides.outputs.iter().map(output).collect();
        layers.set(&Key::new("outputs"), Value::Sequence(outputs?), &Origin::Flag("--output".to_owned()))?;
    }
    for (name, text) in &overrides.set {
        let (key, flag) = (Key::new(name), format!("--set {name}"));
        let value =
            value(text).map_err(|wrong| ConfigError::new(ErrorKind::Syntax, &key, wrong, Place::Flag(flag.clone())))?;
        layers.set(&key, value, &Origin::Flag(flag))?;
    }
    Ok(())
}

fn path_text(path: &Path, (key, flag): (&str, &str)) -> Result<String, ConfigError> {
    let text = path.to_str().ok_or_else(|| {
        let wrong =
            wrong(format!("{} is not UTF-8", path.display()), "give the directory a second name with a symbolic link");
        ConfigError::new(ErrorKind::BadRoot, key, wrong, Place::Flag(flag.to_owned()))
    })?;
    Ok(text.to_owned())
}

fn tier(text: &str) -> Value {
    let (path, capacity) = match text.rsplit_once(':') {
        Some((path, size)) if looks_like_size(size) => (path, Some(size)),
        _ => (text, None),
    };
    let mut map = Mapping::new();
    map.insert("path".into(), path.into());
    if let Some(capacity) = capacity {
        map.insert("capacity".into(), capacity.into());
    }
    Value::Mapping(map)
}

/// A size, or what was meant as one: better an error about it than a directory called `x:400`,
/// `x:12blah`, `x:-1GiB` or `x:`.
fn looks_like_size(text: &str) -> bool {
    let number = text.trim_start().trim_start_matches(['-', '+', '.']);
    let begins_so = number.starts_with(|c: char| c.is_ascii_digit()) && !text.contains('/');
    text.is_empty() || begins_so || units::size(text).is_ok() || (text.ends_with("/s") && units::rate(text).is_ok())
}

/// A value as environment and `--set` give it: YAML in brackets, otherwise the text as it is.
pub(super) fn value(text: &str) -> Result<Value, Wrong> {
    if !text.starts_with(['[', '{']) {
        return Ok(Value::String(text.to_owned()));
    }
    serde_yaml::from_str(text).map_err(|error| wrong(format!("not valid YAML: {error}"), "check brackets and quotes"))
}
