//! The membership protocol, of the SWIM family: Das, Gupta and Motivala, "SWIM: scalable
//! weakly-consistent infection-style process group membership protocol" (2002). Pure: time and
//! datagrams are handed in. What a node sends does not grow with the number of nodes.
//!
//! * Each node probes one member at a time ([`super::probes`], [`super::rotation`]).
//! * News ride on every datagram ([`super::piggyback`]). While there are news, each tick sends them
//!   to [`FANOUT`] members by chance as well, so that all nodes have them within a second.
//! * A suspect refutes with a higher incarnation ([`super::table`]).
//! * Greetings find nodes that start or come back ([`super::greetings`]).
//! * Anti-entropy repairs what news missed ([`super::anti_entropy`]).

use super::anti_entropy::{Schedule, digest, hashes, missing, pieces};
use super::greetings::Greetings;
use super::member::Member;
use super::message::{BUCKETS, MAX_ASKS, MAX_PAYLOAD_BYTES, Mask, Message, Outgoing, Payload};
use super::piggyback::{Piggyback, transmissions};
use super::probes::{HELPERS, Probes, Step};
use super::recent_senders::RecentSenders;
use super::record::{Incarnation, Record, Status};
use super::rotation::{Chance, Rotation};
use super::table::{ME, Merged, Table};
use super::types::Peer;
use crate::directory::NodeState;
use crate::directory::members::node_key;
use std::net::SocketAddr;

/// Milliseconds without a tick of its own after which a node blames no other one for the silence.
const MAX_OWN_PAUSE_MS: u64 = 300;
/// Milliseconds of such a pause that count as time that passed.
const TICK_MS: u64 = 100;
/// Milliseconds without any datagram after which a node believes itself cut off from all others.
const CUT_OFF_AFTER_MS: u64 = 2_000;
/// Members that get news in one tick.
const FANOUT: usize = 3;
/// Most members that get news in one tick while there are many news.
const MAX_FANOUT: usize = 8;
/// News for which one more member gets news in a tick.
const NEWS_PER_TARGET: usize = 32;
/// Members that a node says goodbye to; they pass it on.
const GOODBYES: usize = 32;

/// This node's part in the protocol.
pub(super) struct Gossip {
    pub(super) table: Table,
    piggyback: Piggyback,
    probes: Probes,
    rotation: Rotation,
    greetings: Greetings,
    chance: Chance,
    last_tick: u64,
    heard_at: u64,
    anti_entropy: Schedule,
    recent: RecentSenders,
    is_leaving: bool,
}

/// What a datagram gives cause to send.
#[derive(Default)]
struct Reply {
    news: Vec<Record>,
    asks: Vec<u64>,
    /// This node refuted what the sender believes.
    has_refuted: bool,
    /// What the sender believes of members that are alive here.
    doubts: Vec<(u16, Record)>,
}

impl Gossip {
    /// `join_timeout`: milliseconds for which a node that was never seen is expected.
    pub(super) fn new(me: &Peer, now: u64, join_timeout: u64) -> Self {
        let mut chance = Chance::new(node_key(&me.name) ^ me.incarnation);
        let anti_entropy = Schedule::new(now, &mut chance);
        Self {
            table: Table::new(me, now, join_timeout),
            piggyback: Piggyback::default(),
            probes: Probes::default(),
            rotation: Rotation::default(),
            greetings: Greetings::default(),
            chance,
            last_tick: now,
            heard_at: now,
            anti_entropy,
            recent: RecentSenders::default(),
            is_leaving: false,
        }
    }

    /// Number of this node's life.
    pub(super) fn life(&self) -> u64 {
        self.table.get(ME).incarnation.life
    }

    /// All other nodes, with their states.
    pub(super) fn standings(&self, now: u64) -> impl Iterator<Item = (&Member, NodeState)> {
        self.table.members().skip(1).map(move |member| (member, self.table.standing(member, now)))
    }

    /// This node and those that are up.
    pub(super) fn peers(&self) -> Vec<Peer> {
        std::iter::once(ME).chain(self.table.alive().iter().copied()).map(|n| self.table.get(n).peer()).collect()
    }

    /// A node came by another way than a datagram: it is alive, unless a later life of it is known.
    pub(super) fn present(&mut self, peer: &Peer, now: u64) {
        if self.table.admits(node_key(&peer.name))
            && let Some(number) = self.table.present(peer, now)
        {
            self.note_change(number);
        }
    }

    /// Says goodbye with the next tick, and nothing after it.
    pub(super) fn leave(&mut self, now: u64) {
        self.table.leave(now);
        self.is_leaving = true;
    }

    /// A moment has passed, of 100 ms or so: what to send.
    pub(super) fn tick(&mut self, now: u64) -> Vec<Outgoing> {
        if self.is_leaving {
            let mut targets = self.table.alive().to_vec();
            self.chance.shuffle(&mut targets);
            targets.truncate(GOODBYES);
            return targets.into_iter().filter_map(|n| self.send_to(n, Message::News, Vec::new(), now)).collect();
        }
        self.excuse_own_pause(now);
        let mut out = self.probe(now);
        for target in self.greetings.due(&self.table, now, &mut self.chance) {
            out.extend(self.send_to(target, Message::Greeting, Vec::new(), now));
        }
        if self.anti_entropy.is_due(now) {
            let hash = digest(&hashes(&self.table, now));
            out.extend(self.send_anyone(now, |_| Message::Digest(hash)));
        }
        let targets = match self.piggyback.len() {
            0 => 0,
            waiting => MAX_FANOUT.min(FANOUT + waiting / NEWS_PER_TARGET),
        };
        for _ in 0..targets.min(self.table.alive().len()) {
            out.extend(self.send_anyone(now, |_| Message::News).filter(|(_, payload)| !payload.news.is_empty()));
        }
        out
    }

    fn excuse_own_pause(&mut self, now: u64) {
        let gap = now.saturating_sub(std::mem::replace(&mut self.last_tick, now));
        if gap > MAX_OWN_PAUSE_MS {
            let lost = gap - TICK_MS;
            self.table.excuse(lost);
            self.probes.excuse(lost);
            self.heard_at += lost;
        }
    }

    fn probe(&mut self, now: u64) -> Vec<Outgoing> {
        let mut steps = self.probes.steps(now);
        for _ in 0..self.probes.due(now) {
            let table = &self.table;
            let target = self.rotation.next(table.alive(), |n| table.get(n).is_alive(), &mut self.chance);
            let probe = |n| self.probes.begin(n, table.get(n).incarnation, None, now);
            steps.extend(target.and_then(probe));
        }
        if now.saturating_sub(self.heard_at) >= CUT_OFF_AFTER_MS {
            self.table.alive().to_vec().into_iter().for_each(|n| self.suspect(n, now));
        }
        steps.into_iter().flat_map(|step| self.take_step(step, now)).collect()
    }

    fn take_step(&mut self, step: Step, now: u64) -> Vec<Outgoing> {
        match step {
            Step::Ping { target, seq, doubt } => {
                self.send_to(target, Message::Ping(seq), doubt.into_iter().collect(), now).into_iter().collect()
            }
            Step::AskHelpers { target, seq } => {
                let request = Message::PingRequest { seq, target: self.table.get(target).key };
                let helpers = HELPERS.min(self.table.alive().len().saturating_sub(1));
                (0..helpers)
                    .filter_map(|_| {
                        self.send_anyone(now, |n| if n == target { Message::News } else { request.clone() })
                    })
                    .collect()
            }
            Step::Suspect { target, incarnation } => {
                let member = self.table.get(target);
                if !member.is_alive() || member.incarnation != incarnation {
                    return Vec::new();
                }
                self.suspect(target, now);
                // The target hears of the suspicion, so that it can refute it.
                self.send_to(target, Message::Greeting, Vec::new(), now).into_iter().collect()
            }
        }
    }

    fn suspect(&mut self, target: u16, now: u64) {
        self.table.suspect(target, now);
        self.note_change(target);
    }

    /// Passes on what is new of a member.
    fn note_change(&mut self, number: u16) {
        self.piggyback.put(number, transmissions(self.table.alive().len()));
        if self.table.get(number).is_alive() && number != ME {
            self.rotation.insert(number, &mut self.chance);
        }
    }

    /// Takes in a datagram, and says what to send.
    pub(super) fn hear(&mut self, payload: &Payload, now: u64) -> Vec<Outgoing> {
        if self.is_leaving || !self.table.admits(payload.from.key) || !self.is_for_me(payload) {
            return Vec::new();
        }
        self.heard_at = now;
        let mut reply = Reply::default();
        if let Merged::Outdated(sender) = self.absorb(&payload.from, now, &mut reply) {
            // The sender is to refute what is believed of it here.
            reply.news.extend(self.table.record_for_itself(sender, now));
        }
        self.table.number(payload.from.key).into_iter().for_each(|sender| self.recent.note(sender));
        for record in &payload.news {
            self.absorb(record, now, &mut reply);
        }
        // (What does not fit is asked for again.)
        let mut room = MAX_PAYLOAD_BYTES / 2;
        for key in payload.asks.iter().take(MAX_ASKS) {
            let asked = self.table.number(*key).and_then(|n| self.table.record(n, now, true));
            if let Some(asked) = asked
                && let Some(rest) = room.checked_sub(asked.wire_len())
            {
                room = rest;
                reply.news.push(asked);
            }
        }
        let mut out = self.answer(payload, &mut reply, now);
        for (target, doubt) in reply.doubts {
            let incarnation = self.table.get(target).incarnation;
            if let Some(step) = self.probes.begin(target, incarnation, Some(doubt), now) {
                out.extend(self.take_step(step, now));
            }
        }
        out
    }

    /// Whether a datagram is for this node, and comes from another one: a datagram that was sent
    /// back, or to another node, says nothing of the member that it was for. A greeting finds
    /// whatever node listens at an address.
    fn is_for_me(&self, payload: &Payload) -> bool {
        let me = self.table.get(ME);
        let is_own = payload.from.key == me.key && payload.from.incarnation.life == me.incarnation.life;
        !is_own && (payload.to == me.key || payload.message == Message::Greeting)
    }

    /// Takes in one record.
    fn absorb(&mut self, record: &Record, now: u64, reply: &mut Reply) -> Merged {
        let merged = self.table.merge(record, now);
        match merged {
            Merged::Nothing => self.table.number(record.key).into_iter().for_each(|n| self.piggyback.heard(n)),
            Merged::Outdated(_) => {}
            Merged::Changed(number) => self.note_change(number),
            Merged::Unknown(key) if reply.asks.len() < MAX_ASKS => reply.asks.push(key),
            Merged::Unknown(_) => {}
            Merged::Doubtful(number) => reply.doubts.push((number, record.clone())),
            Merged::Refutable(believed) => {
                self.refute(believed);
                reply.has_refuted = true;
            }
        }
        merged
    }

    fn refute(&mut self, believed: Incarnation) {
        self.table.refute(believed);
        self.note_change(ME);
    }

    fn answer(&mut self, payload: &Payload, reply: &mut Reply, now: u64) -> Vec<Outgoing> {
        let Some(sender) = payload.from.contact.as_ref().and_then(|contact| contact.gossip) else { return Vec::new() };
        let mut others = Vec::new();
        let message = match &payload.message {
            Message::Ping(seq) => Some(Message::Ack(*seq)),
            Message::Greeting => (payload.from.status != Status::Left).then_some(Message::Welcome),
            Message::Ack(seq) | Message::RelayedAck(seq) => {
                if let Some(((key, at), seq)) = self.probes.answered(*seq) {
                    others.push((at, self.compose(key, Message::RelayedAck(seq), Vec::new(), Vec::new(), now)));
                }
                None
            }
            Message::PingRequest { seq, target } => {
                others.extend(self.ping_for((payload.from.key, sender), *seq, *target, now));
                None
            }
            Message::Welcome | Message::News => None,
            Message::Digest(theirs) => {
                let ours = hashes(&self.table, now);
                (digest(&ours) != *theirs).then(|| Message::Buckets(Box::new(ours)))
            }
            Message::Buckets(theirs) => {
                others.extend(self.send_pieces((payload.from.key, sender), theirs, now));
                None
            }
            Message::Pieces { buckets, wants_reply } => {
                let lacks =
                    wants_reply.then(|| self.send_missing((payload.from.key, sender), *buckets, &payload.news, now));
                others.extend(lacks.into_iter().flatten());
                None
            }
        };
        let (news, asks) = (std::mem::take(&mut reply.news), std::mem::take(&mut reply.asks));
        let is_due = message.is_some() || reply.has_refuted || !news.is_empty() || !asks.is_empty();
        if is_due {
            let message = message.unwrap_or(Message::News);
            others.push((sender, self.compose(payload.from.key, message, news, asks, now)));
        }
        others
    }

    fn ping_for(&mut self, origin: (u64, SocketAddr), seq: u32, key: u64, now: u64) -> Option<Outgoing> {
        let target = self.table.number(key).filter(|n| *n != ME)?;
        let at = self.table.get(target).contact.gossip?;
        let seq = self.probes.relay(origin, seq, now)?;
        Some((at, self.compose(key, Message::Ping(seq), Vec::new(), Vec::new(), now)))
    }

    fn send_pieces(&mut self, (to, at): (u64, SocketAddr), theirs: &[u32; BUCKETS], now: u64) -> Vec<Outgoing> {
        self.anti_entropy.note_difference(now, self.table.revision());
        let first = self.chance.below(BUCKETS);
        let all = pieces(&self.table, now, theirs, first);
        let message = |buckets| Message::Pieces { buckets, wants_reply: true };
        all.into_iter().map(|(buckets, news)| (at, self.compose(to, message(buckets), news, Vec::new(), now))).collect()
    }

    fn send_missing(&mut self, (to, at): (u64, SocketAddr), parts: Mask, theirs: &[Record], now: u64) -> Vec<Outgoing> {
        let first = self.chance.below(self.table.members().count());
        let all = missing(&self.table, now, parts, theirs, first);
        all.into_iter().map(|news| (at, self.compose(to, Message::News, news, Vec::new(), now))).collect()
    }

    /// Makes a datagram for a member, with what this node believes of it when that is not the best.
    fn send_to(&mut self, member: u16, message: Message, mut news: Vec<Record>, now: u64) -> Option<Outgoing> {
        let target = self.table.get(member);
        let (at, key) = (target.contact.gossip?, target.key);
        if !target.is_alive() {
            news.extend(self.table.record_for_itself(member, now));
        }
        Some((at, self.compose(key, message, news, Vec::new(), now)))
    }

    /// Makes a datagram for a member that is alive, by chance.
    fn send_anyone(&mut self, now: u64, message: impl FnOnce(u16) -> Message) -> Option<Outgoing> {
        // While probes fail, members by chance may all be unreachable.
        let recent = if self.probes.are_failing() { self.recent.choose(&mut self.chance) } else { None };
        let recent = recent.filter(|n| self.table.get(*n).is_alive());
        let alive = self.table.alive();
        let member = recent.or_else(|| alive.get(self.chance.below(alive.len())).copied())?;
        self.send_to(member, message(member), Vec::new(), now)
    }

    /// Makes a datagram for the member with a key: the message, `news`, and as many other news as
    /// fit.
    fn compose(&mut self, to: u64, message: Message, mut news: Vec<Record>, asks: Vec<u64>, now: u64) -> Payload {
        let from = self.own_record(now);
        let fixed = 11 + from.wire_len() + message.wire_len() + 8 * asks.len();
        let taken: usize = fixed + news.iter().map(Record::wire_len).sum::<usize>();
        let table = &self.table;
        // News of a life that began have the member's contact, all others have none.
        let record = |n: u16| {
            let member = table.get(n);
            table.record(n, now, member.is_alive() && member.incarnation.refutations == 0)
        };
        news.extend(self.piggyback.take(MAX_PAYLOAD_BYTES.saturating_sub(taken), news.len(), record));
        Payload { to, from, message, asks, news }
    }

    fn own_record(&self, now: u64) -> Record {
        let me = self.table.get(ME);
        let unknown = || Record::of_peer(&me.peer(), me.incarnation.refutations);
        self.table.record(ME, now, true).unwrap_or_else(unknown)
    }
}

#[cfg(test)]
#[path = "gossip_tests.rs"]
mod tests;
