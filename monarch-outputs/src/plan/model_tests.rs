//! The plan against a plain directory: random calls of a job, interleaved with the drain and with
//! crashes of the agent.
//!
//! The job's side does what the shim does, the agent's side what the publisher does, both on maps.
//! After each call the job sees what the plain directory has. After each commit the PFS is what the
//! plain directory was after some record, but for names of files that are open, pending or
//! cancelled. At the end both are the same.

mod two_nodes_tests;

use super::*;
use monarch_abi::outputs::found;
use monarch_abi::outputs::names::Staged;
use monarch_abi::outputs::record::{Header, Op, Record, flag};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// So many random jobs: the same ones each time, or others if `MONARCH_MODEL_RANDOM` is set.
fn jobs(cases: u32) -> ProptestConfig {
    let rng_seed =
        if std::env::var_os("MONARCH_MODEL_RANDOM").is_some() { RngSeed::Random } else { RngSeed::Fixed(28) };
    ProptestConfig { cases, max_shrink_iters: 20_000, rng_seed, ..ProptestConfig::default() }
}

type Name = &'static str;
const NAMES: [Name; 4] = ["a", "b", "c", "d"];

/// What a name is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Thing {
    File(u64),
    Symlink(Vec<u8>),
    /// What plain calls make, and no agent.
    Pipe(u64),
}

/// A file of the PFS: which staged file it was, and which of its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    thing: Thing,
    version: u64,
}

impl Node {
    /// What records and the log say of it.
    fn found(&self) -> u64 {
        match &self.thing {
            Thing::File(id) => found::thing(*id, self.version, 0),
            Thing::Symlink(target) => found::thing(u64::from(target[0]), 0, 1),
            Thing::Pipe(number) => found::thing(*number, 0, 2),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    File(u64),
    Whiteout,
    Symlink(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Written {
    seq: u64,
    op: Op,
    id: u64,
    flags: u16,
    node_news: u32,
    found: u64,
    a: Vec<u8>,
    b: Vec<u8>,
}

/// A copy that was made or is being made.
#[derive(Clone, Debug)]
struct Made {
    id: u64,
    generation: u64,
    version: u64,
    epoch: u64,
    /// The published name, if an earlier agent has renamed the part file.
    already: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
struct Logged {
    read: u64,
    place: Place,
    id: u64,
    is_skip: bool,
    /// What was published, as the PFS has it.
    found: u64,
}

/// The job, the PFS and the agent.
///
/// Fields: 31, because it stands for three programs. Methods: 47, for the same reason.
#[derive(Debug, Default)]
struct World {
    // The job.
    data: HashMap<u64, u64>,
    open: HashMap<u64, u32>,
    epoch: HashMap<u64, u64>,
    shown: BTreeMap<Vec<u8>, Shown>,
    journal: Vec<Written>,
    next_id: u64,
    version: u64,
    /// How often other nodes have told of something new.
    node_news: u32,
    handles: Vec<u64>,
    /// The plain directory, and what it was after each record.
    plain: BTreeMap<Vec<u8>, Thing>,
    history: Vec<BTreeMap<Vec<u8>, Thing>>,
    names_of: HashMap<u64, BTreeSet<Vec<u8>>>,
    /// The record by which a file was closed last, with no descriptor left.
    closed_by: HashMap<u64, u64>,
    /// Whether a file was closed without a record, or one was lost that was open and had been
    /// renamed: what they change has its place before entries that were made since.
    is_inexact: bool,
    /// Whether a file was closed with a record while it was open elsewhere: the agent finds that
    /// out when it copies the file, and one that is killed then has to do so again.
    is_closed_in_part: bool,
    had: BTreeSet<(Vec<u8>, u64)>,
    // The PFS.
    pfs: BTreeMap<Vec<u8>, Node>,
    parts: BTreeSet<u64>,
    // The agent.
    planner: Planner,
    running: Vec<Made>,
    copied: HashMap<u64, Made>,
    begun: Option<Step>,
    /// The file of the last step that was begun, for the job to see.
    publishing: u64,
    batch: Vec<Step>,
    touched: BTreeSet<Vec<u8>>,
    log: Vec<Logged>,
    /// What the agent and those before it know to have published.
    own: BTreeSet<u64>,
    /// The plan that the agent has kept last: log and records before it are not read again.
    checkpoint: Option<Vec<u8>>,
    /// The last record that was published, of all commits.
    reached: u64,
    /// The last one of them that changed the PFS.
    changed: u64,
    /// What the agent has told the job of that.
    published: u64,
}

fn staged(id: u64) -> Staged {
    Staged { id, dev: 1, ino: id, uid: 0, gid: 0 }
}

#[derive(Clone, Debug)]
enum Call {
    Create(usize),
    Write(usize),
    Close(usize, bool),
    Reopen(usize),
    Rename(usize, usize),
    Unlink(usize),
    Symlink(usize, usize),
    RenameLink(usize, usize),
    RenamePipe(usize),
    MakePipe(usize),
    Read(usize),
    StartCopy,
    EndCopy(usize),
    Probe,
    Step,
    Commit,
    FailBatch,
    Crash(bool),
    Checkpoint,
}

fn call() -> impl Strategy<Value = Call> {
    let name = 0..NAMES.len();
    prop_oneof![
        4 => name.clone().prop_map(Call::Create),
        3 => any::<usize>().prop_map(Call::Write),
        5 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(i, r)| Call::Close(i, r)),
        1 => name.clone().prop_map(Call::Reopen),
        3 => (name.clone(), name.clone()).prop_map(|(a, b)| Call::Rename(a, b)),
        2 => name.clone().prop_map(Call::Unlink),
        1 => (name.clone(), name.clone()).prop_map(|(a, b)| Call::Symlink(a, b)),
        1 => (name.clone(), name).prop_map(|(a, b)| Call::RenameLink(a, b)),
        6 => (1usize..5).prop_map(Call::Read),
        6 => Just(Call::StartCopy),
        6 => any::<usize>().prop_map(Call::EndCopy),
        4 => Just(Call::Probe),
        8 => Just(Call::Step),
        4 => Just(Call::Commit),
        1 => Just(Call::FailBatch),
        1 => any::<bool>().prop_map(Call::Crash),
        1 => Just(Call::Checkpoint),
    ]
}

/// The agent lives, and finds no file closed before it reads of the close: no record tells of a
/// pipe.
fn call_or_pipe() -> impl Strategy<Value = Call> {
    let with_records = |call| match call {
        Call::Crash(_) => Call::Probe,
        Call::Close(handle, _) => Call::Close(handle, true),
        call => call,
    };
    let name = 0..NAMES.len();
    prop_oneof![
        40 => call().prop_map(with_records),
        2 => name.clone().prop_map(Call::RenamePipe),
        1 => name.prop_map(Call::MakePipe),
    ]
}

impl World {
    fn new(published: &[usize]) -> Self {
        let mut world = Self { next_id: 1000, history: vec![BTreeMap::new()], ..Self::default() };
        for at in published {
            // A file of before: its number is no staged file's.
            let id = *at as u64 + 1;
            world.pfs.insert(NAMES[*at].into(), Node { thing: Thing::File(id), version: 0 });
            world.plain.insert(NAMES[*at].into(), Thing::File(id));
            world.data.insert(id, 0);
            world.had.insert((NAMES[*at].into(), id));
        }
        world.history[0] = world.plain.clone();
        world
    }

    // --- the job ---

    fn append(&mut self, op: Op, id: u64, flags: u16, a: &[u8], b: &[u8]) {
        let seq = self.journal.len() as u64 + 1;
        let node_news = self.node_news;
        let found = match op {
            Op::Open if flags & flag::NEW != 0 => self.found(a),
            Op::Unlink => self.found(a),
            Op::Rename => self.found(b),
            Op::Symlink | Op::RenameLink => found::NOTHING,
            _ => found::UNKNOWN,
        };
        self.journal.push(Written { seq, op, id, flags, node_news, found, a: a.to_vec(), b: b.to_vec() });
        self.history.push(BTreeMap::new());
        self.remember();
    }

    /// The plain directory now is what it is after the last record.
    fn remember(&mut self) {
        for (name, thing) in &self.plain {
            if let Thing::File(id) = thing {
                self.names_of.entry(*id).or_default().insert(name.clone());
                self.had.insert((name.clone(), *id));
            }
        }
        *self.history.last_mut().unwrap() = self.plain.clone();
    }

    fn seen(&self, name: &[u8]) -> Option<Thing> {
        match self.shown.get(name) {
            Some(Shown::File(id)) => Some(Thing::File(*id)),
            Some(Shown::Symlink(target)) => Some(Thing::Symlink(target.clone())),
            Some(Shown::Whiteout) => None,
            None => self.pfs.get(name).map(|node| node.thing.clone()),
        }
    }

    /// What the job finds on the PFS at a name.
    fn found(&self, name: &[u8]) -> u64 {
        match self.shown.get(name) {
            Some(Shown::File(_) | Shown::Symlink(_)) => found::UNKNOWN,
            Some(Shown::Whiteout) => found::NOTHING,
            None => self.pfs.get(name).map_or(found::NOTHING, Node::found),
        }
    }

    /// A file is about to lose its name.
    fn loses(&mut self, name: &[u8]) {
        let Some(Shown::File(id)) = self.shown.get(name) else { return };
        let is_open = self.open.get(id).is_some_and(|open| *open > 0);
        self.is_inexact |= is_open && self.names_of.get(id).is_some_and(|names| names.len() > 1);
    }

    fn published_flag(&self, name: &[u8], id: u64) -> u16 {
        if self.pfs.contains_key(name) || self.publishing == id { flag::PUBLISHED } else { 0 }
    }

    /// Whether nothing was entered since a file was closed.
    fn is_last_closed(&self, id: u64) -> bool {
        self.journal.last().is_some_and(|last| {
            last.id == id && matches!(last.op, Op::Open | Op::Close) && last.node_news == self.node_news
        })
    }

    /// Whether the agent may publish something under a name of which the job takes this file away.
    fn may_appear(&self, id: u64) -> bool {
        !self.is_last_closed(id) || self.last_entry() > self.published
    }

    /// Whether something that has a place in the order is not published, or a file may only seem to
    /// be open.
    fn is_pending(&self) -> bool {
        !self.shown.is_empty() || self.last_entry() > self.published
    }

    /// The last record that has a place in the order.
    fn last_entry(&self) -> u64 {
        self.journal.iter().rev().find(|written| written.op != Op::Open).map_or(0, |written| written.seq)
    }

    fn opened(&mut self, id: u64) {
        *self.open.entry(id).or_default() += 1;
        *self.epoch.entry(id).or_default() += 1;
        self.handles.push(id);
        self.version += 1;
    }

    fn create(&mut self, name: &[u8]) {
        if matches!(self.seen(name), Some(Thing::Symlink(_) | Thing::Pipe(_))) {
            return;
        }
        if let Some(Shown::File(id)) = self.shown.get(name).cloned() {
            let is_open = self.open.get(&id).is_some_and(|n| *n > 0);
            if is_open || self.is_last_closed(id) {
                self.opened(id);
                self.data.insert(id, self.version);
                return self.append(Op::Open, id, flag::TRUNCATED, name, &staged(id).name());
            }
        }
        let id = self.next_id;
        self.next_id += 1;
        self.opened(id);
        self.data.insert(id, self.version);
        self.parts.insert(id);
        self.plain.insert(name.to_vec(), Thing::File(id));
        let is_hidden = self.shown.get(name) == Some(&Shown::Whiteout);
        let flags = if is_hidden { flag::PUBLISHED } else { self.published_flag(name, u64::MAX) };
        self.append(Op::Open, id, flag::NEW | flags, name, &staged(id).name());
        self.shown.insert(name.to_vec(), Shown::File(id));
    }

    fn close(&mut self, handle: usize, has_record: bool) {
        if self.handles.is_empty() {
            return;
        }
        let id = self.handles.swap_remove(handle % self.handles.len());
        *self.open.get_mut(&id).unwrap() -= 1;
        self.is_inexact |= !has_record;
        if has_record {
            self.append(Op::Close, id, 0, b"", b"");
            if self.open[&id] == 0 {
                self.closed_by.insert(id, self.journal.len() as u64);
            } else {
                self.is_closed_in_part = true;
            }
        }
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) {
        let Some(Shown::File(id)) = self.shown.get(from).cloned() else { return };
        if from == to {
            return;
        }
        self.loses(to);
        let thing = self.plain.remove(from).unwrap();
        self.plain.insert(to.to_vec(), thing);
        let flags = self.published_flag(from, id);
        let may_appear = flags != 0 || self.may_appear(id);
        self.append(Op::Rename, id, flags, from, to);
        self.shown.insert(to.to_vec(), Shown::File(id));
        if !may_appear {
            self.shown.remove(from);
        } else {
            self.shown.insert(from.to_vec(), Shown::Whiteout);
        }
    }

    fn unlink(&mut self, name: &[u8]) {
        if self.seen(name).is_none() {
            return;
        }
        self.loses(name);
        let is_pipe = matches!(self.plain.remove(name), Some(Thing::Pipe(_)));
        let shown = self.shown.get(name).cloned();
        // The agent may be making a link just now: the shim does not ask.
        let flags = match &shown {
            Some(Shown::File(id)) => self.published_flag(name, *id),
            _ => flag::PUBLISHED,
        };
        let mut may_appear = flags != 0;
        match &shown {
            Some(Shown::File(id)) => {
                let id = *id;
                may_appear |= self.may_appear(id);
                self.append(Op::Unlink, id, flags, name, b"");
                if self.open.get(&id).is_some_and(|open| *open > 0) {
                    self.data.remove(&id);
                }
            }
            // At once, whatever opens the agent has not read.
            None if !self.is_pending() || is_pipe => {
                self.pfs.remove(name);
                let over = if is_pipe { 0 } else { self.published as usize };
                for was in self.history.iter_mut().skip(over) {
                    was.remove(name);
                }
                return self.remember();
            }
            _ => self.append(Op::Unlink, 0, flags, name, b""),
        }
        if !may_appear {
            self.shown.remove(name);
        } else {
            self.shown.insert(name.to_vec(), Shown::Whiteout);
        }
    }

    fn symlink(&mut self, name: &[u8], target: &[u8]) {
        if self.seen(name).is_some() {
            return;
        }
        self.plain.insert(name.to_vec(), Thing::Symlink(target.to_vec()));
        self.append(Op::Symlink, 0, 0, name, target);
        self.shown.insert(name.to_vec(), Shown::Symlink(target.to_vec()));
    }

    fn rename_link(&mut self, from: &[u8], to: &[u8]) {
        let Some(Shown::Symlink(target)) = self.shown.get(from).cloned() else { return };
        if from == to || matches!(self.shown.get(to), Some(Shown::File(_))) || self.pfs.contains_key(to) {
            return;
        }
        self.plain.insert(to.to_vec(), Thing::Symlink(target.clone()));
        self.plain.remove(from);
        self.append(Op::RenameLink, 0, flag::PUBLISHED, from, &[to, b"\0", &target].concat());
        self.shown.insert(to.to_vec(), Shown::Symlink(target));
        self.shown.insert(from.to_vec(), Shown::Whiteout);
    }

    /// A plain rename gives a name to a pipe, once all but open files is published.
    fn rename_pipe(&mut self, name: &[u8]) {
        self.settle();
        self.unhide(name);
        self.loses(name);
        self.has_pipe(name);
        match self.shown.remove(name) {
            Some(Shown::File(id)) => {
                self.append(Op::Close, id, flag::TAKEN, b"", b"");
                self.data.remove(&id);
                self.closed_by.remove(&id);
            }
            shown => assert_eq!(shown, None, "{name:?} is not published"),
        }
    }

    /// A plain call makes a pipe, at once where the name is not hidden.
    fn make_pipe(&mut self, name: &[u8]) {
        if self.seen(name).is_none() {
            self.unhide(name);
            self.has_pipe(name);
        }
    }

    /// Waits until the PFS has nothing of a name that the job has taken away.
    fn unhide(&mut self, name: &[u8]) {
        if self.shown.get(name) == Some(&Shown::Whiteout) {
            self.settle();
        }
        // (A file that is open has left it.)
        if self.shown.get(name) == Some(&Shown::Whiteout) {
            self.append(Op::Unlink, 0, flag::PUBLISHED, name, b"");
            self.settle();
            assert!(!self.shown.contains_key(name), "{name:?} stays hidden");
        }
    }

    fn has_pipe(&mut self, name: &[u8]) {
        self.version += 1;
        let pipe = Thing::Pipe(self.version);
        self.pfs.insert(name.to_vec(), Node { thing: pipe.clone(), version: 0 });
        self.plain.insert(name.to_vec(), pipe.clone());
        // (The places of what loses its name may be any of them.)
        for was in &mut self.history {
            was.insert(name.to_vec(), pipe.clone());
        }
    }

    // --- the agent ---

    fn feed(planner: &mut Planner, written: &Written) {
        let header = Header {
            seq: written.seq,
            id: written.id,
            flags: written.flags,
            node_news: written.node_news,
            found: written.found,
            ..Header::default()
        };
        planner.record(&Record { header, op: written.op, a: &written.a, b: &written.b });
    }

    fn read(&mut self, most: usize) {
        let from = self.planner.last_seq() as usize;
        for written in self.journal.iter().skip(from).take(most) {
            Self::feed(&mut self.planner, written);
        }
        for dropped in self.planner.take_dropped() {
            let id = dropped.staged.id;
            self.parts.remove(&id);
            self.data.remove(&id);
            self.copied.remove(&id);
        }
    }

    fn probe(&mut self) {
        for id in self.planner.open_files().map(|file| file.staged.id).collect::<Vec<_>>() {
            if self.data.contains_key(&id) {
                let is_closed = self.open.get(&id) == Some(&0);
                // It is found before its close is read.
                self.is_inexact |= is_closed && self.planner.last_seq() < self.journal.len() as u64;
                self.planner.lease(id, is_closed, false, 0);
            } else {
                self.read(usize::MAX);
                self.planner.lost(id);
            }
        }
    }

    fn start_copies(&mut self, most: usize) {
        let busy: Vec<u64> = self.running.iter().map(|made| made.id).collect();
        for request in self.planner.take_copies(most, |id| busy.contains(&id)) {
            let id = request.staged.id;
            let Some(&version) = self.data.get(&id) else {
                self.read(usize::MAX);
                self.planner.lost(id);
                continue;
            };
            if self.open.get(&id) != Some(&0) {
                self.planner.copy_refused(id, request.generation);
                continue;
            }
            let is_it = |name: &&Vec<u8>| {
                self.pfs.get(*name).is_some_and(|node| node.thing == Thing::File(id) && node.version == version)
            };
            let mut already = None;
            if !self.parts.contains(&id) {
                already = std::iter::once(&request.target).chain(&request.former).find(is_it).cloned();
                if already.is_none() {
                    self.parts.insert(id);
                }
            }
            let epoch = self.epoch[&id];
            self.running.push(Made { id, generation: request.generation, version, epoch, already });
        }
    }

    fn end_copy(&mut self, at: usize) {
        if self.running.is_empty() {
            return;
        }
        let made = self.running.swap_remove(at % self.running.len());
        let (id, generation) = (made.id, made.generation);
        if self.planner.file(id).is_none_or(|file| file.generation != generation) {
            if self.planner.file(id).is_none() {
                self.parts.remove(&id);
            }
            return;
        }
        if self.epoch[&id] == made.epoch {
            self.copied.insert(id, made);
            self.planner.copied(id, generation);
        } else {
            self.planner.copy_refused(id, generation);
        }
    }

    /// Begins a step, or does the one that was begun.
    fn step(&mut self) {
        let Some(step) = self.begun.take() else {
            if self.planner.next_step().is_some() {
                self.read(usize::MAX);
                self.begun = self.planner.next_step();
            }
            let Some(step) = self.begun.clone() else { return };
            self.planner.begin(&step);
            if let Action::Publish(file) = &step.action {
                self.publishing = file.staged.id;
            }
            if let Some(name) = self.planner.hidden_by_job(&step) {
                self.shown.entry(name.to_vec()).or_insert(Shown::Whiteout);
            }
            return;
        };
        let is_skip = |step: &Step| matches!(step.action, Action::Skip(_));
        let is_after_skip = self.batch.last().is_some_and(is_skip) && !is_skip(&step);
        if is_after_skip || step.touches().any(|name| self.touched.contains(name)) {
            self.planner.fail(step.place);
            return self.commit();
        }
        self.check_newer(&step);
        let before = self.pfs.clone();
        let is_done = match &step.action {
            Action::Publish(file) => self.publish(file),
            Action::Skip(_) => true,
            Action::Rmdir(_) => unreachable!(),
            Action::Symlink(path, target) => {
                let node = Node { thing: Thing::Symlink(target.clone()), version: 0 };
                self.pfs.insert(path.clone(), node);
                true
            }
            Action::Unlink(path, guard) => {
                self.remove(path, guard);
                true
            }
        };
        if self.pfs != before {
            self.changed = self.changed.max(step.place.seq);
        }
        if is_done {
            self.touched.extend(step.touches().map(<[u8]>::to_vec));
            self.batch.push(step);
            return;
        }
        self.planner.fail(step.place);
        if self.batch.is_empty() {
            self.publishing = 0;
        }
        if let Action::Publish(file) = &step.action
            && let Some(generation) = self.planner.file(file.staged.id).map(|file| file.generation)
        {
            self.copied.remove(&file.staged.id);
            self.planner.copy_failed(file.staged.id, generation);
        }
    }

    fn remove(&mut self, path: &[u8], guard: &Guard) {
        let is_meant = match (guard, self.pfs.get(path).map(|node| &node.thing)) {
            (Guard::Any, _) => true,
            (Guard::File(staged), Some(Thing::File(id))) => *id == staged.id,
            (Guard::Symlink(target), Some(Thing::Symlink(found))) => found == target,
            _ => false,
        };
        if is_meant {
            self.pfs.remove(path);
        }
    }

    fn publish(&mut self, file: &FileStep) -> bool {
        let id = file.staged.id;
        let Some(made) = self.copied.get(&id).cloned() else { return false };
        let is_it = |node: &&Node| node.thing == Thing::File(id);
        match &made.already {
            Some(name) if *name == file.target => {
                if self.pfs.get(name).filter(is_it).is_none() {
                    return false;
                }
            }
            Some(name) => match self.pfs.get(name).filter(is_it).cloned() {
                Some(node) => {
                    self.pfs.remove(name);
                    self.pfs.insert(file.target.clone(), node);
                }
                None => return false,
            },
            None if self.parts.remove(&id) => {
                let node = Node { thing: Thing::File(id), version: made.version };
                self.pfs.insert(file.target.clone(), node);
            }
            None => return false,
        }
        self.copied.get_mut(&id).unwrap().already = Some(file.target.clone());
        for vacate in &file.vacates {
            if vacate.guard == Guard::Any {
                self.check_expected(&vacate.name, &vacate.expected);
            }
            self.remove(&vacate.name, &vacate.guard);
        }
        true
    }

    /// What a step replaces or removes is never taken for something that others have put there.
    fn check_newer(&self, step: &Step) {
        match &step.action {
            Action::Publish(file) => {
                let already = self.copied.get(&file.staged.id).and_then(|made| made.already.as_ref());
                if already != Some(&file.target) {
                    let mut expected = step.expected.clone();
                    expected.own.push(Guard::File(file.staged));
                    self.check_expected(&file.target, &expected);
                }
            }
            Action::Unlink(path, Guard::Any) => self.check_expected(path, &step.expected),
            Action::Symlink(path, target) => {
                let mut expected = step.expected.clone();
                expected.own.push(Guard::Symlink(target.clone()));
                self.check_expected(path, &expected);
            }
            Action::Unlink(..) | Action::Skip(_) | Action::Rmdir(_) => {}
        }
    }

    fn check_expected(&self, name: &[u8], expected: &Expectation) {
        if expected.found == found::UNKNOWN {
            // What others would put there would be replaced.
            let links = |written: &&Written| matches!(written.op, Op::Symlink | Op::RenameLink);
            let mut links = self.journal.iter().filter(links);
            assert!(links.any(|link| link.a == name || link.b.starts_with(name)), "nothing is expected of {name:?}");
            return;
        }
        let Some(node) = self.pfs.get(name) else { return };
        let is_it = |thing: &Guard| match thing {
            Guard::File(staged) => node.thing == Thing::File(staged.id),
            Guard::Symlink(target) => node.thing == Thing::Symlink(target.clone()),
            Guard::Any | Guard::Nothing => false,
        };
        let is_own = self.own.contains(&node.found()) || expected.own.iter().any(is_it);
        assert!(node.found() == expected.found || is_own, "{name:?} is {node:?}, taken for newer: {expected:?}");
    }

    /// What a step has left, as the log has it.
    fn left_by(&self, step: &Step) -> u64 {
        match &step.action {
            Action::Publish(file) => self.pfs.get(&file.target).map_or(found::UNKNOWN, Node::found),
            _ => found::UNKNOWN,
        }
    }

    fn write_log(&mut self) {
        for step in &self.batch {
            let (id, is_skip) = match &step.action {
                Action::Publish(file) => (file.staged.id, false),
                Action::Skip(staged) => (staged.id, true),
                _ => (0, false),
            };
            let found = self.left_by(step);
            self.own.extend((found != found::UNKNOWN).then_some(found));
            self.log.push(Logged { read: step.read, place: step.place, id, is_skip, found });
        }
    }

    fn commit(&mut self) {
        if self.batch.is_empty() || self.begun.is_some() {
            return;
        }
        self.write_log();
        self.read(usize::MAX);
        for step in std::mem::take(&mut self.batch) {
            let left = self.left_by(&step);
            self.planner.leaves(&step, left);
            let committed = self.planner.commit(&step);
            self.reached = self.reached.max(step.place.seq);
            if let Some(file) = committed.file {
                self.copied.remove(&file.id);
            }
            for name in committed.names {
                let is_made = match &step.action {
                    Action::Publish(file) => file.target == name,
                    Action::Symlink(path, _) => *path == name,
                    _ => false,
                };
                match self.planner.overlay(&name) {
                    Some(Claim::Absent | Claim::Left) if is_made => {
                        self.shown.entry(name).or_insert(Shown::Whiteout);
                        continue;
                    }
                    Some(_) => continue,
                    None => {}
                }
                match self.shown.get(&name) {
                    Some(Shown::File(id)) if self.planner.file(*id).is_some() => {}
                    _ => {
                        self.shown.remove(&name);
                    }
                }
            }
        }
        self.touched.clear();
        self.publishing = 0;
        self.read(0);
        self.check_pfs();
    }

    /// The PFS has got what the batch changes, and does not make it durable.
    fn fail_batch(&mut self) {
        if self.begun.is_some() {
            return;
        }
        for step in std::mem::take(&mut self.batch).into_iter().rev() {
            self.planner.fail(step.place);
        }
        self.touched.clear();
        self.publishing = 0;
    }

    /// The agent keeps its plan, and begins journal and log again.
    fn keep_checkpoint(&mut self) {
        if self.batch.is_empty() && self.begun.is_none() {
            self.checkpoint = Some(self.planner.checkpoint(&[]).unwrap());
            self.log.clear();
        }
    }

    /// The agent is killed, before or after it has logged its batch.
    fn crash(&mut self, has_logged: bool) {
        self.is_inexact |= self.is_closed_in_part;
        if has_logged {
            self.write_log();
            let last = self.batch.iter().map(|step| step.place.seq).max();
            self.reached = self.reached.max(last.unwrap_or(0));
        }
        self.begun = None;
        self.publishing = 0;
        self.batch.clear();
        self.touched.clear();
        self.running.clear();
        self.copied.clear();
        let kept = self.checkpoint.as_ref().map(|bytes| Planner::of_checkpoint(bytes).unwrap());
        let mut planner = kept.unwrap_or_default();
        planner.begin_replay();
        let replay = |planner: &mut Planner, entry: &Logged| {
            if !entry.is_skip {
                planner.replay_leaves(entry.place, entry.id, entry.found);
            }
            planner.replay_done(entry.place, entry.id, entry.is_skip);
        };
        let mut logged = self.log.iter().peekable();
        for written in &self.journal {
            while let Some(entry) = logged.next_if(|entry| entry.read < written.seq) {
                replay(&mut planner, entry);
            }
            Self::feed(&mut planner, written);
        }
        for entry in logged {
            replay(&mut planner, entry);
        }
        self.own = self.log.iter().map(|entry| entry.found).filter(|found| *found != found::UNKNOWN).collect();
        planner.end_replay();
        self.planner = planner;
        self.read(0);
        self.shown.clear();
        for (name, claim) in self.planner.names() {
            let shown = match claim {
                Claim::File(file) => Shown::File(file.id),
                Claim::Symlink(target) => Shown::Symlink(target.clone()),
                _ => Shown::Whiteout,
            };
            self.shown.insert(name.to_vec(), shown);
        }
    }

    // --- what must hold ---

    fn check_view(&self) {
        for name in NAMES {
            let name = name.as_bytes();
            // A version that was replaced before its turn, and whose name the job removes while it
            // is published, is seen until the commit.
            let steps = self.batch.iter().chain(&self.begun);
            let mut replaced = steps.filter(|step| match &step.action {
                Action::Publish(file) => self.shown.get(&file.target) != Some(&Shown::File(file.staged.id)),
                Action::Symlink(path, target) => self.shown.get(path) != Some(&Shown::Symlink(target.clone())),
                _ => false,
            });
            if replaced.any(|step| step.touches().any(|touched| touched == name)) {
                continue;
            }
            assert_eq!(self.seen(name).as_ref(), self.plain.get(name), "the job sees another {name:?}");
        }
    }

    /// The PFS is what the plain directory was, but for names of what is pending.
    fn check_pfs(&self) {
        let first = self.planner.pending().next().map(|(place, _)| place);
        let upto = match first {
            Some(Place { seq, sub: 0 }) => seq - 1,
            Some(Place { seq, .. }) => seq,
            None => self.planner.last_seq(),
        };
        // What is found later to belong before it has a name that is excused.
        let upto = upto.max(self.reached);
        let mut excused: BTreeSet<&[u8]> = BTreeSet::new();
        for file in self.planner.files() {
            excused.extend(self.names_of[&file.staged.id].iter().map(Vec::as_slice));
        }
        for (_, entry) in self.planner.pending() {
            if let Entry::Unlink(path, ..) | Entry::Symlink(path, ..) = entry {
                excused.insert(path);
            }
        }
        // Files that the job has removed since, or whose records the agent has not read.
        for written in self.journal.iter().filter(|written| written.seq > upto) {
            if let Some(names) = self.names_of.get(&written.id) {
                excused.extend(names.iter().map(Vec::as_slice));
            }
        }
        let was = &self.history[upto as usize];
        for name in NAMES {
            let name = name.as_bytes();
            let node = self.pfs.get(name);
            if excused.contains(name) {
                if let Some(Node { thing: Thing::File(id), .. }) = node {
                    assert!(self.had.contains(&(name.to_vec(), *id)), "{name:?} never was {id}");
                }
                continue;
            }
            assert_eq!(node.map(|node| &node.thing), was.get(name), "{name:?} at {upto}");
            if let Some(Node { thing: Thing::File(id), version }) = node {
                assert_eq!(Some(version), self.data.get(id), "the content of {name:?}");
            }
        }
        if self.is_inexact {
            return;
        }
        let later = self.changed..=self.journal.len() as u64;
        assert!(
            later.clone().any(|seq| self.is_state(seq)),
            "no state from {} on: {:?}, {:?}",
            self.changed,
            later.map(|seq| self.wrong(seq).collect::<Vec<_>>()).collect::<Vec<_>>(),
            self.pfs
        );
    }

    /// Whether the PFS has the state of the job after a record, as far as that can be told.
    fn is_state(&self, seq: u64) -> bool {
        self.wrong(seq).next().is_none()
    }

    /// What is not as it was after a record.
    fn wrong(&self, seq: u64) -> impl Iterator<Item = &[u8]> {
        self.missing_at(seq).map(|(name, _)| name).chain(self.removed_by(seq))
    }

    /// Names that the PFS has though the last that the job did to them up to a record was to remove
    /// them.
    fn removed_by(&self, seq: u64) -> impl Iterator<Item = &[u8]> {
        let is_removed = move |name: &[u8]| {
            let touches = |written: &&Written| {
                let own = self.names_of.get(&written.id).is_some_and(|names| names.contains(name));
                written.seq <= seq && (written.a == name || written.b == name || written.op == Op::Close && own)
            };
            let last = self.journal.iter().rev().find(touches);
            last.is_some_and(|written| written.op == Op::Unlink) && !self.history[seq as usize].contains_key(name)
        };
        self.pfs.keys().map(Vec::as_slice).filter(move |name| is_removed(name))
    }

    /// Files that were closed at a record and that the PFS has not under the names that they had,
    /// though the job did nothing to them afterwards but rename or remove them.
    fn missing_at(&self, seq: u64) -> impl Iterator<Item = (&[u8], u64)> {
        self.history[seq as usize].iter().filter_map(move |(name, thing)| {
            let Thing::File(id) = thing else { return None };
            let closed = *self.closed_by.get(id)?;
            let mut others = self.journal.iter().filter(|written| written.id == *id && written.seq > closed);
            let is_kept = |written: &Written| match written.op {
                Op::Rename => true,
                Op::Unlink => written.seq > seq,
                _ => false,
            };
            let is_untouched = closed <= seq && others.all(is_kept);
            let is_there = self.pfs.get(name).is_some_and(|node| node.thing == *thing);
            (is_untouched && !is_there).then_some((name.as_slice(), *id))
        })
    }

    /// The agent publishes all but files that are open.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.read(usize::MAX);
            self.probe();
            self.start_copies(3);
            while !self.running.is_empty() {
                self.end_copy(0);
            }
            self.step();
            if self.begun.is_none() && self.planner.next_step().is_none() {
                self.commit();
            }
            self.check_view();
            if self.planner.is_drained() && self.begun.is_none() && self.batch.is_empty() {
                break;
            }
        }
        assert!(self.planner.is_drained(), "never done: {:?}", self.planner);
        self.published = self.published.max(self.planner.published());
    }

    fn drain(&mut self) {
        while !self.handles.is_empty() {
            self.close(0, !self.handles.len().is_multiple_of(3));
        }
        self.settle();
        assert!(self.planner.is_idle(), "never done: {:?}", self.planner);
        let found: BTreeMap<_, _> = self.pfs.iter().map(|(name, node)| (name.clone(), node.thing.clone())).collect();
        assert_eq!(found, self.plain);
        assert!(self.shown.is_empty(), "{:?}", self.shown);
        for node in self.pfs.values() {
            if let Thing::File(id) = node.thing {
                assert_eq!(Some(&node.version), self.data.get(&id));
            }
        }
        assert_eq!(self.planner.published(), self.journal.len() as u64);
        assert!(self.parts.is_empty(), "{:?}", self.parts);
    }

    fn apply(&mut self, call: &Call) {
        let name = |at: &usize| NAMES[*at].as_bytes();
        match call {
            Call::Create(at) => self.create(name(at)),
            Call::Write(handle) if !self.handles.is_empty() => {
                let id = self.handles[handle % self.handles.len()];
                self.version += 1;
                let version = self.version;
                self.data.entry(id).and_modify(|content| *content = version);
            }
            Call::Write(_) => {}
            Call::Close(handle, has_record) => self.close(*handle, *has_record),
            Call::Reopen(at) => {
                if let Some(Shown::File(id)) = self.shown.get(name(at)).cloned() {
                    self.opened(id);
                    self.append(Op::Open, id, 0, name(at), &staged(id).name());
                }
            }
            Call::Rename(from, to) => self.rename(name(from), name(to)),
            Call::Unlink(at) => self.unlink(name(at)),
            Call::Symlink(at, target) => self.symlink(name(at), name(target)),
            Call::RenameLink(from, to) => self.rename_link(name(from), name(to)),
            Call::RenamePipe(at) => self.rename_pipe(name(at)),
            Call::MakePipe(at) => self.make_pipe(name(at)),
            Call::Read(most) => self.read(*most),
            Call::StartCopy => self.start_copies(1),
            Call::EndCopy(at) => self.end_copy(*at),
            Call::Probe => self.probe(),
            Call::Step => self.step(),
            Call::Commit => self.commit(),
            Call::FailBatch => self.fail_batch(),
            Call::Crash(has_logged) => self.crash(*has_logged),
            Call::Checkpoint => self.keep_checkpoint(),
        }
        self.published = self.published.max(self.planner.published());
        self.check_view();
    }
}

proptest! {
    #![proptest_config(jobs(100_000))]

    #[test]
    fn the_pfs_follows_a_plain_directory(
        published in proptest::collection::vec(0..NAMES.len(), 0..3),
        calls in proptest::collection::vec(call(), 1..60),
    ) {
        let mut world = World::new(&published);
        for call in &calls {
            world.apply(call);
        }
        world.drain();
    }
}

proptest! {
    #![proptest_config(jobs(3000))]

    /// The agent is killed after each call in turn.
    #[test]
    fn a_crash_at_any_moment_changes_nothing(
        published in proptest::collection::vec(0..NAMES.len(), 0..3),
        calls in proptest::collection::vec(call(), 1..40),
        has_logged in any::<bool>(),
    ) {
        for at in 0..calls.len() {
            let mut world = World::new(&published);
            for (n, call) in calls.iter().enumerate() {
                world.apply(call);
                if n == at {
                    world.apply(&Call::Crash(has_logged));
                }
            }
            world.drain();
        }
    }
}

proptest! {
    #![proptest_config(jobs(50_000))]

    #[test]
    fn what_plain_calls_put_at_a_name_stays(
        published in proptest::collection::vec(0..NAMES.len(), 0..3),
        calls in proptest::collection::vec(call_or_pipe(), 1..60),
    ) {
        let mut world = World::new(&published);
        for call in &calls {
            world.apply(call);
        }
        world.drain();
    }
}
