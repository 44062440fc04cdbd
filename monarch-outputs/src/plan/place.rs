//! The order of entries, and what a removal is for.

use monarch_abi::outputs::names::Staged;

/// Where an entry stands in the order of publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The record after which the entry is published.
    pub seq: u64,
    /// Order among entries of one record. From [`FOUND`] on: files found closed after the record.
    pub sub: u32,
}

impl Place {
    /// The place just below.
    #[must_use]
    pub const fn before(self) -> Self {
        match self.sub.checked_sub(1) {
            Some(sub) => Self { sub, ..self },
            None => Self { seq: self.seq.saturating_sub(1), sub: u32::MAX },
        }
    }
}

/// First [`Place::sub`] of files that were found closed without a record.
pub const FOUND: u32 = 1 << 16;

/// Which thing of a name a removal is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Whatever has the name.
    Any,
    /// Only the file that was published of this staged file. An earlier agent may have done that.
    File(Staged),
    /// Only a symbolic link with this target.
    Symlink(Vec<u8>),
    /// Nothing on the PFS: only the overlay has something of that name.
    Nothing,
}
