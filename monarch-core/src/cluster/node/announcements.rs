//! What nodes tell each other: who holds what, when one comes or goes; what the job has changed.
//!
//! A newcomer asks every node that is up for the files that it answers for from now on, before it
//! reads any of them. What is told otherwise goes through the [`outbox`](super::outbox). Who hears
//! of a change leaves the file to the PFS from then on.

use super::bounds::NEWCOMER;
use super::{FileRef, Node, lock};
use crate::cluster::directory::{self, announcement_rules, fileset};
use crate::cluster::http::Answer;
use crate::cluster::membership::Peer;
use crate::tiering::LiveSegment;
use monarch_abi::demand;
use monarch_abi::resolve::Found;
use monarch_abi::segment::Entry;
use monarch_abi::word::{State, Word};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long a newcomer waits for what one node holds.
const JOIN: Duration = Duration::from_secs(1);
/// Nodes that are asked, or told something, at a time.
pub(super) const AT_A_TIME: usize = 64;

/// A newcomer's answer: who is up, and the files held of its own.
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

impl Node {
    /// The files of a segment that others had better get from here, ascending: number and hash of
    /// the path. What only passes through, or comes from another node, is not among them.
    pub(super) fn held(&self, live: &LiveSegment) -> impl Iterator<Item = (u32, u64)> + use<> {
        let is_coming = |word: Word| matches!(word.state(), State::Fetching | State::Partial);
        let perhaps = move |word: Word| match word.state() {
            State::Resident => !word.is_marked() || word.packed_in().is_some(),
            State::Fetching | State::Partial => !word.is_marked(),
            _ => word.packed_in().is_some(),
        };
        let is_held = |e: &Entry<'static>| {
            // (Not one that is claimed and yet to be asked another node for: who asks back would
            // wait for itself.)
            let word = e.word();
            perhaps(word) && (!is_coming(word) || self.begun.contains(&live.file_ref(e)))
        };
        let found = live.segment.files_that(perhaps).filter(is_held);
        let mut held: Vec<(u32, u64)> = found.map(|e| (e.master.id, e.master.fp)).collect();
        held.sort_unstable();
        held.into_iter()
    }

    /// A node has come up: who is up, and what is held here of its files.
    pub(super) fn joins(&self, peer: &str, body: &[u8]) -> Answer {
        let Some((incarnation, at)) = body.split_first_chunk().and_then(|(life, at)| Some((life, address(at)?))) else {
            return Answer::text(400, "a newcomer sends the number of its life and its address");
        };
        let incarnation = u64::from_le_bytes(*incarnation);
        let newcomer = Peer { name: peer.to_owned(), incarnation, gossip: Some(at), files: Some(at) };
        // Up from now on, and what is held from now on is told in other ways.
        let view = self.membership.joined(&newcomer);
        let Some(number) = view.number(peer) else {
            return Answer::text(409, "this node has no number left for another one");
        };
        self.note_life(number, incarnation);
        let up: Vec<Presented> = self.membership.peers().into_iter().map(Presented::from).collect();
        let up = serde_json::to_vec(&up).unwrap_or_default();
        let mut out = self.membership.incarnation().to_le_bytes().to_vec();
        out.extend_from_slice(&(up.len() as u32).to_le_bytes());
        out.extend_from_slice(&up);
        self.held_by_encoded(&view, number, &mut out);
        Answer::bytes(out)
    }

    pub(super) fn segments(&self) -> Vec<(usize, LiveSegment)> {
        self.tiering().map_or_else(Vec::new, |tiering| tiering.segments.served())
    }

    /// What was known of an earlier life of a node is forgotten; `false` for news of such a life.
    pub(super) fn note_life(&self, node: u16, incarnation: u64) -> bool {
        let mut lives = lock(&self.lives);
        let known = lives.entry(node).or_insert(incarnation);
        if incarnation > *known {
            *known = incarnation;
            lock(&self.residency).forget_node(node);
        }
        incarnation == *known
    }

    /// A node tells what it holds.
    pub(super) fn heard_held(&self, peer: &str, body: &[u8]) -> Answer {
        let Some((life, sets)) = body.split_first_chunk() else {
            return Answer::text(400, "the number of a life is missing");
        };
        let Some(from) = self.view().number(peer) else { return Answer::status(409) };
        if !self.note_life(from, u64::from_le_bytes(*life)) {
            return Answer::status(204);
        }
        match self.note_held(from, sets, None) {
            Ok(()) => Answer::status(204),
            Err(e) => Answer::text(400, &e.to_string()),
        }
    }

    /// Takes note of what a node holds; `coming` is an index that is about to be served.
    fn note_held(&self, from: u16, sets: &[u8], coming: Option<&LiveSegment>) -> Result<(), fileset::FileSetError> {
        let served = self.segments();
        let all: Vec<&LiveSegment> = served.iter().map(|(_, live)| live).chain(coming).collect();
        let of = |uuid: &[u8; 16]| all.iter().find(|live| live.segment.index.header.uuid == *uuid);
        let sets = fileset::decode(sets, |uuid| of(uuid).map(|live| live.segment.index.len() as u32))?;
        let mut residency = lock(&self.residency);
        for (index, ids) in sets {
            // (The table goes by number; the hash of the path is of no use to it.)
            ids.into_iter().for_each(|id| residency.held(from, &directory::File { index, id, fp: 0 }));
        }
        Ok(())
    }

    /// Before an index is served: asks every node that answers what it holds of this node's files.
    /// All at a time, for a second at most.
    pub fn join(self: &Arc<Self>, live: &LiveSegment) {
        let index = live.segment.index.header.uuid;
        let entries = live.segment.index.len();
        lock(&self.residency).add_index(index, entries as u32);
        self.sums.add(index, entries);
        let mut body = self.membership.incarnation().to_le_bytes().to_vec();
        body.extend_from_slice(self.options.listen.to_string().as_bytes());
        self.each_expected(|node| self.join_with(node, &body, live));
    }

    fn join_with(&self, node: u16, body: &[u8], live: &LiveSegment) {
        let life = self.life_of(node);
        let Some(peer) = self.peer(node) else { return };
        let answer = match peer.post("/v1/join", body, JOIN) {
            Ok(answer) if answer.status() == 200 => answer.bytes(u64::from(u32::MAX)),
            Ok(_) => return,
            Err(e) => return self.doubt(node, life, &e),
        };
        let Ok(bytes) = answer else { return };
        let Some((life, up, sets)) = presented(&bytes) else {
            tracing::warn!(
                node,
                "the answer of a peer to a newcomer cannot be used; do all nodes run the same version of Monarch?"
            );
            return;
        };
        self.note_life(node, life);
        if let Err(e) = self.note_held(node, sets, Some(live)) {
            tracing::warn!(node, error = %e, "what a peer says it holds cannot be used");
        }
        for peer in up.into_iter().filter(|p| p.name != self.options.name) {
            self.membership.joined(&peer.into());
        }
    }

    /// An index is served from now on: those who answer for files that are here already are told.
    pub fn announce(&self, live: &LiveSegment) {
        let index = live.segment.index.header.uuid;
        let telling = announcement_rules::announce_all(&self.view(), self.held(live));
        let of = |(to, ids): (u16, Vec<u32>)| ids.into_iter().map(move |id| (to, FileRef { index, id, fp: 0 }));
        lock(&self.complete).extend(telling.into_iter().flat_map(of));
    }

    /// An index is not served any more.
    pub fn leave(&self, index: &[u8; 16]) {
        lock(&self.residency).forget_index(index);
        self.sums.forget(index);
        lock(&self.forced).retain(|f| f.index != *index);
        self.begun.forget(index);
        lock(&self.complete).retain(|(_, f)| f.index != *index);
    }

    /// Asks all nodes that may be there, many at a time.
    pub(super) fn each_expected(&self, ask: impl Fn(u16) + Sync) {
        let view = self.view();
        let nodes: Vec<u16> = view.iter().skip(1).filter(|(_, m)| m.standing.takes_part()).map(|(n, _)| n).collect();
        self.each(&nodes, ask);
    }

    /// Asks some nodes, many at a time.
    pub(super) fn each(&self, nodes: &[u16], ask: impl Fn(u16) + Sync) {
        if let [node] = nodes {
            return ask(*node);
        }
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(node) = nodes.get(next.fetch_add(1, Ordering::Relaxed)) {
                ask(*node);
            }
        };
        std::thread::scope(|s| {
            for _ in 1..nodes.len().min(AT_A_TIME) {
                // Where no more threads are to be had, those that are there do it all.
                let _ = std::thread::Builder::new().name("news".to_owned()).spawn_scoped(s, work);
            }
            work();
        });
    }

    /// Another node's job has changed files.
    pub(super) fn heard_changed(&self, _peer: &str, body: &[u8]) -> Answer {
        let segments = self.segments();
        let files = |uuid: &[u8; 16]| {
            let found = segments.iter().find(|(_, live)| live.segment.index.header.uuid == *uuid);
            found.map(|(_, live)| live.segment.index.len() as u32)
        };
        let unknown = std::cell::Cell::new(false);
        let files = |uuid: &[u8; 16]| {
            let known = files(uuid);
            unknown.set(unknown.get() || known.is_none());
            known
        };
        let sets = match fileset::decode(body, files) {
            Ok(sets) => sets,
            Err(e) => return Answer::text(400, &e.to_string()),
        };
        let Some(tiering) = self.tiering() else { return Answer::status(409) };
        for (index, ids) in sets {
            let Some((number, live)) = tiering.segments.segment_of(index) else { continue };
            for entry in ids.into_iter().filter_map(|id| live.segment.by_id(id)) {
                demand::leave(&tiering.cx.ctl, &Found { root: live.root(), number, segment: &live.segment, entry });
            }
        }
        // Who gets an index from here is to have them as well.
        self.election.renew();
        // One that is about to be served here, too: they are sent once more.
        let is_coming =
            || self.adopting.load(Ordering::SeqCst) || self.election.is_pending() || self.started.elapsed() < NEWCOMER;
        if unknown.get() && is_coming() { Answer::status(409) } else { Answer::status(204) }
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

/// The parts of the answer to a newcomer: which life of the node it is, who is up, what it holds.
fn presented(bytes: &[u8]) -> Option<(u64, Vec<Presented>, &[u8])> {
    let (life, rest) = bytes.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (up, sets) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some((u64::from_le_bytes(*life), serde_json::from_slice(up).ok()?, sets))
}
