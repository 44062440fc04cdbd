//! [`Senders`]: how many peers send bodies to this node at the moment.
//!
//! They share its link, so that each body takes longer than it would alone: of the time that a body
//! may take, a wait counts once for all of them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most peers among which a wait is divided: it bounds what a peer that sends far too slowly can
/// cost beside others that do not.
const MAX_SHARE: u32 = 4;

/// The peers of a node that send bodies.
#[derive(Clone, Debug, Default)]
pub struct Senders(Arc<AtomicU32>);

/// Bodies that one peer sends.
#[derive(Debug, Default)]
pub(super) struct Bodies(AtomicU32);

/// A body that is being received, for as long as this lives.
#[derive(Debug)]
pub(super) struct Receiving<'a> {
    senders: &'a Senders,
    bodies: &'a Bodies,
}

impl Senders {
    /// Counts a body of a peer.
    pub(super) fn receiving<'a>(&'a self, bodies: &'a Bodies) -> Receiving<'a> {
        if bodies.0.fetch_add(1, Ordering::AcqRel) == 0 {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
        Receiving { senders: self, bodies }
    }

    /// Among how many peers a wait is divided.
    pub(super) fn share(&self) -> u32 {
        self.0.load(Ordering::Acquire).clamp(1, MAX_SHARE)
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        if self.bodies.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.senders.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_divided_among_the_peers_that_send_and_not_among_their_bodies() {
        let (senders, peers) = (Senders::default(), [const { Bodies(AtomicU32::new(0)) }; 6]);
        assert_eq!(senders.share(), 1);
        let one: Vec<_> = (0..3).map(|_| senders.receiving(&peers[0])).collect();
        assert_eq!(senders.share(), 1, "one peer");
        let all: Vec<_> = peers.iter().map(|bodies| senders.receiving(bodies)).collect();
        assert_eq!(senders.share(), MAX_SHARE);
        drop(one);
        drop(all);
        assert_eq!((senders.share(), senders.0.load(Ordering::Relaxed)), (1, 0));
    }
}
