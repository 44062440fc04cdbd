//! [`RelayTable`]: which nodes want which piece of a large file from this node, which of them have
//! it, and where the next asker gets it.
//!
//! A piece is what one request asks for. Its first asker gets it from here. Others wait for their
//! turn: each node that has the piece sends it to one more, so that the nodes form a chain in which
//! each link carries the file once. Rules:
//!
//! * a node is named as a relay only once it has said that it has the piece: no relay waits, so
//!   that no circle of nodes can wait for each other;
//! * of several askers, the node that got its pieces fastest goes first; of several relays, the one
//!   with the fewest askers of this file so far;
//! * when a piece has got no further for a few times the usual time of a transfer, a relay sends it
//!   to a second asker, or this node sends it once more;
//! * an asker that a relay failed gets the piece from here, and the relay is not named for the file
//!   for [`BAR_PERIOD`].

use super::request_limits::piece_starts;
use monarch_storage::sharing::FileRef;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Most askers of one piece that a relay is named to.
const MAX_CHILDREN: u8 = 2;
/// Most transfers of a file that a relay has under way: the nodes behind wait for the end of each,
/// which comes later with every other transfer. Transfers that are stuck do not count.
const MAX_ACTIVE: usize = 4;
/// How long a node that has a piece is named for it.
const MAX_AGE: Duration = Duration::from_secs(60);
/// How long a node that did not send a piece is not named for others of its file.
const BAR_PERIOD: Duration = Duration::from_secs(10);
/// Most pieces that are remembered: 16 GiB in pieces of 4 MiB.
const MAX_PIECES: usize = 4096;
/// Most askers of a piece that are remembered.
const MAX_ASKERS: usize = 256;
/// A piece is stuck after this multiple of the time that transfers take, within these bounds.
const STALL_FACTOR: u32 = 4;
const MIN_STALL: Duration = Duration::from_millis(100);
const MAX_STALL: Duration = Duration::from_secs(1);
/// A node whose transfers take more than this multiple of the usual time gets its pieces last.
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
    /// It is decided when a relay has fewer transfers under way, at this time at the latest.
    Busy(Instant),
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
    /// Smoothed time of its transfers.
    took: Duration,
}

#[derive(Debug, Default)]
struct OfFile {
    nodes: HashMap<u16, Load>,
    /// Pieces in the table.
    pieces: usize,
}

/// The askers of this node's large files. Bounded in memory: 4,096 pieces.
#[derive(Debug)]
pub(super) struct RelayTable {
    pieces: HashMap<Piece, Askers>,
    /// Pieces by the time of their first asker.
    order: VecDeque<Piece>,
    files: HashMap<FileRef, OfFile>,
    /// Smoothed time of all transfers.
    took: Duration,
}

impl Load {
    /// Whether the node has few transfers under way, those that are stuck aside.
    fn is_free(&self, now: Instant, stall: Duration) -> bool {
        let is_active = |since: &Instant| now.saturating_duration_since(*since) < stall;
        self.active.iter().filter(|(_, _, since)| is_active(since)).count() < MAX_ACTIVE
    }
}

impl Default for RelayTable {
    fn default() -> Self {
        let (pieces, order, files) = Default::default();
        Self { pieces, order, files, took: MAX_STALL / STALL_FACTOR }
    }
}

impl RelayTable {
    /// Where `asker` gets a piece. Called again when the table has changed, or at the time that the
    /// answer names. `can_relay` says whether a node can be named.
    pub(super) fn turn(&mut self, piece: Piece, asker: u16, now: Instant, can_relay: impl Fn(u16) -> bool) -> Turn {
        let stall = (self.took * STALL_FACTOR).clamp(MIN_STALL, MAX_STALL);
        let usual = self.took;
        let (of, nodes) = self.admit(piece, now);
        of.askers.retain(|a| !matches!(a.state, State::Has { since } if now.duration_since(since) > MAX_AGE));
        let known = of.askers.iter().position(|a| a.node == asker);
        if known.is_none() && of.askers.len() >= MAX_ASKERS {
            return Turn::Here;
        }
        let at = known.unwrap_or_else(|| {
            of.askers.push(Asker { node: asker, state: State::Waits { seen: now }, children: 0 });
            of.askers.len() - 1
        });
        // One that asks again has lost its copy.
        of.askers[at].state = State::Waits { seen: now };
        let relayed = |node: u16| nodes.get(&node).map_or(0, |l| l.relayed);
        let may_send = |a: &Asker, children: u8| {
            let is_barred = nodes.get(&a.node).is_some_and(|l| l.barred_until.is_some_and(|until| now < until));
            matches!(a.state, State::Has { .. }) && a.children < children && !is_barred && can_relay(a.node)
        };
        let is_free = |a: &Asker| nodes.get(&a.node).is_none_or(|l| l.is_free(now, stall));
        // A relay, or the word to wait for one that is busy.
        let free = |children: u8| {
            let all = of.askers.iter().enumerate().filter(|(_, a)| a.node != asker && may_send(a, children));
            let best = all.min_by_key(|(_, a)| (!is_free(a), a.children, relayed(a.node)));
            best.map(|(at, a)| is_free(a).then_some(at))
        };
        let is_slow = |node: u16| nodes.get(&node).is_some_and(|l| l.took > usual * SLOW_FACTOR);
        let is_next = || {
            let waits = of.askers.iter().enumerate().filter(|(_, a)| match a.state {
                State::Waits { seen } => now.saturating_duration_since(seen) < stall,
                _ => false,
            });
            waits.min_by_key(|(at, a)| (is_slow(a.node), *at)).is_some_and(|(first, _)| first == at)
        };
        let is_prepared = of.askers.iter().any(|a| a.state == State::Prepares);
        let is_under_way = is_prepared || of.askers.iter().any(|a| matches!(a.state, State::Gets { .. }));
        let is_stuck = !is_prepared && now.saturating_duration_since(of.moved) >= stall;
        let relay = match free(1) {
            Some(Some(relay)) if is_next() => Some(relay),
            Some(Some(_)) => return Turn::Wait(now + stall),
            Some(None) => return Turn::Busy(now + stall),
            None if is_under_way && !is_stuck => return Turn::Wait(now + stall),
            None => match free(MAX_CHILDREN) {
                Some(None) => return Turn::Busy(now + stall),
                Some(relay) => relay,
                None => None,
            },
        };
        let relay = relay.map(|relay| {
            of.askers[relay].children += 1;
            of.askers[relay].node
        });
        of.askers[at].state = relay.map_or(State::Prepares, |_| State::Gets { relay, since: now });
        of.moved = now;
        let Some(relay) = relay else { return Turn::Here };
        let load = nodes.entry(relay).or_default();
        load.relayed += 1;
        // (Those that are stuck do not count any more.)
        load.active.retain(|(_, _, since)| now.saturating_duration_since(*since) < stall);
        load.active.push((asker, piece.1, now));
        Turn::Relay(relay)
    }

    /// Notes that a piece goes out from here to `asker`.
    pub(super) fn begins(&mut self, piece: Piece, asker: u16, now: Instant) {
        let Some(of) = self.pieces.get_mut(&piece) else { return };
        of.moved = now;
        if let Some(a) = of.askers.iter_mut().find(|a| a.node == asker) {
            a.state = State::Gets { relay: None, since: now };
        }
    }

    /// Notes that a node has all pieces that begin in a part of a file.
    pub(super) fn has(&mut self, file: &FileRef, part: &Range<u64>, node: u16, now: Instant) {
        let Some(of_file) = self.files.get_mut(file) else { return };
        for start in piece_starts(part) {
            let Some(of) = self.pieces.get_mut(&(*file, start)) else { continue };
            let Some(a) = of.askers.iter_mut().find(|a| a.node == node) else { continue };
            if let State::Gets { since, relay } = a.state {
                let relay = relay.and_then(|relay| of_file.nodes.get_mut(&relay));
                relay.into_iter().for_each(|l| l.active.retain(|(to, at, _)| (*to, *at) != (node, start)));
                let took = now.saturating_duration_since(since);
                let load = of_file.nodes.entry(node).or_default();
                load.took = if load.took.is_zero() { took } else { smoothed(load.took, took) };
                self.took = smoothed(self.took, took);
            }
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
        let State::Gets { relay: Some(relay), .. } = before else { return };
        of.askers.retain(|a| a.node != relay);
        let load = self.files.entry(piece.0).or_default().nodes.entry(relay).or_default();
        load.active.retain(|(to, at, _)| (*to, *at) != (asker, piece.1));
        load.barred_until = Some(now + BAR_PERIOD);
    }

    /// Notes that a request of `asker` has ended; unless it gets the piece, it does not count any
    /// more. Whether another node may be next.
    pub(super) fn leaves(&mut self, piece: Piece, asker: u16) -> bool {
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
        if let Some(of) = self.files.get_mut(&oldest.0) {
            of.pieces -= 1;
            if of.pieces == 0 {
                self.files.remove(&oldest.0);
            }
        }
    }
}

fn smoothed(old: Duration, new: Duration) -> Duration {
    (old * 7 + new) / 8
}

#[cfg(test)]
#[path = "relay_table_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "relay_simulation_tests.rs"]
mod simulation_tests;
