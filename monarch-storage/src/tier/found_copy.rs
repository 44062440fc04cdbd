//! A copy as the tier knows it.

use super::checksum::Sum;
use monarch_abi::hash::{CopyName, Stamp};

/// A copy found on disk or published.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Its name.
    pub name: CopyName,
    /// Its size in bytes.
    pub size: u64,
    /// The bytes charged for it.
    pub charged: u64,
    /// The stamp that it carries.
    pub stamp: Stamp,
    /// The checksum that its bytes must have, if they have to be read before it is used.
    pub check: Option<Sum>,
    /// Whether it is a packed copy; `size` is that of the file then.
    pub packed: bool,
}
