//! The order of publication across nodes: what each entry is keyed with, and whether a node's first
//! entry may be published. No input or output, no clock: time and messages are handed in.
//!
//! * A record is *stamped* when it is appended: the wall clock, or one more than the node's clock
//!   (a hybrid logical clock: Kulkarni et al., 2014).
//! * Before the call returns, the node *asks* all peers: it pushes its clock, which raises theirs.
//!   The clock that all of them have acknowledged is the entry's *key*. One round serves all
//!   entries that were appended before it.
//! * A silent peer is given up after a time. The key is fixed all the same, and this peer learns by
//!   the answers to its own questions that a key was fixed without it, until it has acknowledged
//!   that at a time when all of its own entries have keys.
//! * An entry is published when each peer's *floor*, the least key that it may still publish, is
//!   above the entry's key. Equal keys are ordered by node number. A silent peer holds it.
//!
//! So an entry whose call returned before another call began has the lower key, unless both nodes
//! had given each other up; then the wall clocks order the two. Keys rise with the sequence number,
//! so there is no cycle of waits.

#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

/// The number of a node.
pub type NodeId = u64;

/// What a node asks a peer: to acknowledge its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The clock of the node, or the key that it proposes.
    pub clock: u64,
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

/// A key that is to be logged, and then given to all entries up to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The last record that the key is for.
    pub up_to: u64,
    /// The key.
    pub key: u64,
    /// The peers that have not acknowledged it.
    pub without: Vec<NodeId>,
}

/// A question to all peers that has not been answered by all.
#[derive(Clone, Debug)]
struct Round {
    up_to: u64,
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
}

/// The order of one output root, as one node sees it.
#[derive(Clone, Debug)]
pub struct Order {
    node: NodeId,
    clock: u64,
    last_key: u64,
    pending: BTreeMap<u64, Pending>,
    round: Option<Round>,
    peers: BTreeMap<NodeId, Peer>,
}

impl Order {
    /// The order of a node whose clock stands at `clock`, and whose highest logged key is
    /// `last_key`.
    #[must_use]
    pub fn new(node: NodeId, clock: u64, last_key: u64, peers: &[NodeId]) -> Self {
        let unknown = Peer { owed: last_key, floor: 0 };
        let peers = peers.iter().filter(|&&peer| peer != node).map(|&peer| (peer, unknown));
        Self {
            node,
            clock: clock.max(last_key),
            last_key,
            pending: BTreeMap::new(),
            round: None,
            peers: peers.collect(),
        }
    }

    /// The clock: stamps and keys of the node, and what peers have pushed, are at most this.
    #[must_use]
    pub const fn clock(&self) -> u64 {
        self.clock
    }

    /// Adds a peer. It is asked from the next round on, and holds entries from now on.
    pub fn join(&mut self, peer: NodeId) {
        if peer != self.node {
            self.peers.entry(peer).or_insert(Peer { owed: self.last_key, floor: 0 });
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

    /// Takes in an entry: record `seq`, stamped `stamp`, with its key if one was logged.
    pub fn append(&mut self, seq: u64, stamp: u64, key: Option<u64>) {
        self.clock = self.clock.max(stamp).max(key.unwrap_or(0));
        self.pending.insert(seq, Pending { stamp, key });
    }

    /// Fixes all entries without a key at once. For a restart: the agent does not know which of
    /// their calls have returned.
    #[must_use]
    pub fn give_up_all(&self) -> Option<Settled> {
        let up_to = self.last_unsettled()?;
        Some(Settled { up_to, key: self.clock, without: self.peers.keys().copied().collect() })
    }

    fn last_unsettled(&self) -> Option<u64> {
        self.pending.iter().rev().find(|(_, entry)| entry.key.is_none()).map(|(&seq, _)| seq)
    }

    // --- rounds ---

    /// Begins a round for all entries without a key, if there is none. Peers that do not answer
    /// until `deadline_ns` are given up.
    pub fn begin_round(&mut self, deadline_ns: u64) {
        if self.round.is_some() {
            return;
        }
        let Some(up_to) = self.last_unsettled() else { return };
        let waits_for = self.peers.keys().copied().collect();
        self.round = Some(Round { up_to, key: self.clock, waits_for, deadline_ns });
    }

    /// What to ask `peer` now: for the round, or for its floor if it holds the first entry.
    #[must_use]
    pub fn ask(&self, peer: NodeId) -> Option<Ask> {
        let round = self.round.as_ref().filter(|round| round.waits_for.contains(&peer));
        if let Some(round) = round {
            return Some(Ask { clock: round.key });
        }
        let is_owed = self.peers.get(&peer)?.owed != 0;
        (is_owed || self.holders().contains(&peer)).then_some(Ask { clock: self.clock })
    }

    /// Answers a peer, after the clock was raised to what it pushes. The caller has taken in all
    /// records, and files that were found closed, before; and it raises the clock that processes
    /// stamp with before it sends the answer.
    pub fn answer(&mut self, from: NodeId, ask: Ask) -> Answer {
        self.clock = self.clock.max(ask.clock);
        let owed = self.peers.get(&from).map_or(0, |peer| peer.owed);
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
        for entry in self.pending.range_mut(..=settled.up_to).map(|(_, entry)| entry) {
            entry.key.get_or_insert(settled.key);
        }
        self.round = None;
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
        let first = self.pending.first_key_value();
        let Some(key) = first.and_then(|(_, entry)| entry.key) else { return Vec::new() };
        let holds = |(&id, peer): (&NodeId, &Peer)| (peer.floor, id) < (key, self.node);
        self.peers.iter().filter(|&peer| holds(peer)).map(|(&id, _)| id).collect()
    }

    /// The first entry, if it may be published.
    #[must_use]
    pub fn publishable(&self) -> Option<u64> {
        let (&seq, entry) = self.pending.first_key_value()?;
        (entry.key.is_some() && self.holders().is_empty()).then_some(seq)
    }

    /// Removes an entry that was published, cancelled or merged into a later one.
    pub fn published(&mut self, seq: u64) {
        self.pending.remove(&seq);
    }
}
