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
