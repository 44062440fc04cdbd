//! The PFS below an output root, as the agent changes it.

mod dir;
pub mod doubles;
mod extended;
mod recent_dirs;

pub use dir::DirTarget;
pub use extended::{extended_of, no_list_of};

use rustix::io::Result;
use std::fmt::Debug;

/// What a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// Anything else.
    Other,
}

/// What `stat` says of a name or an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetStat {
    /// What it is.
    pub kind: Kind,
    /// Device.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Permissions, without the file type.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Change time in nanoseconds since 1970.
    pub ctime_ns: i64,
}

/// Attributes that a published file gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions.
    pub mode: u32,
    /// Owner and group, if they were changed.
    pub owner: Option<Owner>,
    /// Access time in nanoseconds since 1970.
    pub atime_ns: i64,
    /// Modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
}

/// Owner and group of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extended {
    /// Its name, with the class in front, as `user.note`.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// A file on the PFS that is open for writing.
pub trait TargetFile: Send + Debug {
    /// Writes at an offset; the bytes written, which may be fewer.
    ///
    /// # Errors
    /// What the kernel said.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize>;
    /// Cuts or extends it.
    ///
    /// # Errors
    /// What the kernel said.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Makes it durable.
    ///
    /// # Errors
    /// What the kernel said.
    fn sync(&self) -> Result<()>;
    /// Its attributes.
    ///
    /// # Errors
    /// What the kernel said.
    fn stat(&self) -> Result<TargetStat>;
    /// Sets mode and owner, where they are not those of `before`, and times.
    ///
    /// # Errors
    /// What the kernel said.
    fn set_attributes(&self, attributes: &Attributes, before: &TargetStat) -> Result<()>;
    /// Gives it these extended attributes, and no others that a job may set.
    ///
    /// # Errors
    /// What the kernel said.
    fn set_extended(&self, extended: &[Extended]) -> Result<()>;
}

/// The tree below an output root. Paths are relative to it; links that lead out of it are not
/// followed.
pub trait OutputTarget: Send + Sync + Debug {
    /// Opens the output root again, if it was removed.
    ///
    /// # Errors
    /// What the kernel said: there is none.
    fn reopen(&self) -> Result<()> {
        Ok(())
    }
    /// Opens what has the path of the output root now: the job has made that, or moved it there.
    ///
    /// # Errors
    /// What the kernel said: there is none.
    fn follow(&self) -> Result<()> {
        Ok(())
    }
    /// Opens an existing file for writing, its owner's right to write restored if need be.
    ///
    /// # Errors
    /// What the kernel said.
    fn open(&self, path: &[u8]) -> Result<Box<dyn TargetFile>>;
    /// Creates a file that must not exist.
    ///
    /// # Errors
    /// What the kernel said.
    fn create(&self, path: &[u8], mode: u32) -> Result<Box<dyn TargetFile>>;
    /// Renames.
    ///
    /// # Errors
    /// What the kernel said.
    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()>;
    /// Removes a name that is no directory.
    ///
    /// # Errors
    /// What the kernel said.
    fn unlink(&self, path: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    ///
    /// # Errors
    /// What the kernel said.
    fn rmdir(&self, path: &[u8]) -> Result<()>;
    /// Makes a symbolic link.
    ///
    /// # Errors
    /// What the kernel said.
    fn symlink(&self, path: &[u8], target: &[u8]) -> Result<()>;
    /// The target of a symbolic link.
    ///
    /// # Errors
    /// What the kernel said.
    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>>;
    /// Attributes of a name; a link is not followed.
    ///
    /// # Errors
    /// What the kernel said.
    fn stat(&self, path: &[u8]) -> Result<TargetStat>;
    /// Makes the names of a directory durable.
    ///
    /// # Errors
    /// What the kernel said.
    fn sync_dir(&self, dir: &[u8]) -> Result<()>;
    /// Names in a directory.
    ///
    /// # Errors
    /// What the kernel said.
    fn names(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>>;
}
