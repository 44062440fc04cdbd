//! Nodes in a network of the test's making: loss, delay, cuts, crashes, restarts, pauses. The same
//! seed gives the same run to the last datagram.

use super::gossip::Gossip;
use super::message::{Outgoing, Payload};
use super::rotation::Chance;
use super::types::Peer;
use crate::directory::NodeState;
use crate::directory::members::node_key;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

/// Milliseconds between two ticks of a node.
pub(super) const TICK_MS: u64 = 100;
/// Most milliseconds that a datagram takes.
const MAX_DELAY_MS: usize = 3;
/// Bytes of a datagram's authentication.
const AUTH_BYTES: usize = 52;
/// Milliseconds for which a node that was never seen is expected.
pub(super) const JOIN_TIMEOUT_MS: u64 = 10_000;

/// What happens at a time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick { node: usize, start: u64 },
    Arrival { node: usize, datagram: Vec<u8> },
}

/// A network and its nodes. Fields: 13, because tests set and read each of its faults and counts.
pub(super) struct Net {
    pub(super) nodes: Vec<Option<Gossip>>,
    pub(super) now: u64,
    /// Datagrams of 1,000 that are lost.
    pub(super) loss: usize,
    /// Whether datagrams from one node to another are lost.
    pub(super) cut: Box<dyn Fn(usize, usize) -> bool>,
    /// Which node gets what one node sends to the address of another.
    pub(super) receiver: Box<dyn Fn(usize, usize) -> usize>,
    pub(super) chance: Chance,
    /// Datagrams that were sent, and their bytes.
    pub(super) sent: (u64, u64),
    pub(super) longest: usize,
    /// A node, and how many datagrams were sent to it.
    pub(super) watched: Option<(usize, u64)>,
    /// By node: until when it stands still.
    paused: Vec<u64>,
    /// By node: how often it was started.
    starts: Vec<u64>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
}

pub(super) fn address(n: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 1000 + n as u16))
}

pub(super) fn peer(n: usize, life: u64) -> Peer {
    Peer { name: format!("node{n:04}"), incarnation: life, gossip: Some(address(n)), files: Some(address(n)) }
}

impl Net {
    /// A network without nodes.
    pub(super) fn empty(seed: u64) -> Self {
        Self {
            nodes: Vec::new(),
            now: 0,
            loss: 0,
            cut: Box::new(|_, _| false),
            receiver: Box::new(|_, to| to),
            chance: Chance::new(seed),
            sent: (0, 0),
            longest: 0,
            watched: None,
            paused: Vec::new(),
            starts: Vec::new(),
            events: BinaryHeap::new(),
            count: 0,
        }
    }

    /// Nodes that all start within one tick, each with all in its list.
    pub(super) fn booting(nodes: usize) -> Self {
        let mut net = Self::empty(nodes as u64);
        (0..nodes).for_each(|n| net.start(n, 5, 0..nodes));
        net
    }

    /// Nodes that know each other.
    pub(super) fn settled(nodes: usize) -> Self {
        let mut net = Self::booting(nodes);
        for (n, node) in net.nodes.iter_mut().enumerate() {
            let gossip = node.as_mut().unwrap();
            for of in (0..nodes).filter(|of| *of != n) {
                gossip.table.present(&peer(of, 5), 0);
            }
        }
        net
    }

    /// Starts a node that has `list` in its list, in place of an earlier life.
    pub(super) fn start(&mut self, n: usize, life: u64, list: impl IntoIterator<Item = usize>) {
        let mut gossip = Gossip::new(&peer(n, life), self.now, JOIN_TIMEOUT_MS);
        list.into_iter().filter(|of| *of != n).for_each(|of| gossip.table.expect(&peer(of, 0).name, Some(address(of))));
        while self.nodes.len() <= n {
            self.nodes.push(None);
            self.paused.push(0);
            self.starts.push(0);
        }
        self.nodes[n] = Some(gossip);
        let first = self.now + self.chance.below(TICK_MS as usize) as u64;
        self.starts[n] += 1;
        self.push(first, Event::Tick { node: n, start: self.starts[n] });
    }

    /// Ends a node without a goodbye.
    pub(super) fn crash(&mut self, n: usize) {
        self.nodes[n] = None;
    }

    /// A node stands still for some milliseconds; datagrams wait for it.
    pub(super) fn pause(&mut self, n: usize, ms: u64) {
        self.paused[n] = self.now + ms;
    }

    pub(super) fn node(&mut self, n: usize) -> &mut Gossip {
        self.nodes[n].as_mut().unwrap()
    }

    fn push(&mut self, at: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, ms: u64) {
        let until = self.now + ms;
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= until) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            self.happen(event);
        }
        self.now = until;
    }

    fn happen(&mut self, event: Event) {
        let (node, now) = (
            match &event {
                Event::Tick { node, .. } | Event::Arrival { node, .. } => *node,
            },
            self.now,
        );
        if self.paused[node] > now {
            let at = self.paused[node];
            return match event {
                // A tick may come before the datagrams that wait: here it always does.
                Event::Tick { .. } => self.events.push(Reverse((at, 0, event))),
                Event::Arrival { .. } => self.push(at, event),
            };
        }
        let Some(gossip) = &mut self.nodes[node] else { return };
        let out = match event {
            Event::Tick { start, .. } => {
                if start != self.starts[node] {
                    return;
                }
                let out = gossip.tick(now);
                self.push(now + TICK_MS, Event::Tick { node, start });
                out
            }
            Event::Arrival { datagram, .. } => gossip.hear(&Payload::decode(&datagram).unwrap(), now),
        };
        out.into_iter().for_each(|outgoing| self.send(node, outgoing));
    }

    fn send(&mut self, from: usize, (to, payload): Outgoing) {
        let datagram = payload.encode();
        let len = datagram.len() + AUTH_BYTES;
        self.sent = (self.sent.0 + 1, self.sent.1 + len as u64);
        self.longest = self.longest.max(len);
        let node = usize::from(to.port()) - 1000;
        if let Some((_, got)) = self.watched.as_mut().filter(|(watched, _)| *watched == node) {
            *got += 1;
        }
        let node = (self.receiver)(from, node);
        if self.chance.below(1000) >= self.loss && node < self.nodes.len() && !(self.cut)(from, node) {
            let at = self.now + 1 + self.chance.below(MAX_DELAY_MS) as u64;
            self.push(at, Event::Arrival { node, datagram });
        }
    }

    /// The datagrams that are under way.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = Vec<u8>> {
        self.events.iter().filter_map(|Reverse((_, _, event))| match event {
            Event::Arrival { datagram, .. } => Some(datagram.clone()),
            Event::Tick { .. } => None,
        })
    }

    /// The state of a node, as another one sees it.
    pub(super) fn seen(&self, by: usize, of: usize) -> NodeState {
        let table = &self.nodes[by].as_ref().unwrap().table;
        let number = table.number(node_key(&peer(of, 0).name));
        number.map_or(NodeState::Gone, |n| table.standing(table.get(n), self.now))
    }

    /// The nodes that run.
    pub(super) fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|n| self.nodes[*n].is_some()).collect()
    }

    /// How many of the other running nodes see a node in a state.
    pub(super) fn count_seen(&self, of: usize, state: NodeState) -> usize {
        self.running().into_iter().filter(|by| *by != of && self.seen(*by, of) == state).count()
    }

    /// Whether each running node sees all others of them as up.
    pub(super) fn all_up(&self) -> bool {
        let running = self.running();
        running.iter().all(|n| self.nodes[*n].as_ref().unwrap().table.alive().len() + 1 == running.len())
    }

    /// Runs until something holds, looking each `step` milliseconds. Returns how long that took, at
    /// most `limit`.
    pub(super) fn until(&mut self, step: u64, limit: u64, holds: impl Fn(&Self) -> bool) -> u64 {
        let began = self.now;
        while self.now < began + limit && !holds(self) {
            self.run(step);
        }
        self.now - began
    }
}
