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

use super::relay_askers::{Asker, Askers, MAX_AGE, Piece, Relay, State};
use super::relay_links::{Load, Moment, Rank, Readers, Wanting, Wish};
use super::request_limits::{MAX_REQUEST_BYTES, piece_starts};
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
/// How long a node that did not send a piece is not named for others of its file.
const BAR_PERIOD: Duration = Duration::from_secs(10);
/// Most pieces that are remembered: 16 GiB in pieces of 4 MiB.
const MAX_PIECES: usize = 4096;
/// Most askers of a piece that are remembered.
const MAX_ASKERS: usize = 256;

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

/// Where pieces can come from at a moment.
struct Sources<'a> {
    has_room_here: bool,
    /// Whether this node gets more pieces from the PFS.
    can_fetch: bool,
    /// Nodes that have room for one more transfer.
    relays: Vec<&'a Load>,
    /// Whether all readers of the file can be named.
    are_all_up: bool,
}

impl Sources<'_> {
    const fn can_be_here(&self) -> bool {
        self.has_room_here || self.can_fetch
    }

    fn is_relayed(&self, start: u64) -> bool {
        self.relays.iter().any(|load| load.has.contains(&start))
    }
}

/// Where a piece comes from: a relay, or this node.
#[derive(Clone, Copy)]
struct Source(Option<u16>);

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
        let at = self.moment(&piece.0, now);
        self.admit(piece, now);
        let (Some(of), Some(readers)) = (self.pieces.get_mut(&piece), self.files.get_mut(&piece.0)) else {
            return Turn::Here;
        };
        of.askers.retain(|a| !matches!(a.state, State::Has { since } if now.duration_since(since) > MAX_AGE));
        let is_full = of.askers.len() >= MAX_ASKERS;
        match of.find(asker) {
            None if is_full => return Turn::Here,
            None => of.askers.push(Asker { node: asker, state: State::Waits, is_unheard: false }),
            Some(a) if a.is_unheard => {
                // This node was to fetch it from the PFS, and has it by now: decided again.
                if is_at_hand && self.preparing.get(&(piece, asker)) == Some(&false) {
                    self.preparing.remove(&(piece, asker));
                    (a.state, a.is_unheard) = (State::Waits, false);
                }
            }
            // One that asks again has lost its copy.
            Some(a) => {
                if let State::Gets { relay, .. } = std::mem::replace(&mut a.state, State::Waits) {
                    readers.free_links(relay, asker, piece.1);
                }
                of.look_for_holders();
            }
        }
        readers.load(asker).has.remove(&piece.1);
        if of.find(asker).is_some_and(|a| a.state == State::Waits) {
            readers.waits(asker, piece.1, Wish { bytes, is_at_hand });
        }
        if let Some(grant) = self.at_once(piece, asker, now, can_relay) {
            self.grant(grant, now);
        }
        let Some(a) = self.pieces.get_mut(&piece).and_then(|of| of.find(asker)) else { return Turn::Here };
        match a.state {
            State::Waits => return Turn::Wait(now + at.stall),
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

    /// The turn that comes next, if a link has room: of the askers that wait for a piece which can
    /// come, and whose links have room, those of the first rank decide among their pieces.
    fn best(&self, file: &FileRef, now: Instant, can_relay: impl Fn(u16) -> bool) -> Option<Grant> {
        let (at, readers) = (self.moment(file, now), self.files.get(file)?);
        let sources = self.sources(readers, &at, &can_relay);
        let source = |(start, wanted): (&u64, &Wanting)| {
            let of = self.pieces.get(&(*file, *start))?;
            Some((*start, of.spread(), self.source(of, (*start, wanted.bytes), readers, &at, &sources, &can_relay)?))
        };
        let pieces: Vec<_> = readers.wanted.iter().filter_map(source).collect();
        if pieces.is_empty() {
            return None;
        }
        let mut askers: Vec<_> = readers.waiting(&at).collect();
        for ((_, coming, _), asker, _) in &mut askers {
            *coming += self.prepared_for(*asker, false);
        }
        askers.sort_unstable_by_key(|(rank, asker, _)| (*rank, *asker));
        let mut best: Option<(Rank, (usize, u64), Grant)> = None;
        for (rank, asker, load) in askers {
            if best.as_ref().is_some_and(|(of_best, ..)| *of_best < rank) {
                break;
            }
            for (start, spread, source) in &pieces {
                let Some(wish) = load.waits.get(start) else { continue };
                let place = ((*spread).min(MAX_SPREAD), *start);
                if self.can_come((asker, load), wish, *source, &at, &sources)
                    && best.as_ref().is_none_or(|(_, of_best, _)| place < *of_best)
                {
                    let is_at_hand = wish.is_at_hand;
                    best = Some((rank, place, Grant { piece: (*file, *start), asker, relay: source.0, is_at_hand }));
                }
            }
        }
        best.map(|(.., grant)| grant)
    }

    /// The turn of an asker that waits for a piece since now, if it comes at once. All others were
    /// decided before.
    fn at_once(&self, piece: Piece, asker: u16, now: Instant, can_relay: impl Fn(u16) -> bool) -> Option<Grant> {
        let (at, readers) = (self.moment(&piece.0, now), self.files.get(&piece.0)?);
        let load = readers.nodes.get(&asker)?;
        let wish = load.waits.get(&piece.1)?;
        let sources = self.sources(readers, &at, &can_relay);
        let of = self.pieces.get(&piece)?;
        let source = self.source(of, (piece.1, wish.bytes), readers, &at, &sources, &can_relay)?;
        let can_come = self.can_come((asker, load), wish, source, &at, &sources);
        can_come.then_some(Grant { piece, asker, relay: source.0, is_at_hand: wish.is_at_hand })
    }

    /// Pieces that are being prepared for an asker: those that were at hand, or the others.
    fn prepared_for(&self, asker: u16, is_at_hand: bool) -> usize {
        self.preparing.iter().filter(|((_, of), at_hand)| *of == asker && **at_hand == is_at_hand).count()
    }

    fn sources<'a>(&'a self, readers: &'a Readers, at: &Moment, can_relay: impl Fn(u16) -> bool) -> Sources<'a> {
        let usual = self.time.pieces_at_a_time(MAX_REQUEST_BYTES);
        let ready = self.preparing.values().filter(|at_hand| **at_hand).map(|_| at.now);
        Sources {
            has_room_here: at.has_room(ready.chain(self.sending.values().copied()), usual),
            can_fetch: self.preparing.values().filter(|at_hand| !**at_hand).count() < MAX_FETCHED,
            relays: readers.relays(at, usual, &can_relay),
            are_all_up: readers.nodes.iter().all(|(node, load)| can_relay(*node) && !load.is_barred(at)),
        }
    }

    /// Where a piece can come from now.
    fn source(
        &self,
        of: &Askers,
        (start, bytes): (u64, u64),
        readers: &Readers,
        at: &Moment,
        sources: &Sources<'_>,
        can_relay: impl Fn(u16) -> bool,
    ) -> Option<Source> {
        // (Most are held by nodes that have enough to send.)
        let is_held = of.is_held(at.now);
        if is_held && sources.are_all_up && !sources.is_relayed(start) || !is_held && !sources.can_be_here() {
            return None;
        }
        match of.relay(&readers.nodes, at, self.time.pieces_at_a_time(bytes), can_relay) {
            Relay::Busy => None,
            Relay::Free(relay) => Some(Source(Some(relay))),
            Relay::None => (!of.is_under_way(at)).then_some(Source(None)),
        }
    }

    /// Whether a piece can be sent to an asker now. The table chooses the asker of a piece late,
    /// when it knows which of them wait.
    fn can_come(&self, to: (u16, &Load), wish: &Wish, from: Source, at: &Moment, sources: &Sources<'_>) -> bool {
        let (asker, load) = to;
        let at_a_time = self.time.pieces_at_a_time(wish.bytes);
        let can_be_sent = match from {
            Source(Some(_)) => true,
            Source(None) if wish.is_at_hand => sources.has_room_here,
            Source(None) => sources.can_fetch && self.prepared_for(asker, false) < MAX_FETCHED_EACH,
        };
        can_be_sent && load.can_get_one(at, at_a_time, self.prepared_for(asker, true))
    }

    fn grant(&mut self, Grant { piece, asker, relay, is_at_hand }: Grant, now: Instant) {
        let at = self.moment(&piece.0, now);
        let readers = self.files.entry(piece.0).or_default();
        readers.waits_no_more(asker, piece.1);
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
        readers.waits_no_more(asker, piece.1);
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
            (of.moved, of.held) = (now, Some(now));
            let readers = self.files.entry(*file).or_default();
            readers.waits_no_more(node, start);
            readers.load(node).has.insert(start);
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
        let readers = self.files.entry(piece.0).or_default();
        readers.waits_no_more(asker, piece.1);
        let State::Gets { relay: Some(relay), .. } = before else { return };
        of.askers.retain(|a| a.node != relay);
        of.look_for_holders();
        readers.load(relay).has.remove(&piece.1);
        readers.free_links(Some(relay), asker, piece.1);
        readers.load(relay).barred_until = Some(now + BAR_PERIOD);
    }

    /// Notes that a request of `asker` has ended; unless it gets the piece, it does not count any
    /// more. Whether another node may be next.
    pub(super) fn leaves(&mut self, piece: Piece, asker: u16) -> bool {
        self.preparing.remove(&(piece, asker));
        let Some(of) = self.pieces.get_mut(&piece) else { return false };
        let is_to_go =
            |a: &Asker| a.node == asker && (a.is_unheard || matches!(a.state, State::Waits | State::Prepares));
        let Some(place) = of.askers.iter().position(is_to_go) else { return false };
        let readers = self.files.entry(piece.0).or_default();
        readers.waits_no_more(asker, piece.1);
        if let State::Gets { relay, .. } = of.askers.remove(place).state {
            readers.free_links(relay, asker, piece.1);
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
        self.pieces.insert(piece, Askers::new(now));
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
            of.forget_piece(oldest.1);
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
