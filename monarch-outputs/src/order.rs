//! The order of publication across nodes: what each entry is keyed with, and whether a node's first
//! entry may be published. No input or output, no clock: time and messages are handed in.
//!
//! * An entry is *stamped* when the agent reads its record: the wall clock, or one more than the
//!   node's clock (a hybrid logical clock: Kulkarni et al., 2014).
//! * Before the call returns, the node *asks* all peers: it pushes its clock, which raises theirs.
//!   The clock that all of them have acknowledged is the entry's *key*. One round serves all
//!   entries that were appended before it.
//! * A silent peer is given up after a time. The key is fixed all the same, and this peer learns by
//!   the answers to its own questions that a key was fixed without it, until it has acknowledged
//!   that at a time when all of its own entries have keys.
//! * An entry is published when each peer's *floor*, the least key that it may still publish, is
//!   above the entry's key. Equal keys are ordered by node number. A silent peer holds it.
//! * A file that was found closed without a record has the key of the next entry. Where there is
//!   none, its key is fixed at once, as if all peers were silent: nobody waits for it, and a peer
//!   that asks may write what follows its closing.
//!
//! So an entry whose call returned before another call began has the lower key, unless both nodes
//! had given each other up; then the wall clocks order the two. Keys rise with the sequence number,
//! so there is no cycle of waits.

#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;
mod wire;

use crate::plan::Place;
use monarch_abi::outputs::question::Subject;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

/// The number of a node.
pub type NodeId = u64;

/// What a node asks a peer: to acknowledge its clock, and for the peer's floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The clock of the node, or the key that it proposes.
    pub clock: u64,
    /// The least key of what the node may still publish.
    pub floor: u64,
    /// The key of the node's first entry, if the peer holds it, or 0. The peer asks in turn as soon
    /// as its floor is higher.
    pub wants: u64,
}

/// What the peer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The clock that the peer was asked to acknowledge.
    pub acknowledged: u64,
    /// Whether all entries of the peer have keys: what it appends later gets a higher key than it
    /// has acknowledged, and nothing else is without one.
    pub is_settled: bool,
    /// The highest key of the peer that was fixed without the asking node, or 0.
    pub owed: u64,
    /// The least key of what the peer may still publish.
    pub floor: u64,
}

/// What a node asks a peer about names that it does not find on the PFS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Find {
    /// What of the path.
    pub subject: Subject,
    /// Relative to the output root.
    pub path: Vec<u8>,
}

/// What the peer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The highest key of what the peer has of it, and still is to publish, or 0.
    pub key: u64,
    /// The least key of what the peer may still publish.
    pub floor: u64,
}

/// A key that is to be logged, and then given to all entries up to a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The last entry that the key is for.
    pub up_to: Place,
    /// The key.
    pub key: u64,
    /// The peers that have not acknowledged it.
    pub without: Vec<NodeId>,
}

/// A question to all peers that has not been answered by all.
#[derive(Clone, Debug)]
struct Round {
    up_to: Place,
    key: u64,
    waits_for: BTreeSet<NodeId>,
    deadline_ns: u64,
}

/// An entry that is not published.
#[derive(Clone, Copy, Debug)]
struct Pending {
    stamp: u64,
    key: Option<u64>,
}

/// What is known of a peer.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// The highest key that was fixed without this peer, until it acknowledges that, or 0.
    owed: u64,
    floor: u64,
    /// The floor that it waits for, or 0.
    wants: u64,
    /// The highest clock that it has pushed while it had something to publish.
    pushed: u64,
}

/// The order of one output root, as one node sees it. Methods: 29, because questions, answers and
/// publication share its clock and its entries.
#[derive(Clone, Debug)]
pub struct Order {
    node: NodeId,
    clock: u64,
    last_key: u64,
    /// The last entry that has a key: all before it have keys, too.
    settled: Place,
    pending: BTreeMap<Place, Pending>,
    round: Option<Round>,
    peers: BTreeMap<NodeId, Peer>,
    /// How often peers have told of something new that they have to publish, from 1.
    news: u64,
}

impl Order {
    /// The order of a node whose clock stands at `clock`, and whose highest logged key is
    /// `last_key`.
    #[must_use]
    pub fn new(node: NodeId, clock: u64, last_key: u64, peers: &[NodeId]) -> Self {
        let unknown = Peer { owed: last_key, floor: 0, wants: 0, pushed: clock.max(last_key) };
        let peers = peers.iter().filter(|&&peer| peer != node).map(|&peer| (peer, unknown));
        Self {
            node,
            clock: clock.max(last_key),
            last_key,
            settled: Place::default(),
            pending: BTreeMap::new(),
            round: None,
            peers: peers.collect(),
            news: 1,
        }
    }

    /// The clock: stamps and keys of the node, and what peers have pushed, are at most this.
    #[must_use]
    pub const fn clock(&self) -> u64 {
        self.clock
    }

    /// The highest key that was given here.
    #[must_use]
    pub const fn last_key(&self) -> u64 {
        self.last_key
    }

    /// Whether a peer is one.
    #[must_use]
    pub fn has(&self, peer: NodeId) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Adds a peer. It is asked from the next round on, and holds entries from now on.
    pub fn join(&mut self, peer: NodeId) {
        if peer != self.node {
            let unknown = Peer { owed: self.last_key, floor: 0, wants: 0, pushed: self.clock };
            if self.peers.insert(peer, self.peers.get(&peer).copied().unwrap_or(unknown)).is_none() {
                self.news += 1;
            }
        }
    }

    /// Removes a peer that has published everything and left.
    pub fn leave(&mut self, peer: NodeId) {
        self.peers.remove(&peer);
        if let Some(round) = &mut self.round {
            round.waits_for.remove(&peer);
        }
    }

    // --- entries ---

    /// Takes in an entry that was read at `now_ns`, with its key if one was logged. Its place is
    /// above that of all entries that are not done.
    pub fn append(&mut self, place: Place, now_ns: u64, key: Option<u64>) {
        self.clock = key.map_or_else(|| now_ns.max(self.clock + 1), |key| key.max(self.clock));
        self.pending.insert(place, Pending { stamp: self.clock, key });
        if key.is_some() {
            self.settled = place;
        } else if place <= self.settled {
            // A file that was found closed: what came after it is done.
            self.settled = place.before();
        }
    }

    /// The last entry that is not published.
    #[must_use]
    pub fn last(&self) -> Option<Place> {
        self.pending.last_key_value().map(|(&place, _)| place)
    }

    /// The first entry without a key.
    #[must_use]
    pub fn first_unsettled(&self) -> Option<Place> {
        self.pending.range((Excluded(self.settled), Unbounded)).next().map(|(&place, _)| place)
    }

    /// Fixes all entries without a key at once. For a restart: the agent does not know which of
    /// their calls have returned.
    #[must_use]
    pub fn give_up_all(&self) -> Option<Settled> {
        let up_to = self.last_unsettled()?;
        Some(Settled { up_to, key: self.clock, without: self.peers.keys().copied().collect() })
    }

    fn last_unsettled(&self) -> Option<Place> {
        self.last().filter(|&last| last > self.settled)
    }

    // --- rounds ---

    /// Begins a round for all entries without a key, if there is none. Peers that do not answer
    /// until `deadline_ns` are given up.
    pub fn begin_round(&mut self, deadline_ns: u64) {
        if self.round.is_some() {
            return;
        }
        let Some(up_to) = self.last_unsettled() else { return };
        // No question has pushed it before: the peers learn of something new.
        self.clock += 1;
        let waits_for = self.peers.keys().copied().collect();
        self.round = Some(Round { up_to, key: self.clock, waits_for, deadline_ns });
    }

    /// What to ask `peer` now: for the round, for its floor if it holds the first entry, or since
    /// it waits for this node's floor.
    #[must_use]
    pub fn ask(&self, peer: NodeId) -> Option<Ask> {
        let known = self.peers.get(&peer)?;
        let round = self.round.as_ref().filter(|round| round.waits_for.contains(&peer));
        let first = self.pending.first_key_value().and_then(|(_, entry)| entry.key);
        let wants = first.filter(|key| (known.floor, peer) < (*key, self.node)).unwrap_or(0);
        let is_needed = round.is_some() || known.owed != 0 || wants != 0 || self.is_awaited_by(peer);
        let clock = round.map_or(self.clock, |round| round.key);
        is_needed.then(|| Ask { clock, floor: self.floor(), wants })
    }

    /// Whether a peer waits for this node's floor, which is high enough.
    #[must_use]
    pub fn is_awaited_by(&self, peer: NodeId) -> bool {
        let wants = self.peers.get(&peer).map_or(0, |peer| peer.wants);
        wants != 0 && (self.floor(), self.node) > (wants, peer)
    }

    /// A question that [`Self::ask`] gave was sent.
    pub fn asked(&mut self, peer: NodeId) {
        if self.is_awaited_by(peer)
            && let Some(peer) = self.peers.get_mut(&peer)
        {
            peer.wants = 0;
        }
    }

    /// The peers that the round waits for.
    pub fn awaited(&self) -> impl Iterator<Item = NodeId> {
        self.round.iter().flat_map(|round| round.waits_for.iter().copied())
    }

    /// Answers a peer, after the clock was raised to what it pushes. The caller has taken in all
    /// records, and files that were found closed, before; and it keeps the clock where a restart
    /// finds it before it sends the answer.
    pub fn answer(&mut self, from: NodeId, ask: Ask) -> Answer {
        self.clock = self.clock.max(ask.clock);
        self.join(from);
        let mut owed = 0;
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.floor = peer.floor.max(ask.floor);
            peer.wants = ask.wants;
            if ask.floor <= ask.clock && peer.pushed < ask.clock {
                peer.pushed = ask.clock;
                self.news += 1;
            }
            owed = peer.owed;
        }
        let is_settled = self.last_unsettled().is_none();
        Answer { acknowledged: ask.clock, is_settled, owed, floor: self.floor() }
    }

    /// Takes in the answer of a peer. A key of the peer that was fixed without this node raises the
    /// key of the round, which all peers are then asked to acknowledge again.
    pub fn answered(&mut self, from: NodeId, answer: Answer) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.floor = peer.floor.max(answer.floor);
        if answer.is_settled && answer.acknowledged >= peer.owed {
            peer.owed = 0;
        }
        self.clock = self.clock.max(answer.owed);
        let Some(round) = &mut self.round else { return };
        if answer.owed >= round.key {
            self.clock += 1;
            round.key = self.clock;
            round.waits_for = self.peers.keys().copied().collect();
        } else if answer.acknowledged >= round.key {
            round.waits_for.remove(&from);
        }
    }

    /// The key of the round, if all peers have acknowledged it or the others are given up. The
    /// caller logs it, then calls [`Self::settle`], then lets the calls return.
    #[must_use]
    pub fn outcome(&self, now_ns: u64) -> Option<Settled> {
        let round = self.round.as_ref()?;
        let is_over = round.waits_for.is_empty() || now_ns >= round.deadline_ns;
        let without = || round.waits_for.iter().copied().collect();
        is_over.then(|| Settled { up_to: round.up_to, key: round.key, without: without() })
    }

    /// Gives a logged key to its entries, and ends the round.
    pub fn settle(&mut self, settled: &Settled) {
        self.last_key = self.last_key.max(settled.key);
        self.clock = self.clock.max(settled.key);
        for peer in &settled.without {
            if let Some(peer) = self.peers.get_mut(peer) {
                peer.owed = peer.owed.max(settled.key);
            }
        }
        if settled.up_to > self.settled {
            let range = (Excluded(self.settled), Included(settled.up_to));
            self.pending.range_mut(range).for_each(|(_, entry)| entry.key = Some(settled.key));
            self.settled = settled.up_to;
        }
        self.round = None;
    }

    // --- reading ---

    /// The peers that may have something to publish, as far as they have told. What a call of
    /// theirs has left, which returned before a call here began, was told.
    pub fn holding(&self) -> impl Iterator<Item = NodeId> {
        self.peers.iter().filter(|(_, peer)| peer.floor <= peer.pushed).map(|(&number, _)| number)
    }

    /// A peer has told its floor.
    pub fn has_floor(&mut self, peer: NodeId, floor: u64) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.floor = peer.floor.max(floor);
        }
    }

    /// How often peers have told of something new that they have to publish, from 1.
    #[must_use]
    pub const fn news(&self) -> u64 {
        self.news
    }

    // --- publication ---

    /// The least key of what this node may still publish.
    #[must_use]
    pub fn floor(&self) -> u64 {
        let first = self.pending.first_key_value().map(|(_, entry)| entry);
        first.map_or(self.clock + 1, |entry| entry.key.unwrap_or(entry.stamp))
    }

    /// The peers for which the first entry waits.
    #[must_use]
    pub fn holders(&self) -> Vec<NodeId> {
        self.pending.first_key_value().map_or_else(Vec::new, |(&first, _)| self.holders_of(first))
    }

    fn holders_of(&self, place: Place) -> Vec<NodeId> {
        let Some(key) = self.key_of(place) else { return Vec::new() };
        let holds = |(&id, peer): (&NodeId, &Peer)| (peer.floor, id) < (key, self.node);
        self.peers.iter().filter(|&peer| holds(peer)).map(|(&id, _)| id).collect()
    }

    /// The key of what is published at a place, if it is fixed.
    #[must_use]
    pub fn key_of(&self, place: Place) -> Option<u64> {
        self.pending.range(place..).next().and_then(|(_, entry)| entry.key)
    }

    /// Whether what is published at a place may be, when all before it is.
    #[must_use]
    pub fn may_publish(&self, place: Place) -> bool {
        self.key_of(place).is_some() && self.holders_of(place).is_empty()
    }

    /// Removes all entries before a place, the first that is still to be published: they were
    /// published, cancelled or merged into later ones.
    pub fn done_before(&mut self, first: Place) {
        if self.pending.first_key_value().is_some_and(|(&place, _)| place < first) {
            self.pending = self.pending.split_off(&first);
        }
    }
}
