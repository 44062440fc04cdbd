//! Defaults of the site, file, environment and flags laid over each other, with the origin of every
//! value.
//!
//! Each layer is checked for its shape on its own, so that a mistake is reported against the line,
//! variable or flag that made it. Then its values replace the ones below, node by node; a list
//! replaces the whole list below it.

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::path::Path;

use serde_yaml::Value;

use super::error::{ConfigError, ErrorKind, Place, Wrong, wrong};
use super::key::{Key, Step};
use super::locate::{Spot, locate};
use super::origin::{Origin, Origins};
use super::raw::RawConfig;
use super::renamed::{Renamed, current, with_new_names};
use super::shape::explain;
use super::site_file::SITE_FILE;
use super::source_text::SourceText;

/// The layers so far.
#[derive(Default)]
pub(super) struct Layers {
    tree: Value,
    /// The files that were read.
    texts: Vec<SourceText>,
    /// Settings that have an old and a new name, under the new one: where they were given last, and
    /// whether under the old name.
    spelled: BTreeMap<Key, (Origin, bool)>,
    warned_of: Vec<&'static Renamed>,
    pub(super) origins: Origins,
    pub(super) warnings: Vec<String>,
}

impl Layers {
    /// Lays down the defaults of the site: the value of `defaults` in its file.
    pub(super) fn site(&mut self, source: &SourceText, defaults: Value) -> Result<(), ConfigError> {
        self.texts.push(source.clone());
        let mut keys = Vec::new();
        nodes(&defaults, &Key::default(), &mut keys);
        for key in keys {
            if let Some(Spot { line, column }) = locate(&source.text, &key.below("defaults")) {
                self.given(&key, &Origin::Site { line, column })?;
            }
        }
        self.tree = with_new_names(defaults, &Key::default());
        Ok(())
    }

    /// Lays the configuration file over the layers.
    pub(super) fn file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let unreadable = |error: std::io::Error| {
            let remedy = "check the path given with --config; without --config no file is read";
            let wrong = wrong(format!("cannot read the configuration file {}: {error}", path.display()), remedy);
            ConfigError::new(ErrorKind::Unreadable, "", wrong, Place::Nowhere)
        };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let source = SourceText { path: path.to_owned(), text };
        let tree: Value = serde_yaml::from_str(&source.text).map_err(|error| source.bad_yaml(&error))?;
        if !tree.is_null() {
            serde_yaml::from_str::<RawConfig>(&source.text).map_err(|error| source.bad_shape(&error))?;
        }
        self.texts.push(source.clone());
        let mut keys = Vec::new();
        nodes(&tree, &Key::default(), &mut keys);
        let named = with_new_names(tree, &Key::default());
        lay_over(&mut self.tree, named, &Key::default(), &mut self.origins);
        for key in keys {
            if let Some(Spot { line, column }) = locate(&source.text, &key) {
                self.given(&key, &Origin::File { path: path.to_owned(), line, column })?;
            }
        }
        Ok(())
    }

    /// Notes where a value was given. Warns, once for each setting, if that was under an old name.
    ///
    /// # Errors
    /// This layer has the setting under its other name as well.
    fn given(&mut self, key: &Key, origin: &Origin) -> Result<(), ConfigError> {
        let Some((entry, new)) = Renamed::of(key) else {
            self.origins.set(key.clone(), origin.clone());
            return Ok(());
        };
        let is_old = *key != new;
        let earlier = self.spelled.insert(new.clone(), (origin.clone(), is_old));
        if earlier.is_some_and(|(at, was_old)| was_old != is_old && discriminant(&at) == discriminant(origin)) {
            let place = self.place_of(origin);
            return Err(ConfigError::new(ErrorKind::OutOfBounds, &new, entry.both_given(), place));
        }
        if is_old && !self.warned_of.contains(&entry) {
            self.warned_of.push(entry);
            self.warnings.push(format!("{origin}: {key} is called {new} now; write the new name"));
        }
        self.origins.set(new, origin.clone());
        Ok(())
    }

    /// Puts one value of a higher layer in place of what is there.
    pub(super) fn set(&mut self, key: &Key, value: Value, origin: &Origin) -> Result<(), ConfigError> {
        let place = self.place_of(origin);
        let fail = |kind, wrong: Wrong| ConfigError::new(kind, key, wrong, place.clone());
        serde_yaml::from_value::<RawConfig>(nested(&key.0, value.clone())).map_err(|error| {
            let shape = explain(&error);
            fail(shape.kind, shape.wrong)
        })?;
        let new = current(key);
        self.origins.forget(&new);
        let mut keys = Vec::new();
        nodes(&value, key, &mut keys);
        let value = with_new_names(value, key);
        put(&mut self.tree, &new.0, value).map_err(|wrong| fail(ErrorKind::UnknownKey, wrong))?;
        keys.iter().try_for_each(|key| self.given(key, origin))
    }

    /// The layers as one configuration.
    pub(super) fn raw(&self) -> Result<RawConfig, ConfigError> {
        if self.tree.is_null() {
            return Ok(RawConfig::default());
        }
        serde_yaml::from_value(self.tree.clone()).map_err(|error| {
            let shape = explain(&error);
            ConfigError::new(shape.kind, shape.field, shape.wrong, Place::Nowhere)
        })
    }

    /// Where the value of `key` was written, or the innermost thing around it.
    pub(super) fn place(&self, key: &Key) -> Place {
        self.origins.nearest(key).map_or(Place::Nowhere, |origin| self.place_of(origin))
    }

    fn spot_place(&self, path: &Path, spot: Spot) -> Place {
        self.texts.iter().rfind(|source| source.path == path).map_or(Place::Nowhere, |source| source.place(spot))
    }

    fn place_of(&self, origin: &Origin) -> Place {
        match origin {
            Origin::File { path, line, column } => self.spot_place(path, Spot { line: *line, column: *column }),
            Origin::Site { line, column } => {
                self.spot_place(Path::new(SITE_FILE), Spot { line: *line, column: *column })
            }
            Origin::Capped { given, .. } => self.place_of(given),
            Origin::Env(name) => Place::Env(name.clone()),
            Origin::Flag(name) => Place::Flag(name.clone()),
            Origin::Default | Origin::Derived(_) => Place::Nowhere,
        }
    }
}

/// Lays a tree over another one: sections are merged, everything else replaces what is there.
fn lay_over(tree: &mut Value, above: Value, key: &Key, origins: &mut Origins) {
    match (tree, above) {
        (_, Value::Null) => {}
        (Value::Mapping(below), Value::Mapping(above)) => {
            for (name, value) in above {
                let key = key.name(name.as_str().unwrap_or_default());
                lay_over(below.entry(name).or_insert(Value::Null), value, &key, origins);
            }
        }
        (tree, above) => {
            *tree = above;
            origins.forget(key);
        }
    }
}

/// The keys of a node and of all nodes below it that hold something.
fn nodes(value: &Value, key: &Key, keys: &mut Vec<Key>) {
    match value {
        Value::Null => return,
        Value::Mapping(map) => {
            for (name, value) in map {
                nodes(value, &key.name(name.as_str().unwrap_or_default()), keys);
            }
        }
        Value::Sequence(list) => {
            for (index, value) in list.iter().enumerate() {
                nodes(value, &key.index(index), keys);
            }
        }
        _ => {}
    }
    // Every layer has the top, so it says nothing about the origin of a value.
    if !key.0.is_empty() {
        keys.push(key.clone());
    }
}

/// A tree that holds nothing but `value`; as list elements are alike, it may stand first in its
/// list.
fn nested(steps: &[Step], value: Value) -> Value {
    match steps {
        [] => value,
        [Step::Name(name), rest @ ..] => {
            Value::Mapping([(Value::String(name.clone()), nested(rest, value))].into_iter().collect())
        }
        [Step::Index(_), rest @ ..] => Value::Sequence(vec![nested(rest, value)]),
    }
}

fn put(tree: &mut Value, steps: &[Step], value: Value) -> Result<(), Wrong> {
    match steps {
        [] => *tree = value,
        [Step::Name(name), rest @ ..] => {
            if tree.is_null() {
                *tree = Value::Mapping(serde_yaml::Mapping::new());
            }
            let Value::Mapping(map) = tree else {
                return Err(wrong(
                    "the configuration below has a single value here, not a section",
                    "set the whole of it",
                ));
            };
            let child = map.entry(Value::String(name.clone())).or_insert(Value::Null);
            return put(child, rest, value);
        }
        [Step::Index(index), rest @ ..] => return put(element(tree, *index)?, rest, value),
    }
    Ok(())
}

/// The element of a list, made when it is the next one.
fn element(tree: &mut Value, index: usize) -> Result<&mut Value, Wrong> {
    if tree.is_null() {
        *tree = Value::Sequence(Vec::new());
    }
    let list = tree.as_sequence_mut().ok_or_else(|| wrong("this is not a list", "leave the number out"))?;
    if list.len() == index {
        list.push(Value::Null);
    }
    let len = list.len();
    list.get_mut(index).ok_or_else(|| {
        wrong(
            format!("there is no element {index}: the list has {len}, counted from 0"),
            format!("the next one is {len}"),
        )
    })
}
