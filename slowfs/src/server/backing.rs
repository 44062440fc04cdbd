//! The backing directory as the mount shows it: the state that operations share.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fuser::{INodeNo, Notifier};

use super::handle::{DirHandle, FileHandle, Handles};
use super::node::Nodes;
use super::paths::Paths;
use super::sys::proc_path;
use crate::counters;
use crate::mutation::Armed;
use crate::options;

/// The backing directory, the nodes and open files of its mount, and what is counted of them.
pub(super) struct Backing {
    pub(super) options: options::Live,
    pub(super) counters: counters::Live,
    pub(super) paths: Paths,
    pub(super) armed: Armed,
    pub(super) nodes: Nodes,
    pub(super) files: Handles<FileHandle>,
    pub(super) dirs: Handles<DirHandle>,
    pub(super) notifier: OnceLock<Notifier>,
    /// `/proc/self/fd/N` of the backing directory: still right after something is mounted over its
    /// path.
    pub(super) root: PathBuf,
    /// Whether files made by other users are given to them.
    pub(super) give_away: bool,
}

impl Backing {
    /// Opens the directory `source`; see [`super::pins`] for `descriptors`.
    pub(super) fn open(source: &Path, settings: &options::Settings, descriptors: usize) -> io::Result<Self> {
        let options = options::Live::default();
        options.apply(settings);
        let directory = File::open(source)?;
        let nodes = Nodes::new(directory.into(), descriptors)?;
        let root = nodes.root().map_err(|e| io::Error::from_raw_os_error(e.code()))?;
        Ok(Self {
            options,
            counters: counters::Live::default(),
            paths: Paths::new(root.as_fd())?,
            armed: Armed::default(),
            files: Handles::default(),
            dirs: Handles::default(),
            notifier: OnceLock::new(),
            root: proc_path(&root).into(),
            give_away: rustix::process::geteuid().is_root(),
            nodes,
        })
    }

    /// The relative path of a node, for fault rules and mutations.
    pub(super) fn path_of(&self, ino: INodeNo) -> Option<String> {
        self.nodes.get(ino).ok()?.path(&self.paths)
    }

    /// The relative path of an entry.
    pub(super) fn path_in(&self, parent: INodeNo, name: &std::ffi::OsStr) -> Option<String> {
        let mut path = self.path_of(parent)?;
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&name.to_string_lossy());
        Some(path)
    }
}
