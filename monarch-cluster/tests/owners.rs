//! Real nodes in one process agree on who owns the files of an index, and own equal parts.

use monarch_abi::control::ControlMap;
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::word::Word;
use monarch_cluster::directory::Members;
use monarch_cluster::node::Node;
use monarch_config::{Config, Overrides, SystemProbe};
use monarch_storage::held_dir::HeldDir;
use monarch_storage::index::{ScanOptions, ScanProgress, build, scan};
use monarch_storage::sharing::{LocalStore, ServedIndex};
use monarch_storage::shm;
use monarch_storage::tier::CopyName;
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const FILES: u64 = 128;
const FILE_BYTES: u64 = 1000;
/// Names of the nodes; the last one never starts.
const NAMES: [&str; 4] = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"];

/// How long the last node is expected.
const JOIN_TIMEOUT: Duration = Duration::from_secs(6);

/// A store without copies that serves one index.
struct NoCopies {
    control: ControlMap<'static>,
    segment: Segment<'static>,
    /// How often it was informed that files have other owners.
    owners_changed: AtomicUsize,
}

impl LocalStore for NoCopies {
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

    fn open_copy(&self, _: usize, _: CopyName) -> Option<OwnedFd> {
        None
    }

    fn open_part(&self, _: usize, _: u64) -> Option<OwnedFd> {
        None
    }

    fn is_as_logged(&self, _: &ServedIndex, _: &Entry<'static>) -> Option<bool> {
        None
    }

    fn drop_damaged(&self, _: &ServedIndex, _: &Entry<'static>, _: Word) -> bool {
        false
    }

    fn fetch_again(&self, _: &ServedIndex, _: &Entry<'static>) {}

    fn before_pfs_call(&self, _: u64, _: bool) {}

    fn owners_changed(&self) {
        self.owners_changed.fetch_add(1, Ordering::Relaxed);
    }
}

fn index(dir: &Path) -> (ControlMap<'static>, Segment<'static>) {
    let root = dir.join("root");
    std::fs::create_dir(&root).unwrap();
    for n in 0..FILES {
        std::fs::write(root.join(format!("shard-{n:03}")), vec![0; FILE_BYTES as usize]).unwrap();
    }
    let tree = scan(&root, ScanOptions { threads: 1, max_memory: u64::MAX }, &ScanProgress::default()).unwrap();
    let (built, held) = (build(tree, 7, [1; 16]), Arc::new(HeldDir::at(dir).unwrap()));
    let chunking = shm::Chunking { threshold: 16 << 20, size: 4 << 20 };
    let segment = shm::create_segment(&held, &built.index, &built.buckets, [2; 16], chunking, shm::Checks::default());
    let control = shm::create_control(&held, shm::ControlParams { mnt_ns: 0, slash: (0, 0), user_ns: 0 });
    (control.unwrap(), segment.unwrap().0)
}

/// The configuration of a node.
fn config(dir: &Path, me: usize, port: u16) -> Config {
    let file = dir.join("monarch.yaml");
    let text =
        format!("dataset: {{ roots: [{0}/root] }}\ntiers: [{{ path: {0}/tier, capacity: 1GiB }}]\n", dir.display());
    std::fs::write(&file, text).unwrap();
    let loaded = monarch_config::load(Some(&file), std::iter::empty(), &Overrides::default(), &SystemProbe);
    let mut config = loaded.unwrap().config;
    let cluster = &mut config.cluster;
    (cluster.members, cluster.me, cluster.expected) = (NAMES.map(str::to_owned).to_vec(), me, NAMES.len());
    (cluster.port, cluster.secret_file) = (Some(port), Some(dir.join("secret")));
    cluster.join_timeout = JOIN_TIMEOUT;
    config
}

/// Numbers of owned files by the name of the owner, as a node sees it.
fn owned(view: &Members, segment: &Segment<'static>) -> BTreeMap<String, u64> {
    let mut owned = BTreeMap::new();
    for e in segment.files() {
        *owned.entry(view.get(view.owner(e.master.fp)).unwrap().name.to_string()).or_default() += 1;
    }
    owned
}

fn owners(view: &Members, segment: &Segment<'static>) -> Vec<String> {
    segment.files().map(|e| view.get(view.owner(e.master.fp)).unwrap().name.to_string()).collect()
}

#[test]
fn nodes_own_equal_parts_from_the_first_read_on_and_when_one_has_gone() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().canonicalize().unwrap();
    let (control, segment) = index(&dir);
    let port = std::net::TcpListener::bind((NAMES[0], 0)).unwrap().local_addr().unwrap().port();
    let store = Arc::new(NoCopies { control, segment, owners_changed: AtomicUsize::new(0) });
    let (as_seen, stop): (Arc<dyn LocalStore>, _) = (store.clone(), Arc::new(AtomicBool::new(false)));
    let began = Instant::now();
    let nodes: Vec<Node> =
        (0..3).map(|me| Node::start(&config(&dir, me, port)).unwrap().expect("one of several")).collect();
    let peers: Vec<_> = nodes.iter().map(|node| node.connect(&as_seen)).collect();
    nodes.iter().for_each(|node| node.join(&segment));

    // The fourth node has not started, and is expected.
    let first = owners(&nodes[0].view(), &segment);
    assert!(began.elapsed() < JOIN_TIMEOUT, "too slow for this test");
    for node in &nodes {
        assert_eq!(owners(&node.view(), &segment), first);
        assert_eq!(owned(&node.view(), &segment), NAMES.map(|name| (name.to_owned(), FILES / 4)).into());
        assert_eq!(node.status().owned, (FILES / 4, FILES / 4 * FILE_BYTES));
    }
    let numbers = |node: &Node| NAMES.map(|name| node.view().number(name).unwrap());
    assert_ne!(numbers(&nodes[0]), numbers(&nodes[1]), "nodes number each other differently");

    // It has gone: its files are shared by the others.
    nodes.iter().for_each(|node| node.serve(&stop).unwrap());
    let is_shared = |node: &Node| {
        let owned = owned(&node.view(), &segment);
        owned.len() == 3 && owned.values().all(|files| *files <= FILES.div_ceil(3))
    };
    while !nodes.iter().all(is_shared) {
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", owned(&nodes[0].view(), &segment));
        std::thread::sleep(Duration::from_millis(50));
    }
    let second = owners(&nodes[0].view(), &segment);
    assert!(nodes.iter().all(|node| owners(&node.view(), &segment) == second));
    assert_eq!(nodes.iter().map(|node| node.status().owned.0).sum::<u64>(), FILES);
    assert!(store.owners_changed.load(Ordering::Relaxed) >= nodes.len());

    // Exceptions go with their index.
    let view = nodes[0].view();
    nodes[0].leave(&segment.index.header.uuid);
    let plain = view.with_exceptions(Arc::default());
    assert_ne!(owners(&plain, &segment), second);
    assert_eq!(owners(&nodes[0].view(), &segment), owners(&plain, &segment));
    stop.store(true, Ordering::Relaxed);
    nodes.iter().for_each(Node::stop);
    drop(peers);
}
