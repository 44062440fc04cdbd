//! A data set in a directory, its index, and nodes that serve it: for tests with real nodes in one
//! process.

use monarch_abi::control::ControlMap;
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::word::Word;
use monarch_config::{Config, Overrides, SystemProbe};
use monarch_storage::held_dir::HeldDir;
use monarch_storage::index::{ScanOptions, ScanProgress, build, scan};
use monarch_storage::sharing::{LocalStore, ServedIndex};
use monarch_storage::shm;
use monarch_storage::tier::{CopyName, OpenCopy};
use rustix::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// What a test has of the files of its data set: no copies, unless it says so.
pub(crate) trait Copies: Send + Sync {
    fn open_copy(&self, _: CopyName) -> Option<OwnedFd> {
        None
    }

    fn open_part(&self, _: u64) -> Option<OwnedFd> {
        None
    }

    fn before_pfs_call(&self, _: u64) {}

    fn owners_changed(&self) {}
}

/// One index, and the copies of its files.
pub(crate) struct Served<C> {
    control: ControlMap<'static>,
    pub(crate) segment: Segment<'static>,
    pub(crate) copies: C,
}

impl<C: Copies> Served<C> {
    /// The index of the directory `root`, which is the same for all nodes of a test, with the
    /// shared memory of one node in `at`.
    pub(crate) fn new(
        (root, at): (&Path, &Path),
        chunking: shm::Chunking,
        copies: impl FnOnce(&Segment<'static>) -> C,
    ) -> Self {
        let tree = scan(root, ScanOptions { threads: 1, max_memory: u64::MAX }, &ScanProgress::default()).unwrap();
        let (built, held) = (build(tree, 7, [1; 16]), Arc::new(HeldDir::at(at).unwrap()));
        let segment =
            shm::create_segment(&held, &built.index, &built.buckets, [2; 16], chunking, shm::Checks::default());
        let segment = segment.unwrap().0;
        let control =
            shm::create_control(&held, shm::ControlParams { mnt_ns: 0, slash: (0, 0), user_ns: 0, pid_ns: 0 });
        Self { control: control.unwrap(), segment, copies: copies(&segment) }
    }
}

impl<C: Copies> LocalStore for Served<C> {
    fn control(&self) -> &ControlMap<'static> {
        &self.control
    }

    fn served(&self) -> Vec<ServedIndex> {
        vec![ServedIndex { number: 0, root: 0, segment: self.segment }]
    }

    fn served_index(&self, index: &[u8; 16]) -> Option<ServedIndex> {
        self.served().into_iter().find(|s| s.segment.index.header.uuid == *index)
    }

    fn usage(&self) -> (u64, u64) {
        (0, 0)
    }

    fn open_copy(&self, _: usize, name: CopyName) -> Option<OpenCopy> {
        OpenCopy::of(self.copies.open_copy(name)?).ok()
    }

    fn open_part(&self, _: usize, part: u64) -> Option<OwnedFd> {
        self.copies.open_part(part)
    }

    fn is_as_logged(&self, _: &ServedIndex, _: &Entry<'static>) -> Option<bool> {
        None
    }

    fn drop_damaged(&self, _: &ServedIndex, _: &Entry<'static>, _: Word) -> bool {
        false
    }

    fn fetch_again(&self, _: &ServedIndex, _: &Entry<'static>) {}

    fn before_pfs_call(&self, bytes: u64, _: bool) {
        self.copies.before_pfs_call(bytes);
    }

    fn owners_changed(&self) {
        self.copies.owners_changed();
    }
}

/// The configuration of one of the nodes with these addresses, of a job in the directory `dir`.
pub(crate) fn config(dir: &Path, names: &[String], me: usize, port: u16) -> Config {
    let file = dir.join("monarch.yaml");
    let text =
        format!("dataset: {{ roots: [{0}/root] }}\ntiers: [{{ path: {0}/tier, capacity: 1GiB }}]\n", dir.display());
    std::fs::write(&file, text).unwrap();
    let loaded = monarch_config::load(Some(&file), std::iter::empty(), &Overrides::default(), &SystemProbe);
    let mut config = loaded.unwrap().config;
    let cluster = &mut config.cluster;
    (cluster.members, cluster.me, cluster.expected) = (names.to_vec(), me, names.len());
    (cluster.port, cluster.secret_file) = (Some(port), Some(dir.join("secret")));
    config
}

/// A port that is free at this address.
pub(crate) fn free_port(name: &str) -> u16 {
    std::net::TcpListener::bind((name, 0)).unwrap().local_addr().unwrap().port()
}
