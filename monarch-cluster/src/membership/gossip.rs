//! Heartbeats, by gossip: van Renesse, Minsky and Hayden, "A gossip-style failure detection
//! service" (1998). Pure: time is handed in.
//!
//! Each node counts its own beats and, every interval, sends all counts that it knows to three
//! nodes that are up and one that is not, so that a node that was cut off finds back. A count that
//! grows is a sign of life, wherever it comes from. News reach 512 nodes in about five intervals. A
//! node whose count stands still for [`SUSPECT_AFTER_MS`] is suspect, for [`GONE_AFTER_MS`] gone. A
//! node that left is known to have left for [`FORGET_AFTER_MS`].
//!
//! The first count of a life that comes by hearsay is no sign of life yet: it may be an echo of a
//! dead one.

use super::payload::{Beat, Intro, MAX_BEATS, MAX_INTROS, Payload};
use super::types::Peer;
use crate::directory::NodeState;
use crate::directory::members::{MAX_NODES, node_key};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Milliseconds of silence after which a node is suspect.
pub(super) const SUSPECT_AFTER_MS: u64 = 2_500;
/// Milliseconds of silence after which a node is gone.
pub(super) const GONE_AFTER_MS: u64 = 30_000;
/// Milliseconds after which a node that is gone is not even looked for, and one that left owns
/// nothing.
const FORGET_AFTER_MS: u64 = 600_000;
/// Milliseconds without a tick of its own after which a node blames no other one for the silence.
const MAX_OWN_PAUSE_MS: u64 = 1_000;
/// Nodes that are up, and get the counts in one interval.
const FANOUT: usize = 3;
/// The count of a node that said goodbye.
const GOODBYE_BEAT: u32 = u32::MAX;

pub(super) struct Gossip {
    pub(super) me: Intro,
    nodes: BTreeMap<u64, Node>,
    chance: u64,
    began: u64,
    last: u64,
    join_timeout: u64,
    /// Only nodes that are expected take part.
    is_closed: bool,
}

pub(super) struct Node {
    pub(super) intro: Intro,
    introduced: bool,
    expected: bool,
    heard: Option<u64>,
}

/// A datagram to be sent.
pub(super) type Outgoing = (SocketAddr, Payload);

impl Gossip {
    pub(super) fn new(me: Intro, now: u64, join_timeout: u64) -> Self {
        let chance = node_key(&me.name) ^ me.incarnation;
        Self { me, nodes: BTreeMap::new(), chance, began: now, last: now, join_timeout, is_closed: false }
    }

    /// From now on no node is heard that is not expected.
    pub(super) const fn close(&mut self) {
        self.is_closed = true;
    }

    /// Expects a node; `at` is where its datagrams go, if that is known yet.
    pub(super) fn expect(&mut self, name: &str, at: Option<SocketAddr>) {
        let (name, version) = (name.to_owned(), String::new());
        let intro = Intro { name, incarnation: 0, beat: 0, gossip: at, files: None, version };
        let node = Node { intro, introduced: false, expected: true, heard: None };
        self.nodes.insert(node_key(&node.intro.name), node);
    }

    pub(super) fn locate(&mut self, name: &str, at: SocketAddr) {
        if let Some(node) = self.nodes.get_mut(&node_key(name)) {
            node.intro.gossip.get_or_insert(at);
        }
    }

    pub(super) fn is_lost(&self, name: &str) -> bool {
        self.nodes.get(&node_key(name)).is_some_and(|node| node.intro.gossip.is_none())
    }

    /// An interval has passed: what to send.
    pub(super) fn tick(&mut self, now: u64) -> Vec<Outgoing> {
        let gap = now.saturating_sub(self.last);
        if gap > MAX_OWN_PAUSE_MS {
            self.nodes.values_mut().filter_map(|n| n.heard.as_mut()).for_each(|heard| *heard += gap);
        }
        let first = std::mem::replace(&mut self.last, now) == self.began && self.me.beat == 0;
        if self.me.beat != GOODBYE_BEAT {
            self.me.beat += 1;
        }
        let (up, down): (Vec<&Node>, Vec<&Node>) =
            self.nodes.values().filter(|n| n.sought(now)).partition(|n| n.standing(self, now) == NodeState::Up);
        let (up, down): (Vec<_>, Vec<_>) = (addresses(&up), addresses(&down));
        let all = first || self.me.beat == GOODBYE_BEAT;
        let mut targets = self.choose(up, if all { usize::MAX } else { FANOUT });
        targets.extend(self.choose(down, if all { usize::MAX } else { 1 }));
        let payloads = self.payloads(now);
        targets.into_iter().flat_map(|to| payloads.iter().map(move |p| (to, p.clone()))).collect()
    }

    fn may_take_part(&self, key: u64) -> bool {
        !self.is_closed || key == node_key(&self.me.name) || self.nodes.contains_key(&key)
    }

    /// Takes in what came, and says what to send back.
    pub(super) fn hear(&mut self, now: u64, payload: &Payload) -> Option<Outgoing> {
        if !self.may_take_part(node_key(&payload.from.name)) {
            return None;
        }
        self.meet(now, &payload.from, true);
        payload.intros.iter().for_each(|intro| self.meet(now, intro, false));
        payload.beats.iter().for_each(|beat| self.pulse(now, *beat, false));
        let unknown = |key: &u64| *key != node_key(&self.me.name) && self.nodes.get(key).is_none_or(|n| !n.introduced);
        let asks: Vec<u64> = payload.beats.iter().map(|b| b.key).filter(unknown).take(MAX_INTROS).collect();
        let told = payload.asks.iter().filter_map(|key| self.nodes.get(key)).filter(|n| n.introduced);
        let intros: Vec<Intro> = told.map(|n| n.intro.clone()).take(MAX_INTROS).collect();
        // A clock went back between two lives: the sender must hear of the later one, or nobody
        // would believe it.
        let later =
            self.nodes.get(&node_key(&payload.from.name)).filter(|n| n.intro.incarnation > payload.from.incarnation);
        let beats: Vec<Beat> = later.map(Node::beat).into_iter().collect();
        let silent = asks.is_empty() && intros.is_empty() && beats.is_empty();
        let to = payload.from.gossip.filter(|_| !silent)?;
        Some((to, Payload { from: self.me.clone(), beats, asks, intros }))
    }

    /// A node presents itself (`direct`), or another one presents it.
    pub(super) fn meet(&mut self, now: u64, intro: &Intro, direct: bool) {
        let key = node_key(&intro.name);
        if !self.may_take_part(key) {
            return;
        }
        if key != node_key(&self.me.name) && !intro.name.is_empty() && self.nodes.len() < MAX_NODES {
            let fresh = || Node { intro: intro.clone(), introduced: false, expected: false, heard: None };
            let node = self.nodes.entry(key).or_insert_with(fresh);
            if intro.incarnation >= node.intro.incarnation {
                (node.intro.gossip, node.intro.files) = (intro.gossip.or(node.intro.gossip), intro.files);
                node.intro.version.clone_from(&intro.version);
                node.introduced = true;
            }
            if direct && node.heard.is_none() && intro.incarnation >= node.intro.incarnation {
                node.heard = Some(now);
            }
        }
        self.pulse(now, Beat { key, incarnation: intro.incarnation, beat: intro.beat }, direct);
    }

    /// A node came by another way than a datagram: it counts as heard, whatever its count of beats.
    pub(super) fn present(&mut self, now: u64, peer: &Peer) {
        let (name, version) = (peer.name.clone(), String::new());
        let known = self.nodes.get(&node_key(&name)).filter(|n| n.intro.incarnation == peer.incarnation);
        let beat = known.map_or(0, |n| n.intro.beat);
        let Peer { incarnation, gossip, files, .. } = *peer;
        self.meet(now, &Intro { name, incarnation, beat, gossip, files, version }, true);
        if let Some(node) = self.nodes.get_mut(&node_key(&peer.name)).filter(|n| n.intro.incarnation == incarnation) {
            node.heard = Some(now);
        }
    }

    fn pulse(&mut self, now: u64, beat: Beat, direct: bool) {
        if beat.key == node_key(&self.me.name) {
            return self.own_echo(beat);
        }
        let Some(node) = self.nodes.get_mut(&beat.key) else { return };
        let (was, is) = ((node.intro.incarnation, node.intro.beat), (beat.incarnation, beat.beat));
        if is <= was {
            return;
        }
        (node.intro.incarnation, node.intro.beat) = is;
        let same_life = was.0 == is.0;
        node.introduced &= same_life || direct;
        if direct || same_life {
            node.heard = Some(now);
        }
    }

    /// Others remember a later life of this name than this one, or that it left: be later still.
    fn own_echo(&mut self, beat: Beat) {
        let mine = self.me.incarnation;
        if self.me.beat != GOODBYE_BEAT
            && (beat.incarnation > mine || (beat.incarnation == mine && beat.beat == GOODBYE_BEAT))
        {
            (self.me.incarnation, self.me.beat) = (beat.incarnation.saturating_add(1), 0);
        }
    }

    /// Says goodbye with the next tick.
    pub(super) fn leave(&mut self) {
        self.me.beat = GOODBYE_BEAT;
    }

    /// All other nodes, with their states.
    pub(super) fn standings(&self, now: u64) -> impl Iterator<Item = (&Intro, NodeState)> {
        self.nodes.values().map(move |n| (&n.intro, n.standing(self, now)))
    }

    fn payloads(&self, now: u64) -> Vec<Payload> {
        let alive = |n: &&Node| n.heard.is_some_and(|heard| now.saturating_sub(heard) < GONE_AFTER_MS);
        // A node that has it from hearsay does not pass it on: it would never end where nodes come
        // and go.
        let told = |n: &&Node| alive(n) || n.heard.is_some() && n.standing(self, now) == NodeState::Left;
        let beats: Vec<Beat> = self.nodes.values().filter(told).map(Node::beat).collect();
        let asks: Vec<u64> = self
            .nodes
            .iter()
            .filter(|(_, n)| alive(n) && !n.introduced)
            .map(|(key, _)| *key)
            .take(MAX_INTROS)
            .collect();
        let one = |beats: &[Beat]| Payload {
            from: self.me.clone(),
            beats: beats.to_vec(),
            asks: asks.clone(),
            intros: Vec::new(),
        };
        if beats.is_empty() { vec![one(&[])] } else { beats.chunks(MAX_BEATS).map(one).collect() }
    }

    fn choose(&mut self, mut from: Vec<SocketAddr>, count: usize) -> Vec<SocketAddr> {
        let count = count.min(from.len());
        for n in 0..count {
            self.chance = self.chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let other = n + (self.chance >> 33) as usize % (from.len() - n);
            from.swap(n, other);
        }
        from.truncate(count);
        from
    }
}

fn addresses(nodes: &[&Node]) -> Vec<SocketAddr> {
    nodes.iter().filter_map(|n| n.intro.gossip).collect()
}

impl Node {
    fn standing(&self, gossip: &Gossip, now: u64) -> NodeState {
        match self.heard.filter(|_| self.introduced || self.intro.beat == GOODBYE_BEAT) {
            _ if self.intro.beat == GOODBYE_BEAT => match now.saturating_sub(self.heard.unwrap_or(gossip.began)) {
                0..FORGET_AFTER_MS => NodeState::Left,
                _ => NodeState::Gone,
            },
            None if self.expected && now < gossip.began + gossip.join_timeout => NodeState::Expected,
            None => NodeState::Gone,
            Some(heard) => match now.saturating_sub(heard) {
                0..SUSPECT_AFTER_MS => NodeState::Up,
                SUSPECT_AFTER_MS..GONE_AFTER_MS => NodeState::Suspect,
                _ => NodeState::Gone,
            },
        }
    }

    /// Whether it is worth a datagram.
    fn sought(&self, now: u64) -> bool {
        self.heard.map_or(self.expected, |heard| now.saturating_sub(heard) < FORGET_AFTER_MS)
    }

    fn beat(&self) -> Beat {
        Beat { key: node_key(&self.intro.name), incarnation: self.intro.incarnation, beat: self.intro.beat }
    }
}

#[cfg(test)]
#[path = "gossip_tests.rs"]
mod tests;
