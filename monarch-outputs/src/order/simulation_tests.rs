//! Nodes with skewed clocks over a network that loses, delays, reorders and cuts, and agents that
//! are killed at any point: whatever call returned before another began is published first, and
//! until then the other nodes know that its node has something to publish.
//!
//! That covers every job: ranks can only tell each other of calls that have returned.

use super::{Answer, Ask, NodeId, Order, Settled};
use crate::plan::Place;

const STEP_NS: u64 = 1_000_000;
const CHAOS_STEPS: u64 = 1500;
const MAX_STEPS: u64 = 20_000;
const GIVE_UP_STEPS: u64 = 150;
const MAX_ENTRIES: usize = 12;

/// A generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// An entry of a node's journal.
struct Written {
    /// How many entries of each node had returned when this one was begun.
    after: Vec<usize>,
    begun: u64,
    without: Vec<NodeId>,
    /// The life of the agent of each node, and its news, when this entry was begun.
    news: Vec<(usize, u64)>,
}

/// A node: its agent, what is on its disk, and the process that writes.
struct Node {
    agent: Option<Order>,
    restarts_at: u64,
    clock: u64,
    skew_ns: u64,
    journal: Vec<Written>,
    log: Vec<Settled>,
    returned: usize,
    published: usize,
    visible: usize,
    publishing_until: Option<u64>,
    read: usize,
    life: usize,
}

fn place(seq: u64) -> Place {
    Place { seq, sub: 0 }
}

enum Message {
    Ask(Ask),
    Answer(Answer),
}

struct Sent {
    arrives: u64,
    from: usize,
    to: usize,
    message: Message,
}

/// What a run has met.
#[derive(Default)]
struct Seen {
    given_up: usize,
    held: usize,
    unordered: usize,
    kills: usize,
    known: usize,
}

struct World {
    random: Random,
    step: u64,
    nodes: Vec<Node>,
    network: Vec<Sent>,
    cut_until: Vec<Vec<u64>>,
    seen: Seen,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let count = 2 + random.below(3) as usize;
        let ids: Vec<NodeId> = (0..count as u64).collect();
        let node = |id: usize, skew_ns| Node {
            agent: Some(Order::new(id as u64, 0, 0, &ids)),
            restarts_at: 0,
            clock: 0,
            skew_ns,
            journal: Vec::new(),
            log: Vec::new(),
            returned: 0,
            published: 0,
            visible: 0,
            publishing_until: None,
            read: 0,
            life: 0,
        };
        let nodes = (0..count).map(|id| node(id, random.below(5000) * STEP_NS)).collect();
        let (network, cut_until) = (Vec::new(), vec![vec![0; count]; count]);
        Self { random, step: 0, nodes, network, cut_until, seen: Seen::default() }
    }

    fn is_chaos(&self) -> bool {
        self.step < CHAOS_STEPS
    }

    fn now_ns(&self) -> u64 {
        self.step * STEP_NS
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let is_cut = self.step < self.cut_until[from][to];
        if is_cut || (self.is_chaos() && self.random.is_one_in(8)) {
            return;
        }
        let arrives = self.step + 1 + self.random.below(20);
        self.network.push(Sent { arrives, from, to, message });
    }

    fn deliver(&mut self) {
        let (arrived, left) = std::mem::take(&mut self.network).into_iter().partition(|sent| sent.arrives <= self.step);
        self.network = left;
        for Sent { from, to, message, .. } in arrived {
            if matches!(message, Message::Ask(_)) {
                self.read(to);
            }
            let node = &mut self.nodes[to];
            let Some(agent) = &mut node.agent else { continue };
            match message {
                Message::Ask(ask) => {
                    let answer = agent.answer(from as u64, ask);
                    node.clock = node.clock.max(agent.clock()); // Before the answer leaves.
                    self.send(to, from, Message::Answer(answer));
                }
                Message::Answer(answer) => agent.answered(from as u64, answer),
            }
        }
    }

    /// The process of the node begins a call, or its call returns.
    fn run_process(&mut self, id: usize) {
        let (is_chaos, step) = (self.is_chaos(), self.step);
        let returned: Vec<usize> = self.nodes.iter().map(|node| node.returned).collect();
        let news_of = |node: &Node| (node.life, node.agent.as_ref().map_or(0, Order::news));
        let news: Vec<(usize, u64)> = self.nodes.iter().map(news_of).collect();
        let node = &mut self.nodes[id];
        if node.returned < node.journal.len() {
            let settled = node.log.last().map_or(0, |settled| settled.up_to.seq as usize);
            // Without an agent the call does not wait for ever.
            let is_left = node.agent.is_none() && step >= node.journal[node.returned].begun + GIVE_UP_STEPS;
            node.returned += usize::from(settled > node.returned || is_left);
            return;
        }
        if !is_chaos || node.journal.len() == MAX_ENTRIES || !self.random.is_one_in(30) {
            return;
        }
        node.journal.push(Written { after: returned, begun: step, without: Vec::new(), news });
    }

    /// The agent reads what was appended.
    fn read(&mut self, id: usize) {
        let now_ns = self.now_ns();
        let node = &mut self.nodes[id];
        let Some(agent) = &mut node.agent else { return };
        for seq in node.read + 1..=node.journal.len() {
            agent.append(place(seq as u64), now_ns + node.skew_ns, None);
        }
        node.read = node.journal.len();
    }

    fn log(&mut self, id: usize, settled: &Settled) {
        let node = &mut self.nodes[id];
        let keyed = node.log.last().map_or(0, |last| last.up_to.seq as usize);
        for written in &mut node.journal[keyed..settled.up_to.seq as usize] {
            written.without.clone_from(&settled.without);
        }
        self.seen.given_up += usize::from(!settled.without.is_empty());
        node.log.push(settled.clone());
    }

    /// A record becomes visible on the PFS: all that had returned before it has to be there.
    fn show(&mut self, id: usize) {
        let seq = self.nodes[id].published;
        if seq < self.nodes[id].visible {
            return; // Once more, after a kill.
        }
        let written = &self.nodes[id].journal[seq];
        for (other, &count) in written.after.iter().enumerate().filter(|&(other, _)| other != id) {
            for earlier in self.nodes[other].visible..count {
                let is_unknown = written.without.contains(&(other as u64))
                    && self.nodes[other].journal[earlier].without.contains(&(id as u64));
                assert!(is_unknown, "{id}:{seq} was published before {other}:{earlier}");
                self.seen.unordered += 1;
            }
        }
        self.nodes[id].visible = seq + 1;
    }

    fn run_agent(&mut self, id: usize) {
        let (now_ns, step) = (self.now_ns(), self.step);
        if self.random.is_one_in(3) {
            self.read(id);
        }
        let Some(agent) = &mut self.nodes[id].agent else { return };
        agent.begin_round(now_ns + GIVE_UP_STEPS * STEP_NS);
        if let Some(settled) = agent.outcome(now_ns) {
            self.log(id, &settled);
            if self.is_chaos() && self.random.is_one_in(20) {
                return self.kill(id);
            }
            if let Some(agent) = &mut self.nodes[id].agent {
                agent.settle(&settled);
            }
        }
        self.publish(id);
        let node = &mut self.nodes[id];
        let Some(agent) = &node.agent else { return };
        node.clock = node.clock.max(agent.clock());
        if step % 10 == id as u64 {
            let peers = 0..self.cut_until.len();
            let asks: Vec<_> = peers.filter_map(|to| Some((to, agent.ask(to as u64)?))).collect();
            for (to, ask) in asks {
                if let Some(agent) = &mut self.nodes[id].agent {
                    agent.asked(to as u64);
                }
                self.send(id, to, Message::Ask(ask));
            }
        }
    }

    fn publish(&mut self, id: usize) {
        let step = self.step;
        let Some(agent) = &self.nodes[id].agent else { return };
        self.seen.held += usize::from(!agent.holders().is_empty());
        let may_begin = agent.may_publish(place(self.nodes[id].published as u64 + 1));
        match self.nodes[id].publishing_until {
            Some(until) if until <= step => {
                self.show(id);
                let node = &mut self.nodes[id];
                node.published += 1;
                node.publishing_until = None;
                if let Some(agent) = &mut node.agent {
                    agent.done_before(place(node.published as u64 + 1));
                }
            }
            None if may_begin => {
                self.nodes[id].publishing_until = Some(step + self.random.below(100));
            }
            _ => {}
        }
    }

    fn kill(&mut self, id: usize) {
        self.seen.kills += 1;
        if self.nodes[id].publishing_until.take().is_some() && self.random.is_one_in(2) {
            self.show(id); // Renamed, and not logged.
        }
        let node = &mut self.nodes[id];
        node.clock = node.clock.max(node.agent.take().map_or(0, |agent| agent.clock()));
        node.restarts_at = self.step + 1 + self.random.below(2 * GIVE_UP_STEPS);
    }

    fn restart(&mut self, id: usize) {
        let ids: Vec<NodeId> = (0..self.nodes.len() as u64).collect();
        let (node, now_ns) = (&self.nodes[id], self.now_ns());
        let last_key = node.log.last().map_or(0, |settled| settled.key);
        let mut agent = Order::new(id as u64, node.clock, last_key, &ids);
        for at in node.published..node.journal.len() {
            let seq = at as u64 + 1;
            let settled = node.log.iter().find(|settled| seq <= settled.up_to.seq);
            agent.append(place(seq), now_ns + node.skew_ns, settled.map(|settled| settled.key));
        }
        if let Some(settled) = agent.give_up_all() {
            self.log(id, &settled);
            agent.settle(&settled);
        }
        self.nodes[id].read = self.nodes[id].journal.len();
        self.nodes[id].agent = Some(agent);
        self.nodes[id].life += 1;
    }

    fn disturb(&mut self) {
        let count = self.nodes.len() as u64;
        if self.random.is_one_in(150) {
            let (from, to) = (self.random.below(count) as usize, self.random.below(count) as usize);
            let until = self.step + self.random.below(3 * GIVE_UP_STEPS);
            self.cut_until[from][to] = until;
            if self.random.is_one_in(2) {
                self.cut_until[to][from] = until;
            }
        }
        if self.random.is_one_in(400) {
            let id = self.random.below(count) as usize;
            if self.nodes[id].agent.is_some() {
                self.kill(id);
            }
        }
    }

    /// Where a call has returned that is not published, the other nodes know that its node has
    /// something, unless it was given up.
    fn look_for_readers(&mut self) {
        for (id, node) in self.nodes.iter().enumerate() {
            let keyed = node.log.last().map_or(0, |settled| settled.up_to.seq as usize);
            for written in &node.journal[node.visible..node.returned.min(keyed).max(node.visible)] {
                for (other, reader) in self.nodes.iter().enumerate().filter(|&(other, _)| other != id) {
                    let Some(agent) = &reader.agent else { continue };
                    if !written.without.contains(&(other as u64)) {
                        assert!(agent.holding().any(|holder| holder == id as u64), "{other} takes {id} for idle");
                        // (A process forgets what it remembers when its agent is started again.)
                        let (life, then) = written.news[other];
                        assert!(life != reader.life || agent.news() > then, "{other} has no news of {id}");
                        self.seen.known += 1;
                    }
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        let is_done = |node: &Node| node.published == node.journal.len() && node.returned == node.journal.len();
        !self.is_chaos() && self.nodes.iter().all(is_done)
    }

    fn run(mut self) -> Seen {
        while !self.is_done() {
            self.step += 1;
            assert!(self.step < MAX_STEPS, "nodes wait for each other");
            if self.is_chaos() {
                self.disturb();
            }
            self.deliver();
            for id in 0..self.nodes.len() {
                if self.nodes[id].agent.is_none() && self.nodes[id].restarts_at <= self.step {
                    self.restart(id);
                }
                self.run_process(id);
                self.run_agent(id);
            }
            self.look_for_readers();
        }
        self.seen
    }
}

#[test]
fn what_returned_before_a_call_began_is_published_before_it() {
    let mut seen = Seen::default();
    for seed in 1..=2000 {
        let run = World::new(seed).run();
        seen.given_up += run.given_up;
        seen.held += run.held;
        seen.unordered += run.unordered;
        seen.kills += run.kills;
        seen.known += run.known;
    }
    let Seen { given_up, held, unordered, kills, known } = seen;
    println!("given up {given_up}, held {held} steps, unordered {unordered}, killed {kills}, known {known}");
    assert!(given_up > 100 && held > 1000 && kills > 100 && known > 1000, "too quiet a network");
}
