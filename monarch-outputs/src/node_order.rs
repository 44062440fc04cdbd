//! The order of one output root among the nodes, with its log of keys and its clock.

use crate::errors::OutputsError;
use crate::keys::{KeyLog, LoggedKey};
use crate::order::{Answer, Ask, Find, Found, NodeId, Order, Settled};
use crate::plan::{Place, Planner};
use crate::staging::StagingDir;
use crate::sys::now_ns;
use monarch_abi::outputs::KEYS;
use monarch_abi::outputs::state::State;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// The order of an output root.
#[derive(Debug)]
pub struct NodeOrder {
    /// The rules.
    pub order: Order,
    log: KeyLog,
    state: &'static State,
    /// [`Order::news`] when processes were told last.
    told_news: u64,
    /// Nodes that do not answer: no process waits for what they have.
    silent: BTreeSet<NodeId>,
}

impl NodeOrder {
    /// The order of a staging directory that was taken in, as node `me`. Entries whose calls may
    /// have returned without a key get one.
    ///
    /// # Errors
    /// [`OutputsError`], when the log of keys cannot be read or written.
    pub fn load(staging: &StagingDir, me: NodeId, planner: &Planner) -> Result<Self, OutputsError> {
        let path = staging.path().join(KEYS);
        let (log, keys) = KeyLog::open(staging.dir()).map_err(OutputsError::io("read", &path))?;
        let state = staging.state();
        let clock = state.clock.load(Ordering::Acquire).max(now_ns());
        let mut order = Order::new(me, clock, keys.last().map_or(0, |last| last.key), &[]);
        let mut logged = keys.iter().peekable();
        for seq in planner.published() + 1..=planner.last_seq() {
            let place = Place { seq, sub: 0 };
            while logged.next_if(|key| key.up_to < place).is_some() {}
            order.append(place, clock, logged.peek().map(|key| key.key));
        }
        let mut this = Self { order, log, state, told_news: 0, silent: BTreeSet::new() };
        if let Some(settled) = this.order.give_up_all() {
            this.settle(&settled).map_err(OutputsError::io("write", &path))?;
        }
        this.keep_clock();
        this.follow(planner);
        this.publish_keyed(planner.last_seq());
        this.tell_holding();
        Ok(this)
    }

    /// A record was read that has a place in the order.
    pub fn entry(&mut self, seq: u64) {
        self.order.append(Place { seq, sub: 0 }, now_ns(), None);
    }

    /// Follows the plan: what was published is done with, and files that were found closed after
    /// the last entry are entries, whose keys are fixed at once.
    pub fn follow(&mut self, planner: &Planner) {
        self.order.done_before(planner.first_place());
        if let Some(last) = planner.last_place()
            && self.order.last() < Some(last)
        {
            self.order.append(last, now_ns(), None);
            if let Some(settled) = self.order.give_up_all() {
                // The keeper settles them, if the log cannot be written now.
                let _ = self.settle(&settled);
            }
        }
    }

    /// Logs a key and gives it to its entries.
    ///
    /// # Errors
    /// What the kernel said: the entries have no key.
    pub fn settle(&mut self, settled: &Settled) -> std::io::Result<()> {
        self.log.append(&LoggedKey { up_to: settled.up_to, key: settled.key })?;
        self.order.settle(settled);
        self.keep_clock();
        Ok(())
    }

    /// Answers a node, when all records were read and all open files tried.
    pub fn answer(&mut self, from: NodeId, ask: Ask) -> Answer {
        let answer = self.order.answer(from, ask);
        self.keep_clock();
        self.tell_holding();
        answer
    }

    /// Answers a node that does not find a name, under the same condition.
    #[must_use]
    pub fn find(&self, planner: &Planner, find: &Find) -> Found {
        let place = planner.place_of(find.subject, &find.path);
        // One without a key: its call has not returned yet.
        let key = place.and_then(|place| self.order.key_of(place)).unwrap_or(0);
        Found { key, floor: self.order.floor() }
    }

    /// Tells processes of this node whether others may have something to publish.
    pub fn tell_holding(&mut self) {
        let holding = self.order.holding().filter(|node| !self.silent.contains(node)).count() as u32;
        self.state.holding_nodes.store(holding, Ordering::Release);
        let news = self.order.news();
        if news != std::mem::replace(&mut self.told_news, news) {
            self.state.node_news.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Some nodes do not answer. That one does so again is news.
    pub fn set_silent(&mut self, silent: BTreeSet<NodeId>) {
        if !self.silent.is_subset(&silent) {
            self.told_news = 0;
        }
        self.silent = silent;
    }

    /// Tells processes which of their entries have keys, `last_seq` being the last one that was
    /// read. Whether that is news.
    pub fn publish_keyed(&self, last_seq: u64) -> bool {
        let keyed = self.order.first_unsettled().map_or(last_seq, |first| first.seq.saturating_sub(1));
        self.state.keyed.fetch_max(keyed, Ordering::AcqRel) < keyed
    }

    /// Forgets the logged keys of entries that are published.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn forget_keys(&mut self, planner: &Planner) -> std::io::Result<()> {
        let first = Place { seq: planner.published() + 1, sub: 0 };
        let up_to = Place { seq: planner.last_seq(), sub: u32::MAX };
        self.log.keep_from(first, &LoggedKey { up_to, key: self.order.last_key() })
    }

    /// Keeps the clock where the next agent finds it: before others are told of it.
    pub fn keep_clock(&self) {
        self.state.clock.fetch_max(self.order.clock(), Ordering::AcqRel);
    }
}
