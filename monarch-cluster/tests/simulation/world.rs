//! The world of the simulated nodes: time, a network with faults, the PFS, and what must hold at
//! the end.

use crate::events::{Event, Message, Plan};
use crate::node::Node;
use monarch_cluster::directory::MAX_HOPS;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds that a read takes at most: two peers that do not answer, a join, a fetch that is
/// waited for and given up.
const MAX_READ_MS: u64 = 12_000;

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: u64,
    heap: std::collections::BinaryHeap<Reverse<(u64, u64)>>,
    waiting: BTreeMap<u64, (usize, Event)>,
    made: u64,
    chance: u64,
    pub(crate) nodes: Vec<Node>,
    cut: BTreeSet<(usize, usize)>,
    pub(crate) faulty: bool,
    /// Reads of the PFS by file.
    pub(crate) pfs: Vec<u32>,
    /// The version that the PFS has; the index names version 0.
    pub(crate) version: Vec<u32>,
    /// Files of which a copy was dropped: their answerer may remember that copy and not another.
    pub(crate) evicted: BTreeSet<u32>,
    reads: BTreeMap<u64, (usize, u64, u32, u64)>,
    pub(crate) done: u64,
    pub(crate) slowest: u64,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let mut world = Self {
            plan,
            now: 0,
            heap: std::collections::BinaryHeap::new(),
            waiting: BTreeMap::new(),
            made: 0,
            chance: plan.seed,
            nodes: Vec::new(),
            cut: BTreeSet::new(),
            faulty: false,
            pfs: vec![0; plan.files as usize],
            version: vec![0; plan.files as usize],
            evicted: BTreeSet::new(),
            reads: BTreeMap::new(),
            done: 0,
            slowest: 0,
        };
        world.nodes = (0..plan.nodes).map(|me| Node::new(me, &plan, world.random())).collect();
        world
    }

    /// SplitMix64.
    pub(crate) fn random(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.chance ^ (self.chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.random() % n.max(1)
    }

    pub(crate) fn at(&mut self, after: u64, node: usize, event: Event) {
        self.made += 1;
        self.heap.push(Reverse((self.now + after, self.made)));
        self.waiting.insert(self.made, (node, event));
    }

    /// Sends a message; each copy takes its own time, so that messages overtake each other.
    #[expect(clippy::needless_pass_by_value, reason = "a message that was sent is gone")]
    pub(crate) fn send(&mut self, from: usize, to: usize, what: Message) {
        let life = self.nodes[from].life;
        if let Message::Get { hops, .. } = &what {
            assert!(*hops <= MAX_HOPS, "a request was redirected more often than is allowed");
        }
        let copies = if self.faulty && self.below(1000) < self.plan.double { 2 } else { 1 };
        for _ in 0..copies {
            let lost = self.faulty && self.below(1000) < self.plan.loss;
            if !lost && !self.cut.contains(&(from.min(to), from.max(to))) {
                let slow = if self.below(10) == 0 { 120 } else { 8 };
                let delay = 1 + self.below(slow);
                self.at(delay, to, Event::Arrive { from, life, what: what.clone() });
            }
        }
    }

    /// Runs events until `until`, or until none is left.
    pub(crate) fn run(&mut self, until: u64) {
        while let Some(Reverse((time, _))) = self.heap.peek().filter(|Reverse((time, _))| *time <= until) {
            self.now = *time;
            let Some(Reverse((_, n))) = self.heap.pop() else { break };
            if let Some((node, event)) = self.waiting.remove(&n) {
                self.happen(node, event);
            }
        }
        self.now = until;
    }

    fn happen(&mut self, node: usize, event: Event) {
        match event {
            Event::Heal => {
                self.faulty = false;
                self.cut.clear();
            }
            Event::Cut(a, b) => {
                self.cut.insert((a.min(b), a.max(b)));
            }
            Event::Change(file) => self.version[file as usize] = 1,
            event => self.step(node, event),
        }
    }

    /// A reader of the job begins.
    pub(crate) fn read_begins(&mut self, node: usize, file: u32) -> u64 {
        self.made += 1;
        self.reads.insert(self.made, (node, self.nodes[node].life, file, self.now));
        self.made
    }

    /// A reader has bytes: those of a copy must be the version of the index, those of the PFS are
    /// the version that the PFS has.
    pub(crate) fn read_ends(&mut self, read: u64, version: u32, from_pfs: bool) {
        let Some((_, _, file, began)) = self.reads.remove(&read) else { return };
        assert!(from_pfs || version == 0, "file {file}: a copy of a version that the index does not name was read");
        self.slowest = self.slowest.max(self.now - began);
        self.done += 1;
    }

    pub(crate) fn file_of(&self, read: u64) -> u32 {
        self.reads[&read].2
    }

    pub(crate) fn open(&self, read: u64) -> bool {
        self.reads.contains_key(&read)
    }

    /// Readers of a node that crashed end with it.
    pub(crate) fn crash_readers(&mut self, node: usize) {
        self.reads.retain(|_, (at, ..)| *at != node);
    }

    /// What must hold at the end of every run.
    pub(crate) fn check(&self) {
        assert!(self.reads.is_empty(), "reads that never ended: {:?}", self.reads);
        assert!(self.slowest <= MAX_READ_MS, "a read took {} ms", self.slowest);
    }
}
