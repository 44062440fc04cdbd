//! What is looked at again when a file is opened: as configured, and as a segment was made for.

use monarch_abi::guard::{LOADED, NEVER_AGAIN, OTHER_CTIMES};
use monarch_abi::segment::Segment;
use std::time::Duration;

/// What is looked at again when a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Whether the PFS is asked who a file is, and how often.
    pub revalidate: Option<Duration>,
    /// Whether copies are read and compared with their checksums.
    pub verify: bool,
    /// Whether the index was loaded from a file, here or on the node that sent it: each entry is
    /// compared with the PFS before its first use. (Of the index, as is the next one; jobs do not
    /// ask for it.)
    pub loaded: bool,
    /// Whether times of change are not the same on this node as in the index.
    pub other_ctimes: bool,
}

impl Checks {
    /// What a segment was made for.
    #[must_use]
    pub fn of(segment: &Segment<'_>) -> Self {
        let (guard, which) = (&segment.state.guard, segment.state.guard.which());
        let interval = Some(guard.interval_ms()).filter(|&ms| which.checked && ms != NEVER_AGAIN);
        Self {
            revalidate: interval.map(|ms| Duration::from_millis(u64::from(ms))),
            verify: which.sums,
            loaded: guard.is_loaded(),
            other_ctimes: guard.has_other_ctimes(),
        }
    }

    /// What is promised when others change files, in words.
    #[must_use]
    pub fn consistency(&self) -> String {
        match self.revalidate {
            Some(every) => format!("close-to-open, checked every {}", humantime::format_duration(every)),
            None if self.loaded => "immutable, entries of the saved index checked before their first use".to_owned(),
            None => "immutable".to_owned(),
        }
    }

    /// Milliseconds between two questions about an entry.
    #[must_use]
    pub fn interval_ms(&self) -> u32 {
        self.revalidate.map_or(NEVER_AGAIN, |d| u32::try_from(d.as_millis()).unwrap_or(NEVER_AGAIN - 1))
    }

    /// The bits of the header of a state file that say so.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        (if self.loaded { LOADED } else { 0 }) | if self.other_ctimes { OTHER_CTIMES } else { 0 }
    }
}
