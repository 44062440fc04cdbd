//! What nodes inform each other of: the files that each holds, when one comes or goes; what the job
//! has changed.
//!
//! A newcomer asks every node that is up for the files that it answers for from now on, before it
//! reads any of them. Everything else goes through the [`outbox`](super::outbox). A node that hears
//! of a change leaves the file to the PFS from then on.

use super::checksum_table::ChecksumTable;
use super::fetch_tracker::FetchTracker;
use super::file_directory::FileDirectory;
use super::holdings::Holdings;
use super::news::News;
use super::peer_pool::PeerPool;
use super::relays::Relays;
use super::startup::Startup;
use super::store::Store;
use crate::directory::{announcement_rules, fileset};
use crate::election::Election;
use crate::http::Answer;
use crate::membership::Peer;
use monarch_abi::demand;
use monarch_abi::resolve::Found;
use monarch_abi::segment::Segment;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a newcomer waits for what one node holds.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A node that is up, in the answer to a newcomer.
#[derive(Serialize, Deserialize)]
struct Presented {
    name: String,
    incarnation: u64,
    gossip: Option<SocketAddr>,
    files: Option<SocketAddr>,
}

impl From<Peer> for Presented {
    fn from(Peer { name, incarnation, gossip, files }: Peer) -> Self {
        Self { name, incarnation, gossip, files }
    }
}

impl From<Presented> for Peer {
    fn from(Presented { name, incarnation, gossip, files }: Presented) -> Self {
        Self { name, incarnation, gossip, files }
    }
}

/// What this node knows of the files of others, and lets them know of its own.
pub(super) struct Announcements {
    pub(super) pool: Arc<PeerPool>,
    pub(super) directory: Arc<FileDirectory>,
    pub(super) sums: Arc<ChecksumTable>,
    pub(super) tracker: Arc<FetchTracker>,
    pub(super) holdings: Arc<Holdings>,
    pub(super) news: Arc<News>,
    pub(super) store: Arc<Store>,
    pub(super) election: Arc<Election>,
    pub(super) startup: Arc<Startup>,
    pub(super) relays: Arc<Relays>,
}

impl Announcements {
    /// Answers a newcomer: which nodes are up, and what is held here of its files.
    pub(super) fn welcome(&self, peer: &str, body: &[u8]) -> Answer {
        let Some((incarnation, at)) = body.split_first_chunk().and_then(|(life, at)| Some((life, address(at)?))) else {
            return Answer::text(400, "a newcomer sends the number of its life and its address");
        };
        let incarnation = u64::from_le_bytes(*incarnation);
        let newcomer = Peer { name: peer.to_owned(), incarnation, gossip: Some(at), files: Some(at) };
        // Up from now on, and what is held from now on is announced in other ways.
        let membership = self.pool.membership();
        membership.joined(&newcomer);
        let view = self.pool.view();
        let Some(number) = view.number(peer) else {
            return Answer::text(409, "this node has no number left for another one");
        };
        self.directory.note_life(number, incarnation);
        let up: Vec<Presented> = membership.peers().into_iter().map(Presented::from).collect();
        let up = serde_json::to_vec(&up).unwrap_or_default();
        let mut out = membership.incarnation().to_le_bytes().to_vec();
        out.extend_from_slice(&(up.len() as u32).to_le_bytes());
        out.extend_from_slice(&up);
        self.holdings.answered_by(&view, number).encode(&mut out);
        Answer::bytes(out)
    }

    /// Takes note of what a node says that it holds.
    pub(super) fn hear_held(&self, peer: &str, body: &[u8]) -> Answer {
        let Some((life, sets)) = body.split_first_chunk() else {
            return Answer::text(400, "the number of a life is missing");
        };
        let Some(from) = self.pool.view().number(peer) else { return Answer::status(409) };
        if !self.directory.note_life(from, u64::from_le_bytes(*life)) {
            return Answer::status(204);
        }
        match self.note_held(from, sets, None) {
            Ok(()) => Answer::status(204),
            Err(e) => Answer::text(400, &e.to_string()),
        }
    }

    /// Takes note of what a node holds; `coming` is an index that is about to be served.
    fn note_held(
        &self,
        from: u16,
        sets: &[u8],
        coming: Option<&Segment<'static>>,
    ) -> Result<(), fileset::FileSetError> {
        let served = self.store.served();
        let all: Vec<&Segment<'static>> = served.iter().map(|s| &s.segment).chain(coming).collect();
        let of = |uuid: &[u8; 16]| all.iter().find(|segment| segment.index.header.uuid == *uuid);
        let sets = fileset::decode(sets, |uuid| of(uuid).map(|segment| segment.index.len() as u32))?;
        self.directory.held(from, sets);
        Ok(())
    }

    /// Asks every node that answers what it holds of this node's files, before an index is served.
    /// All at a time, for a second at most.
    pub(super) fn join(&self, segment: &Segment<'static>) {
        let index = segment.index.header.uuid;
        let entries = segment.index.len();
        self.directory.add_index(index, entries as u32);
        self.sums.add_index(index, entries);
        let mut body = self.pool.membership().incarnation().to_le_bytes().to_vec();
        body.extend_from_slice(self.pool.options().listen.to_string().as_bytes());
        self.pool.each_expected(|node| self.join_with(node, &body, segment));
    }

    fn join_with(&self, node: u16, body: &[u8], segment: &Segment<'static>) {
        let life = self.pool.life_of(node);
        let Some(peer) = self.pool.peer(node) else { return };
        let answer = match peer.post("/v1/join", body, JOIN_TIMEOUT) {
            Ok(answer) if answer.status() == 200 => answer.bytes(u64::from(u32::MAX)),
            Ok(_) => return,
            Err(e) => return self.pool.note_failure(node, life, &e),
        };
        let Ok(bytes) = answer else { return };
        let Some((life, up, sets)) = presented(&bytes) else {
            tracing::warn!(
                node,
                "the answer of a peer to a newcomer cannot be used; do all nodes run the same version of Monarch?"
            );
            return;
        };
        self.directory.note_life(node, life);
        if let Err(e) = self.note_held(node, sets, Some(segment)) {
            tracing::warn!(node, error = %e, "what a peer says it holds cannot be used");
        }
        for peer in up.into_iter().filter(|p| p.name != self.pool.options().name) {
            self.pool.membership().joined(&peer.into());
        }
    }

    /// Announces the files of an index that is served from now on to the nodes that answer for
    /// them.
    pub(super) fn announce(&self, segment: &Segment<'static>) {
        let telling = announcement_rules::announce_all(&self.pool.view(), self.holdings.of(segment));
        self.news.add_all_complete(segment.index.header.uuid, telling);
    }

    /// Forgets an index that is not served any more.
    pub(super) fn leave(&self, index: &[u8; 16]) {
        self.directory.forget_index(index);
        self.sums.forget_index(index);
        self.tracker.forget_index(index);
        self.relays.forget_index(index);
        self.news.forget_index(index);
    }

    /// Takes note of files that another node's job has changed.
    pub(super) fn hear_changed(&self, body: &[u8]) -> Answer {
        let served = self.store.served();
        let unknown = std::cell::Cell::new(false);
        let files = |uuid: &[u8; 16]| {
            let known = served.iter().find(|s| s.segment.index.header.uuid == *uuid);
            unknown.set(unknown.get() || known.is_none());
            known.map(|s| s.segment.index.len() as u32)
        };
        let sets = match fileset::decode(body, files) {
            Ok(sets) => sets,
            Err(e) => return Answer::text(400, &e.to_string()),
        };
        let Some(store) = self.store.get() else { return Answer::status(409) };
        for (index, ids) in sets {
            let Some(served) = store.served_index(&index) else { continue };
            let segment = &served.segment;
            for entry in ids.into_iter().filter_map(|id| segment.by_id(id)) {
                demand::leave(store.control(), &Found { root: served.root, number: served.number, segment, entry });
            }
        }
        // A node that gets an index from here is to have them as well.
        self.election.renew();
        // Of an index that is about to be served here, too: they are sent once more.
        if unknown.get() && self.startup.expects_or_adopts_index(Instant::now()) {
            Answer::status(409)
        } else {
            Answer::status(204)
        }
    }
}

impl Announcements {
    /// Takes note of what another node's job has changed in directories that the index does not
    /// hold.
    pub(super) fn hear_marks(&self, body: &[u8]) -> Answer {
        let served = self.store.served();
        let unknown = std::cell::Cell::new(false);
        let marks = |uuid: &[u8; 16]| {
            let known = served.iter().any(|s| s.segment.index.header.uuid == *uuid);
            unknown.set(unknown.get() || !known);
            known.then_some(monarch_abi::marks::BITS)
        };
        let sets = match fileset::decode(body, marks) {
            Ok(sets) => sets,
            Err(e) => return Answer::text(400, &e.to_string()),
        };
        for (index, bits) in sets {
            let segment = served.iter().find(|s| s.segment.index.header.uuid == index);
            segment.iter().for_each(|s| bits.iter().for_each(|&bit| s.segment.state.marks.hear(bit)));
        }
        // Of an index that is about to be served here, too: they are sent once more.
        let comes = unknown.get() && self.startup.expects_or_adopts_index(Instant::now());
        Answer::status(if comes { 409 } else { 204 })
    }
}

fn address(text: &[u8]) -> Option<SocketAddr> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Whether bytes are an answer to a newcomer: a door for tests of the parser.
#[must_use]
pub fn is_welcome(bytes: &[u8]) -> bool {
    presented(bytes).is_some()
}

/// The parts of the answer to a newcomer: the life of the node, the nodes that are up, what it
/// holds.
fn presented(bytes: &[u8]) -> Option<(u64, Vec<Presented>, &[u8])> {
    let (life, rest) = bytes.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (up, sets) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some((u64::from_le_bytes(*life), serde_json::from_slice(up).ok()?, sets))
}
