//! A member, and what its state means as time passes.

use super::record::{Contact, Incarnation, Status};
use super::types::Peer;

/// Milliseconds of silence after which a suspect is down.
pub(super) const GONE_AFTER_MS: u64 = 30_000;
/// Milliseconds after which one that left owns nothing, and one that is in no list is not sought.
pub(super) const FORGET_AFTER_MS: u64 = 600_000;
/// Milliseconds after which a node passes on no news of one in no list that does not answer.
/// Half of the time after which it is forgotten, so that two nodes do not remind each other for
/// ever.
pub(super) const TELL_FOR_MS: u64 = FORGET_AFTER_MS / 2;

/// What this node believes of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is in the list and was never heard of.
    Expected,
    /// Another node or this one has heard of it.
    Known(Status),
}

/// A member.
pub(super) struct Member {
    pub(super) key: u64,
    pub(super) contact: Contact,
    pub(super) incarnation: Incarnation,
    pub(super) state: State,
    /// When the state began, in milliseconds; may lie before the start of this node.
    pub(super) since: i64,
    /// Its place among those that are alive, or among the others.
    pub(super) place: u16,
    /// It is in the list of nodes.
    pub(super) is_listed: bool,
    /// The contact is that of the life of `incarnation`.
    pub(super) is_introduced: bool,
}

impl Member {
    pub(super) fn is_alive(&self) -> bool {
        self.state == State::Known(Status::Alive)
    }

    /// The member as it presents itself.
    pub(super) fn peer(&self) -> Peer {
        let Contact { name, gossip, files } = &self.contact;
        Peer { name: name.to_string(), incarnation: self.incarnation.life, gossip: *gossip, files: *files }
    }

    /// Milliseconds since the state began.
    pub(super) fn age_ms(&self, now: u64) -> u64 {
        u64::try_from(now as i64 - self.since).unwrap_or(0)
    }

    /// The status that this node passes on to others, unless it passes on none.
    pub(super) fn told(&self, now: u64) -> Option<Status> {
        let State::Known(status) = self.state else { return None };
        let is_told = self.is_listed || status == Status::Alive || self.age_ms(now) <= TELL_FOR_MS;
        is_told.then_some(status)
    }

    /// Whether a greeting is worth a datagram: it may run, and does not know that it is missed.
    pub(super) fn is_sought(&self, now: u64) -> bool {
        match self.state {
            State::Expected => true,
            State::Known(Status::Silent) => self.is_listed || self.age_ms(now) < FORGET_AFTER_MS,
            State::Known(Status::Alive | Status::Left) => false,
        }
    }
}
