//! Settings that have another name than in earlier versions. The old name still works, with a
//! warning; both names in one layer are an error.

use serde_yaml::Value;

use super::error::{Wrong, wrong};
use super::key::{Key, Step};

/// A setting with a new name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Renamed {
    /// Its section; if that is a list, the setting belongs to each element.
    section: &'static str,
    pub(super) old: &'static str,
    new: &'static str,
}

/// All of them. The fields of the raw configuration have the old names as aliases.
const RENAMED: [Renamed; 3] = [
    Renamed { section: "dataset", old: "settle", new: "min_file_age" },
    Renamed { section: "cluster", old: "passing", new: "transient_share" },
    Renamed { section: "tiers", old: "decoded", new: "decompression_share" },
];

impl Renamed {
    /// The entry of a key under its old or its new name, and the key under the new one.
    pub(super) fn of(key: &Key) -> Option<(&'static Self, Key)> {
        let (section, name) = match key.0.as_slice() {
            [Step::Name(section), Step::Name(name)] => (section, name),
            [Step::Name(section), Step::Index(_), Step::Name(name)] => (section, name),
            _ => return None,
        };
        let entry = RENAMED.iter().find(|r| r.section == section && (r.old == name || r.new == name))?;
        Some((entry, key.parent()?.name(entry.new)))
    }

    /// The entry of a field with this new name.
    pub(super) fn by_new_name(name: &str) -> Option<&'static Self> {
        RENAMED.iter().find(|r| r.new == name)
    }

    /// Whether a key is the old name of a setting.
    pub(super) fn is_old(name: &str) -> bool {
        RENAMED.iter().any(|r| r.old == name)
    }

    /// What is wrong when one layer has both names.
    pub(super) fn both_given(&self) -> Wrong {
        let Self { section, old, new } = self;
        wrong(format!("{section} has {new} and {old}, which is the old name of {new}"), format!("keep {new}"))
    }
}

/// The key under its new name.
pub(super) fn current(key: &Key) -> Key {
    Renamed::of(key).map_or_else(|| key.clone(), |(_, current)| current)
}

/// The value of `key` with new names in place of old ones.
pub(super) fn with_new_names(value: Value, key: &Key) -> Value {
    match value {
        Value::Mapping(map) => {
            let entry = |(name, value): (Value, Value)| {
                let child = key.name(name.as_str().unwrap_or_default());
                let name = Renamed::of(&child).map_or(name, |(entry, _)| entry.new.into());
                (name, with_new_names(value, &child))
            };
            Value::Mapping(map.into_iter().map(entry).collect())
        }
        Value::Sequence(list) => {
            let element = |(index, value)| with_new_names(value, &key.index(index));
            Value::Sequence(list.into_iter().enumerate().map(element).collect())
        }
        other => other,
    }
}
