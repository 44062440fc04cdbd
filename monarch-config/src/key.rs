//! The name of one setting: `tiers[1].capacity`.
//!
//! Files, environment variables (`MONARCH_TIERS__1__CAPACITY`) and `--set tiers.1.capacity=...`
//! spell the same key in three ways; errors and origins use the first.

use std::fmt;

/// One step down the configuration tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Into a section.
    Name(String),
    /// Into a list, counted from 0.
    Index(usize),
}

/// A path from the top of the configuration to one of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(pub(super) Vec<Step>);

impl Key {
    /// Reads `a.b[0].c`; a step of digits is an index, so `a.b.0.c` is the same key.
    pub(super) fn new(text: &str) -> Self {
        Self(text.split(['.', '[']).map(|step| Step::read(step.trim_end_matches(']'))).collect())
    }

    /// Reads what follows `MONARCH_`: `TIERS__1__CAPACITY`.
    pub(super) fn from_env(text: &str) -> Self {
        Self(text.to_ascii_lowercase().split("__").map(Step::read).collect())
    }

    /// The key of a tier.
    pub(super) fn tier(index: usize) -> Self {
        Self::new("tiers").index(index)
    }

    /// The key of a named child.
    pub(super) fn name(&self, name: &str) -> Self {
        self.child(Step::Name(name.to_owned()))
    }

    /// The key of an element.
    pub(super) fn index(&self, index: usize) -> Self {
        self.child(Step::Index(index))
    }

    /// The same key below a section.
    pub(super) fn below(&self, section: &str) -> Self {
        Self([Step::Name(section.to_owned())].into_iter().chain(self.0.iter().cloned()).collect())
    }

    fn child(&self, step: Step) -> Self {
        Self(self.0.iter().cloned().chain([step]).collect())
    }

    /// The key of the node that holds this one.
    pub(super) fn parent(&self) -> Option<Self> {
        let (_, rest) = self.0.split_last()?;
        Some(Self(rest.to_vec()))
    }

    /// Whether this is `other` or lies below it.
    pub(super) fn is_below(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
}

impl Step {
    fn read(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Index)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Name(name) if at == 0 => f.write_str(name)?,
                Step::Name(name) => write!(f, ".{name}")?,
            }
        }
        Ok(())
    }
}
