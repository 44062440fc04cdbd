//! A scan that other nodes help with makes the index that a scan alone makes, whatever the others
//! do.

use crate::common::{built, cases, publish};
use crate::trees::{World, plan};
use monarch_abi::PATH_MAX;
use monarch_abi::index::{INDEX_CUT, Index};
use monarch_storage::engine::Limits;
use monarch_storage::index::{
    DirReader, Listed, MAX_REQUESTS_PER_NODE, ScanHelpers, ScanOptions, ScanProgress, build, decode_listings,
    decode_paths, encode_listings, encode_paths, scan_with,
};
use monarch_storage::shm::IndexBytes;
use proptest::prelude::*;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// What a node makes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Answers,
    /// Leaves out every other directory.
    LeavesOut,
    /// Answers for less than it was asked.
    Stops,
    /// Its connection is closed.
    Fails,
    /// Has another tree at that path.
    SeesAnother,
    /// Sends what is no listing.
    Babbles,
}

const DEEDS: [Deed; 6] = [Deed::Answers, Deed::LeavesOut, Deed::Stops, Deed::Fails, Deed::SeesAnother, Deed::Babbles];

/// Nodes that do one thing after the other.
struct Nodes {
    root: DirReader,
    other: DirReader,
    deeds: Vec<Deed>,
    requests: AtomicUsize,
    sent: AtomicUsize,
}

impl Nodes {
    fn new(root: &Path, other: &Path, deeds: Vec<Deed>) -> Arc<Self> {
        let reader = |root: &Path| DirReader::new(root.to_owned(), Arc::default(), 2);
        let (requests, sent) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { root: reader(root), other: reader(other), deeds, requests, sent })
    }
}

impl ScanHelpers for Nodes {
    fn nodes(&self) -> Vec<u16> {
        vec![1, 2]
    }

    fn read(&self, _: u16, dirs: &[&[u8]]) -> io::Result<Vec<Option<Listed>>> {
        let message = encode_paths(dirs);
        let dirs = decode_paths(&message).expect("paths");
        let deed = self.deeds[self.requests.fetch_add(1, Ordering::Relaxed) % self.deeds.len()];
        let of = if deed == Deed::SeesAnother { &self.other } else { &self.root };
        let mut listings = of.read(&dirs)?;
        match deed {
            Deed::Fails => return Err(io::ErrorKind::ConnectionReset.into()),
            Deed::LeavesOut => listings.iter_mut().step_by(2).for_each(|l| drop(l.take())),
            Deed::Stops => listings.truncate(dirs.len() / 2),
            _ => {}
        }
        let mut bytes = encode_listings(&listings);
        if deed == Deed::Babbles {
            bytes.truncate(bytes.len() - 1);
        }
        let came = decode_listings(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        self.sent.fetch_add(came.iter().flatten().count(), Ordering::Relaxed);
        Ok(came)
    }
}

/// Scans with one thread that makes this number of calls a second, so that there is something to
/// help with.
fn helped(root: &Path, nodes: &Arc<impl ScanHelpers + 'static>, calls: u64) -> Vec<u8> {
    let helpers: Arc<dyn ScanHelpers> = nodes.clone();
    let options = ScanOptions { threads: 1, max_memory: u64::MAX };
    let (limits, progress) = (Limits::new(None, Some(calls)), ScanProgress::default());
    let tree = scan_with(root, options, &limits, &progress, Some(&helpers)).expect("scan");
    build(tree, 7, [1; 16]).index
}

/// Everything that an index says of each entry. (Directories were read in between: their access
/// times mean nothing.)
fn contents(index: &Index<'_>) -> Vec<String> {
    let entry = |id: u32| {
        let r = index.record(id).expect("record");
        let mut path = [0; PATH_MAX];
        let len = index.path(id, &mut path).expect("path");
        let atime = if r.is_dir() { 0 } else { r.atime_ns };
        let dir = index.dir(r).map(|d| (d.id, d.end, d.parent, d.flags));
        format!(
            "{:?} {:?} {atime} {:?} {:?} {:?} {:?} {dir:?}",
            String::from_utf8_lossy(&path[..len]),
            (r.size, r.mtime_ns, r.ctime_ns, r.ino, r.check, r.blocks),
            (r.mode, r.nlink),
            index.owner(r),
            index.link_target(r),
            index.btime_ns(id),
        )
    };
    (0..index.len() as u32).map(entry).collect()
}

fn assert_same(root: &Path, helped: &[u8]) {
    let alone = built(root);
    let (alone, helped) = (IndexBytes(&alone.index), IndexBytes(helped));
    let (alone, helped) = (alone.open().expect("index"), helped.open().expect("index"));
    assert!(helped.is_sound());
    assert_eq!(contents(&helped), contents(&alone));
    let facts = |i: &Index<'_>| (i.header.files, i.header.bytes, i.header.flags, i.header.parent_ino);
    assert_eq!(facts(&helped), facts(&alone));
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn any_tree_is_indexed_as_without_help(
        plan in plan(80), deeds in prop::collection::vec(prop::sample::select(&DEEDS[..]), 1..6),
    ) {
        let world = World::new(&plan);
        let nodes = Nodes::new(&world.roots[0], &world.roots[1], deeds);
        assert_same(&world.roots[0], &helped(&world.roots[0], &nodes, 400));
    }
}

/// A directory with `dirs` directories of three files each.
fn wide(dirs: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temp dir");
    for d in 0..dirs {
        let d = dir.path().join(format!("d{d:03}"));
        std::fs::create_dir(&d).expect("mkdir");
        (0..3).for_each(|f| std::fs::write(d.join(format!("f{f}")), [0; 9]).expect("write"));
    }
    dir
}

#[test]
fn other_nodes_read_what_this_one_does_not_come_to() {
    let dir = wide(100);
    let nodes = Nodes::new(dir.path(), dir.path(), vec![Deed::Answers]);
    assert_same(dir.path(), &helped(dir.path(), &nodes, 500));
    let sent = nodes.sent.load(Ordering::Relaxed);
    assert!((30..100).contains(&sent), "{sent} of 100 directories");
}

/// The directories of another file system have other inodes: none of them is taken, and the node is
/// left alone.
#[test]
fn a_node_with_other_files_at_the_path_changes_nothing() {
    let (dir, other) = (wide(60), wide(60));
    let nodes = Nodes::new(dir.path(), other.path(), vec![Deed::SeesAnother]);
    assert_same(dir.path(), &helped(dir.path(), &nodes, 1000));
    // Each of two nodes: three that do not fit, and what is under way meanwhile.
    let (requests, most) = (nodes.requests.load(Ordering::Relaxed), 2 * (3 + MAX_REQUESTS_PER_NODE));
    assert!((1..=most).contains(&requests), "{requests} requests");
}

#[test]
fn what_other_nodes_send_counts_as_memory_of_the_index() {
    let dir = wide(60);
    let nodes: Arc<dyn ScanHelpers> = Nodes::new(dir.path(), dir.path(), vec![Deed::Answers]);
    let options = ScanOptions { threads: 1, max_memory: 12_000 };
    let (limits, progress) = (Limits::new(None, Some(500)), ScanProgress::default());
    let tree = scan_with(dir.path(), options, &limits, &progress, Some(&nodes)).expect("scan");
    let built = build(tree, 7, [1; 16]);
    assert_ne!(built.header().flags & INDEX_CUT, 0);
    let segment = publish(dir.path(), &built);
    let held: u64 = (1..segment.index.len() as u32)
        .map(|id| {
            64 + 23 + 8 + segment.index.name(segment.index.record(id).expect("record")).expect("name").len() as u64
        })
        .sum();
    assert!(held <= 12_000 && held > 6_000, "{held} bytes of entries");
}

/// A node whose mount hangs.
#[derive(Default)]
struct Hangs {
    over: Mutex<bool>,
    changed: Condvar,
    asked: AtomicUsize,
}

impl ScanHelpers for Hangs {
    fn nodes(&self) -> Vec<u16> {
        vec![1]
    }

    fn read(&self, _: u16, _: &[&[u8]]) -> io::Result<Vec<Option<Listed>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut over = self.over.lock().expect("lock");
        while !*over {
            over = self.changed.wait(over).expect("lock");
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

#[test]
fn a_node_that_never_answers_does_not_keep_a_scan_from_its_end() {
    let dir = wide(60);
    let node = Arc::<Hangs>::default();
    assert_same(dir.path(), &helped(dir.path(), &node, 1000));
    assert!(node.asked.load(Ordering::Relaxed) > 0);
    *node.over.lock().expect("lock") = true;
    node.changed.notify_all();
}
