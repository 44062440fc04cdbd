//! The directories of this node and of others, and what is answered from them.
//!
//! A directory is held by one node (`NameHolders` of the cluster), which reads it from the PFS when
//! it is first needed. The others get it from there, whole. What another node asks for, this one
//! reads itself, whichever node it takes for the holder: so a question never goes round.

use super::flights::{Flight, Flights, Turn};
use super::store::{DirectoryStore, Key};
use crate::cluster::node::Node;
use crate::index::{DirReader, Directory};
use crate::sharing::LocalNames;
use crate::snapshot::NamesStatus;
use crate::tiering::{LiveSegment, TieringEngine};
use monarch_abi::control::ControlMap;
use monarch_abi::names::{ENTRY, Head, LISTING, Subject};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// How long a process is held up by a fetch, from its beginning: for as long as this number of
/// calls takes on the PFS, within bounds. A job that needs one name in each of many directories
/// loses that for each.
const PATIENCE_CALLS: u64 = 8;
const MIN_PATIENCE: Duration = Duration::from_millis(5);
const MAX_PATIENCE: Duration = Duration::from_millis(250);
/// How long another node is held up. (It shows that it waits.)
const PEER_PATIENCE: Duration = Duration::from_secs(25);
/// Most other nodes that wait at a time.
const MAX_PEERS_WAITING: usize = 16;
/// Parts of `index.max_memory` that may be taken in addition: by directories that this node holds,
/// and by those of other nodes.
const HELD_PART: u64 = 2;
const CACHED_PART: u64 = 8;
/// Time without use after which a directory of another node goes for another one.
const MIN_IDLE: Duration = Duration::from_secs(2);

/// Counts of questions, and of directories that were read for them.
#[derive(Debug, Default)]
struct Counts {
    asked: AtomicU64,
    answered: AtomicU64,
    read: AtomicU64,
}

/// Directories that the index does not hold. Fields: 10.
pub(in crate::agent) struct Names {
    me: Weak<Self>,
    ctl: ControlMap<'static>,
    tiering: Weak<TieringEngine>,
    node: Option<Arc<Node>>,
    held: DirectoryStore,
    cached: DirectoryStore,
    flights: Flights,
    readers: Mutex<HashMap<[u8; 16], Arc<DirReader>>>,
    peers_waiting: AtomicUsize,
    counts: Counts,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("held", &self.held.usage()).finish_non_exhaustive()
    }
}

impl Names {
    /// Directories of the roots of `tiering`, in addition to indexes of `max_memory` bytes.
    pub(in crate::agent) fn new(
        ctl: ControlMap<'static>,
        tiering: &Arc<TieringEngine>,
        node: Option<Arc<Node>>,
        max_memory: u64,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            ctl,
            tiering: Arc::downgrade(tiering),
            node,
            held: DirectoryStore::new(max_memory / HELD_PART, None),
            cached: DirectoryStore::new(max_memory / CACHED_PART, Some(MIN_IDLE)),
            flights: Flights::default(),
            readers: Mutex::default(),
            peers_waiting: AtomicUsize::new(0),
            counts: Counts::default(),
        })
    }

    /// What is held, and what was asked; `None` where processes do not ask.
    pub(in crate::agent) fn status(&self) -> Option<NamesStatus> {
        let served = self.tiering.upgrade()?.shared.segments.served();
        let mut marks =
            served.iter().map(|(_, live)| live.segment.state.marks).filter(monarch_abi::marks::Marks::is_on).peekable();
        marks.peek()?;
        let ((held, held_bytes), (cached, cached_bytes)) = (self.held.usage(), self.cached.usage());
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Some(NamesStatus {
            held,
            held_bytes,
            cached,
            cached_bytes,
            read: count(&self.counts.read),
            asked: count(&self.counts.asked),
            answered: count(&self.counts.answered),
            closed: marks.all(|marks| marks.is_closed()),
        })
    }

    /// Counts a question of a process, and whether it was answered.
    pub(super) fn count(&self, answer: &[u8]) {
        self.counts.asked.fetch_add(1, Ordering::Relaxed);
        if answer.first() != kernel().first() {
            self.counts.answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The segment with this number, if its directories are asked for.
    fn segment(&self, number: u32) -> Option<LiveSegment> {
        let live = self.tiering.upgrade()?.shared.segments.segment(number as usize)?;
        live.segment.state.marks.is_on().then_some(live)
    }

    /// The directory that a question is about.
    fn directory_of<'a>(head: &Head, rel: &'a [u8]) -> &'a [u8] {
        match head.subject {
            Subject::Entry => monarch_abi::marks::parent_of(rel),
            Subject::Listing => rel,
        }
    }

    /// The answer to a process if the directory is in memory; `None` if it may have to be fetched.
    pub(super) fn quick_answer(&self, head: &Head, rel: &[u8]) -> Option<Vec<u8>> {
        let live = self.segment(head.segment)?;
        let key = Key { index: live.segment.index.header.uuid, rel: Self::directory_of(head, rel).into() };
        Some(message(head, rel, self.in_memory(&key).as_deref()?))
    }

    /// How long a process waits for a directory.
    fn patience(&self) -> Duration {
        let latency_us = self.ctl.ctl.pfs_latency_us.load(Ordering::Relaxed);
        Duration::from_micros(latency_us.saturating_mul(PATIENCE_CALLS)).clamp(MIN_PATIENCE, MAX_PATIENCE)
    }

    /// The answer to a process. Blocks for [`MAX_PATIENCE`] at most.
    pub(super) fn answer(&self, head: &Head, rel: &[u8]) -> Vec<u8> {
        let directory = self.segment(head.segment).and_then(|live| {
            let dir = Self::directory_of(head, rel);
            self.fetch(&live, dir, self.patience(), self.node.as_ref().and_then(|node| node.names().holder(dir)))
        });
        directory.map_or_else(kernel, |directory| message(head, rel, &directory))
    }

    fn in_memory(&self, key: &Key) -> Option<Arc<Directory>> {
        let now = Instant::now();
        self.held.get(key, now).or_else(|| self.cached.get(key, now))
    }

    /// A directory, from memory, the node `from`, or the PFS.
    fn fetch(&self, live: &LiveSegment, dir: &[u8], patience: Duration, from: Option<u16>) -> Option<Arc<Directory>> {
        let key = Key { index: live.segment.index.header.uuid, rel: dir.into() };
        if let Some(directory) = self.in_memory(&key) {
            return Some(directory);
        }
        let store = if from.is_some() { &self.cached } else { &self.held };
        if !store.may_have_room(&key, Instant::now()) {
            return None;
        }
        let flight = match self.flights.turn(&key, Instant::now()) {
            Turn::Leave => return None,
            Turn::Wait(flight) => flight,
            Turn::Begin(flight) => self.begin((key, flight), live, from),
        };
        flight.wait(patience)
    }

    /// Fetches a directory on a thread of its own: it may take longer than any process waits.
    fn begin(&self, (key, flight): (Key, Arc<Flight>), live: &LiveSegment, from: Option<u16>) -> Arc<Flight> {
        let (Some(me), live, of) = (self.me.upgrade(), live.clone(), key.clone()) else { return flight };
        let work = move || {
            let directory = me.fetch_now(&of, &live, from);
            me.flights.end(&of, directory);
        };
        if std::thread::Builder::new().name("names-fetch".to_owned()).spawn(work).is_err() {
            self.flights.end(&key, None);
        }
        flight
    }

    fn fetch_now(&self, key: &Key, live: &LiveSegment, from: Option<u16>) -> Option<Arc<Directory>> {
        // (One that was kept since the question was asked.)
        if let Some(directory) = self.in_memory(key) {
            return Some(directory);
        }
        if let (Some(node), Some(from)) = (&self.node, from) {
            // (The node notes failures of others itself.)
            let directory = Arc::new(node.names().ask(from, &key.index, &key.rel).ok()??);
            self.cached.put(key.clone(), directory.clone(), Instant::now());
            return Some(directory);
        }
        let directory = Arc::new(Directory::read(&*self.reader(live)?, &key.rel)?);
        self.counts.read.fetch_add(1, Ordering::Relaxed);
        // (What is not kept is not answered from: it would be read again for the next question.)
        self.held.put(key.clone(), directory.clone(), Instant::now()).then_some(directory)
    }

    /// What reads directories of a segment. Those of segments that are not served any more go.
    fn reader(&self, live: &LiveSegment) -> Option<Arc<DirReader>> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let index = live.segment.index.header.uuid;
        if let Some(reader) = readers.get(&index) {
            return Some(reader.clone());
        }
        let tiering = self.tiering.upgrade()?;
        let uuid = |(_, live): &(usize, LiveSegment)| live.segment.index.header.uuid;
        let served: Vec<[u8; 16]> = tiering.shared.segments.served().iter().map(uuid).collect();
        readers.retain(|index, _| served.contains(index));
        self.held.retain(&served);
        self.cached.retain(&served);
        let root = self.ctl.roots().get(live.root())?;
        let path = Path::new(OsStr::from_bytes(self.ctl.str(&root.path))).to_owned();
        let reader = Arc::new(DirReader::new(path, tiering.shared.cx.limits.clone(), 1));
        readers.insert(index, reader.clone());
        Some(reader)
    }
}

/// The answer of a directory to a question about it or an entry of it.
fn message(head: &Head, rel: &[u8], directory: &Directory) -> Vec<u8> {
    let name = rel.rsplit(|&c| c == b'/').next().unwrap_or_default();
    let (kind, body) = match head.subject {
        Subject::Entry => (ENTRY, directory.attributes(name).map(|a| a.as_bytes().to_vec())),
        Subject::Listing => (LISTING, directory.listing()),
    };
    body.map_or_else(kernel, |mut body| {
        body.insert(0, kind);
        body
    })
}

pub(super) fn kernel() -> Vec<u8> {
    vec![monarch_abi::names::KERNEL]
}

impl LocalNames for Names {
    fn directory(&self, index: &[u8; 16], rel: &[u8]) -> Option<Vec<u8>> {
        let (_, live) = self.tiering.upgrade()?.shared.segments.segment_of(*index)?;
        let marks = live.segment.state.marks;
        if !marks.is_on() || marks.covers_names(rel) {
            return None;
        }
        let waiting = self.peers_waiting.fetch_add(1, Ordering::AcqRel);
        let directory = if waiting < MAX_PEERS_WAITING { self.fetch(&live, rel, PEER_PATIENCE, None) } else { None };
        self.peers_waiting.fetch_sub(1, Ordering::AcqRel);
        // What the job has changed since it was read. A node that has just come does not know.
        let changed = |name: &[u8]| {
            let path = if rel.is_empty() { name.to_vec() } else { [rel, b"/", name].concat() };
            marks.covers_entry(&path)
        };
        let message = directory?.encode(changed);
        (!marks.covers_names(rel)).then_some(message)
    }
}
