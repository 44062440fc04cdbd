//! `lru`: drops the copies used longest ago. A baseline.

use crate::residents::Residents;
use crate::{Candidate, Decision, Event, Hints, Policy, TierRoom};

/// The policy `lru`.
///
/// Admits to the fastest tier with room; once all are full, replaces in the slowest usable one, so
/// that faster tiers keep what came first. Files that users favour are no victims. About 50 bytes a
/// resident file, and what the allocator adds.
///
/// **Source.** The textbook; that it fails here is shown by Mohan et al. (VLDB 2021) and others.
///
/// **When it is right.** Files that are read again soon: validation sets, several readers of one
/// order. On shuffled epochs it is the wrong choice: an open replaces a file that is yet to be read
/// in this epoch by a file that was just read.
///
/// **Bound.** Epochs shuffled independently, equal sizes, room for a share c: an expected share c +
/// (1 - c) ln(1 - c) of the opens hits ([`crate::bounds::lru_shuffled`]; 0.15 at c = 1/2, 0.03 at c
/// = 1/4). The same order each epoch: none as long as c < 1.
#[derive(Debug, Default)]
pub struct Lru {
    residents: Residents,
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn event(&mut self, event: &Event, _hints: &Hints) {
        self.residents.event(event);
    }

    fn place(&mut self, candidate: &Candidate, tiers: &[TierRoom], hints: &Hints) -> Decision {
        self.residents.place(candidate, tiers, hints, |_| true)
    }

    fn asks_again(&self) -> bool {
        true
    }
}
