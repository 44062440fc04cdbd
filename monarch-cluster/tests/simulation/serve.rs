//! How a simulated node handles messages: requests, answers, beats, and announcements of other
//! nodes.

use crate::events::{Event, Message, Mutant, Reply, file_key};
use crate::node::{Copy, Queued};
use crate::world::World;
use monarch_cluster::directory::announcement_rules::{Telling, after_fetch, announce_all, announcements, for_newcomer};
use monarch_cluster::directory::members::ME;
use monarch_cluster::directory::{Answer, Asked, Local, NodeState, Search, fileset};

impl World {
    pub(crate) fn arrive(&mut self, n: usize, from: usize, life: u64, what: Message) {
        if !self.nodes[n].up {
            return self.turn_away(n, from, &what);
        }
        match what {
            Message::Beat => self.alive(n, from, life),
            Message::Join => self.join(n, from, life),
            Message::JoinRefused => self.joined(n, from),
            Message::Joined { files, up } => {
                self.alive(n, from, life);
                for (node, life) in up.into_iter().filter(|(node, _)| *node != n) {
                    self.alive(n, node, life);
                }
                self.hears(n, from, life, &files);
                self.joined(n, from);
            }
            Message::Held { files, id } => {
                self.hears(n, from, life, &files);
                self.send(n, from, Message::ToldAck(id));
            }
            Message::ToldAck(id) => {
                self.nodes[n].unconfirmed.remove(&id);
            }
            Message::Get { file, ask, hops, keeps } => self.get(n, Queued::Get { from, file, ask, hops, keeps }),
            Message::Reply { file, ask, what } => self.reply(n, file, ask, what),
        }
    }

    /// The host of a node that is down refuses; the network may lose the refusal.
    fn turn_away(&mut self, n: usize, from: usize, what: &Message) {
        match what {
            Message::Join => self.send(n, from, Message::JoinRefused),
            Message::Get { file, ask, .. } => {
                self.send(n, from, Message::Reply { file: *file, ask: *ask, what: Reply::Unreachable });
            }
            _ => {}
        }
    }

    fn alive(&mut self, n: usize, from: usize, life: u64) {
        self.nodes[n].heard[from] = Some(self.now);
        if self.nodes[n].blocked[from] <= self.now {
            self.believe(n, from, NodeState::Up, Some(life));
        }
    }

    /// Notes the life of a node before anything that it says: what an earlier life held is
    /// forgotten. Returns whether it is the latest life.
    fn note_life(&mut self, n: usize, about: usize, life: u64) -> bool {
        let node = &mut self.nodes[n];
        let local = node.local(about);
        let was = node.view.get(local).map_or(0, |m| m.incarnation);
        if life > was {
            node.known.forget_node(local);
            node.view.locate(local, life, None);
            if was > 0 && node.acting && node.view.is_up(local) {
                // It has lost what was announced to its earlier life, and its join may have been
                // lost.
                let files = for_newcomer(&node.view, local, node.held().into_iter());
                self.announce(n, Telling::from([(local, files)]));
            }
        }
        life >= was
    }

    /// Changes what a node believes of another and announces it to the nodes that need to know.
    pub(crate) fn believe(&mut self, n: usize, about: usize, standing: NodeState, life: Option<u64>) {
        let (before, local) = (self.nodes[n].view.clone(), self.nodes[n].local(about));
        if life.is_some_and(|life| !self.note_life(n, about, life)) {
            return;
        }
        let node = &mut self.nodes[n];
        if standing != NodeState::Up
            && before.get(local).is_some_and(|m| m.standing == NodeState::Expected)
            && life.is_none()
        {
            // A node that was never seen stays expected: no node asks it.
            return;
        }
        if node.view.set(local, standing) && node.acting && self.plan.mutant != Mutant::ForgetAnnouncements {
            let due = announcements(&before, &self.nodes[n].view, self.nodes[n].held().into_iter());
            self.announce(n, due);
        }
    }

    /// Balances again what the nodes own, if they have changed, and announces what has another
    /// answerer after that.
    pub(crate) fn balance(&mut self, n: usize) {
        let (before, plan) = (self.nodes[n].view.clone(), self.plan);
        let node = &mut self.nodes[n];
        if node.balance(&plan) && node.acting && plan.mutant != Mutant::ForgetAnnouncements {
            let due = announcements(&before, &node.view, node.held().into_iter());
            self.announce(n, due);
        }
    }

    fn announce(&mut self, n: usize, due: Telling) {
        if self.plan.mutant == Mutant::JoinWithoutTelling {
            return;
        }
        for (to, ids) in due {
            let (to, id) = (self.nodes[n].global(to), self.random());
            let mut files = Vec::new();
            fileset::encode(&crate::events::INDEX, &ids, &mut files);
            self.nodes[n].unconfirmed.insert(id, (to, files.clone(), 20));
            self.send(n, to, Message::Held { files, id });
        }
    }

    pub(crate) fn announce_copy(&mut self, n: usize, file: u32, began: (u16, u64), from_pfs: bool) {
        if let Some(to) = after_fetch(began, from_pfs, &self.nodes[n].view, file_key(file).fp) {
            self.announce(n, Telling::from([(to, vec![file])]));
        }
    }

    pub(crate) fn announce_again(&mut self, n: usize) {
        self.nodes[n].unconfirmed.retain(|_, (.., left)| *left > 0);
        let again = self.nodes[n].unconfirmed.iter_mut().map(|(id, (to, files, left))| {
            *left -= 1;
            (*id, *to, files.clone())
        });
        for (id, to, files) in again.collect::<Vec<_>>() {
            self.send(n, to, Message::Held { files, id });
        }
    }

    fn join(&mut self, n: usize, from: usize, life: u64) {
        self.nodes[n].heard[from] = Some(self.now);
        self.nodes[n].blocked[from] = 0;
        self.believe(n, from, NodeState::Up, Some(life));
        let node = &self.nodes[n];
        let mut ids = for_newcomer(&node.view, node.local(from), node.held().into_iter());
        if self.plan.mutant == Mutant::JoinWithoutTelling {
            ids.clear();
        }
        let mut files = Vec::new();
        fileset::encode(&crate::events::INDEX, &ids, &mut files);
        let up = node.view.iter().filter(|(i, m)| *i != ME && m.standing == NodeState::Up);
        let up = up.map(|(i, m)| (node.global(i), m.incarnation)).collect();
        self.send(n, from, Message::Joined { files, up });
    }

    fn hears(&mut self, n: usize, from: usize, life: u64, files: &[u8]) {
        if !self.note_life(n, from, life) {
            return;
        }
        let node = &mut self.nodes[n];
        let sets = fileset::decode(files, |index| node.known.files(index)).unwrap();
        let local = node.local(from);
        for id in sets.into_iter().flat_map(|(_, ids)| ids) {
            node.known.held(local, &file_key(id));
        }
    }

    fn joined(&mut self, n: usize, with: usize) {
        self.nodes[n].joining.remove(&with);
        if self.nodes[n].joining.is_empty() {
            self.act(n);
        }
    }

    /// The join is over: requests that waited are handled.
    pub(crate) fn act(&mut self, n: usize) {
        if std::mem::replace(&mut self.nodes[n].acting, true) {
            return;
        }
        let due = announce_all(&self.nodes[n].view, self.nodes[n].held().into_iter());
        self.announce(n, due);
        for queued in std::mem::take(&mut self.nodes[n].queue) {
            match queued {
                Queued::Read(read, file) if self.open(read) => self.read(n, read, file),
                Queued::Read(..) => {}
                get => self.get(n, get),
            }
        }
    }

    fn get(&mut self, n: usize, get: Queued) {
        if !self.nodes[n].acting {
            return self.nodes[n].queue.push(get);
        }
        let Queued::Get { from, file, ask, hops, keeps } = get else { return };
        let (local, busy) = (self.has(n, file), self.below(5) == 0);
        let node = &mut self.nodes[n];
        let asked = Asked { from: Some(node.local(from)), hops, keeps, busy };
        let answer = node.known.answer(&file_key(file), &node.view, &asked, local);
        let what = match answer {
            Answer::Serve => match node.copies.get_mut(&file) {
                Some(Copy::Coming(fetch)) => return fetch.askers.push((from, ask, asked)),
                _ => Reply::Data { version: 0 },
            },
            Answer::FetchAndServe => {
                let mut search = Search::new();
                search.refused();
                return self.fetch(n, file, true, search, |fetch| fetch.askers.push((from, ask, asked)));
            }
            Answer::Redirect(to) => Reply::Redirect(node.global(to)),
            Answer::Delegate => Reply::YouRead { keep: true },
            Answer::Refuse | Answer::Changed => Reply::YouRead { keep: false },
        };
        self.send(n, from, Message::Reply { file, ask, what });
    }

    fn has(&self, n: usize, file: u32) -> Local {
        let node = &self.nodes[n];
        match node.copies.get(&file) {
            _ if node.changed.contains(&file) && self.plan.mutant != Mutant::ServeChanged => Local::Changed,
            Some(Copy::Resident) => Local::Resident,
            Some(Copy::Coming(fetch)) => Local::Coming(fetch.asking.map(|(_, to)| node.local(to))),
            None if self.has_room(n) => Local::Absent,
            None => Local::NoRoom,
        }
    }

    fn reply(&mut self, n: usize, file: u32, ask: u64, what: Reply) {
        let room = self.has_room(n);
        let Some((by, fetch)) = self.asking(n, file, ask) else { return };
        match what {
            Reply::Data { version } => return self.complete(n, file, version, false),
            Reply::Unreachable => return self.ask_failed(n, file, ask),
            Reply::YouRead { keep } => {
                fetch.keep |= keep && room;
                fetch.search.refused();
            }
            Reply::Redirect(to) => {
                let (by, to) = (self.nodes[n].local(by), self.nodes[n].local(to));
                if let Some((_, fetch)) = self.asking(n, file, ask) {
                    fetch.search.redirected(by, to);
                }
            }
        }
        if let Some((by, fetch)) = self.asking(n, file, ask) {
            fetch.asking = None;
            let local = self.nodes[n].local(by);
            if matches!(what, Reply::YouRead { .. }) {
                self.nodes[n].known.not_held(local, &file_key(file));
            }
        }
        self.advance(n, file);
    }

    /// Nodes that start at these times.
    pub(crate) fn start_at(&mut self, times: &[u64]) {
        for (n, time) in times.iter().enumerate() {
            self.at(*time, n, Event::Start);
        }
    }
}
