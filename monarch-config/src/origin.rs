//! Where each value came from, for `monarch config show` and for errors.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::key::{Key, Step};
use super::site_file::SITE_FILE;

/// Where one value came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// No layer sets it.
    #[default]
    Default,
    /// No layer sets it, and the default was derived from this machine, as the text says.
    Derived(String),
    /// A configuration file; line and column count from 1.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// The line of the value.
        line: usize,
        /// The column of the value, in characters.
        column: usize,
    },
    /// The defaults of the site, [`SITE_FILE`]; line and column count from 1.
    Site {
        /// The line of the value.
        line: usize,
        /// The column of the value, in characters.
        column: usize,
    },
    /// The value was above a cap of the site, and is lowered to the cap.
    Capped {
        /// Where the value above the cap came from.
        given: Box<Self>,
        /// The line of the cap in [`SITE_FILE`], from 1.
        line: usize,
    },
    /// This environment variable.
    Env(String),
    /// This flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Derived(how) => write!(f, "default ({how})"),
            Self::File { path, line, .. } => write!(f, "{}:{line}", path.display()),
            Self::Site { line, .. } => write!(f, "site {SITE_FILE}:{line}"),
            Self::Capped { given, line } => write!(f, "{given}, lowered to the cap of the site {SITE_FILE}:{line}"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// The origin of every value of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<Key, Origin>);

impl Origins {
    /// The origin of a value by its name, such as `tiers[0].capacity` or `source.io_size`.
    #[must_use]
    pub fn of(&self, key: &str) -> &Origin {
        self.get(&Key::new(key))
    }

    pub(super) fn get(&self, key: &Key) -> &Origin {
        self.0.get(key).unwrap_or(&Origin::Default)
    }

    /// The origin of `key`, or of the innermost node around it that a layer sets.
    pub(super) fn nearest(&self, key: &Key) -> Option<&Origin> {
        let mut key = key.clone();
        loop {
            match self.0.get(&key) {
                Some(Origin::Derived(_)) | None => key = key.parent()?,
                found => return found,
            }
        }
    }

    pub(super) fn set(&mut self, key: Key, origin: Origin) {
        self.0.insert(key, origin);
    }

    /// Numbers the elements of a list again after all but `kept` were taken out.
    pub(super) fn keep_elements(&mut self, list: &Key, kept: &[usize]) {
        let renumbered = |(key, origin): (Key, Origin)| {
            let rest = key.0.get(list.0.len()..).filter(|_| key.is_below(list));
            let Some([Step::Index(old), rest @ ..]) = rest else { return Some((key, origin)) };
            let new = kept.iter().position(|at| at == old)?;
            Some((Key(list.index(new).0.into_iter().chain(rest.iter().cloned()).collect()), origin))
        };
        self.0 = std::mem::take(&mut self.0).into_iter().filter_map(renumbered).collect();
    }

    /// Forgets `key` and all below it: a later layer has replaced the node.
    pub(super) fn forget(&mut self, key: &Key) {
        self.0.retain(|known, _| !known.is_below(key));
    }
}
