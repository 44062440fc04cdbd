//! [`RelayTable`]: which nodes want which piece of a large file from this node, which of them have
//! it, and where the next asker gets it.
//!
//! A piece is what one request asks for. Its first asker gets it from here. Others wait for their
//! turn: a node that has the piece sends it on, so that the nodes form a tree in which each link
//! carries the file about once. All turns of a file are decided together, whenever a link has room
//! ([`Moment::has_room`]). Rules:
//!
//! * a node is named as a relay only once it has said that it has the piece: no relay waits, so
//!   that no circle of nodes can wait for each other;
//! * of the askers, the one goes first to which the fewest pieces are on their way, then the one
//!   that has got the fewest, so that different pieces spread from different nodes; those with slow
//!   links go last;
//! * of its pieces that a link with room can bring, one that hardly any node has yet, so that none
//!   stays where it is the only one, else the first of the file; of several relays, the one with
//!   the fewest askers so far;
//! * a relay sends as many pieces at a time as its link carries ([`TransferTime`]): the nodes
//!   behind wait for the end of each. Where that is one, the next one is named when it is about to
//!   end;
//! * when a piece has got no further for a few times the usual time of a transfer, any relay may
//!   send it again, or this node sends it once more;
//! * an asker that a relay failed gets the piece from here, and the relay is not named for the file
//!   for [`BAR_PERIOD`].

use super::relay_links::{Load, Moment, Readers};
use super::request_limits::piece_starts;
use super::transfer_time::TransferTime;
use monarch_storage::sharing::FileRef;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Most pieces that this node gets from the PFS for askers at a time, and most for one of them: one
/// with a slow link does not take them all.
const MAX_FETCHED: usize = 16;
const MAX_FETCHED_EACH: usize = 4;
/// From so many nodes on that have a piece or are getting it, it is no rarer than others.
const MAX_SPREAD: usize = 4;
/// How long a node that has a piece is named for it.
const MAX_AGE: Duration = Duration::from_secs(60);
/// How long a node that did not send a piece is not named for others of its file.
const BAR_PERIOD: Duration = Duration::from_secs(10);
/// Most pieces that are remembered: 16 GiB in pieces of 4 MiB.
const MAX_PIECES: usize = 4096;
/// Most askers of a piece that are remembered.
const MAX_ASKERS: usize = 256;

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
    /// It is decided later: the table says when ([`RelayTable::decided`]), or it has to be asked
    /// again at this time.
    Wait(Instant),
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
    /// Its request waits for its turn.
    Waits { bytes: u64, is_at_hand: bool },
    /// Its request is being answered from here: the piece may have yet to come from the PFS.
    Prepares,
    /// It gets the piece, from here or a relay.
    Gets { relay: Option<u16>, since: Instant },
    /// It has got the piece, and readers do not find it yet: the rest of its chunk is to come.
    Got,
    /// It has the piece.
    Has { since: Instant },
}

/// A node that asked for a piece.
#[derive(Debug)]
struct Asker {
    node: u16,
    state: State,
    /// Whether its turn has come and its request has not heard of it.
    is_unheard: bool,
}

#[derive(Debug)]
struct Askers {
    askers: Vec<Asker>,
    /// When the piece last got further: it was given out, or a node said that it has it.
    moved: Instant,
}

impl Askers {
    fn find(&mut self, node: u16) -> Option<&mut Asker> {
        self.askers.iter_mut().find(|a| a.node == node)
    }

    /// Whether the piece is on its way to an asker, and gets on.
    fn is_under_way(&self, at: &Moment) -> bool {
        if self.askers.iter().any(|a| a.state == State::Prepares) {
            return true;
        }
        at.is_recent(self.moved) && self.askers.iter().any(|a| matches!(a.state, State::Gets { .. } | State::Got))
    }

    /// Nodes that have the piece or are getting it.
    fn spread(&self) -> usize {
        self.askers.iter().filter(|a| !matches!(a.state, State::Waits { .. })).count()
    }

    /// Bytes of the piece, if an asker waits for it.
    fn wanted_bytes(&self) -> Option<u64> {
        self.askers.iter().find_map(|a| if let State::Waits { bytes, .. } = a.state { Some(bytes) } else { None })
    }
}

/// A turn that has come.
#[derive(Clone, Copy, Debug)]
struct Grant {
    piece: Piece,
    asker: u16,
    /// The node that sends it; `None`: this one.
    relay: Option<u16>,
    is_at_hand: bool,
}

/// The askers of this node's large files. Bounded in memory: 4,096 pieces.
#[derive(Debug, Default)]
pub(super) struct RelayTable {
    pieces: HashMap<Piece, Askers>,
    /// Pieces by the time of their first asker.
    order: VecDeque<Piece>,
    files: HashMap<FileRef, Readers>,
    /// Pieces that are to be sent from here and are not being sent yet, with their askers, and
    /// whether they were at hand.
    preparing: HashMap<(Piece, u16), bool>,
    /// Those that are being sent.
    sending: HashMap<(Piece, u16), Instant>,
    /// Requests whose turn has come since the last look.
    decided: Vec<(Piece, u16)>,
    /// Time of all transfers.
    time: TransferTime,
}

impl RelayTable {
    /// Where `asker` gets a piece. Called again when its turn was [decided](Self::decided), or at
    /// the time that the answer names. `can_relay` says whether a node can be named.
    pub(super) fn turn(
        &mut self,
        Wanted { piece, bytes, is_at_hand }: Wanted,
        asker: u16,
        now: Instant,
        can_relay: impl Fn(u16) -> bool,
    ) -> Turn {
        let (at, state) = (self.moment(&piece.0, now), State::Waits { bytes, is_at_hand });
        self.admit(piece, now);
        let (Some(of), Some(readers)) = (self.pieces.get_mut(&piece), self.files.get_mut(&piece.0)) else {
            return Turn::Here;
        };
        of.askers.retain(|a| !matches!(a.state, State::Has { since } if now.duration_since(since) > MAX_AGE));
        let is_full = of.askers.len() >= MAX_ASKERS;
        match of.find(asker) {
            None if is_full => return Turn::Here,
            None => of.askers.push(Asker { node: asker, state, is_unheard: false }),
            Some(a) if a.is_unheard => {
                // This node was to fetch it from the PFS, and has it by now: decided again.
                if is_at_hand && self.preparing.get(&(piece, asker)) == Some(&false) {
                    self.preparing.remove(&(piece, asker));
                    (a.state, a.is_unheard) = (state, false);
                }
            }
            // One that asks again has lost its copy.
            Some(a) => {
                if let State::Gets { relay, .. } = std::mem::replace(&mut a.state, state) {
                    readers.free_links(relay, asker, piece.1);
                }
            }
        }
        readers.waiting.insert(piece.1);
        self.decide(&piece.0, now, can_relay);
        let Some(a) = self.pieces.get_mut(&piece).and_then(|of| of.find(asker)) else { return Turn::Here };
        match a.state {
            State::Waits { .. } => return Turn::Wait(now + at.stall),
            _ => a.is_unheard = false,
        }
        if let State::Gets { relay: Some(relay), .. } = a.state { Turn::Relay(relay) } else { Turn::Here }
    }

    /// Requests whose turn has come since the last call.
    pub(super) fn decided(&mut self) -> Vec<(Piece, u16)> {
        std::mem::take(&mut self.decided)
    }

    /// How long after it began a transfer is about to end, so that the next one may be decided;
    /// `None` where several go at a time.
    pub(super) fn ending(&self, bytes: u64) -> Option<Duration> {
        self.time.ending().filter(|_| self.time.pieces_at_a_time(bytes) == 1)
    }

    fn moment(&self, file: &FileRef, now: Instant) -> Moment {
        let usual = self.files.get(file).and_then(|of| of.usual);
        Moment { now, stall: self.time.stall(), ending: self.time.ending().unwrap_or(Duration::MAX), usual }
    }

    /// Gives pieces of a file out as far as links have room.
    pub(super) fn decide(&mut self, file: &FileRef, now: Instant, can_relay: impl Fn(u16) -> bool) {
        while let Some(grant) = self.best(file, now, &can_relay) {
            self.grant(grant, now);
        }
    }

    /// The turn that comes next, if a link has room.
    fn best(&mut self, file: &FileRef, now: Instant, can_relay: impl Fn(u16) -> bool) -> Option<Grant> {
        let at = self.moment(file, now);
        let (readers, pieces) = (self.files.get_mut(file)?, &self.pieces);
        let wanted = |start: &u64| pieces.get(&(*file, *start)).and_then(Askers::wanted_bytes);
        readers.waiting.retain(|start| wanted(start).is_some());
        let nodes = &readers.nodes;
        let (ready, fetched): (Vec<_>, Vec<_>) = self.preparing.iter().partition(|(_, at_hand)| **at_hand);
        let of_asker = |all: &[(&(Piece, u16), _)], node| all.iter().filter(|(of, _)| of.1 == node).count();
        let sending = ready.iter().map(|_| now).chain(self.sending.values().copied());
        let mut best = None;
        for (start, bytes) in readers.waiting.iter().filter_map(|start| Some((*start, wanted(start)?))) {
            let at_a_time = self.time.pieces_at_a_time(bytes);
            let Some(of) = pieces.get(&(*file, start)) else { continue };
            let can_send = match of.relay(nodes, &at, at_a_time, &can_relay) {
                Relay::Busy => continue,
                Relay::None if of.is_under_way(&at) => continue,
                Relay::None => None,
                Relay::Free(relay) => Some(relay),
            };
            let spread = of.spread().min(MAX_SPREAD);
            for a in &of.askers {
                let State::Waits { is_at_hand, .. } = a.state else { continue };
                let (prepared, ahead) = (of_asker(&ready, a.node), of_asker(&fetched, a.node));
                let load = nodes.get(&a.node);
                let can_get = load.map_or(prepared == 0, |l| l.can_get(&at, at_a_time, prepared));
                // Which asker gets a piece is decided late, when it is known which of them wait.
                let can_come = match is_at_hand {
                    _ if can_send.is_some() => true,
                    true => at.has_room(sending.clone(), at_a_time),
                    false => fetched.len() < MAX_FETCHED && ahead < MAX_FETCHED_EACH,
                };
                if !can_get || !can_come {
                    continue;
                }
                let (is_slow, coming, got) = load.map_or((false, 0, 0), |l| l.rank(&at));
                let rank = (is_slow, coming + ahead, got, spread, start);
                if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                    let grant = Grant { piece: (*file, start), asker: a.node, relay: can_send, is_at_hand };
                    best = Some((rank, grant));
                }
            }
        }
        best.map(|(_, grant)| grant)
    }

    fn grant(&mut self, Grant { piece, asker, relay, is_at_hand }: Grant, now: Instant) {
        let at = self.moment(&piece.0, now);
        let Some(of) = self.pieces.get_mut(&piece) else { return };
        of.moved = now;
        let Some(a) = of.find(asker) else { return };
        a.is_unheard = true;
        self.decided.push((piece, asker));
        let Some(relay) = relay else {
            a.state = State::Prepares;
            self.preparing.insert((piece, asker), is_at_hand);
            return;
        };
        a.state = State::Gets { relay: Some(relay), since: now };
        let readers = self.files.entry(piece.0).or_default();
        readers.load(asker).gets(piece.1, &at);
        readers.load(relay).sends(asker, piece.1, &at);
    }

    /// Notes that a piece goes out from here to `asker`.
    pub(super) fn begins(&mut self, piece: Piece, asker: u16, now: Instant) {
        self.preparing.remove(&(piece, asker));
        let at = self.moment(&piece.0, now);
        let Some(of) = self.pieces.get_mut(&piece) else { return };
        self.sending.insert((piece, asker), now);
        of.moved = now;
        let Some(a) = of.find(asker) else { return };
        let readers = self.files.entry(piece.0).or_default();
        if let State::Gets { relay, .. } = std::mem::replace(&mut a.state, State::Gets { relay: None, since: now }) {
            readers.free_links(relay, asker, piece.1);
        }
        readers.load(asker).gets(piece.1, &at);
    }

    /// Notes that a piece has gone out from here to `asker`, or does not any more.
    pub(super) fn ends(&mut self, piece: Piece, asker: u16) {
        self.sending.remove(&(piece, asker));
    }

    /// Notes that a node has got a piece, which readers there may not find yet.
    pub(super) fn arrived(&mut self, piece: Piece, node: u16, now: Instant) {
        self.sending.remove(&(piece, node));
        let Some(readers) = self.files.get_mut(&piece.0) else { return };
        let Some(a) = self.pieces.get_mut(&piece).and_then(|of| of.find(node)) else { return };
        let State::Gets { since, relay } = a.state else { return };
        a.state = State::Got;
        let took = now.saturating_duration_since(since);
        self.time.note(took);
        readers.free_links(relay, node, piece.1);
        readers.has_got(node, piece.1, took);
        // The one that was named when this one was about to end goes out by now.
        let Some((to, start)) = relay.and_then(|relay| readers.begins_last(relay, now)) else { return };
        let next = self.pieces.get_mut(&(piece.0, start)).and_then(|of| of.find(to));
        if let Some(State::Gets { since, .. }) = next.map(|a| &mut a.state) {
            *since = now;
        }
    }

    /// Notes that a node has all pieces that begin in a part of a file.
    pub(super) fn has(&mut self, file: &FileRef, part: &Range<u64>, node: u16, now: Instant) {
        for start in piece_starts(part) {
            self.arrived((*file, start), node, now);
            let Some(of) = self.pieces.get_mut(&(*file, start)) else { continue };
            let Some(a) = of.find(node) else { continue };
            (a.state, a.is_unheard) = (State::Has { since: now }, false);
            of.moved = now;
        }
    }

    /// Notes that `asker` did not get a piece from the relay that was named to it, and is answered
    /// from here.
    pub(super) fn failed(&mut self, piece: Piece, asker: u16, now: Instant) {
        let Some(of) = self.pieces.get_mut(&piece) else { return };
        let Some(entry) = of.find(asker) else { return };
        entry.is_unheard = false;
        let before = std::mem::replace(&mut entry.state, State::Prepares);
        self.preparing.insert((piece, asker), true);
        let State::Gets { relay: Some(relay), .. } = before else { return };
        of.askers.retain(|a| a.node != relay);
        let readers = self.files.entry(piece.0).or_default();
        readers.free_links(Some(relay), asker, piece.1);
        readers.load(relay).barred_until = Some(now + BAR_PERIOD);
    }

    /// Notes that a request of `asker` has ended; unless it gets the piece, it does not count any
    /// more. Whether another node may be next.
    pub(super) fn leaves(&mut self, piece: Piece, asker: u16) -> bool {
        self.preparing.remove(&(piece, asker));
        let Some(of) = self.pieces.get_mut(&piece) else { return false };
        let is_to_go =
            |a: &Asker| a.node == asker && (a.is_unheard || matches!(a.state, State::Waits { .. } | State::Prepares));
        let Some(place) = of.askers.iter().position(is_to_go) else { return false };
        if let State::Gets { relay, .. } = of.askers.remove(place).state {
            self.files.entry(piece.0).or_default().free_links(relay, asker, piece.1);
        }
        true
    }

    /// Forgets an index that is not served any more.
    pub(super) fn forget_index(&mut self, index: &[u8; 16]) {
        self.pieces.retain(|(file, _), _| file.index != *index);
        self.order.retain(|(file, _)| file.index != *index);
        self.files.retain(|file, _| file.index != *index);
        self.preparing.retain(|((file, _), _), _| file.index != *index);
        self.sending.retain(|((file, _), _), _| file.index != *index);
    }

    /// Adds a piece.
    fn admit(&mut self, piece: Piece, now: Instant) {
        if self.pieces.contains_key(&piece) {
            return;
        }
        self.pieces.insert(piece, Askers { askers: Vec::new(), moved: now });
        self.files.entry(piece.0).or_default().pieces += 1;
        self.order.push_back(piece);
        while self.order.len() > MAX_PIECES {
            self.forget_oldest();
        }
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

/// Nodes that could send a piece on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relay {
    /// There are none.
    None,
    /// All have enough to send.
    Busy,
    /// That node is named next.
    Free(u16),
}

impl Askers {
    /// The node that is named next as a relay, of those that have the piece.
    fn relay(
        &self,
        nodes: &HashMap<u16, Load>,
        at: &Moment,
        at_a_time: usize,
        can_relay: impl Fn(u16) -> bool,
    ) -> Relay {
        let load = |a: &Asker| nodes.get(&a.node);
        let is_relay = |a: &&Asker| {
            let is_holder = matches!(a.state, State::Has { since } if at.now.duration_since(since) <= MAX_AGE);
            is_holder && !load(a).is_some_and(|l| l.is_barred(at)) && can_relay(a.node)
        };
        let is_free = |a: &Asker| load(a).is_none_or(|l| l.can_send(at, at_a_time));
        let relays = self.askers.iter().filter(is_relay);
        match relays.min_by_key(|a| (!is_free(a), load(a).map_or(0, |l| l.relayed))) {
            None => Relay::None,
            Some(a) if is_free(a) => Relay::Free(a.node),
            Some(_) => Relay::Busy,
        }
    }
}

#[cfg(test)]
#[path = "relay_table_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "relay_simulation_tests.rs"]
mod simulation_tests;
