//! Sixteen real nodes in one process read one large file of one of them at the same time. Each has
//! copies of its own, in pieces, and the bytes that its link sent are counted.

use monarch_abi::control::ControlMap;
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::sys::futex_wake;
use monarch_abi::word::Word;
use monarch_cluster::node::Node;
use monarch_config::{Config, Overrides, SystemProbe};
use monarch_storage::engine::{PfsSource, Source};
use monarch_storage::held_dir::HeldDir;
use monarch_storage::index::{ScanOptions, ScanProgress, build, scan};
use monarch_storage::sharing::{FetchRequest, FileRef, LocalStore, Peers, RemoteFile, ServedIndex};
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
    control: ControlMap<'static>,
    segment: Segment<'static>,
    part: File,
    /// Chunks that this node says it has and cannot open.
    lost: AtomicBool,
    /// Whether its disk damages what is written.
    damages: AtomicBool,
    /// Bytes read from the PFS.
    pfs_reads: AtomicU64,
}

impl LocalStore for Copy {
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
        Some(self.part.try_clone().ok()?.into())
    }

    fn open_part(&self, _: usize, part: u64) -> Option<OwnedFd> {
        let is_there = part == PART && !self.lost.load(Ordering::Relaxed);
        is_there.then(|| self.part.try_clone().ok().map(OwnedFd::from)).flatten()
    }

    fn is_as_logged(&self, _: &ServedIndex, _: &Entry<'static>) -> Option<bool> {
        None
    }

    fn drop_damaged(&self, _: &ServedIndex, _: &Entry<'static>, _: Word) -> bool {
        false
    }

    fn fetch_again(&self, _: &ServedIndex, _: &Entry<'static>) {}

    fn before_pfs_call(&self, bytes: u64, _: bool) {
        self.pfs_reads.fetch_add(bytes, Ordering::Relaxed);
    }

    fn owners_changed(&self) {}
}

/// A node, with its copy.
struct Reader {
    node: Node,
    copy: Arc<Copy>,
    peers: Arc<dyn Peers>,
    name: String,
}

impl Reader {
    fn entry(&self) -> Entry<'static> {
        self.copy.segment.files().next().unwrap()
    }

    fn file(&self) -> FileRef {
        FileRef::of(&self.copy.segment, &self.entry())
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
        self.copy.segment.state.large(self.entry().master.id).expect("a large file")
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
                self.copy.part.write_all_at(&buf, chunk * CHUNK_BYTES)?;
                if self.copy.damages.load(Ordering::Relaxed) {
                    self.copy.part.write_all_at(b"damaged", chunk * CHUNK_BYTES + 100)?;
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
            self.copy.part.read_exact_at(&mut buf, chunk * CHUNK_BYTES).is_ok() && buf == bytes_of(chunk)
        })
    }

    fn sent(&self) -> f64 {
        let sent: u64 = self.node.status().peers.iter().map(|p| p.traffic.sent_bytes).sum();
        sent as f64 / FILE_BYTES as f64
    }
}

fn config(dir: &Path, me: usize, names: &[String], port: u16) -> Config {
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
        let tree = scan(&dir.join("root"), ScanOptions { threads: 1, max_memory: u64::MAX }, &ScanProgress::default())
            .unwrap();
        let built = build(tree, 7, [1; 16]);
        let chunking = shm::Chunking { threshold: CHUNK_BYTES, size: CHUNK_BYTES };
        let names: Vec<String> = (1..=NODES).map(|n| format!("127.0.{net}.{n}")).collect();
        let port = std::net::TcpListener::bind((&*names[0], 0)).unwrap().local_addr().unwrap().port();
        let reader = |me: usize| {
            let mine = dir.join(&names[me]);
            std::fs::create_dir(&mine).unwrap();
            let held = Arc::new(HeldDir::at(&mine).unwrap());
            let segment =
                shm::create_segment(&held, &built.index, &built.buckets, [2; 16], chunking, shm::Checks::default());
            let control = shm::create_control(&held, shm::ControlParams { mnt_ns: 0, slash: (0, 0), user_ns: 0 });
            let part = File::options().read(true).write(true).create_new(true).open(mine.join("part")).unwrap();
            let copy = Arc::new(Copy {
                control: control.unwrap(),
                segment: segment.unwrap().0,
                part,
                lost: AtomicBool::new(false),
                damages: AtomicBool::new(false),
                pfs_reads: AtomicU64::new(0),
            });
            let node = Node::start(&config(&dir, me, &names, port)).unwrap().expect("one of several");
            let store: Arc<dyn LocalStore> = copy.clone();
            let peers = node.connect(&store);
            Reader { node, copy, peers, name: names[me].clone() }
        };
        let readers: Vec<Reader> = (0..NODES).map(reader).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let begun = Instant::now();
        let sees_all = |r: &Reader| r.node.view().iter().filter(|(n, _)| r.node.view().is_up(*n)).count() == NODES;
        while !readers.iter().all(sees_all) {
            assert!(begun.elapsed() < Duration::from_secs(30), "the nodes do not find each other");
            std::thread::sleep(Duration::from_millis(20));
        }
        readers.iter().for_each(|r| r.node.join(&r.copy.segment));
        readers.iter().for_each(|r| r.node.serve(&stop).unwrap());
        let owner = readers.iter().position(|r| r.peers.is_mine(&r.file())).expect("an owner");
        let entry = readers[owner].entry();
        readers[owner].copy.part.write_all_at(&all, 0).unwrap();
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
            assert!(r.copy.damages.load(Ordering::Relaxed) || r.has_right_bytes(), "{}", r.name);
            assert_eq!(r.copy.pfs_reads.load(Ordering::Relaxed), 0, "{} read the PFS", r.name);
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
    assert!(job.others().all(|r| r.sent() <= 2.0), "{sent:?}");
    let all = sent.iter().sum::<f64>();
    assert!((all - (NODES - 1) as f64).abs() < 0.01, "{all} copies were sent");
    assert!(relayed as f64 >= 13.8 * FILE_BYTES as f64, "{relayed}");
    job.end();
}

#[test]
fn nodes_whose_relay_has_lost_its_copy_get_the_pieces_from_the_owner() {
    let job = Job::start(42);
    for reader in job.others().step_by(2) {
        reader.copy.lost.store(true, Ordering::Relaxed);
    }
    job.fetch();
    assert!(job.others().filter(|r| r.copy.lost.load(Ordering::Relaxed)).all(|r| r.node.status().relayed_bytes == 0));
    job.end();
}

#[test]
fn no_node_takes_bytes_that_the_disk_of_a_relay_has_damaged() {
    let job = Job::start(43);
    let bad = job.others().next().unwrap();
    bad.copy.damages.store(true, Ordering::Relaxed);
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
