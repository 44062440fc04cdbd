//! What is still to be told to other nodes: copies that they should know of, files that the job has changed.
//!
//! What could not be sent is sent again, after a pause, until it is confirmed or the node has gone. A node that comes up, or up again, is
//! told of all changes so far: what it was sent while it was away is lost.

use super::looks::Looks;
use super::{FileRef, Node, lock};
use crate::cluster::residency::members::ME;
use crate::cluster::residency::{Members, Standing, fileset, told};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long news are gathered.
const GATHER: Duration = Duration::from_millis(100);
/// Pause after news could not be sent.
const PAUSE: Duration = Duration::from_secs(1);
/// How often memory is given back that packed indexes take.
const REST: Duration = Duration::from_secs(30);

/// Files by index.
type Sets = BTreeMap<[u8; 16], BTreeSet<u32>>;

fn add(sets: &mut Sets, files: impl IntoIterator<Item = FileRef>) {
    files.into_iter().for_each(|f| {
        sets.entry(f.index).or_default().insert(f.id);
    });
}

fn merge(sets: &mut Sets, more: Sets) {
    more.into_iter().for_each(|(index, ids)| sets.entry(index).or_default().extend(ids));
}

/// As they are sent, behind what is there.
fn encode(sets: &Sets, out: &mut Vec<u8>) {
    for (index, ids) in sets {
        let ids: Vec<u32> = ids.iter().copied().collect();
        fileset::encode(index, &ids, out);
    }
}

/// News for one node.
#[derive(Default)]
struct Letter {
    held: Sets,
    changed: Sets,
    rests_until: Option<Instant>,
}

/// See the module.
#[derive(Default)]
struct Outbox {
    letters: HashMap<u16, Letter>,
    /// All that the job has changed.
    changed: Sets,
    /// Nodes that were told of it.
    told: HashSet<u16>,
    looks: Looks,
}

impl Node {
    /// Tells the other nodes, until the agent ends.
    pub(super) fn tell_news(self: &Arc<Self>, stop: &AtomicBool) {
        let (mut outbox, mut before, mut rested) = (Outbox::default(), self.view(), Instant::now());
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(GATHER);
            let now = self.view();
            if !Arc::ptr_eq(&before, &now) {
                self.view_changed(&mut outbox, &before, &now);
                before = now;
            }
            outbox.looks.look(self);
            self.gather(&mut outbox, &before);
            self.send(&mut outbox, &before);
            self.send_complaints();
            if rested.elapsed() > REST {
                rested = Instant::now();
                self.election.rest();
            }
        }
    }

    /// The view has changed: who answers for other files now is to hear what is held of them, and what is this node's own is fetched.
    fn view_changed(&self, outbox: &mut Outbox, before: &Members, now: &Members) {
        for (_, live) in self.segments() {
            let index = live.segment.index.header.uuid;
            for (to, ids) in told::announcements(before, now, self.held(&live)) {
                outbox.letters.entry(to).or_default().held.entry(index).or_default().extend(ids);
            }
        }
        self.admit(now);
        for (node, m) in now.iter().skip(1) {
            if m.standing == Standing::Gone {
                outbox.letters.remove(&node);
                self.election.forget(&m.name);
            }
            if !now.is_up(node) {
                outbox.told.remove(&node);
                continue;
            }
            // One that lives anew without having joined first.
            if before.is_up(node) && before.get(node).is_some_and(|b| b.incarnation != m.incarnation) {
                self.note_life(node, m.incarnation);
                outbox.told.remove(&node);
                let held = self.held_by(now, node);
                merge(&mut outbox.letters.entry(node).or_default().held, held);
            }
        }
        if let Some(driver) = self.driver() {
            driver.owners_changed();
        }
    }

    fn gather(&self, outbox: &mut Outbox, view: &Members) {
        for (to, file) in std::mem::take(&mut *lock(&self.complete)) {
            add(&mut outbox.letters.entry(to).or_default().held, [file]);
        }
        let news = std::mem::take(&mut *lock(&self.changed));
        self.figures.told.fetch_add(news.len() as u64, Ordering::Relaxed);
        if !news.is_empty() {
            // Who gets the index from now on is to know.
            self.election.rest();
        }
        add(&mut outbox.changed, news.iter().copied());
        for (node, _) in view.iter().skip(1).filter(|(node, _)| view.is_up(*node)) {
            let first = outbox.told.insert(node);
            let letter = outbox.letters.entry(node).or_default();
            match first {
                true => merge(&mut letter.changed, outbox.changed.clone()),
                false => add(&mut letter.changed, news.iter().copied()),
            }
        }
        outbox.letters.retain(|node, l| *node != ME && !(l.held.is_empty() && l.changed.is_empty()));
    }

    /// Sends all letters that are due, at the same time: one that is slow keeps no other waiting.
    fn send(&self, outbox: &mut Outbox, view: &Members) {
        let now = Instant::now();
        let is_due = |node: u16, l: &Letter| view.is_up(node) && l.rests_until.is_none_or(|t| t <= now);
        let due: Vec<u16> = outbox.letters.iter().filter(|(n, l)| is_due(**n, l)).map(|(n, _)| *n).collect();
        let letters = Mutex::new(&mut outbox.letters);
        self.each(&due, |node| {
            let Some(mut letter) = lock(&letters).remove(&node) else { return };
            if !letter.held.is_empty() && self.post_held(node, &letter.held) {
                letter.held.clear();
            }
            let mut body = Vec::new();
            encode(&letter.changed, &mut body);
            if !letter.changed.is_empty() && self.post(node, "/v1/changed", &body) {
                letter.changed.clear();
            }
            if !letter.held.is_empty() || !letter.changed.is_empty() {
                letter.rests_until = Some(Instant::now() + PAUSE);
                lock(&letters).insert(node, letter);
            }
        });
    }

    fn post_held(&self, to: u16, held: &Sets) -> bool {
        let mut body = self.membership.incarnation().to_le_bytes().to_vec();
        encode(held, &mut body);
        self.post(to, "/v1/held", &body)
    }

    pub(super) fn post(&self, to: u16, path: &str, body: &[u8]) -> bool {
        let life = self.life_of(to);
        let Some(peer) = self.peer(to) else { return false };
        match peer.post(path, body, self.options.peer_timeout) {
            Ok(answer) => answer.status() < 300,
            Err(e) => {
                self.doubt(to, life, &e);
                false
            }
        }
    }

    /// The files held here that a node answers for.
    pub(super) fn held_by(&self, view: &Members, node: u16) -> Sets {
        let mut sets = Sets::new();
        for (_, live) in self.segments() {
            let ids = told::for_newcomer(view, node, self.held(&live));
            sets.entry(live.segment.index.header.uuid).or_default().extend(ids);
        }
        sets
    }

    /// The same as it is sent.
    pub(super) fn held_by_encoded(&self, view: &Members, node: u16, out: &mut Vec<u8>) {
        encode(&self.held_by(view, node), out);
    }
}
