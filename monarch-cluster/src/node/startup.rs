//! Whether an index may be about to be served here: then a request that names it waits, or is to be
//! sent again.

use super::request_limits::INDEX_ARRIVAL_TIMEOUT;
use crate::election::Election;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// When this node started, and the indexes that are on their way to it.
#[derive(Debug)]
pub(super) struct Startup {
    started: Instant,
    /// Whether indexes of an agent that died are being taken over.
    adopting: AtomicBool,
    election: Arc<Election>,
}

impl Startup {
    /// A node that starts now, with its indexes in `election`.
    pub(super) fn new(now: Instant, election: Arc<Election>) -> Self {
        Self { started: now, adopting: AtomicBool::new(false), election }
    }

    /// How long ago the node started.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Notes whether indexes of an agent that died are being taken over.
    pub(super) fn set_adopting(&self, adopting: bool) {
        self.adopting.store(adopting, Ordering::SeqCst);
    }

    /// Whether an index that is not served may be a moment later: the node is new, or an index is
    /// on its way.
    pub(super) fn expects_index(&self, now: Instant) -> bool {
        self.age(now) < INDEX_ARRIVAL_TIMEOUT || self.election.is_pending()
    }

    /// The same, also while indexes of an agent that died are being taken over.
    pub(super) fn expects_or_adopts_index(&self, now: Instant) -> bool {
        self.adopting.load(Ordering::SeqCst) || self.expects_index(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_expected_of_a_new_node_and_while_one_is_on_its_way() {
        let (election, now) = (Arc::new(Election::default()), Instant::now());
        let startup = Startup::new(now, election.clone());
        let later = now + INDEX_ARRIVAL_TIMEOUT;
        assert!(startup.expects_index(now) && !startup.expects_index(later));
        startup.set_adopting(true);
        assert!(startup.expects_or_adopts_index(later) && !startup.expects_index(later));
        startup.set_adopting(false);
        election.bid(1);
        assert!(startup.expects_index(later));
        election.give_up(1);
        assert!(!startup.expects_or_adopts_index(later));
    }
}
