//! A job on two nodes, each with its own plan, whose entries are ordered by questions and answers.
//!
//! The calls of the job come one after the other, on whichever node: what a call has done has to
//! be on the PFS before what a later one does. After each commit of a node there must be a moment
//! of the job whose state the PFS of both has, but for what their plans excuse. Each node has names
//! of its own: what both write is looked for by questions of another kind.

use super::*;
use crate::order::{NodeId, Order, Settled};

/// Nanoseconds until a node that does not answer is given up.
const GIVE_UP_NS: u64 = 10;

/// What goes wrong in a call of the job after its record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    None,
    /// The other node does not answer.
    IsSilent,
    /// The node's agent is killed before the entry has a key.
    IsKilled,
    /// The process is killed: nothing that it has open is closed by a record.
    ProcessIsKilled,
}

#[derive(Clone, Debug)]
enum Event {
    /// A call of the job, or a step of an agent.
    Call(usize, Call, Mishap),
    /// A node asks the other one what it waits for.
    Ask(usize),
    /// The answer to that is lost.
    AskInVain(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let mishap = prop_oneof![
        12 => Just(Mishap::None),
        1 => Just(Mishap::IsSilent),
        1 => Just(Mishap::IsKilled),
        1 => Just(Mishap::ProcessIsKilled),
    ];
    prop_oneof![
        20 => (0..2usize, call(), mishap).prop_map(|(node, call, mishap)| Event::Call(node, call, mishap)),
        5 => (0..2usize).prop_map(Event::Ask),
        1 => (0..2usize).prop_map(Event::AskInVain),
    ]
}

/// A node: its plan with what it is about, and its place in the order.
struct Member {
    world: World,
    order: Order,
    keys: Vec<Settled>,
    /// Records that the order knows.
    ordered: u64,
    /// What the order's clock stood at, for the next agent.
    clock: u64,
    /// [`Order::news`] when the processes were told last.
    told_news: u64,
    is_lost: bool,
}

struct Pair {
    members: [Member; 2],
    now_ns: u64,
    /// All records but opens, in the order in which they were written, with their nodes.
    written: Vec<(usize, u64)>,
}

impl Member {
    fn new(node: NodeId, published: &[usize]) -> Self {
        let order = Order::new(node, 0, 0, &[0, 1]);
        Self {
            world: World::new(published),
            order,
            keys: Vec::new(),
            ordered: 0,
            clock: 0,
            told_news: 1,
            is_lost: false,
        }
    }

    fn settle(&mut self, settled: Settled) {
        self.order.settle(&settled);
        self.keys.push(settled);
    }

    /// The order follows the plan, as [`NodeOrder`](crate::node_order::NodeOrder) has it do.
    fn follow(&mut self, now_ns: u64) {
        let planner = &self.world.planner;
        for written in self.world.journal.iter().skip(self.ordered as usize) {
            if written.seq <= planner.last_seq() && written.op != Op::Open {
                self.order.append(Place { seq: written.seq, sub: 0 }, now_ns, None);
            }
        }
        self.ordered = planner.last_seq();
        self.order.done_before(planner.first_place());
        if let Some(last) = planner.last_place()
            && self.order.last() < Some(last)
        {
            self.order.append(last, now_ns, None);
            if let Some(settled) = self.order.give_up_all() {
                self.settle(settled);
            }
        }
        self.clock = self.clock.max(self.order.clock());
    }

    fn tell_news(&mut self) {
        if std::mem::replace(&mut self.told_news, self.order.news()) != self.order.news() {
            self.world.node_news += 1;
        }
    }

    fn crash(&mut self, node: NodeId, now_ns: u64, has_logged: bool) {
        self.world.crash(has_logged);
        let last_key = self.keys.last().map_or(0, |settled| settled.key);
        let clock = self.clock.max(now_ns);
        self.order = Order::new(node, clock, last_key, &[0, 1]);
        for seq in self.world.planner.published() + 1..=self.world.planner.last_seq() {
            let place = Place { seq, sub: 0 };
            let key = self.keys.iter().find(|settled| place <= settled.up_to).map(|settled| settled.key);
            self.order.append(place, clock, key);
        }
        if let Some(settled) = self.order.give_up_all() {
            self.settle(settled);
        }
        self.ordered = self.world.planner.last_seq();
        self.told_news = 0;
        self.tell_news();
        self.follow(now_ns);
    }

    /// Whether the key of a record was fixed without the other node.
    fn is_alone(&self, seq: u64) -> bool {
        let place = Place { seq, sub: 0 };
        self.keys.iter().find(|settled| place <= settled.up_to).is_some_and(|settled| !settled.without.is_empty())
    }

    /// Whether the job has changed again what a record was about.
    fn is_changed_after(&self, seq: u64) -> bool {
        let journal = &self.world.journal;
        let Some(of) = journal.get(seq as usize - 1) else { return false };
        let own = |name: &Vec<u8>| {
            *name == of.a || *name == of.b || self.world.names_of.get(&of.id).is_some_and(|names| names.contains(name))
        };
        journal.iter().skip(seq as usize).any(|later| own(&later.a) || own(&later.b))
    }

    /// Records that may have been the last one of what the PFS has.
    fn states(&self) -> Vec<u64> {
        let world = &self.world;
        (world.changed..=world.journal.len() as u64).filter(|&seq| world.is_state(seq)).collect()
    }
}

impl Pair {
    fn new(published: &[usize]) -> Self {
        let members = [Member::new(0, published), Member::new(1, published)];
        Self { members, now_ns: 1, written: Vec::new() }
    }

    /// A node asks the other one, which reads its records and tries its open files first.
    fn ask(&mut self, node: usize, has_answer: bool) {
        let now_ns = self.now_ns;
        let [one, two] = &mut self.members;
        let (asking, asked) = if node == 0 { (one, two) } else { (two, one) };
        let peer = 1 - node as NodeId;
        if asking.is_lost || asked.is_lost {
            return;
        }
        let Some(ask) = asking.order.ask(peer) else { return };
        asking.order.asked(peer);
        asked.world.read(usize::MAX);
        asked.world.probe();
        asked.follow(now_ns);
        let answer = asked.order.answer(node as NodeId, ask);
        asked.clock = asked.clock.max(asked.order.clock());
        asked.tell_news();
        if has_answer {
            asking.order.answered(peer, answer);
            asking.clock = asking.clock.max(asking.order.clock());
            asking.tell_news();
        }
    }

    /// The call of the job returns when its entries have keys.
    fn end_call(&mut self, node: usize, is_silent: bool) {
        self.members[node].world.read(usize::MAX);
        self.members[node].follow(self.now_ns);
        while self.members[node].order.first_unsettled().is_some() {
            self.members[node].order.begin_round(self.now_ns + GIVE_UP_NS);
            self.ask(node, !is_silent);
            self.now_ns += if is_silent || self.members[1 - node].is_lost { GIVE_UP_NS } else { 1 };
            if let Some(settled) = self.members[node].order.outcome(self.now_ns) {
                self.members[node].settle(settled);
            }
        }
    }

    fn apply(&mut self, event: &Event) {
        self.now_ns += 1;
        let (node, call, mishap) = match event {
            Event::Call(node, call, mishap) => (*node, call, *mishap),
            Event::Ask(node) => return self.ask(*node, true),
            Event::AskInVain(node) => return self.ask(*node, false),
        };
        if self.members[node].is_lost {
            return;
        }
        let before = self.members[node].world.journal.len();
        self.call(node, call);
        if mishap == Mishap::ProcessIsKilled {
            while !self.members[node].world.handles.is_empty() {
                self.call(node, &Call::Close(0, false));
            }
        }
        let after = self.members[node].world.journal.len();
        let journal = &self.members[node].world.journal;
        let entries = journal[before..after].iter().filter(|written| written.op != Op::Open);
        self.written.extend(entries.map(|written| (node, written.seq)));
        if after > before {
            match mishap {
                Mishap::IsKilled => self.call(node, &Call::Crash(true)),
                _ => self.end_call(node, mishap == Mishap::IsSilent),
            }
        }
        self.check();
    }

    fn call(&mut self, node: usize, call: &Call) {
        let now_ns = self.now_ns;
        let member = &mut self.members[node];
        match call {
            Call::Crash(has_logged) => member.crash(node as NodeId, now_ns, *has_logged),
            Call::Step if member.world.begun.is_none() => {
                member.world.read(usize::MAX);
                member.follow(now_ns);
                let may_publish = |step: Step| member.order.may_publish(step.place);
                if member.world.planner.next_step().is_some_and(may_publish) {
                    member.world.apply(call);
                }
            }
            _ => member.world.apply(call),
        }
        member.follow(now_ns);
    }

    /// There is a moment of the job whose state the PFS has: of no call whose effects it has, one
    /// that had returned before is missing.
    fn check(&self) {
        let [one, two] = &self.members;
        if self.members.iter().any(|member| member.world.is_inexact) {
            return;
        }
        let (ones, twos) = (one.states(), two.states());
        let is_moment = |&(k, m): &(u64, u64)| {
            // Of the records so far: those of a node that are not in its state. A later one of the
            // other node must not be in that one's.
            let mut missing: [Vec<u64>; 2] = Default::default();
            self.written.iter().all(|&(node, seq)| {
                if seq > [k, m][node] {
                    missing[node].push(seq);
                    return true;
                }
                let other = 1 - node;
                // (What a node changes again before it hears of a call of the other one, whose
                // agent was killed or did not reach it, is not published in between.)
                let is_unordered = |earlier: &u64| {
                    let member = &self.members[other];
                    self.members[node].is_alone(seq) && (member.is_alone(*earlier) || member.is_changed_after(*earlier))
                };
                missing[other].iter().all(is_unordered)
            })
        };
        let mut all = ones.iter().flat_map(|&k| twos.iter().map(move |&m| (k, m)));
        assert!(
            all.any(|moment| is_moment(&moment)),
            "no moment of the job: {ones:?} of node 0, {twos:?} of node 1\n{:?}\n{:?}",
            one.world.pfs,
            two.world.pfs
        );
    }

    /// A node is lost with what it has staged.
    fn lose(&mut self, node: usize) {
        let member = &mut self.members[node];
        member.is_lost = true;
        member.world.handles.clear();
    }

    /// The job closes all files, and the agents publish all. What waits for a lost node waits until
    /// the other node takes it for gone, as `monarch recover` does.
    fn drain(&mut self) {
        for node in 0..2 {
            while !self.members[node].is_lost && !self.members[node].world.handles.is_empty() {
                let has_record = !self.members[node].world.handles.len().is_multiple_of(3);
                self.apply(&Event::Call(node, Call::Close(0, has_record), Mishap::None));
            }
        }
        for is_decided in [false, true] {
            for node in 0..2 {
                if is_decided && self.members[1 - node].is_lost {
                    self.members[node].order.leave(1 - node as NodeId);
                }
            }
            for _ in 0..300 {
                for node in (0..2).filter(|&node| !self.members[node].is_lost).collect::<Vec<_>>() {
                    self.work(node);
                }
                if !is_decided {
                    self.check();
                }
                if self.members.iter().all(|member| member.is_lost || member.world.planner.is_idle()) {
                    break;
                }
            }
        }
        let unfinished = |member: &&Member| !member.is_lost && !member.world.planner.is_idle();
        let of = |member: &Member| format!("\n{:?}\n{:?}", member.world.planner, member.order);
        assert!(
            !self.members.iter().any(|member| unfinished(&member)),
            "never done: {}",
            self.members.iter().map(of).collect::<String>()
        );
        for member in self.members.iter_mut().filter(|member| !member.is_lost) {
            member.world.drain();
        }
    }

    /// The agent does what there is to do.
    fn work(&mut self, node: usize) {
        self.now_ns += 1;
        for call in [Call::Read(usize::MAX), Call::Probe, Call::StartCopy, Call::EndCopy(0)] {
            self.call(node, &call);
        }
        let is_silent = self.members[1 - node].is_lost;
        self.end_call(node, is_silent);
        self.ask(node, true);
        self.call(node, &Call::Step);
        let world = &self.members[node].world;
        if world.begun.is_none() {
            self.call(node, &Call::Commit);
        }
    }
}

proptest! {
    #![proptest_config(jobs(30_000))]

    #[test]
    fn two_nodes_publish_in_the_order_of_the_job(
        published in proptest::collection::vec(0..NAMES.len(), 0..3),
        events in proptest::collection::vec(event(), 1..80),
    ) {
        let mut pair = Pair::new(&published);
        for event in &events {
            pair.apply(event);
        }
        pair.drain();
    }
}

proptest! {
    #![proptest_config(jobs(1000))]

    /// After each record in turn an agent is killed, a process is, or a node is lost. Where a
    /// process had files open, whose closes leave no records, only the end is compared then.
    #[test]
    fn a_crash_of_agent_process_or_node_at_any_record_keeps_the_order(
        published in proptest::collection::vec(0..NAMES.len(), 0..3),
        events in proptest::collection::vec(event(), 1..50),
        has_logged in any::<bool>(),
    ) {
        for at in 0..events.len() {
            for kind in 0..3 {
                let mut pair = Pair::new(&published);
                for (n, event) in events.iter().enumerate() {
                    let before = pair.written.len();
                    pair.apply(event);
                    if n != at || pair.written.len() == before {
                        continue;
                    }
                    let node = pair.written.last().map_or(0, |(node, _)| *node);
                    match kind {
                        0 => pair.call(node, &Call::Crash(has_logged)),
                        1 => {
                            while !pair.members[node].world.handles.is_empty() {
                                pair.call(node, &Call::Close(0, false));
                            }
                        }
                        _ => pair.lose(node),
                    }
                }
                pair.drain();
            }
        }
    }
}
