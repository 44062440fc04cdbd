//! The checks of a file when it is opened: as configured, and as a segment was made for.

use monarch_abi::guard::{LOADED, NEVER_AGAIN, OTHER_CTIMES};
use monarch_abi::segment::Segment;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The checks of a file when it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Time after which the PFS is asked again for the identity of a file; `None`: it is not asked.
    pub revalidate: Option<Duration>,
    /// Whether copies are read and compared with their checksums.
    pub verify: bool,
    /// Whether the index was loaded from a file, here or on the node that sent it: each entry is
    /// compared with the PFS before its first use. (This and the next are properties of the index,
    /// not of the job.)
    pub loaded: bool,
    /// Whether change times differ between this node and the index.
    pub other_ctimes: bool,
    /// What is done about names that the index lacks.
    pub absent: AbsentNames,
    /// Whether directories that the index does not hold are asked for. (A property of the index, as
    /// well.)
    pub on_demand: bool,
}

/// Where listings of the index answer that a name is not there; in the order of the trust in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AbsentRule {
    /// Nowhere: the PFS is asked about each name that the index lacks.
    Kernel,
    /// As `checked` in environments of software, and as `kernel` elsewhere.
    #[default]
    Auto,
    /// In all directories, each compared with the PFS once every `revalidate`.
    Checked,
    /// In all directories, without asking the PFS.
    Index,
}

/// What is done about names that the index lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsentNames {
    /// Where listings answer.
    pub rule: AbsentRule,
    /// Time after which a directory is compared with the PFS again.
    pub every: Duration,
    /// A directory that changed less than this before it was listed answers nothing.
    pub min_age: Duration,
}

impl Default for AbsentNames {
    fn default() -> Self {
        Self::NONE
    }
}

impl AbsentNames {
    /// The kernel answers.
    pub const NONE: Self = Self { rule: AbsentRule::Kernel, every: Duration::ZERO, min_age: Duration::ZERO };

    /// Milliseconds between two comparisons of a directory, as a state file has it.
    #[must_use]
    pub fn interval_ms(&self) -> u32 {
        match self.rule {
            AbsentRule::Index => NEVER_AGAIN,
            _ => u32::try_from(self.every.as_millis()).unwrap_or(NEVER_AGAIN - 1),
        }
    }

    /// Returns what satisfies both jobs: the rule that trusts less, and the shorter interval.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        Self {
            rule: self.rule.min(other.rule),
            every: self.every.min(other.every),
            min_age: self.min_age.max(other.min_age),
        }
    }
}

impl Checks {
    /// The checks that a segment was made for.
    #[must_use]
    pub fn of(segment: &Segment<'_>) -> Self {
        let (guard, which) = (&segment.state.guard, segment.state.guard.which());
        let interval = Some(guard.interval_ms()).filter(|&ms| which.checked && ms != NEVER_AGAIN);
        Self {
            revalidate: interval.map(|ms| Duration::from_millis(u64::from(ms))),
            verify: which.sums,
            loaded: guard.is_loaded(),
            other_ctimes: guard.has_other_ctimes(),
            absent: AbsentNames::default(),
            on_demand: segment.state.marks.is_on(),
        }
    }

    /// The consistency that the checks give when files change, in words.
    #[must_use]
    pub fn consistency(&self) -> String {
        match self.revalidate {
            Some(every) => format!("close-to-open, checked every {}", humantime::format_duration(every)),
            None if self.loaded => "immutable, entries of the saved index checked before their first use".to_owned(),
            None => "immutable".to_owned(),
        }
    }

    /// Milliseconds between two checks of an entry, as a state file has it.
    #[must_use]
    pub fn interval_ms(&self) -> u32 {
        self.revalidate.map_or(NEVER_AGAIN, |d| u32::try_from(d.as_millis()).unwrap_or(NEVER_AGAIN - 1))
    }

    /// The flags of the header of a state file.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        (if self.loaded { LOADED } else { 0 }) | if self.other_ctimes { OTHER_CTIMES } else { 0 }
    }
}
