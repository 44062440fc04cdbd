//! This node among those of the job: what it asks of the others, and what it answers them.
//!
//! | module | what it does |
//! |---|---|
//! | [`corruption_reports`] | copies that arrived damaged, and what becomes of them where they came from |
//! | [`connection_limit`] | how many connections are taken |
//! | [`inflight_fetches`] | which files are being read from the PFS |
//! | [`remote`] | a file that another node owns, as a source of bytes |
//! | [`request_handlers`] | answers to other nodes: files, indexes, news |
//! | [`local_copy`] | what this node has of a file, made ready to be sent |
//! | [`indexes`] | who scans a root, and the index that comes from there |
//! | [`dir_change_poller`] | changes of the job that nobody tells the agent of |
//! | [`announcements`] | nodes that come, what others tell of copies and changes |
//! | [`outbox`] | what is still to be told to others |
//! | [`status`] | what it says of itself and of the others |
//! | [`link_probe`] | what the links are like |
//! | [`checksum_table`] | what copies come to |
//! | [`traffic_stats`] | what went to and from whom |
//!
//! Requests to others are made by the threads that need the answer (copiers, scans), which may
//! block; requests of others are answered on a small runtime of the node's own, whose blocking work
//! (waiting for a copy, opening it, packing an index) has threads of its own. Nobody who holds a
//! lock here asks another node.

mod announcements;
mod bounds;
mod checksum_table;
mod connection_limit;
mod corruption_reports;
mod dir_change_poller;
mod indexes;
mod inflight_fetches;
mod link_probe;
mod local_copy;
mod outbox;
mod remote;
mod request_handlers;
mod start;
mod status;
mod traffic_stats;
mod wait_graph;

pub use announcements::is_welcome;
pub use corruption_reports::{Complaint, decode as decode_complaints, encode as encode_complaints};
pub use indexes::Obtained;
pub use link_probe::{Link, Said};
pub use start::{Introduction, NodeError, NodeOptions};
pub use status::{NodeStatus, PeerStatus};
pub use traffic_stats::{Traffic, TrafficStats};

use super::directory::members::ME;
use super::directory::{File, Members, Residency, Route, announcement_rules};
use super::election::Election;
use super::http::{Key, Peer, PeerOptions, Server, WireError};
use super::membership::Membership;
use crate::config::Spread;
use crate::tier::Sum;
use crate::tiering::{Asked, FileRef, Peers, RemoteFile, TieringEngine};
use checksum_table::Sums;
use data_encoding::HEXLOWER;
use remote::Remote;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Idle connections kept to each node.
const IDLE: usize = 8;
/// How long saying goodbye takes.
const GOODBYE: Duration = Duration::from_millis(30);
/// How long a node that did not serve an index is not asked for its files.
const LACKING: Duration = Duration::from_secs(5);
/// How often the log speaks of one kind of trouble.
const SELDOM: Duration = Duration::from_secs(10);

fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
pub struct Node {
    /// How it was set up.
    pub options: NodeOptions,
    /// What went to and from whom.
    pub figures: TrafficStats,
    /// Which indexes it has, or gets.
    pub election: Election,
    seed: u64,
    key: Key,
    membership: Membership,
    residency: Mutex<Residency>,
    sums: Sums,
    complaints: corruption_reports::Complaints,
    peers: Mutex<HashMap<u16, (u64, Arc<Peer>)>>,
    tiering: OnceLock<Arc<TieringEngine>>,
    /// Who waits for whom.
    waits: Mutex<wait_graph::Waits>,
    /// Files that this node is to fetch from the PFS, whoever owns them.
    forced: Mutex<HashSet<FileRef>>,
    begun: inflight_fetches::Begun,
    /// Copies that are complete, and who is to hear of them.
    complete: Mutex<Vec<(u16, FileRef)>>,
    /// Nodes that did not serve an index when they were asked last, and when that was.
    lacking: Mutex<HashMap<(u16, [u8; 16]), Instant>>,
    /// Which life of each node was heard of last.
    lives: Mutex<HashMap<u16, u64>>,
    changed: Mutex<Vec<FileRef>>,
    server: Mutex<Option<Server>>,
    /// Whether it was said that there are too few descriptors.
    confined: AtomicBool,
    told: Mutex<Option<Instant>>,
    untold: AtomicU64,
    started: Instant,
    /// Whether indexes of an agent that died are being taken over.
    adopting: AtomicBool,
    /// Answers for files that are under way, to the last byte.
    answering: Arc<AtomicUsize>,
    /// Threads that may wait for copies.
    readers: tokio::sync::Semaphore,
    runtime: tokio::runtime::Runtime,
    /// Of who is up.
    #[expect(dead_code, reason = "it lives as long as the node")]
    gossip: tokio::runtime::Runtime,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.options.name).finish_non_exhaustive()
    }
}

/// A file as the pure parts know it.
const fn pure(file: &FileRef) -> File {
    File { index: file.index, id: file.id, fp: file.fp }
}

impl Node {
    /// The nodes as this one sees them.
    #[must_use]
    pub fn view(&self) -> Arc<Members> {
        self.membership.view()
    }

    /// Takes leave of the others: nobody asks this node from now on.
    pub fn stop(&self) {
        lock(&self.server).take();
        self.membership.leave();
        // The goodbye is sent by a thread of its own.
        std::thread::sleep(GOODBYE);
    }

    /// Indexes of an agent that died are about to be taken over, or have been: until then what is
    /// told of them is to be told again.
    pub fn adopts(&self, adopting: bool) {
        self.adopting.store(adopting, Ordering::SeqCst);
    }

    /// What a copy comes to.
    pub fn note_sum(&self, file: &FileRef, sum: Sum) {
        if sum.piece == 0 {
            self.sums.note(file, sum.value);
        }
    }

    /// The job on this node has changed a file.
    pub fn note_changed(&self, file: FileRef) {
        lock(&self.changed).push(file);
    }

    /// A file is about to be read from the PFS.
    fn begin(&self, file: &FileRef) -> inflight_fetches::Beginning {
        self.begun.begin(file, self.view().answerer_life(file.fp))
    }

    /// A copy is complete: who answers for the file may have to be told.
    fn completed(&self, file: &FileRef, kept: bool) {
        let Some(life) = self.begun.end(file).filter(|_| kept) else { return };
        if let Some(to) = announcement_rules::after_fetch(life, true, &self.view(), file.fp) {
            lock(&self.complete).push((to, *file));
        }
    }

    /// The seed of path hashes: the same on all nodes and in later jobs.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    fn tiering(&self) -> Option<&Arc<TieringEngine>> {
        self.tiering.get()
    }

    /// Another node, to be asked.
    fn peer(&self, number: u16) -> Option<Arc<Peer>> {
        let view = self.view();
        let life = view.get(number)?.incarnation;
        let mut peers = lock(&self.peers);
        if let Some((_, peer)) = peers.get(&number).filter(|(of, _)| *of == life) {
            return Some(peer.clone());
        }
        let peer = Arc::new(self.new_peer(&view, number, self.options.peer_timeout)?);
        peers.insert(number, (life, peer.clone()));
        Some(peer)
    }

    /// Another node, to be asked with patience of one's own.
    fn new_peer(&self, view: &Members, number: u16, peer_timeout: Duration) -> Option<Peer> {
        let member = view.get(number)?;
        let options = PeerOptions {
            addr: member.address.or_else(|| self.options.members.get(&*member.name).copied().flatten())?,
            my_name: self.options.name.clone(),
            its_name: member.name.to_string(),
            key: self.key.clone(),
            peer_timeout,
            idle: IDLE,
        };
        Peer::new(options).ok()
    }

    /// What a file is called in requests.
    fn file_path(&self, file: &FileRef) -> String {
        let keep = if self.options.placement == Spread::Sharded { "" } else { "?keep" };
        format!("/v1/files/{}/{}{keep}", hex(&file.index), file.id)
    }

    /// A node turned out not to hold a file.
    fn is_not_held(&self, by: u16, file: &FileRef) {
        lock(&self.residency).not_held(by, &pure(file));
    }

    /// A node does not serve an index.
    fn lacks(&self, node: u16, index: [u8; 16]) {
        let mut lacking = lock(&self.lacking);
        lacking.retain(|_, t| t.elapsed() < LACKING);
        lacking.insert((node, index), Instant::now());
    }

    /// Whether a node did not serve an index a moment ago.
    fn is_lacking(&self, node: u16, index: [u8; 16]) -> bool {
        lock(&self.lacking).get(&(node, index)).is_some_and(|t| t.elapsed() < LACKING)
    }

    /// The life of a node that is known now, 0 before it was seen.
    fn life_of(&self, node: u16) -> u64 {
        self.view().get(node).map_or(0, |m| m.incarnation)
    }

    /// A node did not answer in that life: it is not asked for a while, if it is the node and not
    /// the request.
    fn doubt(&self, node: u16, life: u64, e: &WireError) {
        self.figures.failed(node);
        if e.peer_is_in_doubt() {
            self.membership.report_failure(node, life);
        }
    }

    fn doubt_io(&self, node: u16, life: u64, e: &io::Error) {
        match e.get_ref().and_then(|e| e.downcast_ref::<WireError>()) {
            Some(e) => self.doubt(node, life, e),
            None => self.figures.failed(node),
        }
    }

    fn trust(&self, node: u16) {
        self.membership.report_success(node);
    }

    /// Waits until a call to the PFS that reads so many bytes is within the limits.
    fn limit(&self, bytes: u64, demand: bool) {
        if let Some(tiering) = self.tiering() {
            tiering.cx.limits.before_call(bytes, demand);
        }
    }

    /// Says, not too often, that a file did not come from where it should.
    fn note_failed_fetch(&self, from: u16, rel: &[u8], why: &str) {
        let mut told = lock(&self.told);
        if told.is_some_and(|t| t.elapsed() < SELDOM) {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return;
        }
        *told = Some(Instant::now());
        let more = self.untold.swap(0, Ordering::Relaxed);
        let view = self.view();
        let node = view.get(from).map_or("?", |m| &m.name);
        tracing::warn!(node, file = %crate::shown::bytes(rel), why, more, "a peer did not send a file; another one does, or the PFS");
    }
}

/// The nodes besides this one.
pub(super) struct Others(pub(super) Arc<Node>);

impl Peers for Others {
    fn file(&self, asked: &Asked<'_>) -> Option<Arc<dyn RemoteFile>> {
        let (node, file) = (&self.0, asked.file);
        // Before it is decided by a view: who comes up meanwhile is told of it, rather than
        // nothing.
        let began = node.begin(&file);
        let view = node.view();
        let forced = lock(&node.forced).remove(&file);
        let route = lock(&node.residency).route(&pure(&file), &view, &[], 0);
        if forced || route == Route::Pfs {
            return None;
        }
        node.begun.end_this(&file, began);
        let own = view.answerer(file.fp) == ME;
        Some(Arc::new(Remote::new(node.clone(), file, asked.live, (asked.rel, asked.want), (asked.demand, own))))
    }

    fn is_mine(&self, file: &FileRef) -> bool {
        self.0.view().owner(file.fp) == ME
    }

    fn is_elsewhere(&self, file: &FileRef) -> bool {
        let node = &self.0;
        let route = lock(&node.residency).route(&pure(file), &node.view(), &[], 0);
        route != Route::Pfs && !lock(&node.forced).contains(file)
    }

    fn fetches_all(&self) -> bool {
        self.0.options.placement == Spread::Replicated
    }

    fn is_there(&self, file: &FileRef, sum: Sum, kept: bool) {
        self.0.note_sum(file, sum);
        self.0.completed(file, kept);
    }

    fn is_over(&self, file: &FileRef) {
        let _ = self.0.begun.end(file);
    }

    fn note_piece(&self, file: &FileRef, part: (u64, u64), sum: u64) {
        self.0.sums.note_part(file, part, sum);
    }

    fn changed(&self, file: &FileRef) {
        self.0.note_changed(*file);
    }
}

/// Hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// The bytes of so many hexadecimal digits.
fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    // (A buffer of another length than the text decodes to is a panic.)
    let fits = HEXLOWER.decode_len(text.len()).is_ok_and(|len| len == N);
    (fits && HEXLOWER.decode_mut(text.as_bytes(), &mut out).is_ok()).then_some(out)
}
