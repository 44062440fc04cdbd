//! [`IdentityScope`]: which parts of a file's identity all clients of the PFS see alike.

/// Parts of a file's identity that are the same for every client of the PFS, besides size and time
/// of modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityScope {
    /// The inode number.
    pub ino: bool,
    /// The time of the last status change.
    pub ctime: bool,
}

impl Default for IdentityScope {
    fn default() -> Self {
        Self { ino: true, ctime: true }
    }
}
