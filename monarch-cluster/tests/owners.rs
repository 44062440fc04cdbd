//! Real nodes in one process agree on who owns the files of an index, and own equal parts.

#[path = "support/data_set.rs"]
mod data_set;

use data_set::Served;
use monarch_abi::segment::Segment;
use monarch_cluster::directory::Members;
use monarch_cluster::node::Node;
use monarch_config::Config;
use monarch_storage::sharing::LocalStore;
use monarch_storage::shm;
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

/// No copies.
#[derive(Default)]
struct NoCopies {
    /// How often a node was informed that files have other owners.
    owners_changed: AtomicUsize,
}

impl data_set::Copies for NoCopies {
    fn owners_changed(&self) {
        self.owners_changed.fetch_add(1, Ordering::Relaxed);
    }
}

fn serve(dir: &Path) -> Served<NoCopies> {
    let root = dir.join("root");
    std::fs::create_dir(&root).unwrap();
    for n in 0..FILES {
        std::fs::write(root.join(format!("shard-{n:03}")), vec![0; FILE_BYTES as usize]).unwrap();
    }
    Served::new((&root, dir), shm::Chunking { threshold: 16 << 20, size: 4 << 20 }, |_| NoCopies::default())
}

/// The configuration of a node.
fn config(dir: &Path, me: usize, port: u16) -> Config {
    let mut config = data_set::config(dir, &NAMES.map(str::to_owned), me, port);
    config.cluster.join_timeout = JOIN_TIMEOUT;
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
    let (store, port) = (Arc::new(serve(&dir)), data_set::free_port(NAMES[0]));
    let segment = store.segment;
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
    assert!(store.copies.owners_changed.load(Ordering::Relaxed) >= nodes.len());

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
