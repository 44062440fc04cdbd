//! [`Askers`]: the nodes that asked for a piece of a large file, and how far each has got.

use super::relay_links::{Load, Moment};
use monarch_storage::sharing::FileRef;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a node that has a piece is named for it.
pub(super) const MAX_AGE: Duration = Duration::from_secs(60);

/// A piece of a large file: the file, and the offset of the piece's first byte.
pub(super) type Piece = (FileRef, u64);

/// The piece of a file that begins at an offset. (Nodes name files by number: the hash of the path
/// is left out.)
pub(super) const fn piece_of(file: &FileRef, start: u64) -> Piece {
    (FileRef { fp: 0, ..*file }, start)
}

/// How far an asker has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its request waits for its turn.
    Waits,
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
pub(super) struct Asker {
    pub(super) node: u16,
    pub(super) state: State,
    /// Whether its turn has come and its request has not heard of it.
    pub(super) is_unheard: bool,
}

/// The nodes that asked for a piece.
#[derive(Debug)]
pub(super) struct Askers {
    pub(super) askers: Vec<Asker>,
    /// When the piece last got further: it was given out, or a node said that it has it.
    pub(super) moved: Instant,
    /// When a node last said that it has it; `None`: none has it.
    pub(super) held: Option<Instant>,
}

impl Askers {
    pub(super) const fn new(now: Instant) -> Self {
        Self { askers: Vec::new(), moved: now, held: None }
    }

    pub(super) fn find(&mut self, node: u16) -> Option<&mut Asker> {
        self.askers.iter_mut().find(|a| a.node == node)
    }

    /// Whether the piece is on its way to an asker, and gets on.
    pub(super) fn is_under_way(&self, at: &Moment) -> bool {
        if self.askers.iter().any(|a| a.state == State::Prepares) {
            return true;
        }
        at.is_recent(self.moved) && self.askers.iter().any(|a| matches!(a.state, State::Gets { .. } | State::Got))
    }

    /// Nodes that have the piece or are getting it.
    pub(super) fn spread(&self) -> usize {
        self.askers.iter().filter(|a| a.state != State::Waits).count()
    }

    /// After a node has ceased to have the piece.
    pub(super) fn look_for_holders(&mut self) {
        let has = |a: &Asker| if let State::Has { since } = a.state { Some(since) } else { None };
        self.held = self.askers.iter().filter_map(has).max();
    }

    /// Whether a node has said that it has the piece, and is still named for it.
    pub(super) fn is_held(&self, now: Instant) -> bool {
        self.held.is_some_and(|held| now.duration_since(held) <= MAX_AGE)
    }
}

/// Nodes that could send a piece on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relay {
    /// There are none.
    None,
    /// All have enough to send.
    Busy,
    /// That node is named next.
    Free(u16),
}

impl Askers {
    /// The node that is named next as a relay, of those that have the piece.
    pub(super) fn relay(
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
