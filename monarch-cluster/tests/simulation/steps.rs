//! The steps of simulated nodes: reads, fetches, crashes. The decisions are the product's.

use crate::events::{Event, Message, Mutant, PEER_TIMEOUT_MS, Reply, file_key};
use crate::node::{Copy, Fetch, Node, Queued};
use crate::world::World;
use monarch_cluster::directory::members::ME;
use monarch_cluster::directory::{NodeState, Route, Search};
use std::collections::BTreeMap;

/// Milliseconds that a reader waits for a fetch that another reader began.
const STALL_MS: u64 = 5_000;
/// Milliseconds between two beats of a node.
const BEAT_MS: u64 = 250;

impl World {
    pub(crate) fn step(&mut self, n: usize, event: Event) {
        match event {
            Event::Start => self.start(n),
            Event::Arrive { from, life, what } => self.arrive(n, from, life, what),
            _ if !self.nodes[n].up => {}
            Event::Crash { warm } => self.crash(n, warm),
            Event::JoinOver(life) if self.nodes[n].life == life => self.act(n),
            Event::Tick(life) if self.nodes[n].life == life => self.tick(n),
            Event::Read(file) => {
                let read = self.read_begins(n, file);
                self.at(STALL_MS, n, Event::GiveUp(read));
                self.read(n, read, file);
            }
            Event::GiveUp(read) if self.open(read) && self.plan.mutant != Mutant::NeverGiveUp => self.read_pfs(read),
            Event::PfsDone(file, id) => self.pfs_done(n, file, id),
            Event::AskTimeout(file, ask) if self.plan.mutant != Mutant::NeverGiveUp => self.ask_failed(n, file, ask),
            Event::Evict(file) if matches!(self.nodes[n].copies.get(&file), Some(Copy::Resident)) => {
                self.nodes[n].copies.remove(&file);
                self.evicted.insert(file);
            }
            _ => {}
        }
    }

    fn start(&mut self, n: usize) {
        if self.nodes[n].up {
            return;
        }
        let life = self.now + 1;
        let plan = self.plan;
        self.nodes[n].born(life, &plan);
        for other in self.nodes[n].joining.clone() {
            self.send(n, other, Message::Join);
        }
        self.at(1000, n, Event::JoinOver(life));
        self.at(BEAT_MS, n, Event::Tick(life));
        if self.plan.mutant == Mutant::ActBeforeJoin || self.nodes[n].joining.is_empty() {
            self.act(n);
        }
    }

    fn crash(&mut self, n: usize, warm: bool) {
        let node = &mut self.nodes[n];
        (node.up, node.acting) = (false, false);
        let (kept, lost) =
            std::mem::take(&mut node.copies).into_iter().partition(|(_, c)| warm && matches!(c, Copy::Resident));
        let lost: BTreeMap<u32, Copy> = lost;
        node.copies = kept;
        self.evicted.extend(lost.keys());
        self.crash_readers(n);
    }

    fn tick(&mut self, n: usize) {
        for other in (0..self.plan.nodes).filter(|o| *o != n) {
            self.send(n, other, Message::Beat);
            let silent = self.nodes[n].heard[other].map_or(0, |heard| self.now - heard);
            if silent > 20_000 {
                self.believe(n, other, NodeState::Gone, None);
            } else if silent > 2_500 {
                self.believe(n, other, NodeState::Suspect, None);
            }
        }
        self.balance(n);
        self.announce_again(n);
        let life = self.nodes[n].life;
        self.at(BEAT_MS, n, Event::Tick(life));
    }

    pub(crate) fn read(&mut self, n: usize, read: u64, file: u32) {
        let node = &mut self.nodes[n];
        if node.changed.contains(&file) {
            return self.read_pfs(read);
        }
        if !node.acting {
            return node.queue.push(Queued::Read(read, file));
        }
        match node.copies.get_mut(&file) {
            Some(Copy::Resident) => self.read_ends(read, 0, false),
            Some(Copy::Coming(fetch)) => fetch.readers.push(read),
            None => {
                let f = file_key(file);
                let wants = self.plan.keep_all || node.view.owner(f.fp) == ME || node.view.answerer(f.fp) == ME;
                self.fetch(n, file, wants, Search::new(), |fetch| fetch.readers.push(read));
            }
        }
    }

    fn read_pfs(&mut self, read: u64) {
        let file = self.file_of(read);
        self.pfs[file as usize] += 1;
        let version = self.version[file as usize];
        self.read_ends(read, version, true);
    }

    pub(crate) fn has_room(&self, n: usize) -> bool {
        self.plan.mutant == Mutant::NoLedger || self.nodes[n].used() < self.plan.capacity
    }

    pub(crate) fn fetch(&mut self, n: usize, file: u32, wants: bool, search: Search, with: impl FnOnce(&mut Fetch)) {
        let keep = wants && self.has_room(n);
        let began = self.nodes[n].view.answerer_life(file_key(file).fp);
        let mut fetch =
            Fetch { search, keep, began, asking: None, from_pfs: None, readers: Vec::new(), askers: Vec::new() };
        with(&mut fetch);
        self.nodes[n].copies.insert(file, Copy::Coming(Box::new(fetch)));
        self.advance(n, file);
    }

    pub(crate) fn advance(&mut self, n: usize, file: u32) {
        let id = self.random();
        let Node { view, known, copies, .. } = &mut self.nodes[n];
        let Some(Copy::Coming(fetch)) = copies.get_mut(&file) else { return };
        let waits = |node: u16| fetch.askers.iter().any(|(.., asked)| asked.from == Some(node));
        match fetch.search.next(&file_key(file), known, view, waits) {
            Route::Pfs => {
                (fetch.asking, fetch.from_pfs) = (None, Some(id));
                self.pfs[file as usize] += 1;
                let takes = 5 + self.below(20);
                self.at(takes, n, Event::PfsDone(file, id));
            }
            Route::Ask(to) => {
                let (hops, keeps) = (fetch.search.hops(), fetch.keep);
                let to = self.nodes[n].global(to);
                if let Some(Copy::Coming(fetch)) = self.nodes[n].copies.get_mut(&file) {
                    fetch.asking = Some((id, to));
                }
                self.send(n, to, Message::Get { file, ask: id, hops, keeps });
                self.at(PEER_TIMEOUT_MS, n, Event::AskTimeout(file, id));
            }
        }
    }

    pub(crate) fn asking(&mut self, n: usize, file: u32, ask: u64) -> Option<(usize, &mut Fetch)> {
        match self.nodes[n].copies.get_mut(&file) {
            Some(Copy::Coming(fetch)) => match fetch.asking {
                Some((id, to)) if id == ask => Some((to, fetch)),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn ask_failed(&mut self, n: usize, file: u32, ask: u64) {
        let Some((to, _)) = self.asking(n, file, ask) else { return };
        let local = self.nodes[n].local(to);
        if let Some((_, fetch)) = self.asking(n, file, ask) {
            fetch.asking = None;
            fetch.search.failed(local);
        }
        self.nodes[n].blocked[to] = self.now + 1000;
        self.believe(n, to, NodeState::Suspect, None);
        self.advance(n, file);
    }

    fn pfs_done(&mut self, n: usize, file: u32, id: u64) {
        if matches!(self.nodes[n].copies.get(&file), Some(Copy::Coming(f)) if f.from_pfs == Some(id)) {
            self.complete(n, file, self.version[file as usize], true);
        }
    }

    /// The bytes are here, and they are the index's version or not.
    pub(crate) fn complete(&mut self, n: usize, file: u32, version: u32, from_pfs: bool) {
        let Some(Copy::Coming(fetch)) = self.nodes[n].copies.remove(&file) else { return };
        if version != 0 {
            self.nodes[n].changed.insert(file);
        } else if fetch.keep {
            self.nodes[n].copies.insert(file, Copy::Resident);
            self.announce_copy(n, file, fetch.began, from_pfs);
        }
        assert!(self.nodes[n].used() <= self.plan.capacity, "node {n} holds more than it has room for");
        for read in fetch.readers {
            self.read_ends(read, version, from_pfs);
        }
        let serve = version == 0 || self.plan.mutant == Mutant::ServeChanged;
        let what = if serve { Reply::Data { version } } else { Reply::YouRead { keep: false } };
        for (to, ask, asked) in fetch.askers {
            if serve {
                let node = &mut self.nodes[n];
                node.known.sent(&file_key(file), &node.view, &asked);
            }
            self.send(n, to, Message::Reply { file, ask, what });
        }
    }
}
