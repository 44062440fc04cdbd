//! One simulation: readers, agents and the PFS on one clock.
//!
//! A loader process reads its batch file by file. An open asks its node's agent, which answers at
//! once; then the process reads a copy, waits for one, or reads the PFS itself. Reads of copies
//! queue at the tier of the node, and so do writes of copies, for which no reader waits: a copy is
//! there as soon as its last byte and the agent's check are. When the last rank has finished,
//! copies under way still come in, so that bytes add up.

use super::clock::{Clock, Happens};
use super::loader::{Rank, Worker};
use super::model::{Model, Pfs, TierModel, Time, nanos, takes};
use super::node::{Answer, Node, Open};
use super::outcome::{EpochFigures, Outcome};
use super::prefetcher::Prefetcher;
use super::setup::{Setup, UnknownPolicy};
use super::transfer::{Destination, Errand, Transfer};
use super::workload::{Order, Workload};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Events between two reports.
const EVENTS_PER_REPORT: u64 = 1 << 16;

/// A simulation while it runs. Fields: 18, because every event may change any of them.
pub(super) struct Run<'a> {
    work: &'a Workload,
    model: &'a Model,
    compute: Option<Time>,
    now: Time,
    clock: Clock,
    pfs: Pfs<'a>,
    nodes: Vec<Node>,
    /// By node.
    prefetchers: Vec<Prefetcher>,
    ranks: Vec<Rank>,
    workers: Vec<Worker>,
    transfers: Vec<Transfer>,
    unused: Vec<u32>,
    epochs: Vec<EpochFigures>,
    /// When the last rank finished, by epoch.
    ends: Vec<Time>,
    /// Orders that ranks still follow.
    orders: Vec<Weak<Order>>,
    barrier: Barrier,
    /// Ranks that have finished all epochs, or (where ranks wait for each other) this one.
    finished_ranks: usize,
    over: bool,
}

/// Ranks that have computed and wait for the others.
#[derive(Debug, Default)]
struct Barrier {
    active: usize,
    arrived: usize,
    /// Sum of the times at which they arrived.
    arrival_times: u128,
}

impl<'a> Run<'a> {
    pub(super) fn new(work: &'a Workload, setup: &Setup<'a>) -> Result<Self, UnknownPolicy> {
        let (nodes, per_node) = (setup.nodes, work.loader.ranks);
        let ranks: Vec<Rank> = (0..nodes * per_node).map(|rank| Rank::new(rank / per_node)).collect();
        let processes = work.loader.workers.max(1);
        let workers = (0..ranks.len() as u32).flat_map(|rank| (0..processes).map(move |slot| Worker::new(rank, slot)));
        let node = |number: u32| {
            let policy = crate::by_name(setup.policy, setup.seed.wrapping_add(u64::from(number)));
            let policy = policy.ok_or_else(|| UnknownPolicy(setup.policy.to_owned()))?;
            Ok(Node::new(policy, setup.capacities, work, setup.hints))
        };
        let prefetcher = |_| Prefetcher::new(setup.prefetch, setup.model.inflight, per_node);
        let epochs = work.epochs() as usize;
        Ok(Self {
            work,
            model: setup.model,
            compute: setup.model.compute.map(nanos),
            now: 0,
            clock: Clock::default(),
            pfs: Pfs::new(setup.model, nodes as usize),
            nodes: (0..nodes).map(node).collect::<Result<_, _>>()?,
            prefetchers: (0..nodes).map(prefetcher).collect(),
            workers: workers.collect(),
            ranks,
            transfers: Vec::new(),
            unused: Vec::new(),
            epochs: vec![EpochFigures::default(); epochs],
            ends: vec![0; epochs],
            orders: std::iter::repeat_with(Weak::new).take(epochs).collect(),
            barrier: Barrier::default(),
            finished_ranks: 0,
            over: false,
        })
    }

    /// Runs it; `watch` is called with numbers of accesses now and then.
    pub(super) fn run(mut self, watch: &mut dyn FnMut(u64)) -> Outcome {
        let all: Vec<usize> = (0..self.ranks.len()).collect();
        self.begin(&all, 1);
        let mut events = 0;
        let mut reported = 0;
        while let Some((now, what)) = self.clock.next() {
            self.now = now;
            match what {
                Happens::Answered(transfer) => self.answered(transfer),
                Happens::Read(worker) => self.read(worker),
                Happens::Computed(rank) => self.computed(rank),
            }
            events += 1;
            if events % EVENTS_PER_REPORT == 0 {
                let accesses = self.epochs.iter().map(|e| e.accesses).sum::<u64>();
                watch(accesses - reported);
                reported = accesses;
            }
        }
        self.outcome(events)
    }

    fn outcome(mut self, events: u64) -> Outcome {
        let mut before = 0;
        for (figures, end) in self.epochs.iter_mut().zip(&self.ends) {
            // (Where ranks do not wait for each other, epochs overlap: each lasts from the end of
            // the one before.)
            figures.time = Duration::from_nanos(end.saturating_sub(before));
            before = *end;
        }
        let mut most_used = vec![0; self.nodes.first().map_or(0, |n| n.disks.len())];
        for node in &self.nodes {
            most_used.iter_mut().zip(node.most_used()).for_each(|(most, used)| *most = used.max(*most));
        }
        Outcome { epochs: self.epochs, most_used, events }
    }

    /// Duration of an epoch when no rank waits.
    fn ideal(&self, order: &Order) -> Duration {
        let of = |rank: &std::ops::Range<usize>| match self.compute {
            Some(compute) => compute * rank.len().div_ceil(self.work.loader.batch as usize) as u64,
            None => order.gaps.get(rank.clone()).map_or(0, |gaps| gaps.iter().sum()),
        };
        Duration::from_nanos(order.ranks.iter().map(of).max().unwrap_or(0))
    }

    fn order(&mut self, epoch: u32) -> Rc<Order> {
        let at = epoch as usize - 1;
        self.orders[at].upgrade().unwrap_or_else(|| {
            let order = Rc::new(self.work.order(self.nodes.len() as u32, epoch));
            self.orders[at] = Rc::downgrade(&order);
            self.epochs[at].ideal = self.ideal(&order);
            order
        })
    }

    /// Ranks begin an epoch, or have finished the last one.
    fn begin(&mut self, ranks: &[usize], epoch: u32) {
        if epoch > self.work.epochs() {
            self.finished_ranks += ranks.len();
            self.over = self.finished_ranks == self.ranks.len();
            return;
        }
        let order = self.order(epoch);
        for rank in ranks {
            self.ranks[*rank].begin(*rank, &order, epoch, &self.work.loader);
        }
        self.tell_nodes(ranks, epoch, &order);
        self.barrier.active = self.ranks.iter().filter(|r| r.steps > 0).count();
        for rank in ranks {
            for worker in self.processes(*rank) {
                self.workers[worker].begin();
                self.start(worker as u32);
            }
        }
        for rank in ranks {
            // The pause recorded before the first access.
            let first = if self.compute.is_none() { self.ranks[*rank].gap() } else { None };
            match first.filter(|gap| *gap > 0) {
                Some(gap) => self.compute(*rank as u32, gap),
                None => self.ready(*rank as u32),
            }
        }
        // Demands go first.
        for node in
            ranks.chunk_by(|a, b| self.node_of(*a) == self.node_of(*b)).map(|r| self.node_of(r[0])).collect::<Vec<_>>()
        {
            self.fetch_ahead(node as u32);
        }
    }

    fn node_of(&self, rank: usize) -> usize {
        rank / self.work.loader.ranks as usize
    }

    fn tell_nodes(&mut self, ranks: &[usize], epoch: u32, order: &Order) {
        let per_node = self.work.loader.ranks as usize;
        for together in ranks.chunk_by(|a, b| a / per_node == b / per_node) {
            let number = together[0] / per_node;
            let first = number * per_node;
            let node = &mut self.nodes[number];
            node.begin(epoch);
            let ranks = together[0] - first..together[together.len() - 1] - first + 1;
            if node.announce(order, first, ranks.clone()) {
                self.prefetchers[number].restart(ranks);
            }
        }
    }

    fn processes(&self, rank: usize) -> std::ops::Range<usize> {
        let each = self.work.loader.workers.max(1) as usize;
        rank * each..(rank + 1) * each
    }

    /// A rank wants its next batch.
    fn ready(&mut self, rank: u32) {
        let processes = self.work.loader.workers.max(1);
        let r = &mut self.ranks[rank as usize];
        if r.taken == r.steps {
            return self.finished(rank);
        }
        let worker = rank * processes + r.taken % processes;
        r.waiting.get_or_insert(self.now);
        if !self.workers[worker as usize].has_made(r.taken, processes) {
            return self.start(worker);
        }
        let waited = r.waiting.take().map_or(0, |since| self.now - since);
        r.taken += 1;
        let (epoch, gap) = (r.epoch, r.gap());
        self.epochs[epoch as usize - 1].stall += Duration::from_nanos(waited);
        self.start(worker);
        self.compute(rank, self.compute.or(gap).unwrap_or(0));
    }

    fn compute(&mut self, rank: u32, time: Time) {
        let epoch = self.ranks[rank as usize].epoch;
        self.epochs[epoch as usize - 1].compute += Duration::from_nanos(time);
        self.clock.at(self.now + time, Happens::Computed(rank));
    }

    /// A rank has computed: it continues, or waits for the other ranks.
    fn computed(&mut self, rank: u32) {
        if !self.model.sync || self.ranks[rank as usize].taken == 0 {
            return self.ready(rank);
        }
        self.barrier.arrived += 1;
        self.barrier.arrival_times += u128::from(self.now);
        if self.barrier.arrived < self.barrier.active {
            return;
        }
        let waited = u128::from(self.now) * self.barrier.arrived as u128 - self.barrier.arrival_times;
        let epoch = self.ranks[rank as usize].epoch as usize;
        self.epochs[epoch - 1].sync_wait += Duration::from_nanos(u64::try_from(waited).unwrap_or(u64::MAX));
        self.release();
    }

    /// All ranks have arrived.
    fn release(&mut self) {
        let step = self.ranks.iter().map(|r| r.taken).max().unwrap_or(0);
        let there: Vec<u32> = (0..self.ranks.len() as u32).filter(|r| self.ranks[*r as usize].taken == step).collect();
        self.barrier = Barrier::default();
        self.barrier.active = self.ranks.iter().filter(|r| r.steps > step).count();
        there.into_iter().for_each(|rank| self.ready(rank));
    }

    /// A rank has finished its epoch.
    fn finished(&mut self, rank: u32) {
        let epoch = self.ranks[rank as usize].epoch;
        self.ends[epoch as usize - 1] = self.now;
        if !self.model.sync {
            return self.begin(&[rank as usize], epoch + 1);
        }
        self.finished_ranks += 1;
        if self.finished_ranks == self.ranks.len() {
            self.finished_ranks = 0;
            let all: Vec<usize> = (0..self.ranks.len()).collect();
            self.begin(&all, epoch + 1);
        }
    }

    /// A process begins its next batch if it may.
    fn start(&mut self, worker: u32) {
        let w = &mut self.workers[worker as usize];
        if w.start(&self.ranks[w.rank as usize], &self.work.loader) {
            self.open(worker);
        }
    }

    /// A process opens its next file.
    fn open(&mut self, worker: u32) {
        let w = &self.workers[worker as usize];
        let rank = &self.ranks[w.rank as usize];
        let (node, file) = (rank.node, w.file(rank));
        let size = self.work.size(file);
        let on_node = self.workers.len() / self.nodes.len();
        let open = Open { file, size, worker, stream: (worker as usize % on_node) as u16, at: self.now };
        let epoch = rank.epoch;
        let counts = &mut self.epochs[epoch as usize - 1];
        match self.nodes[node as usize].open(open, self.work, counts) {
            Answer::Tier(tier) => self.read_copy(worker, node, tier, size),
            Answer::Wait => {}
            Answer::Fetch => self.transfer(Errand { file, node, to: Destination::Tier, epoch }),
            Answer::Pfs => self.transfer(Errand { file, node, to: Destination::Worker(worker), epoch }),
        }
        self.fetch_ahead(node);
    }

    fn tier(&self, at: usize) -> TierModel {
        let tiers = &self.model.tiers;
        tiers
            .get(at)
            .or(tiers.last())
            .copied()
            .unwrap_or(TierModel { latency: Duration::ZERO, bandwidth: f64::INFINITY })
    }

    fn read_copy(&mut self, worker: u32, node: u32, tier: usize, size: u64) {
        let model = self.tier(tier);
        let disk = &mut self.nodes[node as usize].disks[tier];
        let (_, read) = disk.serve(self.now, takes(size, model.bandwidth));
        self.clock.at(read + nanos(model.latency), Happens::Read(worker));
    }

    /// Starts a transfer from the PFS.
    fn transfer(&mut self, what: Errand) {
        let (calls, io) = match what.to {
            Destination::Tier => (self.model.agent_calls, self.model.agent_io),
            Destination::Worker(_) => (self.model.app_calls, self.model.app_io),
        };
        let transfer = Transfer::new(what, self.work.size(what.file), calls, io, self.now);
        let at = match self.unused.pop() {
            Some(at) => {
                self.transfers[at as usize] = transfer;
                at
            }
            None => {
                self.transfers.push(transfer);
                self.transfers.len() as u32 - 1
            }
        };
        self.step(at);
    }

    /// The next call of a transfer, or its end.
    fn step(&mut self, at: u32) {
        let transfer = &mut self.transfers[at as usize];
        let counts = &mut self.epochs[transfer.epoch as usize - 1];
        match transfer.step(&mut self.pfs, self.now, counts) {
            Some(answered) => self.clock.at(answered, Happens::Answered(at)),
            // The transfer has no calls at all: completed later, lest such files pile up on the
            // stack.
            None if transfer.opens => self.clock.at(self.now, Happens::Answered(at)),
            None => self.complete(at),
        }
    }

    fn answered(&mut self, at: u32) {
        let transfer = &mut self.transfers[at as usize];
        if transfer.opens {
            transfer.opens = false;
            if transfer.to == Destination::Tier {
                self.nodes[transfer.node as usize].pace.note(self.now - transfer.started);
            }
        }
        self.step(at);
    }

    fn complete(&mut self, at: u32) {
        let transfer = self.transfers[at as usize];
        self.unused.push(at);
        match transfer.to {
            Destination::Worker(worker) => self.read(worker),
            Destination::Tier => self.arrived(&transfer),
        }
    }

    /// A copy is complete: it is written, and the readers that waited read it.
    fn arrived(&mut self, transfer: &Transfer) {
        let size = self.work.size(transfer.file);
        let node = &mut self.nodes[transfer.node as usize];
        let (waited, tier) = node.arrived(transfer.file, size, self.now - transfer.started);
        let writing = takes(size, self.tier(tier).bandwidth);
        self.nodes[transfer.node as usize].disks[tier].serve(self.now, writing);
        for open in waited {
            self.read_copy(open.worker, transfer.node, tier, size);
        }
        self.fetch_ahead(transfer.node);
    }

    fn fetch_ahead(&mut self, node: u32) {
        while !self.over {
            let n = &mut self.nodes[node as usize];
            let epoch = n.epoch;
            let counts = &mut self.epochs[epoch as usize - 1];
            let Some(file) = self.prefetchers[node as usize].next(n, self.model.backoff, self.work, counts) else {
                return;
            };
            self.transfer(Errand { file, node, to: Destination::Tier, epoch });
        }
    }

    /// A process has read its file: it opens the next one, or hands over the batch.
    fn read(&mut self, worker: u32) {
        let w = &mut self.workers[worker as usize];
        if !w.read() {
            return self.open(worker);
        }
        let rank = w.rank;
        let processes = self.work.loader.workers.max(1);
        let r = &self.ranks[rank as usize];
        let awaited = r.waiting.is_some() && worker == rank * processes + r.taken % processes;
        if awaited {
            self.ready(rank);
        } else {
            self.start(worker);
        }
    }
}
