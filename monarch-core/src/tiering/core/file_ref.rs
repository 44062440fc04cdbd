//! TODO

/// A file as its nodes know it: the same numbers on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileRef {
    /// Of the index.
    pub index: [u8; 16],
    /// Its entry there.
    pub id: u32,
    /// Hash of its path, the same in later jobs.
    pub fp: u64,
}

/// What of a file's identity is the same for every client of the PFS, besides its size and time of
/// modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityScope {
    /// Its inode number.
    pub ino: bool,
    /// The time of its last change.
    pub ctime: bool,
}

impl Default for IdentityScope {
    fn default() -> Self {
        Self { ino: true, ctime: true }
    }
}
