//! The members and their states, as this node believes them to be.
//!
//! Records are merged by the precedence of SWIM: the higher incarnation counts; of one incarnation,
//! left outranks silent, and silent outranks alive. This node is member [`ME`], always alive until
//! it leaves, and answers a record that says otherwise with a higher incarnation
//! ([`Table::refute`]).
//!
//! * A suspicion that is older than [`FRESH_S`] is not adopted for a member that is alive here: it
//!   is what the other half of a healed cut believes. It is verified with a probe.
//! * A member counts as alive in a life only when its contact in that life is known.

use super::key_index::KeyIndex;
use super::member::{FORGET_AFTER_MS, GONE_AFTER_MS, Member, State, TELL_FOR_MS};
use super::record::{Contact, Incarnation, Record, Status};
use super::types::Peer;
use crate::directory::NodeState;
use crate::directory::members::{MAX_NODES, node_key};
use std::net::SocketAddr;

/// Seconds up to which a suspicion of another node is adopted.
const FRESH_S: u32 = 1;
/// This node's own number.
pub(super) const ME: u16 = 0;

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merged {
    /// Nothing: it says what is known, or is about a node of no interest.
    Nothing,
    /// A newer incarnation of the member is known, or a status that outranks it.
    Outdated(u16),
    /// The member changed.
    Changed(u16),
    /// The contact of the member is needed first.
    Unknown(u64),
    /// The member is alive here and silent for others for long.
    Doubtful(u16),
    /// It is about this node and not true: refute it.
    Refutable(Incarnation),
}

/// All members by number, in the order in which they became known. Methods: 27, because the rules
/// of precedence share its lists.
pub(super) struct Table {
    members: Vec<Member>,
    index: KeyIndex,
    alive: Vec<u16>,
    /// Those that are not alive.
    absent: Vec<u16>,
    /// Only members of the list take part.
    is_closed: bool,
    /// Milliseconds until which expected members count as owners.
    expected_until: u64,
    revision: u64,
}

impl Table {
    pub(super) fn new(me: &Peer, now: u64, join_timeout: u64) -> Self {
        let record = Record::of_peer(me, 0);
        let mut table = Self {
            members: Vec::new(),
            index: KeyIndex::new(),
            alive: Vec::new(),
            absent: Vec::new(),
            is_closed: false,
            expected_until: now + join_timeout,
            revision: 0,
        };
        if let Some(contact) = record.contact {
            table.push(contact, true);
        }
        let mine = &mut table.members[usize::from(ME)];
        mine.incarnation = record.incarnation;
        mine.state = State::Known(Status::Alive);
        mine.is_introduced = true;
        // This node is in neither list: it is not probed.
        table.absent.clear();
        table
    }

    /// From now on no node is heard that is not in the list.
    pub(super) const fn close(&mut self) {
        self.is_closed = true;
    }

    /// Adds a node of the list.
    pub(super) fn expect(&mut self, name: &str, gossip: Option<SocketAddr>) {
        if self.number(node_key(name)).is_none() {
            self.push(Contact { name: name.into(), gossip, files: None }, true);
        }
    }

    /// Notes where the datagrams of a member go, unless that is known.
    pub(super) fn locate(&mut self, name: &str, at: SocketAddr) {
        if let Some(n) = self.number(node_key(name)) {
            self.members[usize::from(n)].contact.gossip.get_or_insert(at);
        }
    }

    fn push(&mut self, contact: Contact, is_listed: bool) -> u16 {
        let (number, key) = (self.members.len() as u16, node_key(&contact.name));
        let (incarnation, place) = (Incarnation::default(), self.absent.len() as u16);
        let state = State::Expected;
        let is_introduced = false;
        self.members.push(Member { key, contact, incarnation, state, since: 0, place, is_listed, is_introduced });
        self.index.push(number, |n| self.members[usize::from(n)].key);
        self.absent.push(number);
        number
    }

    pub(super) fn number(&self, key: u64) -> Option<u16> {
        self.index.find(key, |n| self.members[usize::from(n)].key)
    }

    pub(super) fn get(&self, number: u16) -> &Member {
        &self.members[usize::from(number)]
    }

    /// All members by number; this node is the first.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// The members that are alive, but this node.
    pub(super) fn alive(&self) -> &[u16] {
        &self.alive
    }

    /// The members that are not alive.
    pub(super) fn absent(&self) -> &[u16] {
        &self.absent
    }

    /// Grows with each change that the states show.
    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether a node may take part.
    pub(super) fn admits(&self, key: u64) -> bool {
        !self.is_closed || self.number(key).is_some()
    }

    /// The state of a member, as readers see it.
    pub(super) fn standing(&self, member: &Member, now: u64) -> NodeState {
        match member.state {
            State::Expected if now < self.expected_until => NodeState::Expected,
            State::Known(Status::Alive) => NodeState::Up,
            State::Known(Status::Silent) if member.age_ms(now) < GONE_AFTER_MS => NodeState::Suspect,
            State::Known(Status::Left) if member.age_ms(now) < FORGET_AFTER_MS => NodeState::Left,
            _ => NodeState::Gone,
        }
    }

    /// Makes the record of a member, unless nothing is known of it or nothing is passed on.
    pub(super) fn record(&self, number: u16, now: u64, with_contact: bool) -> Option<Record> {
        let status = self.get(number).told(now)?;
        Some(self.record_with(number, status, now, with_contact))
    }

    /// Makes the record of a member for that member itself, which may have to refute it however old
    /// it is; `None` when nothing is known of it.
    pub(super) fn record_for_itself(&self, number: u16, now: u64) -> Option<Record> {
        let State::Known(status) = self.get(number).state else { return None };
        Some(self.record_with(number, status, now, false))
    }

    fn record_with(&self, number: u16, status: Status, now: u64, with_contact: bool) -> Record {
        let member = self.get(number);
        let age_s = if status == Status::Alive { 0 } else { (member.age_ms(now) / 1_000) as u32 };
        let contact = (with_contact && member.is_introduced).then(|| member.contact.clone());
        Record { key: member.key, incarnation: member.incarnation, status, age_s, contact }
    }

    /// Takes in a record.
    pub(super) fn merge(&mut self, record: &Record, now: u64) -> Merged {
        let Some(number) = self.number(record.key) else { return self.meet(record, now) };
        if number == ME {
            return self.own_echo(record);
        }
        let member = self.get(number);
        let State::Known(status) = member.state else { return self.adopt(number, record, now) };
        match record.incarnation.cmp(&member.incarnation) {
            std::cmp::Ordering::Less => Merged::Outdated(number),
            std::cmp::Ordering::Equal if record.status == status => Merged::Nothing,
            std::cmp::Ordering::Equal if record.status < status => Merged::Outdated(number),
            _ if record.status == Status::Silent && status == Status::Alive && record.age_s > FRESH_S => {
                Merged::Doubtful(number)
            }
            _ => self.adopt(number, record, now),
        }
    }

    /// Takes in a record of a node that was never heard of.
    fn meet(&mut self, record: &Record, now: u64) -> Merged {
        if self.is_closed || self.members.len() >= MAX_NODES {
            return Merged::Nothing;
        }
        if record.status != Status::Alive && 1_000 * u64::from(record.age_s) > TELL_FOR_MS {
            return Merged::Nothing;
        }
        let Some(contact) = record.contact.clone() else { return Merged::Unknown(record.key) };
        let number = self.push(contact, false);
        self.adopt(number, record, now)
    }

    fn adopt(&mut self, number: u16, record: &Record, now: u64) -> Merged {
        let member = &mut self.members[usize::from(number)];
        let is_same_life = record.incarnation.life == member.incarnation.life && member.is_introduced;
        if record.contact.is_none() && !is_same_life && (record.status == Status::Alive || !member.is_listed) {
            return Merged::Unknown(record.key);
        }
        match &record.contact {
            Some(contact) if !is_same_life => {
                member.contact.gossip = contact.gossip.or(member.contact.gossip);
                member.contact.files = contact.files;
                member.is_introduced = true;
            }
            _ => member.is_introduced = is_same_life,
        }
        member.incarnation = record.incarnation;
        self.set(number, record.status, now as i64 - 1_000 * i64::from(record.age_s));
        Merged::Changed(number)
    }

    /// A record says what this node knows better.
    fn own_echo(&self, record: &Record) -> Merged {
        let mine = self.get(ME);
        let is_true = record.incarnation == mine.incarnation && State::Known(record.status) == mine.state;
        if is_true || record.incarnation < mine.incarnation || mine.state != State::Known(Status::Alive) {
            return Merged::Nothing;
        }
        Merged::Refutable(record.incarnation)
    }

    /// Takes an incarnation that is higher than the one that other nodes believe in.
    pub(super) fn refute(&mut self, believed: Incarnation) {
        let mine = &mut self.members[usize::from(ME)].incarnation;
        *mine = if believed.life > mine.life {
            // A clock went back between two lives.
            Incarnation { life: believed.life.saturating_add(1), refutations: 0 }
        } else {
            Incarnation { refutations: believed.refutations.saturating_add(1), ..*mine }
        };
        self.revision += 1;
    }

    /// This node leaves: no record brings it back.
    pub(super) fn leave(&mut self, now: u64) {
        let me = &mut self.members[usize::from(ME)];
        (me.state, me.since) = (State::Known(Status::Left), now as i64);
    }

    /// A node came by another way than a datagram: it is alive, whatever others believe. Returns
    /// its number, unless a later life of it is known.
    pub(super) fn present(&mut self, peer: &Peer, now: u64) -> Option<u16> {
        let known = self.number(node_key(&peer.name));
        let before = known.map_or_else(Incarnation::default, |number| self.get(number).incarnation);
        let refutations = if before.life == peer.incarnation { before.refutations } else { 0 };
        match self.merge(&Record::of_peer(peer, refutations), now) {
            Merged::Changed(number) => Some(number),
            Merged::Outdated(number) if before.life == peer.incarnation => {
                self.set(number, Status::Alive, now as i64);
                Some(number)
            }
            _ => None,
        }
    }

    /// No answer came from a member that is alive: it is suspect from now on.
    pub(super) fn suspect(&mut self, number: u16, now: u64) {
        self.set(number, Status::Silent, now as i64);
    }

    /// This node stood still for `gap` milliseconds: no suspect could answer in that time.
    pub(super) fn excuse(&mut self, gap: u64) {
        for number in &self.absent {
            let member = &mut self.members[usize::from(*number)];
            if member.state == State::Known(Status::Silent) {
                member.since += gap as i64;
            }
        }
    }

    fn set(&mut self, number: u16, status: Status, since: i64) {
        let was_alive = self.get(number).is_alive();
        let member = &mut self.members[usize::from(number)];
        (member.state, member.since) = (State::Known(status), since);
        self.revision += 1;
        if was_alive != (status == Status::Alive) {
            self.move_over(number, was_alive);
        }
    }

    /// Moves a member from one list to the other.
    fn move_over(&mut self, number: u16, was_alive: bool) {
        let (from, to) = match was_alive {
            true => (&mut self.alive, &mut self.absent),
            false => (&mut self.absent, &mut self.alive),
        };
        let place = self.members[usize::from(number)].place;
        from.swap_remove(usize::from(place));
        if let Some(moved) = from.get(usize::from(place)) {
            self.members[usize::from(*moved)].place = place;
        }
        self.members[usize::from(number)].place = to.len() as u16;
        to.push(number);
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
