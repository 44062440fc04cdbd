//! Small files that a node gets from another one with one request: from a real node, and from one
//! that knows the secret and answers what it should not.

#[path = "support/data_set.rs"]
mod data_set;

use data_set::Served;
use monarch_abi::hash::CopyName;
use monarch_abi::segment::Entry;
use monarch_cluster::http::{self, Answer, Answering, Body, Handler, Key, Request, Server};
use monarch_cluster::node::{Introduction, Node, NodeStatus};
use monarch_cluster::tag::TagKey;
use monarch_config::{Config, Encryption, MAX_BATCH_FILES};
use monarch_storage::engine::{PfsSource, Source};
use monarch_storage::sharing::{BatchFile, FetchRequest, FileRef, LocalStore, Peers};
use monarch_storage::shm;
use rustix::fd::OwnedFd;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const FILES: usize = 100;

/// The bytes of a file, none of which is like another one.
fn bytes_of(file: usize) -> Vec<u8> {
    (0..100 + file * 97).map(|n| ((n * 31) ^ (file * 17)) as u8).collect()
}

/// A node's copies: all files of the data set, in their place on the "PFS".
struct Copies {
    paths: Vec<(CopyName, PathBuf)>,
    /// A copy that cannot be opened yet, and whether a thread waits for it.
    held_up: Mutex<Option<CopyName>>,
    waits: AtomicBool,
}

impl data_set::Copies for Copies {
    fn open_copy(&self, name: CopyName) -> Option<OwnedFd> {
        while *self.held_up.lock().unwrap() == Some(name) {
            self.waits.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
        }
        let (_, path) = self.paths.iter().find(|(of, _)| *of == name)?;
        Some(File::open(path).ok()?.into())
    }
}

/// Two nodes, of which the first one is real.
struct Pair {
    temp: tempfile::TempDir,
    names: [String; 2],
    port: u16,
    encryption: Encryption,
}

/// A node, with its copies.
struct Member {
    node: Node,
    served: Arc<Served<Copies>>,
    peers: Arc<dyn Peers>,
}

impl Pair {
    /// Nodes on the addresses 127.0.`net`.x.
    fn new(net: u8, encryption: Encryption) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap().join("root");
        std::fs::create_dir(&root).unwrap();
        (0..FILES).for_each(|n| std::fs::write(root.join(format!("{n:03}")), bytes_of(n)).unwrap());
        let names = [1, 2].map(|n| format!("127.0.{net}.{n}"));
        let port = data_set::free_port(&names[0]);
        Self { temp, names, port, encryption }
    }

    fn dir(&self) -> PathBuf {
        self.temp.path().canonicalize().unwrap()
    }

    fn config(&self, me: usize) -> Config {
        let mut config = data_set::config(&self.dir(), &self.names, me, self.port);
        (config.cluster.encryption, config.cluster.peer_timeout) = (self.encryption, Duration::from_secs(5));
        config
    }

    fn member(&self, me: usize) -> Member {
        let dir = self.dir();
        let mine = dir.join(&self.names[me]);
        std::fs::create_dir(&mine).unwrap();
        let chunking = shm::Chunking { threshold: 1 << 30, size: 1 << 20 };
        let served = Served::new((&dir.join("root"), &mine), chunking, |segment| {
            let name = |n: usize| segment.copy_name(&segment.lookup(format!("{n:03}").as_bytes()).unwrap());
            let paths = (0..FILES).map(|n| (name(n), dir.join(format!("root/{n:03}")))).collect();
            Copies { paths, held_up: Mutex::default(), waits: AtomicBool::new(false) }
        });
        let served = Arc::new(served);
        let node = Node::start(&self.config(me)).unwrap().expect("one of several");
        let store: Arc<dyn LocalStore> = served.clone();
        let peers = node.connect(&store);
        Member { node, served, peers }
    }

    /// Both nodes, which see each other; the second one has copies of all files.
    fn both(&self) -> (Member, Member) {
        let (first, second) = (self.member(0), self.member(1));
        let (began, of) = (Instant::now(), [&first, &second]);
        while !of.iter().all(|m| m.sees_all()) {
            assert!(began.elapsed() < Duration::from_secs(30), "the nodes do not find each other");
            std::thread::sleep(Duration::from_millis(20));
        }
        of.iter().for_each(|m| m.node.join(&m.served.segment));
        (0..FILES).for_each(|n| second.have(n));
        (first, second)
    }

    /// What the second node answers with, if it is not real.
    fn hostile(&self, answer: impl Fn(&Scribe, Vec<u32>) -> Answer + Send + Sync + 'static) -> Server {
        let config = self.config(1);
        let intro = Introduction::of(&config.cluster).unwrap();
        let scribe = Scribe(TagKey::new(intro.job.tags()));
        let encryption = intro.tls(self.encryption).unwrap();
        let options = http::Options::new(&self.names[1], Key::new(intro.job.connections()), intro.listen);
        let handler = Arc::new(Hostile { scribe, answer: Box::new(answer) });
        Server::start(http::Options { encryption, ..options }, handler, None).unwrap()
    }
}

impl Member {
    fn sees_all(&self) -> bool {
        let view = self.node.view();
        view.iter().filter(|(n, _)| view.is_up(*n)).count() == 2
    }

    fn entry(&self, file: usize) -> Entry<'static> {
        self.served.segment.lookup(format!("{file:03}").as_bytes()).unwrap()
    }

    /// Has a complete copy.
    fn have(&self, file: usize) {
        let entry = self.entry(file);
        entry.master.word.store(entry.word().resident(0).0, Ordering::Release);
    }

    fn lack(&self, file: usize) {
        let entry = self.entry(file);
        entry.master.word.store(entry.word().next(monarch_abi::word::State::Absent).0, Ordering::Release);
    }

    /// Gets files from the other node, until so many have come.
    fn get(&self, files: &[usize], most: usize) -> Vec<(usize, Vec<u8>)> {
        let view = self.node.view();
        let (other, _) = view.iter().nth(1).expect("the other node");
        let batch: Vec<BatchFile> = files
            .iter()
            .map(|n| {
                let entry = self.entry(*n);
                BatchFile { file: FileRef::of(&self.served.segment, &entry), size: entry.record.size }
            })
            .collect();
        let mut got = Vec::new();
        self.peers.fetch_batch(other, &batch, &mut |at, bytes| {
            got.push((files[at], bytes.to_vec()));
            got.len() < most
        });
        assert!(got.iter().all(|(n, bytes)| *bytes == bytes_of(*n)), "wrong bytes");
        got
    }

    fn status(&self) -> NodeStatus {
        self.node.brief_status()
    }
}

fn numbers(got: &[(usize, Vec<u8>)]) -> Vec<usize> {
    got.iter().map(|(n, _)| *n).collect()
}

fn a_batch_brings_what_the_other_node_has(net: u8, encryption: Encryption) {
    let pair = Pair::new(net, encryption);
    let (first, second) = pair.both();
    let all: Vec<usize> = (0..MAX_BATCH_FILES).rev().collect();
    for _ in 0..3 {
        assert_eq!(numbers(&first.get(&all, usize::MAX)), all);
    }
    [60, 7, 8].iter().for_each(|n| second.lack(*n));
    let there: Vec<usize> = all.iter().copied().filter(|n| ![60, 7, 8].contains(n)).collect();
    assert_eq!(numbers(&first.get(&all, usize::MAX)), there);
    assert_eq!(first.get(&[7, 8], usize::MAX), []);
    // No more than is wanted; the next one has a connection of its own.
    assert_eq!(first.get(&all, 5).len(), 5);
    assert_eq!(numbers(&first.get(&[99], usize::MAX)), [99]);
    let status = first.status();
    let files = 4 * MAX_BATCH_FILES - 3 + 5 + 1;
    assert_eq!((status.batches, status.batched_files, status.damaged), (7, files as u64, 0));
    assert_eq!(status.peers[0].traffic.received, files as u64);
    assert_eq!(status.peers[0].traffic.failed, 0);
    [first, second].iter().for_each(|m| m.node.stop());
}

#[test]
fn a_batch_brings_what_the_other_node_has_in_the_order_asked() {
    a_batch_brings_what_the_other_node_has(45, Encryption::None);
}

#[test]
fn a_batch_is_the_same_with_encryption() {
    a_batch_brings_what_the_other_node_has(46, Encryption::Tls);
}

/// A copy whose bytes are not those that came from the PFS is not sent with others, either.
#[test]
fn a_damaged_copy_is_not_part_of_a_batch() {
    let pair = Pair::new(47, Encryption::None);
    let (first, second) = pair.both();
    let file = |n| FileRef::of(&second.served.segment, &second.entry(n));
    for n in 0..3 {
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes_of(n));
        second.node.note_sum(&file(n), monarch_storage::tier::Sum::whole(sum));
    }
    let mut damaged = bytes_of(1);
    damaged[50] ^= 1;
    std::fs::write(pair.dir().join("root/001"), damaged).unwrap();
    assert_eq!(numbers(&first.get(&[0, 1, 2], usize::MAX)), [0, 2]);
    assert_eq!(first.status().damaged, 0);
    [first, second].iter().for_each(|m| m.node.stop());
}

/// A file that a reader asks for comes while a batch of the same node, with that file, does not.
#[test]
fn a_demand_does_not_wait_for_a_batch() {
    let pair = Pair::new(50, Encryption::None);
    let (first, second) = pair.both();
    let source: Arc<dyn Source> = Arc::new(PfsSource::new(&pair.dir().join("root")).unwrap());
    let of_other = |n: &usize| {
        let file = FileRef::of(&first.served.segment, &first.entry(*n));
        first.peers.source(&file).is_some()
    };
    let wanted = (1..FILES).find(of_other).expect("a file that the other node has");
    *second.served.copies.held_up.lock().unwrap() = Some(second.served.copies.paths[0].0);
    std::thread::scope(|s| {
        let batch = s.spawn(|| numbers(&first.get(&[0, wanted], usize::MAX)));
        while !second.served.copies.waits.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let entry = first.entry(wanted);
        let (file, rel) = (FileRef::of(&first.served.segment, &entry), format!("{wanted:03}"));
        let want = entry.record.identity();
        let request = FetchRequest {
            file,
            rel: rel.as_bytes(),
            source: &source,
            chunked: false,
            want,
            demand: true,
            arrived: None,
        };
        let mut bytes = vec![0; want.size as usize];
        let remote = first.peers.file(&request).expect("of the other node");
        assert_eq!(remote.read_at(&mut bytes, 0).unwrap(), bytes.len());
        assert!(bytes == bytes_of(wanted) && !batch.is_finished());
        assert_eq!(first.status().batches, 0, "it came by itself");
        *second.served.copies.held_up.lock().unwrap() = None;
        assert_eq!(batch.join().unwrap(), [0, wanted]);
    });
    assert_eq!(first.status().batches, 1);
    [first, second].iter().for_each(|m| m.node.stop());
}

/// A node that dies while it answers costs the files that had not come.
#[test]
fn a_node_that_stops_while_it_answers_is_not_waited_for() {
    let pair = Pair::new(48, Encryption::None);
    let (first, second) = pair.both();
    let all: Vec<usize> = (0..MAX_BATCH_FILES).collect();
    let stopped = AtomicBool::new(false);
    let (other, _) = first.node.view().iter().nth(1).map(|(n, m)| (n, m.name.to_string())).unwrap();
    let batch = all.iter().map(|n| {
        let entry = first.entry(*n);
        BatchFile { file: FileRef::of(&first.served.segment, &entry), size: entry.record.size }
    });
    let batch: Vec<BatchFile> = batch.collect();
    let (mut came, began) = (0, Instant::now());
    first.peers.fetch_batch(other, &batch, &mut |_, _| {
        if !stopped.swap(true, Ordering::Relaxed) {
            second.node.stop();
        }
        came += 1;
        true
    });
    assert!(came >= 1 && began.elapsed() < Duration::from_secs(20), "{came} files in {:?}", began.elapsed());
    assert_eq!(first.get(&all, usize::MAX), [], "it has gone");
    first.node.stop();
}

/// Makes what an answer consists of.
struct Scribe(TagKey);

impl Scribe {
    /// What the front says of a file.
    fn entry(&self, id: u32, len: usize, bytes: &[u8]) -> Vec<u8> {
        let mut tagger = self.0.of_file([1; 16], id, &(0..len as u64));
        tagger.update(bytes);
        let tag = tagger.finish().to_string();
        let tag = (0..16).map(|at| u8::from_str_radix(&tag[2 * at..2 * at + 2], 16).unwrap());
        [&[1][..], &(len as u32).to_le_bytes(), &tag.collect::<Vec<u8>>()].concat()
    }
}

/// Files that an answer has, with their sizes.
type Sent = Vec<(Arc<OwnedFd>, u64)>;
/// Makes an answer, in a directory of its own.
type Made = dyn Fn(&Scribe, &Path) -> Answer + Send + Sync;
type Make = Box<Made>;
/// Changes an answer that is right.
type Change = fn(Vec<u8>, Sent, &Path) -> Answer;
/// Its name, the files that are taken, the damaged ones, the answer.
type Case = (&'static str, Vec<usize>, u64, Make);
type Reply = Box<dyn Fn(&Scribe, Vec<u32>) -> Answer + Send + Sync>;

/// A node that knows the secret, and answers as it likes.
struct Hostile {
    scribe: Scribe,
    answer: Reply,
}

impl Handler for Hostile {
    fn answer<'a>(&'a self, _: &'a str, request: Request) -> Answering<'a> {
        let ids = request.body.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect();
        Box::pin(async move { (self.answer)(&self.scribe, ids) })
    }
}

fn file_of(dir: &Path, bytes: &[u8]) -> (Arc<OwnedFd>, u64) {
    static NUMBER: Mutex<u32> = Mutex::new(0);
    let path = {
        let mut number = NUMBER.lock().unwrap();
        *number += 1;
        dir.join(format!("sent-{number}"))
    };
    std::fs::write(&path, bytes).unwrap();
    (Arc::new(File::open(&path).unwrap().into()), bytes.len() as u64)
}

fn answer(front: Vec<u8>, files: Sent) -> Answer {
    Answer { body: Body::Files { front, files }, ..Answer::status(200) }
}

/// Three files are asked for; what is taken of what a node answers that knows the secret.
#[test]
fn no_file_is_taken_for_another_one_and_no_answer_for_more_than_it_is() {
    let pair = Pair::new(49, Encryption::None);
    let first = pair.member(0);
    let dir = pair.dir();
    let ids: Vec<u32> = (0..3).map(|n| first.entry(n).master.id).collect();
    let bytes: Vec<Vec<u8>> = (0..3).map(bytes_of).collect();
    // The bytes of each, with the tags of those.
    let honest = {
        let (ids, bytes) = (ids.clone(), bytes.clone());
        move |scribe: &Scribe, of: [usize; 3], tagged: [usize; 3]| -> Vec<u8> {
            (0..3).flat_map(|n| scribe.entry(ids[tagged[n]], bytes[n].len(), &bytes[of[n]])).collect()
        }
    };
    let files = {
        let bytes = bytes.clone();
        move |dir: &Path, of: [usize; 3]| of.map(|n| file_of(dir, &bytes[n])).to_vec()
    };
    let (h, f) = (Arc::new(honest), Arc::new(files));
    let case = |name, taken: &[usize], damaged, make: Make| {
        let case: Case = (name, taken.to_vec(), damaged, make);
        case
    };
    let make = |change: Change| {
        let (h, f) = (h.clone(), f.clone());
        Box::new(move |scribe: &Scribe, dir: &Path| change(h(scribe, [0, 1, 2], [0, 1, 2]), f(dir, [0, 1, 2]), dir))
            as Make
    };
    let cases = [
        case("the truth", &[0, 1, 2], 0, make(|front, files, _| answer(front, files))),
        case("bytes of another file, with its tag", &[0, 2], 1, {
            let (h, f) = (h.clone(), f.clone());
            Box::new(move |scribe, dir| {
                // Cut to the length that the file should have.
                let mut files = f(dir, [0, 1, 2]);
                let cut = bytes_of(2)[..bytes_of(1).len()].to_vec();
                files[1] = file_of(dir, &cut);
                let mut front = h(scribe, [0, 1, 2], [0, 1, 2]);
                let entry = scribe.entry(ids[2], cut.len(), &cut);
                front[21..42].copy_from_slice(&entry);
                answer(front, files)
            })
        }),
        case(
            "changed bytes",
            &[1, 2],
            1,
            make(|front, mut files, dir| {
                let mut bytes = bytes_of(0);
                bytes[9] ^= 4;
                files[0] = file_of(dir, &bytes);
                answer(front, files)
            }),
        ),
        case(
            "another order",
            &[],
            0,
            make(|front, files, _| {
                answer([&front[42..], &front[21..42], &front[..21]].concat(), files.into_iter().rev().collect())
            }),
        ),
        case(
            "a longer file",
            &[],
            0,
            make(|front, mut files, dir| {
                files[2] = file_of(dir, &[bytes_of(2), vec![0]].concat());
                answer(front, files)
            }),
        ),
        case("no bytes", &[], 0, make(|front, _, _| answer(front, Vec::new()))),
        case("fewer files", &[], 0, make(|front, files, _| answer(front[..42].to_vec(), files[..2].to_vec()))),
        case(
            "a length that is none",
            &[],
            0,
            make(|mut front, files, _| {
                front[1..5].copy_from_slice(&u32::MAX.to_le_bytes());
                answer(front, files)
            }),
        ),
        case(
            "a mark that is none",
            &[],
            0,
            make(|mut front, files, _| {
                front[0] = 7;
                answer(front, files)
            }),
        ),
        case("a front alone, cut", &[], 0, make(|front, _, _| Answer::bytes(front[..40].to_vec()))),
        case(
            "a file that ends too early",
            &[0],
            0,
            make(|front, mut files, _| {
                let short = files[1].1;
                files[1] = (files[0].0.clone(), short);
                answer(front, files)
            }),
        ),
        case("nothing at all", &[], 0, make(|_, _, _| Answer::status(204))),
        case("an error", &[], 0, make(|_, _, _| Answer::text(500, "no"))),
        case("gigabytes", &[], 0, make(|front, files, _| answer(front, vec![(files[0].0.clone(), 1 << 40); 3]))),
    ];
    let now = Arc::new(Mutex::new(None::<Arc<Made>>));
    let _server = {
        let (now, dir) = (now.clone(), dir.clone());
        pair.hostile(move |scribe, _| {
            let reply = now.lock().unwrap().clone();
            reply.map_or_else(|| Answer::status(404), |reply| reply(scribe, &dir))
        })
    };
    let mut damaged = 0;
    for (name, taken, more, reply) in cases {
        *now.lock().unwrap() = Some(Arc::from(reply));
        assert_eq!(numbers(&first.get(&[0, 1, 2], usize::MAX)), taken, "{name}");
        damaged += more;
        assert_eq!(first.status().damaged, damaged, "{name}");
    }
    first.node.stop();
}
