//! `first_epoch`: place files as they come until the tiers are full, then never replace (Monarch, Dantas et al., CCGrid 2022).
//!
//! Right when every file is read once an epoch in random order: any resident file then saves the same number of PFS reads
//! per epoch, so that replacing one by another gains nothing and costs two transfers.

use crate::{Candidate, Decision, Event, Policy, TierRoom};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstEpoch;

impl Policy for FirstEpoch {
    fn name(&self) -> &'static str {
        "first_epoch"
    }

    fn event(&mut self, _event: &Event) {}

    fn place(&mut self, _candidate: &Candidate, tiers: &[TierRoom]) -> Decision {
        tiers.iter().position(|t| t.usable && t.free >= t.cost).map_or(Decision::Refuse, Decision::Admit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileKey, RequestSource};

    fn room(free: u64, usable: bool) -> TierRoom {
        TierRoom { cost: 10, free, usable }
    }

    #[test]
    fn takes_the_fastest_tier_with_room_and_refuses_when_all_are_full() {
        let c = Candidate { file: FileKey(1), size: 9, source: RequestSource::Demand };
        let mut p = FirstEpoch;
        assert_eq!(p.place(&c, &[room(10, true), room(100, true)]), Decision::Admit(0));
        assert_eq!(p.place(&c, &[room(9, true), room(100, true)]), Decision::Admit(1));
        assert_eq!(p.place(&c, &[room(100, false), room(100, true)]), Decision::Admit(1));
        assert_eq!(p.place(&c, &[room(9, true), room(9, true)]), Decision::Refuse);
        assert_eq!(p.place(&c, &[]), Decision::Refuse);
    }
}
