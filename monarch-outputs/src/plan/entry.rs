//! What the queue holds.

use super::place::Guard;

/// An entry of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The staged file of that number.
    File(u64),
    /// The staged file of that number under a name that it has left since: something else came
    /// between that name and the rename.
    Former(u64, FormerName),
    /// A removal of a name, and when it was made, nanoseconds since 1970.
    Unlink(Vec<u8>, Guard, u64),
    /// A removal of a directory.
    Rmdir(Vec<u8>, u64),
    /// A symbolic link and its target.
    Symlink(Vec<u8>, Vec<u8>, u64),
}

/// A name that a file has left by a rename.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerName {
    /// The name.
    pub name: Vec<u8>,
    /// The record that gave it to the file.
    pub bound: u64,
}

impl Entry {
    /// The staged file that it publishes.
    #[must_use]
    pub const fn file(&self) -> Option<u64> {
        match self {
            Self::File(id) | Self::Former(id, _) => Some(*id),
            _ => None,
        }
    }
}
