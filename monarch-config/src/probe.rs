//! Everything the rules ask of the machine, behind one trait.
//!
//! [`SystemProbe`] asks this machine; [`FakeProbe`] is a scripted double, shipped so that every
//! rule can be tested without the file system, the memory limit or the Kubernetes that it is about.

mod fake;
mod fs_class;
pub(crate) mod memory;
pub(crate) mod mounts;
pub(crate) mod pressure;
mod system;

use std::io;
use std::path::{Path, PathBuf};

use crate::site_file::SiteSettings;
use crate::trusted::Exposed;
pub use fake::FakeProbe;
pub use fs_class::FsClass;
pub use system::SystemProbe;

/// Questions to the machine.
pub trait Probe {
    /// What a path leads to, symbolic links followed.
    ///
    /// # Errors
    /// As `stat(2)`.
    fn meta(&self, path: &Path) -> io::Result<Meta>;

    /// The path with all symbolic links followed.
    ///
    /// # Errors
    /// As `realpath(3)`.
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf>;

    /// The file system that holds a path.
    ///
    /// # Errors
    /// As `statfs(2)`.
    fn file_system(&self, path: &Path) -> io::Result<FsInfo>;

    /// Whether this user may create entries in a directory.
    fn writable(&self, dir: &Path) -> bool;

    /// What another user can exchange on a path, as far as the path exists.
    fn exposed(&self, path: &Path) -> Option<Exposed>;

    /// Bytes of the blocks of all files below a directory; may stop counting once there are
    /// `enough`, and estimate after very many files. 0 where there is no directory.
    fn used_below(&self, dir: &Path, enough: u64) -> u64;

    /// The memory of this job.
    fn memory(&self) -> Memory;

    /// Whether this runs in a Kubernetes pod.
    fn in_kubernetes(&self) -> bool;

    /// Places where a default tier may go, best first; they need not exist.
    fn local_disks(&self) -> Vec<LocalDisk>;

    /// The effective user.
    fn uid(&self) -> u32;

    /// What the administrator of the node has set.
    fn site(&self) -> SiteSettings;
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Whether it is a directory.
    pub is_dir: bool,
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`.
    pub ino: u64,
}

/// A file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsInfo {
    /// The type as `/proc/self/mountinfo` names it (`ext4`, `fuse.glusterfs`); empty when not found
    /// there.
    pub fs_type: String,
    /// `f_type` of `statfs(2)`.
    pub magic: u64,
    /// Bytes in all.
    pub total: u64,
    /// Bytes that this user may still write.
    pub free: u64,
    /// Inodes in all; 0 where they are not counted.
    pub inodes_total: u64,
    /// Inodes that this user may still make.
    pub inodes_free: u64,
    /// `st_dev` of the files on it.
    pub dev: u64,
}

impl FsInfo {
    /// What it is made of.
    #[must_use]
    pub fn class(&self) -> FsClass {
        FsClass::of(&self.fs_type, self.magic, self.dev)
    }
}

/// The memory of a job, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The tightest control-group limit, if there is one.
    pub limit: Option<u64>,
    /// What is charged to that control group and cannot simply be dropped (inactive page cache is
    /// left out, as Kubernetes does).
    pub used: u64,
    /// `MemTotal` of the node.
    pub total: u64,
    /// `MemAvailable` of the node.
    pub available: u64,
}

impl Memory {
    /// All that the job may use.
    #[must_use]
    pub fn whole(&self) -> u64 {
        self.limit.map_or(self.total, |limit| limit.min(self.total))
    }

    /// What the job may still take.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.limit.map_or(self.available, |limit| limit.saturating_sub(self.used).min(self.available))
    }
}

/// A place where a default tier may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDisk {
    /// How it was found, such as `$TMPDIR` or `/tmp`.
    pub label: String,
    /// The directory.
    pub path: PathBuf,
}
