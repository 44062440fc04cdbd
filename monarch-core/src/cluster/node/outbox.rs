//! What is still to be told to other nodes: copies that they should know of, files that the job has
//! changed.
//!
//! What could not be sent is sent again, after a pause, until it is confirmed or the node has gone.
//! A node that comes up, or up again, is told of all changes so far: what it was sent while it was
//! away is lost.

use super::announcements::AT_A_TIME;
use super::dir_change_poller::Looks;
use super::{FileRef, Node, lock};
use crate::cluster::directory::members::ME;
use crate::cluster::directory::{Members, announcement_rules, fileset};
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

impl Letter {
    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.changed.is_empty()
    }
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
    /// Nodes that something is being sent to, each by a thread of its own.
    sending: HashSet<u16>,
    /// What those threads have not got rid of; empty letters where all was sent.
    returned: Arc<Mutex<Vec<(u16, Letter)>>>,
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
            if rested.elapsed() > REST {
                rested = Instant::now();
                self.election.rest();
            }
        }
    }

    /// The view has changed: who answers for other files now is to hear what is held of them, and
    /// what is this node's own is fetched.
    fn view_changed(&self, outbox: &mut Outbox, before: &Members, now: &Members) {
        for (_, live) in self.segments() {
            let index = live.segment.index.header.uuid;
            for (to, ids) in announcement_rules::announcements(before, now, self.held(&live)) {
                outbox.letters.entry(to).or_default().held.entry(index).or_default().extend(ids);
            }
        }
        self.admit(now);
        for (node, m) in now.iter().skip(1) {
            if !m.standing.takes_part() {
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
        if let Some(tiering) = self.tiering() {
            tiering.owners_changed();
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
            self.election.renew();
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
        outbox.letters.retain(|node, l| *node != ME && !l.is_empty());
    }

    /// Sends all letters that are due. Nobody waits for a node that is slow: what is told to the
    /// others meanwhile is on time.
    fn send(self: &Arc<Self>, outbox: &mut Outbox, view: &Members) {
        for (node, letter) in std::mem::take(&mut *lock(&outbox.returned)) {
            outbox.sending.remove(&node);
            if letter.is_empty() || view.get(node).is_none_or(|m| !m.standing.takes_part()) {
                continue;
            }
            let again = outbox.letters.entry(node).or_default();
            merge(&mut again.held, letter.held);
            merge(&mut again.changed, letter.changed);
            again.rests_until = letter.rests_until;
        }
        let now = Instant::now();
        let is_due = |node: u16, l: &Letter| view.is_up(node) && l.rests_until.is_none_or(|t| t <= now);
        let due = outbox.letters.iter().filter(|(n, l)| !outbox.sending.contains(n) && is_due(**n, l));
        let free = AT_A_TIME.saturating_sub(outbox.sending.len());
        for node in due.take(free).map(|(n, _)| *n).collect::<Vec<_>>() {
            let Some(letter) = outbox.letters.remove(&node) else { continue };
            outbox.sending.insert(node);
            let (me, returned) = (self.clone(), outbox.returned.clone());
            let letter = Arc::new(Mutex::new(letter));
            let mine = letter.clone();
            let send = move || {
                let rest = me.send_letter(node, std::mem::take(&mut *lock(&mine)));
                lock(&returned).push((node, rest));
            };
            let thread = std::thread::Builder::new().name("letter".to_owned()).stack_size(256 * 1024);
            if thread.spawn(send).is_err() {
                // No thread to be had now: later.
                let mut rest = std::mem::take(&mut *lock(&letter));
                rest.rests_until = Some(Instant::now() + PAUSE);
                lock(&outbox.returned).push((node, rest));
            }
        }
    }

    /// Sends a letter; what of it could not be sent.
    fn send_letter(&self, to: u16, mut letter: Letter) -> Letter {
        // (What the job has changed first: others read old bytes until they hear of it.)
        let mut body = Vec::new();
        encode(&letter.changed, &mut body);
        if letter.changed.is_empty() || self.post(to, "/v1/changed", &body) {
            letter.changed.clear();
            if letter.held.is_empty() || self.post_held(to, &letter.held) {
                letter.held.clear();
            }
        }
        letter.rests_until = (!letter.is_empty()).then(|| Instant::now() + PAUSE);
        letter
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
            let ids = announcement_rules::for_newcomer(view, node, self.held(&live));
            sets.entry(live.segment.index.header.uuid).or_default().extend(ids);
        }
        sets
    }

    /// The same as it is sent.
    pub(super) fn held_by_encoded(&self, view: &Members, node: u16, out: &mut Vec<u8>) {
        encode(&self.held_by(view, node), out);
    }
}
