//! Simulates nodes that read one large file of an owner at the same time, over links with one rate
//! each way that transfers share. The table and the slots of senders decide; time is counted in
//! steps.

use super::{Piece, RelayTable, Turn, Wanted};
use crate::node::send_slots::SlotTable;
use monarch_storage::sharing::FileRef;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(4);
/// Pieces that a node has under way, as a reader and a prefetcher together have.
const WINDOW: usize = 12;
/// Bytes of a piece.
const PIECE_BYTES: u64 = 4 << 20;
/// Steps that a link needs for a piece at 1 Gbit/s.
const PIECE_STEPS: f64 = 8.0;
/// Steps that a message takes: a receipt, or a request of which the asker just heard where to send
/// it.
const MESSAGE_STEPS: u32 = 1;
/// How long a silent peer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
const FILE: FileRef = FileRef { index: [1; 16], id: 7, fp: 9 };
/// The owner's number.
const OWNER: usize = 0;

/// A request for a piece that is under way.
#[derive(Clone, Debug)]
struct Request {
    /// The node that sends it; `None`: its turn has not come.
    from: Option<usize>,
    /// Its place at that node, and whether bytes are sent.
    slot: u64,
    sends: bool,
    /// When it arrives there, or is made again.
    arrives: u32,
    /// Part of the piece that is yet to come.
    left: f64,
    since: u32,
}

#[derive(Clone, Debug)]
struct Node {
    has: Vec<bool>,
    coming: BTreeMap<usize, Request>,
    /// Every piece before this one is there or was asked for.
    next: usize,
    start: u32,
    /// Rate of its link, 1 for the rate of most.
    link: f64,
    dies: u32,
    done: Option<u32>,
    sent: f64,
}

impl Node {
    fn new(has: bool, pieces: usize) -> Self {
        let (has, coming) = (vec![has; pieces], BTreeMap::new());
        Self { has, coming, next: 0, start: 0, link: 1.0, dies: u32::MAX, done: None, sent: 0.0 }
    }
}

struct World {
    nodes: Vec<Node>,
    pieces: usize,
    /// Steps that a link needs for a piece.
    piece_steps: f64,
    table: RelayTable,
    slots: Vec<SlotTable>,
    zero: Instant,
    now: u32,
    /// Receipts on their way: when they arrive, of which node, for which piece.
    receipts: VecDeque<(u32, usize, usize)>,
    failures: u32,
    /// Steps of the longest transfer.
    longest: u32,
    work: Work,
}

/// What the table has done.
#[derive(Debug, Default)]
struct Work {
    time: Duration,
    decisions: u64,
    turns: u64,
}

impl World {
    /// A file of `pieces`, and this number of nodes beside its owner.
    fn new(others: usize, pieces: usize) -> Self {
        let nodes: Vec<Node> = (0..=others).map(|n| Node::new(n == OWNER, pieces)).collect();
        let slots = nodes.iter().map(|_| SlotTable::default()).collect();
        let (table, zero, receipts) = (RelayTable::default(), Instant::now(), VecDeque::new());
        Self {
            nodes,
            pieces,
            piece_steps: PIECE_STEPS,
            table,
            slots,
            zero,
            now: 0,
            receipts,
            failures: 0,
            longest: 0,
            work: Work::default(),
        }
    }

    /// The same with links of so many Mbit/s.
    fn at_mbit(others: usize, pieces: usize, mbit: f64) -> Self {
        Self { piece_steps: PIECE_STEPS * 1000.0 / mbit, ..Self::new(others, pieces) }
    }

    fn time(&self) -> Instant {
        self.zero + STEP * self.now
    }

    fn piece(at: usize) -> Piece {
        (FILE, at as u64 * PIECE_BYTES)
    }

    fn is_up(&self, node: usize) -> bool {
        (self.nodes[node].start..self.nodes[node].dies).contains(&self.now)
    }

    /// Asks, or asks again: the owner answers when it is this node's turn.
    fn turn(&mut self, asker: usize, at: usize) {
        // (Peers notice that a node is dead only when they ask it.)
        let wanted = Wanted { piece: Self::piece(at), bytes: PIECE_BYTES, is_at_hand: true };
        let mut until = self.time();
        let began = Instant::now();
        let turn = self.table.turn(wanted, asker as u16, self.time(), |_| true);
        self.work.time += began.elapsed();
        self.work.turns += 1;
        let from = match turn {
            Turn::Wait(at) => {
                until = at;
                None
            }
            Turn::Here => Some(OWNER),
            Turn::Relay(relay) => Some(usize::from(relay)),
        };
        assert_ne!(from, Some(asker));
        assert!(from.is_none_or(|from| self.nodes[from].has[at]), "a relay that does not have the piece");
        self.asks(asker, at, from);
        let now = self.time();
        if let Some(request) = self.nodes[asker].coming.get_mut(&at).filter(|_| from.is_none()) {
            request.arrives = self.now + (until.duration_since(now).as_micros() / STEP.as_micros()) as u32;
        }
    }

    /// Has the table decide, and those ask again whose turn has come.
    fn decide(&mut self) {
        let began = Instant::now();
        self.table.decide(&FILE, self.time(), |_| true);
        self.work.time += began.elapsed();
        self.work.decisions += 1;
        for ((_, start), asker) in self.table.decided() {
            let (asker, at) = (usize::from(asker), (start / PIECE_BYTES) as usize);
            // (The owner does not know whether the asker is there.)
            if self.nodes[asker].coming.get(&at).is_some_and(|r| r.from.is_none()) {
                self.turn(asker, at);
            }
        }
    }

    /// Asks a node for a piece.
    fn asks(&mut self, asker: usize, at: usize, from: Option<usize>) {
        let slot = from.map_or(0, |from| self.slots[from].enqueue());
        let arrives = self.now + if from.is_some_and(|from| from != OWNER) { MESSAGE_STEPS } else { 0 };
        let request = Request { from, slot, arrives, sends: false, left: 1.0, since: self.now };
        self.nodes[asker].coming.insert(at, request);
    }

    /// Has senders begin whose turn it is. (They do not know whether their askers are there.)
    fn begin_all(&mut self) {
        for asker in 0..self.nodes.len() {
            for (at, request) in self.nodes[asker].coming.clone() {
                let is_there = !request.sends && request.arrives <= self.now;
                if let Some(from) = request.from.filter(|from| is_there && self.is_up(*from)) {
                    self.begin(asker, at, from, request.slot);
                }
            }
        }
    }

    /// Has the sender of a request begin, if it is its turn there.
    fn begin(&mut self, asker: usize, at: usize, from: usize, slot: u64) {
        let now = self.time();
        if self.slots[from].begin(slot, now).is_err() {
            return;
        }
        if from == OWNER {
            self.table.begins(Self::piece(at), asker as u16, self.time());
        }
        if let Some(request) = self.nodes[asker].coming.get_mut(&at) {
            (request.sends, request.since) = (true, self.now);
        }
    }

    /// What becomes of requests without a transfer: turns come, and silent relays are given up.
    fn answer(&mut self, asker: usize) {
        for (at, request) in self.nodes[asker].coming.clone() {
            let is_late = STEP * (self.now - request.since) > PATIENCE;
            match request.from {
                None if request.arrives <= self.now => self.turn(asker, at),
                None => {}
                Some(from) if !self.is_up(from) && is_late => {
                    self.failures += 1;
                    self.table.failed(Self::piece(at), asker as u16, self.time());
                    self.asks(asker, at, Some(OWNER));
                }
                Some(_) => {}
            }
        }
    }

    /// The transfers that are under way: sender, asker, piece.
    fn sending(&self) -> Vec<(usize, usize, usize)> {
        let of = |(asker, node): (usize, &Node)| -> Vec<(usize, usize, usize)> {
            let coming = node.coming.iter().filter(|(_, r)| r.sends && self.is_up(asker));
            let sent = coming.filter_map(|(at, r)| Some((r.from.filter(|from| self.is_up(*from))?, asker, *at)));
            sent.collect()
        };
        self.nodes.iter().enumerate().flat_map(of).collect()
    }

    /// Moves bytes for a step: the transfers of a link share it.
    fn transfer(&mut self) {
        let all = self.sending();
        let (mut out, mut into) = (vec![0.0; self.nodes.len()], vec![0.0; self.nodes.len()]);
        for (from, to, _) in &all {
            out[*from] += 1.0;
            into[*to] += 1.0;
        }
        for (from, to, at) in all {
            let rate = (self.nodes[from].link / out[from]).min(self.nodes[to].link / into[to]) / self.piece_steps;
            self.nodes[from].sent += rate;
            let node = &mut self.nodes[to];
            let Some(r) = node.coming.get_mut(&at) else { continue };
            r.left -= rate;
            if r.left <= 0.0 {
                self.longest = self.longest.max(self.now - r.since);
                let (slot, now) = (r.slot, self.zero + STEP * self.now);
                node.coming.remove(&at);
                node.has[at] = true;
                self.slots[from].end(slot, PIECE_BYTES, now);
                self.receipts.push_back((self.now + MESSAGE_STEPS, to, at));
                if from == OWNER {
                    self.table.ends(Self::piece(at), to as u16);
                }
            }
        }
        while let Some((_, node, at)) = self.receipts.pop_front_if(|(when, ..)| *when <= self.now) {
            let start = Self::piece(at).1;
            self.table.has(&FILE, &(start..start + 1), node as u16, self.time());
        }
    }

    /// Runs until every node that lives has the file.
    fn run(&mut self) {
        let reads = |w: &Self, n: usize| w.is_up(n) && w.nodes[n].done.is_none();
        while (1..self.nodes.len()).any(|n| self.nodes[n].done.is_none() && self.nodes[n].dies > self.now) {
            // (What has come or gone since is decided before others ask.)
            self.decide();
            for n in (1..self.nodes.len()).filter(|n| reads(self, *n)).collect::<Vec<_>>() {
                self.answer(n);
                while self.nodes[n].coming.len() < WINDOW && self.nodes[n].next < self.pieces {
                    let at = self.nodes[n].next;
                    self.nodes[n].next += 1;
                    self.turn(n, at);
                }
                if self.nodes[n].next == self.pieces && self.nodes[n].coming.is_empty() {
                    self.nodes[n].done = Some(self.now);
                }
            }
            self.decide();
            self.begin_all();
            self.transfer();
            self.now += 1;
            assert!(STEP * self.now < Duration::from_secs(3600), "it does not end");
        }
    }

    /// Time of a node from its start to the end, in units of the time that its link needs for the
    /// file.
    fn ratio(&self, node: usize) -> f64 {
        let n = &self.nodes[node];
        f64::from(n.done.unwrap() - n.start) / (self.pieces as f64 * self.piece_steps)
    }

    fn slowest(&self, nodes: impl Iterator<Item = usize>) -> f64 {
        nodes.map(|n| self.ratio(n)).fold(0.0, f64::max)
    }

    /// Bytes that a node sent, in sizes of the file.
    fn sent(&self, node: usize) -> f64 {
        self.nodes[node].sent / self.pieces as f64
    }

    fn most_sent(&self) -> f64 {
        (1..self.nodes.len()).map(|n| self.sent(n)).fold(0.0, f64::max)
    }
}

/// 2 GiB in pieces of 4 MiB.
const PIECES: usize = 512;

#[test]
fn sixteen_nodes_get_a_file_in_little_more_than_the_time_of_one() {
    let mut w = World::new(15, PIECES);
    w.run();
    let (owner, time) = (w.sent(OWNER), w.slowest(1..16));
    assert!(owner <= 1.05, "the owner sent {owner} files");
    assert!(time <= 1.2, "{time} times as long");
    assert!(w.most_sent() <= 1.1, "a relay sent {} files", w.most_sent());
    assert_eq!(w.failures, 0);
}

#[test]
fn nodes_that_start_one_after_the_other_take_no_longer() {
    for gap in [3, 25, 200] {
        let mut w = World::new(15, PIECES);
        (1..16).for_each(|n| w.nodes[n].start = n as u32 * gap);
        w.run();
        let (owner, time) = (w.sent(OWNER), w.slowest(1..16));
        assert!(owner <= 1.05, "the owner sent {owner} files");
        assert!(time <= 1.2, "{time} times as long");
    }
}

/// Those that get a piece from it go at its pace. That is a fraction of the time that the owner
/// alone would need, which sends the file 15 times.
#[test]
fn a_node_with_a_slow_link_holds_up_the_others_for_no_longer_than_it_takes_itself() {
    for (slow, link) in [(1, 0.1), (7, 0.1), (1, 0.3), (7, 0.3), (7, 0.5), (15, 0.1)] {
        let mut w = World::new(15, PIECES);
        w.nodes[slow].link = link;
        w.run();
        let (owner, time) = (w.sent(OWNER), w.slowest((1..16).filter(|n| *n != slow)));
        assert!(owner <= 2.0, "node {slow} at {link}: the owner sent {owner} files");
        assert!(time <= w.ratio(slow) && time <= 2.6, "node {slow} at {link}: {time} times as long");
    }
}

#[test]
fn a_node_that_falls_silent_costs_the_others_a_few_waits() {
    for dead in [1, 7, 15] {
        let mut w = World::new(15, PIECES);
        w.nodes[dead].dies = PIECES as u32 * PIECE_STEPS as u32 / 2;
        w.run();
        let (owner, time) = (w.sent(OWNER), w.slowest((1..16).filter(|n| *n != dead)));
        assert!(owner <= 1.1, "the owner sent {owner} files");
        assert!(time <= 1.3, "{time} times as long");
    }
}

#[test]
fn sixty_four_nodes_share_one_copy_from_the_owner() {
    let mut w = World::new(63, PIECES / 2);
    w.run();
    let (owner, time) = (w.sent(OWNER), w.slowest(1..64));
    assert!(owner <= 1.05, "the owner sent {owner} files");
    assert!(time <= 1.3, "{time} times as long");
}

/// With sixteen pieces of the owner under way at a time, each took longer than a silent peer is
/// waited for, was taken for stuck, and was sent again.
#[test]
fn pieces_over_slow_links_arrive_before_their_askers_give_up() {
    for (mbit, most) in [(500.0, 0.2), (200.0, 0.4), (100.0, 0.8), (50.0, 1.5)] {
        let mut w = World::at_mbit(15, 32, mbit);
        w.run();
        let (owner, time) = (w.sent(OWNER), w.slowest(1..16));
        let longest = STEP.as_secs_f64() * f64::from(w.longest);
        println!("{mbit} Mbit/s: owner {owner:.2}, time {time:.2}, longest {longest:.2} s, relay {:.2}", w.most_sent());
        assert!(owner <= 1.1, "{mbit} Mbit/s: the owner sent {owner} files");
        assert!(time <= 1.4, "{mbit} Mbit/s: {time} times as long");
        assert!(longest <= most, "{mbit} Mbit/s: a piece took {longest} s");
    }
}

/// As many as the table remembers for a piece, which looks at what has changed alone: with all
/// pieces and nodes looked at for each turn this took ten times as long.
#[test]
fn two_hundred_and_fifty_six_nodes_share_one_copy_from_the_owner() {
    let mut w = World::new(255, PIECES / 8);
    w.run();
    let (owner, time) = (w.sent(OWNER), w.slowest(1..=255));
    println!("{:?}", w.work);
    assert!(owner <= 1.05, "the owner sent {owner} files");
    assert!(time <= 1.4, "{time} times as long");
    assert!(w.most_sent() <= 1.3, "a relay sent {} files", w.most_sent());
}
