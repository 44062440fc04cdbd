//! [`RelayTable`]: which nodes want which piece of a large file from this node, which of them have
//! it, and where the next asker gets it.
//!
//! A piece is what one request asks for. Its first asker gets it from here. Others wait for their
//! turn: each node that has the piece sends it to two more at most, so that the nodes form a tree
//! in which each link carries the file about once. Rules:
//!
//! * a node is named as a relay only once it has said that it has the piece: no relay waits, so
//!   that no circle of nodes can wait for each other;
//! * of several askers, the first goes first, after those that got no piece yet, and those with
//!   slow links last; of several relays, the one with the fewest askers so far;
//! * a relay sends as many pieces at a time as its link carries, and an asker gets one more: the
//!   nodes behind wait for the end of each ([`TransferTime`]);
//! * when a piece has got no further for a few times the usual time of a transfer, any relay may
//!   send it again, or this node sends it once more;
//! * an asker that a relay failed gets the piece from here, and the relay is not named for the file
//!   for [`BAR_PERIOD`].

use super::request_limits::piece_starts;
use super::transfer_time::TransferTime;
use monarch_storage::sharing::FileRef;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Most askers of one piece that a relay is named to, unless the piece is stuck.
const MAX_CHILDREN: u8 = 2;
/// Most pieces that this node gets from the PFS for askers at a time, and most for one of them: one
/// with a slow link does not take them all.
const MAX_FETCHED: usize = 16;
const MAX_FETCHED_EACH: usize = 4;
/// How long a node that has a piece is named for it.
const MAX_AGE: Duration = Duration::from_secs(60);
/// How long a node that did not send a piece is not named for others of its file.
const BAR_PERIOD: Duration = Duration::from_secs(10);
/// Most pieces that are remembered: 16 GiB in pieces of 4 MiB.
const MAX_PIECES: usize = 4096;
/// Most askers of a piece that are remembered.
const MAX_ASKERS: usize = 256;
/// A node whose transfers take more than this multiple of the median of all nodes gets its pieces
/// last.
const SLOW_FACTOR: u32 = 3;

/// A piece of a large file: the file, and the offset of the piece's first byte.
pub(super) type Piece = (FileRef, u64);

/// The piece of a file that begins at an offset. (Nodes name files by number: the hash of the path
/// is left out.)
pub(super) const fn piece_of(file: &FileRef, start: u64) -> Piece {
    (FileRef { fp: 0, ..*file }, start)
}

/// Where an asker gets a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// From this node.
    Here,
    /// From that node.
    Relay(u16),
    /// It is decided when another node has the piece, at this time at the latest.
    Wait(Instant),
    /// It is decided when a node has fewer transfers under way, at this time at the latest.
    Busy(Instant),
    /// The same of the asker itself.
    Full(Instant),
}

/// What an asker wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) piece: Piece,
    pub(super) bytes: u64,
    /// Whether this node has the piece.
    pub(super) is_at_hand: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for its turn, which it asked for at this time.
    Waits {
        seen: Instant,
    },
    /// Its request is being answered from here: the piece may have yet to come from the PFS.
    Prepares,
    /// It gets the piece, from here or a relay.
    Gets {
        relay: Option<u16>,
        since: Instant,
    },
    /// It has got the piece, and readers do not find it yet: the rest of its chunk is to come.
    Got,
    Has {
        since: Instant,
    },
}

/// A node that asked for a piece.
#[derive(Debug)]
struct Asker {
    node: u16,
    state: State,
    /// Askers that were sent to it.
    children: u8,
}

#[derive(Debug)]
struct Askers {
    askers: Vec<Asker>,
    /// When the piece last got further: it was given out, or a node said that it has it.
    moved: Instant,
}

/// What a node does for the others that read a file, and how fast it gets its own pieces.
#[derive(Debug, Default)]
struct Load {
    /// Askers that were sent to it.
    relayed: u64,
    barred_until: Option<Instant>,
    /// When the transfers from it that are under way began, by asker and piece.
    active: Vec<(u16, u64, Instant)>,
    /// When the transfers to it that are under way began, by piece.
    coming: Vec<(u64, Instant)>,
    /// Time of the transfers to it.
    time: TransferTime,
}

#[derive(Debug, Default)]
struct OfFile {
    nodes: HashMap<u16, Load>,
    /// The median of the times of transfers to them.
    usual: Option<Duration>,
    /// Pieces in the table.
    pieces: usize,
}

/// The askers of this node's large files. Bounded in memory: 4,096 pieces.
#[derive(Debug, Default)]
pub(super) struct RelayTable {
    pieces: HashMap<Piece, Askers>,
    /// Pieces by the time of their first asker.
    order: VecDeque<Piece>,
    files: HashMap<FileRef, OfFile>,
    /// Pieces that are to be sent from here and are not being sent yet, with their askers, and
    /// whether they were at hand.
    preparing: HashMap<(Piece, u16), bool>,
    /// Those that are being sent.
    sending: HashMap<(Piece, u16), Instant>,
    /// Time of all transfers.
    time: TransferTime,
}

/// What is common to the decisions of one moment.
#[derive(Clone, Copy)]
struct Moment {
    now: Instant,
    stall: Duration,
    /// Transfers that a link carries at a time.
    at_a_time: usize,
    usual: Option<Duration>,
}

impl Moment {
    /// Transfers that count; those that are stuck do not.
    fn count(&self, since: impl Iterator<Item = Instant>) -> usize {
        since.filter(|since| self.now.saturating_duration_since(*since) < self.stall).count()
    }
}

impl Load {
    fn can_send(&self, at: &Moment) -> bool {
        at.count(self.active.iter().map(|(_, _, since)| *since)) < at.at_a_time
    }

    /// Whether it can get one more piece: one more than a link carries comes at a time.
    fn can_get(&self, at: &Moment) -> bool {
        at.count(self.coming.iter().map(|(_, since)| *since)) <= at.at_a_time
    }

    /// Notes that a piece is not on its way to it, and forgets those that are stuck.
    fn ends(&mut self, start: u64, at: &Moment) {
        self.coming.retain(|(of, since)| *of != start && at.now.saturating_duration_since(*since) < at.stall);
    }

    fn is_slow(&self, at: &Moment) -> bool {
        self.time.usual().zip(at.usual).is_some_and(|(its, usual)| its > usual * SLOW_FACTOR)
    }

    fn is_barred(&self, at: &Moment) -> bool {
        self.barred_until.is_some_and(|until| at.now < until)
    }
}

impl OfFile {
    fn note_usual(&mut self) {
        let mut times: Vec<Duration> = self.nodes.values().filter_map(|l| l.time.usual()).collect();
        let middle = times.len() / 2;
        self.usual = (middle < times.len()).then(|| *times.select_nth_unstable(middle).1);
    }
}

/// Nodes that could send a piece on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relay {
    /// There are none.
    None,
    /// All have enough to send.
    Busy,
    /// That asker is named next.
    Free(usize),
}

impl Askers {
    /// The asker that is named next as a relay, of those that have the piece and `may_send` it.
    fn relay(&self, nodes: &HashMap<u16, Load>, at: &Moment, may_send: impl Fn(&Asker) -> bool) -> Relay {
        let load = |a: &Asker| nodes.get(&a.node);
        let is_relay = |a: &Asker| {
            matches!(a.state, State::Has { .. }) && !load(a).is_some_and(|l| l.is_barred(at)) && may_send(a)
        };
        let is_free = |a: &Asker| load(a).is_none_or(|l| l.can_send(at));
        let relays = self.askers.iter().enumerate().filter(|(_, a)| is_relay(a));
        let best = relays.min_by_key(|(_, a)| (!is_free(a), a.children, load(a).map_or(0, |l| l.relayed)));
        match best {
            None => Relay::None,
            Some((place, a)) if is_free(a) => Relay::Free(place),
            Some(_) => Relay::Busy,
        }
    }

    /// The asker whose turn is next, of those that asked a moment ago.
    fn next(&self, nodes: &HashMap<u16, Load>, at: &Moment) -> Option<usize> {
        let is_waiting = |a: &Asker| matches!(a.state, State::Waits { seen } if at.count([seen].into_iter()) > 0);
        // Those of which no time is known go first: a slow one has to be found.
        let rank = |a: &Asker| nodes.get(&a.node).map_or((false, false), |l| (l.is_slow(at), l.time.usual().is_some()));
        let is_free = |a: &Asker| nodes.get(&a.node).is_none_or(|l| l.can_get(at));
        let waiting = self.askers.iter().enumerate().filter(|(_, a)| is_waiting(a) && is_free(a));
        waiting.min_by_key(|(place, a)| (rank(a), *place)).map(|(place, _)| place)
    }

    /// Whether the piece is on its way to an asker, and gets on.
    fn is_under_way(&self, at: &Moment) -> bool {
        if self.askers.iter().any(|a| a.state == State::Prepares) {
            return true;
        }
        let is_moving = at.now.saturating_duration_since(self.moved) < at.stall;
        is_moving && self.askers.iter().any(|a| matches!(a.state, State::Gets { .. } | State::Got))
    }
}

impl RelayTable {
    /// Where `asker` gets a piece. Called again when the table has changed, or at the time that the
    /// answer names. `can_relay` says whether a node can be named.
    pub(super) fn turn(
        &mut self,
        Wanted { piece, bytes, is_at_hand }: Wanted,
        asker: u16,
        now: Instant,
        can_relay: impl Fn(u16) -> bool,
    ) -> Turn {
        let (stall, at_a_time) = (self.time.stall(), self.time.pieces_at_a_time(bytes));
        let usual = self.files.get(&piece.0).and_then(|of| of.usual);
        let at = Moment { now, stall, at_a_time, usual };
        let (ready, fetched): (Vec<_>, Vec<_>) = self.preparing.iter().partition(|(_, at_hand)| **at_hand);
        let its = |(of, _): &(&(Piece, u16), &bool)| of.1 == asker;
        let can_prepare = match is_at_hand {
            // Which asker gets a piece is decided late, when it is known which of them wait.
            true => ready.len() + at.count(self.sending.values().copied()) < at_a_time,
            false => fetched.len() < MAX_FETCHED && fetched.iter().filter(|one| its(one)).count() < MAX_FETCHED_EACH,
        };
        let (of, nodes) = self.admit(piece, now);
        of.askers.retain(|a| !matches!(a.state, State::Has { since } if now.duration_since(since) > MAX_AGE));
        let known = of.askers.iter().position(|a| a.node == asker);
        if known.is_none() && of.askers.len() >= MAX_ASKERS {
            return Turn::Here;
        }
        let place = known.unwrap_or_else(|| {
            of.askers.push(Asker { node: asker, state: State::Waits { seen: now }, children: 0 });
            of.askers.len() - 1
        });
        // One that asks again has lost its copy.
        of.askers[place].state = State::Waits { seen: now };
        if let Some(load) = nodes.get_mut(&asker) {
            load.ends(piece.1, &at);
            if !load.can_get(&at) {
                return Turn::Full(now + stall);
            }
        }
        let relay =
            |children: u8| of.relay(nodes, &at, |a| a.node != asker && a.children < children && can_relay(a.node));
        let (mut found, is_under_way) = (relay(MAX_CHILDREN), of.is_under_way(&at));
        if found == Relay::None && !is_under_way {
            found = relay(u8::MAX);
        }
        let is_next = of.next(nodes, &at) == Some(place);
        let relay = match found {
            Relay::Busy => return Turn::Busy(now + stall),
            Relay::None if is_under_way => return Turn::Wait(now + stall),
            _ if !is_next => return Turn::Wait(now + stall),
            Relay::None if !can_prepare => return Turn::Busy(now + stall),
            Relay::None => None,
            Relay::Free(relay) => Some(relay),
        };
        of.moved = now;
        let Some(relay) = relay else {
            of.askers[place].state = State::Prepares;
            self.preparing.insert((piece, asker), is_at_hand);
            return Turn::Here;
        };
        of.askers[relay].children = of.askers[relay].children.saturating_add(1);
        let relay = of.askers[relay].node;
        of.askers[place].state = State::Gets { relay: Some(relay), since: now };
        nodes.entry(asker).or_default().coming.push((piece.1, now));
        let load = nodes.entry(relay).or_default();
        load.relayed += 1;
        // (Those that are stuck do not count any more.)
        load.active.retain(|(_, _, since)| now.saturating_duration_since(*since) < stall);
        load.active.push((asker, piece.1, now));
        Turn::Relay(relay)
    }

    /// Notes that a piece goes out from here to `asker`.
    pub(super) fn begins(&mut self, piece: Piece, asker: u16, now: Instant) {
        self.preparing.remove(&(piece, asker));
        let Some(of) = self.pieces.get_mut(&piece) else { return };
        self.sending.insert((piece, asker), now);
        of.moved = now;
        if let Some(a) = of.askers.iter_mut().find(|a| a.node == asker) {
            a.state = State::Gets { relay: None, since: now };
            let load = self.files.entry(piece.0).or_default().nodes.entry(asker).or_default();
            load.coming.retain(|(start, _)| *start != piece.1);
            load.coming.push((piece.1, now));
        }
    }

    /// Notes that a piece has gone out from here to `asker`, or does not any more.
    pub(super) fn ends(&mut self, piece: Piece, asker: u16) {
        self.sending.remove(&(piece, asker));
    }

    /// Notes that a node has got a piece, which readers there may not find yet.
    pub(super) fn arrived(&mut self, piece: Piece, node: u16, now: Instant) {
        self.sending.remove(&(piece, node));
        let (file, start) = piece;
        let Some(of_file) = self.files.get_mut(&file) else { return };
        let askers = self.pieces.get_mut(&piece).map(|of| of.askers.iter_mut());
        let Some(a) = askers.and_then(|mut askers| askers.find(|a| a.node == node)) else { return };
        let State::Gets { since, relay } = a.state else { return };
        a.state = State::Got;
        let relay = relay.and_then(|relay| of_file.nodes.get_mut(&relay));
        relay.into_iter().for_each(|l| l.active.retain(|(to, at, _)| (*to, *at) != (node, start)));
        let took = now.saturating_duration_since(since);
        let load = of_file.nodes.entry(node).or_default();
        load.coming.retain(|(at, _)| *at != start);
        load.time.note(took);
        self.time.note(took);
        of_file.note_usual();
    }

    /// Notes that a node has all pieces that begin in a part of a file.
    pub(super) fn has(&mut self, file: &FileRef, part: &Range<u64>, node: u16, now: Instant) {
        for start in piece_starts(part) {
            self.arrived((*file, start), node, now);
            let Some(of) = self.pieces.get_mut(&(*file, start)) else { continue };
            let Some(a) = of.askers.iter_mut().find(|a| a.node == node) else { continue };
            a.state = State::Has { since: now };
            of.moved = now;
        }
    }

    /// Notes that `asker` did not get a piece from the relay that was named to it, and is answered
    /// from here.
    pub(super) fn failed(&mut self, piece: Piece, asker: u16, now: Instant) {
        let Some(of) = self.pieces.get_mut(&piece) else { return };
        let Some(entry) = of.askers.iter_mut().find(|a| a.node == asker) else { return };
        let before = std::mem::replace(&mut entry.state, State::Prepares);
        self.preparing.insert((piece, asker), true);
        let State::Gets { relay: Some(relay), .. } = before else { return };
        of.askers.retain(|a| a.node != relay);
        let nodes = &mut self.files.entry(piece.0).or_default().nodes;
        nodes.entry(asker).or_default().coming.retain(|(at, _)| *at != piece.1);
        let load = nodes.entry(relay).or_default();
        load.active.retain(|(to, at, _)| (*to, *at) != (asker, piece.1));
        load.barred_until = Some(now + BAR_PERIOD);
    }

    /// Notes that a request of `asker` has ended; unless it gets the piece, it does not count any
    /// more. Whether another node may be next.
    pub(super) fn leaves(&mut self, piece: Piece, asker: u16) -> bool {
        self.preparing.remove(&(piece, asker));
        let Some(of) = self.pieces.get_mut(&piece) else { return false };
        let before = of.askers.len();
        of.askers.retain(|a| a.node != asker || !matches!(a.state, State::Waits { .. } | State::Prepares));
        of.askers.len() < before
    }

    /// Forgets an index that is not served any more.
    pub(super) fn forget_index(&mut self, index: &[u8; 16]) {
        self.pieces.retain(|(file, _), _| file.index != *index);
        self.order.retain(|(file, _)| file.index != *index);
        self.files.retain(|file, _| file.index != *index);
        self.preparing.retain(|((file, _), _), _| file.index != *index);
        self.sending.retain(|((file, _), _), _| file.index != *index);
    }

    /// The askers of a piece, and the loads of its file's readers.
    fn admit(&mut self, piece: Piece, now: Instant) -> (&mut Askers, &mut HashMap<u16, Load>) {
        if !self.pieces.contains_key(&piece) {
            self.files.entry(piece.0).or_default().pieces += 1;
            self.order.push_back(piece);
            while self.order.len() > MAX_PIECES {
                self.forget_oldest();
            }
        }
        let of = self.pieces.entry(piece).or_insert_with(|| Askers { askers: Vec::new(), moved: now });
        (of, &mut self.files.entry(piece.0).or_default().nodes)
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.order.pop_front() else { return };
        self.pieces.remove(&oldest);
        self.preparing.retain(|(piece, _), _| *piece != oldest);
        self.sending.retain(|(piece, _), _| *piece != oldest);
        if let Some(of) = self.files.get_mut(&oldest.0) {
            of.pieces -= 1;
            if of.pieces == 0 {
                self.files.remove(&oldest.0);
            }
        }
    }
}

#[cfg(test)]
#[path = "relay_table_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "relay_simulation_tests.rs"]
mod simulation_tests;
