//! Sixteen real nodes in one process read one large file of one of them at the same time. Each has
//! copies of its own, in pieces, and the bytes that its link sent are counted.

#[path = "support/data_set.rs"]
mod data_set;

use data_set::Served;
use monarch_abi::segment::Entry;
use monarch_abi::sys::futex_wake;
use monarch_cluster::node::Node;
use monarch_storage::engine::{PfsSource, Source};
use monarch_storage::sharing::{FetchRequest, FileRef, LocalStore, Peers, RemoteFile};
use monarch_storage::shm;
use monarch_storage::tier::CopyName;
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

const NODES: usize = 16;
const CHUNK_BYTES: u64 = 64 << 10;
const CHUNKS: u64 = 96;
const FILE_BYTES: u64 = CHUNK_BYTES * CHUNKS;
/// Chunks that a node has under way. (All connections come from one address here, of which a node
/// takes 64 at a time before they are proven.)
const COPIERS: usize = 4;
/// The number of the partial copy.
const PART: u64 = 5;

fn bytes_of(chunk: u64) -> Vec<u8> {
    (0..CHUNK_BYTES).map(|n| (n ^ (chunk * 31)) as u8).collect()
}

/// A node's copy of the file.
struct Copy {
    part: File,
    /// Chunks that this node says it has and cannot open.
    lost: AtomicBool,
    /// Whether its disk damages what is written.
    damages: AtomicBool,
    /// Bytes read from the PFS.
    pfs_reads: AtomicU64,
}

impl data_set::Copies for Copy {
    fn open_copy(&self, _: CopyName) -> Option<OwnedFd> {
        Some(self.part.try_clone().ok()?.into())
    }

    fn open_part(&self, part: u64) -> Option<OwnedFd> {
        let is_there = part == PART && !self.lost.load(Ordering::Relaxed);
        is_there.then(|| self.part.try_clone().ok().map(OwnedFd::from)).flatten()
    }

    fn before_pfs_call(&self, bytes: u64) {
        self.pfs_reads.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A node, with its copy.
struct Reader {
    node: Node,
    served: Arc<Served<Copy>>,
    peers: Arc<dyn Peers>,
    name: String,
}

impl Reader {
    fn entry(&self) -> Entry<'static> {
        self.served.segment.files().next().unwrap()
    }

    fn file(&self) -> FileRef {
        FileRef::of(&self.served.segment, &self.entry())
    }

    /// Begins a partial copy, as the tiering engine does.
    fn begin(&self) {
        let (entry, large) = (self.entry(), self.large());
        large.begin(PART, monarch_abi::chunks::WHOLE);
        let word = entry.word();
        entry.master.word.store(word.partial(0).0, Ordering::Release);
        futex_wake(&entry.master.word, u32::MAX >> 1);
    }

    fn large(&self) -> monarch_abi::chunks::LargeFile<'static> {
        self.served.segment.state.large(self.entry().master.id).expect("a large file")
    }

    /// Fetches all chunks, in order, some at a time.
    fn fetch(&self, root: &Path) -> io::Result<()> {
        let source: Arc<dyn Source> = Arc::new(PfsSource::new(root)?);
        let want = self.entry().record.identity();
        let request = FetchRequest {
            file: self.file(),
            rel: b"weights",
            source: &source,
            chunked: true,
            want,
            demand: true,
            arrived: None,
        };
        let remote: Arc<dyn RemoteFile> = self.peers.file(&request).expect("another node owns it");
        let queue = Mutex::new((0..CHUNKS).collect::<VecDeque<u64>>());
        let copier = || -> io::Result<()> {
            loop {
                let Some(chunk) = queue.lock().unwrap().pop_front() else { return Ok(()) };
                let mut buf = vec![0; CHUNK_BYTES as usize];
                let n = remote.read_at(&mut buf, chunk * CHUNK_BYTES)?;
                assert_eq!(n as u64, CHUNK_BYTES);
                self.served.copies.part.write_all_at(&buf, chunk * CHUNK_BYTES)?;
                if self.served.copies.damages.load(Ordering::Relaxed) {
                    self.served.copies.part.write_all_at(b"damaged", chunk * CHUNK_BYTES + 100)?;
                }
                self.peers.note_chunk(&self.file(), (chunk * CHUNK_BYTES, CHUNK_BYTES), xxh3_64(&buf));
                self.large().arrived(chunk as u32);
                self.large().ticked();
            }
        };
        std::thread::scope(|s| {
            let all: Vec<_> = (0..COPIERS).map(|_| s.spawn(copier)).collect();
            all.into_iter().try_for_each(|copier| copier.join().unwrap())
        })
    }

    fn has_right_bytes(&self) -> bool {
        (0..CHUNKS).all(|chunk| {
            let mut buf = vec![0; CHUNK_BYTES as usize];
            self.served.copies.part.read_exact_at(&mut buf, chunk * CHUNK_BYTES).is_ok() && buf == bytes_of(chunk)
        })
    }

    fn sent(&self) -> f64 {
        let sent: u64 = self.node.status().peers.iter().map(|p| p.traffic.sent_bytes).sum();
        sent as f64 / FILE_BYTES as f64
    }
}

/// A job of several nodes, and the directory with the file.
struct Job {
    readers: Vec<Reader>,
    /// Which of them owns the file, and has a complete copy.
    owner: usize,
    stop: Arc<AtomicBool>,
    dir: tempfile::TempDir,
}

impl Job {
    /// Starts nodes on the addresses 127.0.`net`.x.
    fn start(net: u8) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("root")).unwrap();
        let all: Vec<u8> = (0..CHUNKS).flat_map(bytes_of).collect();
        std::fs::write(dir.join("root/weights"), &all).unwrap();
        let chunking = shm::Chunking { threshold: CHUNK_BYTES, size: CHUNK_BYTES };
        let names: Vec<String> = (1..=NODES).map(|n| format!("127.0.{net}.{n}")).collect();
        let port = data_set::free_port(&names[0]);
        let reader = |me: usize| {
            let mine = dir.join(&names[me]);
            std::fs::create_dir(&mine).unwrap();
            let part = File::options().read(true).write(true).create_new(true).open(mine.join("part")).unwrap();
            let (lost, damages, pfs_reads) = Default::default();
            let copy = Copy { part, lost, damages, pfs_reads };
            let served = Arc::new(Served::new((&dir.join("root"), &mine), chunking, |_| copy));
            let config = data_set::config(&dir, &names, me, port);
            let node = Node::start(&config).unwrap().expect("one of several");
            let store: Arc<dyn LocalStore> = served.clone();
            let peers = node.connect(&store);
            Reader { node, served, peers, name: names[me].clone() }
        };
        let readers: Vec<Reader> = (0..NODES).map(reader).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let begun = Instant::now();
        let sees_all = |r: &Reader| r.node.view().iter().filter(|(n, _)| r.node.view().is_up(*n)).count() == NODES;
        while !readers.iter().all(sees_all) {
            assert!(begun.elapsed() < Duration::from_secs(30), "the nodes do not find each other");
            std::thread::sleep(Duration::from_millis(20));
        }
        readers.iter().for_each(|r| r.node.join(&r.served.segment));
        readers.iter().for_each(|r| r.node.serve(&stop).unwrap());
        let owner = readers.iter().position(|r| r.peers.is_mine(&r.file())).expect("an owner");
        let entry = readers[owner].entry();
        readers[owner].served.copies.part.write_all_at(&all, 0).unwrap();
        entry.master.word.store(entry.word().resident(0).0, Ordering::Release);
        Self { readers, owner, stop, dir: temp }
    }

    fn others(&self) -> impl Iterator<Item = &Reader> {
        self.readers.iter().enumerate().filter(|(n, _)| *n != self.owner).map(|(_, r)| r)
    }

    /// All nodes fetch the file at the same time.
    fn fetch(&self) {
        self.others().for_each(Reader::begin);
        let root = self.root();
        std::thread::scope(|s| {
            for reader in self.others() {
                let root = root.clone();
                s.spawn(move || reader.fetch(&root).unwrap());
            }
        });
        for r in self.others() {
            assert!(r.served.copies.damages.load(Ordering::Relaxed) || r.has_right_bytes(), "{}", r.name);
            assert_eq!(r.served.copies.pfs_reads.load(Ordering::Relaxed), 0, "{} read the PFS", r.name);
        }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("root")
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.readers.iter().for_each(|r| r.node.stop());
    }
}

#[test]
fn the_owner_of_a_large_file_sends_it_once_to_sixteen_nodes() {
    let job = Job::start(41);
    job.fetch();
    let sent: Vec<f64> = job.readers.iter().map(Reader::sent).collect();
    let relayed: u64 = job.others().map(|r| r.node.status().relayed_bytes).sum();
    assert!(sent[job.owner] <= 1.2, "the owner ({}) sent {sent:?}", job.owner);
    // (The one that begins first has all pieces before the others. Links that carry a piece in no
    // time at all are never busy: it is named as long as no other node has the piece.)
    assert!(job.others().all(|r| r.sent() <= 3.0), "{sent:?}");
    let all = sent.iter().sum::<f64>();
    assert!((all - (NODES - 1) as f64).abs() < 0.01, "{all} copies were sent");
    assert!(relayed as f64 >= 13.8 * FILE_BYTES as f64, "{relayed}");
    job.end();
}

#[test]
fn nodes_whose_relay_has_lost_its_copy_get_the_pieces_from_the_owner() {
    let job = Job::start(42);
    for reader in job.others().step_by(2) {
        reader.served.copies.lost.store(true, Ordering::Relaxed);
    }
    job.fetch();
    assert!(
        job.others()
            .filter(|r| r.served.copies.lost.load(Ordering::Relaxed))
            .all(|r| r.node.status().relayed_bytes == 0)
    );
    job.end();
}

#[test]
fn no_node_takes_bytes_that_the_disk_of_a_relay_has_damaged() {
    let job = Job::start(43);
    let bad = job.others().next().unwrap();
    bad.served.copies.damages.store(true, Ordering::Relaxed);
    job.fetch();
    assert_eq!(bad.node.status().relayed_bytes, 0);
    job.end();
}

#[test]
fn a_node_that_stops_while_it_relays_costs_the_others_nothing_but_time() {
    let job = Job::start(44);
    job.others().for_each(Reader::begin);
    let root = job.root();
    let victim = job.others().next().unwrap();
    std::thread::scope(|s| {
        for reader in job.others().skip(1) {
            let root = root.clone();
            s.spawn(move || reader.fetch(&root).unwrap());
        }
        s.spawn(|| {
            let _ = victim.fetch(&root);
        });
        s.spawn(|| {
            while victim.node.status().relayed_bytes == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            victim.node.stop();
        });
    });
    for r in job.others().skip(1) {
        assert!(r.has_right_bytes(), "{}", r.name);
    }
    job.end();
}
