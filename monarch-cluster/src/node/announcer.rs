//! The thread that informs the other nodes of copies and changes.

use super::dir_change_poller::DirChangePoller;
use super::file_directory::FileDirectory;
use super::holdings::Holdings;
use super::listener::Listener;
use super::news::News;
use super::outbox::{Letter, Outbox, RETRY_PAUSE};
use super::owner_balance::OwnerBalance;
use super::peer_pool::PeerPool;
use super::store::Store;
use super::traffic_stats::TrafficStats;
use crate::directory::Members;
use crate::election::Election;
use crate::sync::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long news are gathered before letters are sent.
const GATHER_PERIOD: Duration = Duration::from_millis(100);
/// How often the memory of packed indexes is given back.
const GIVE_BACK_PERIOD: Duration = Duration::from_secs(30);
/// Stack of a thread that sends a letter, in bytes.
const LETTER_STACK_BYTES: usize = 256 * 1024;

/// What the thread works with; its own state is on its stack.
pub(super) struct Announcer {
    pub(super) pool: Arc<PeerPool>,
    pub(super) directory: Arc<FileDirectory>,
    pub(super) holdings: Arc<Holdings>,
    pub(super) news: Arc<News>,
    pub(super) store: Arc<Store>,
    pub(super) election: Arc<Election>,
    pub(super) listener: Arc<Listener>,
    pub(super) traffic: Arc<TrafficStats>,
    pub(super) owners: Arc<OwnerBalance>,
}

impl Announcer {
    /// Informs the other nodes until the agent ends.
    pub(super) fn run(&self, stop: &AtomicBool) {
        let (mut outbox, mut poller) = (Outbox::default(), DirChangePoller::default());
        let (mut before, mut given_back) = (self.pool.view(), Instant::now());
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(GATHER_PERIOD);
            self.owners.refresh();
            let now = self.pool.view();
            if !Arc::ptr_eq(&before, &now) {
                self.view_changed(&mut outbox, &before, &now);
                before = now;
            }
            if let Some(store) = self.store.get() {
                let polled = poller.poll(&*store, Instant::now());
                self.news.add_changed(polled.files);
                outbox.add_marks(&polled.marks, &before);
            }
            self.gather(&mut outbox, &before);
            self.send(&mut outbox, &before);
            if given_back.elapsed() > GIVE_BACK_PERIOD {
                given_back = Instant::now();
                self.election.rest();
            }
        }
    }

    /// The view has changed: nodes that answer for other files now are to know what is held of
    /// them, and what is this node's own is fetched.
    fn view_changed(&self, outbox: &mut Outbox, before: &Members, now: &Members) {
        for (to, index, ids) in self.holdings.moved(before, now) {
            outbox.add_held(to, index, ids);
        }
        self.listener.admit(now);
        for (node, m) in now.iter().skip(1) {
            if !m.standing.takes_part() {
                outbox.drop_letter(node);
                self.election.forget(&m.name);
            }
            if !now.is_up(node) {
                outbox.forget_informed(node);
                continue;
            }
            // A node that lives again without having joined first.
            if before.is_up(node) && before.get(node).is_some_and(|b| b.incarnation != m.incarnation) {
                self.directory.note_life(node, m.incarnation);
                outbox.forget_informed(node);
                outbox.merge_held(node, self.holdings.answered_by(now, node));
            }
        }
        if let Some(store) = self.store.get() {
            store.owners_changed();
        }
    }

    fn gather(&self, outbox: &mut Outbox, view: &Members) {
        let complete = self.news.take_complete();
        let changed = self.news.take_changed();
        self.traffic.told.fetch_add(changed.len() as u64, Ordering::Relaxed);
        if !changed.is_empty() {
            // A node that gets the index from now on is to know.
            self.election.renew();
        }
        outbox.add_news(complete, &changed, view);
    }

    /// Sends all letters that are due, each by a thread of its own: a slow node delays no other.
    fn send(&self, outbox: &mut Outbox, view: &Members) {
        for (node, letter) in outbox.take_due(view, Instant::now()) {
            let (pool, returned) = (self.pool.clone(), outbox.returned());
            let letter = Arc::new(Mutex::new(letter));
            let mine = letter.clone();
            let send = move || {
                let rest = send_letter(&pool, node, std::mem::take(&mut *lock(&mine)));
                lock(&returned).push((node, rest));
            };
            let thread = std::thread::Builder::new().name("letter".to_owned()).stack_size(LETTER_STACK_BYTES);
            if thread.spawn(send).is_err() {
                // No thread to be had now: later.
                let mut rest = std::mem::take(&mut *lock(&letter));
                rest.not_before = Some(Instant::now() + RETRY_PAUSE);
                lock(&outbox.returned()).push((node, rest));
            }
        }
    }
}

/// Sends a letter; what of it could not be sent.
fn send_letter(pool: &PeerPool, to: u16, mut letter: Letter) -> Letter {
    // (What the job has changed first: other nodes read old bytes until they know of it.)
    let mut body = Vec::new();
    letter.changed.encode(&mut body);
    if letter.changed.is_empty() || pool.post(to, "/v1/changed", &body) {
        letter.changed.clear();
        let mut body = Vec::new();
        letter.marks.encode(&mut body);
        if letter.marks.is_empty() || pool.post(to, "/v1/marks", &body) {
            letter.marks.clear();
        }
        let mut body = pool.membership().incarnation().to_le_bytes().to_vec();
        letter.held.encode(&mut body);
        if letter.held.is_empty() || pool.post(to, "/v1/held", &body) {
            letter.held.clear();
        }
    }
    letter.not_before = (!letter.is_empty()).then(|| Instant::now() + RETRY_PAUSE);
    letter
}
