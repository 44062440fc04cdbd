//! `first_epoch`: places files as they come until the tiers are full, then never replaces.
//!
//! Source: Monarch: Dantas et al., *Accelerating Deep Learning Training Through Transparent Storage
//! Tiering*, CCGrid 2022.

use crate::rooms::{barred, fastest_with_room};
use crate::{Candidate, Decision, Event, Hints, Policy, TierRoom, Why};

/// The policy `first_epoch`. It keeps no state and never asks again about a refused file.
///
/// **When it is right.** Every file is read once an epoch in random order and files cost about the
/// same per byte: any resident file then saves the same number of PFS reads per epoch, so that
/// replacing one by another gains nothing and costs two transfers. It is wrong where sizes are
/// mixed (`ops_per_byte`), and its set depends on the order of the first accesses (`static`'s does
/// not).
///
/// **Bound.** With room for a share c of the bytes, files of one size: each epoch after the first
/// hits exactly a share c of its opens and reads n (1 - c) files from the PFS. No policy that
/// fetches on demand does better on epochs that are shuffled independently
/// ([`crate::bounds::min_shuffled`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstEpoch;

impl Policy for FirstEpoch {
    fn name(&self) -> &'static str {
        "first_epoch"
    }

    fn event(&mut self, _event: &Event, _hints: &Hints) {}

    fn place(&mut self, candidate: &Candidate, tiers: &[TierRoom], hints: &Hints) -> Decision {
        if barred(candidate.file, hints) {
            return Decision::Refuse(Why::Unwanted);
        }
        fastest_with_room(tiers).map_or(Decision::Refuse(Why::NoRoom), Decision::Admit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::Priority;
    use crate::{FileKey, RequestSource};

    fn room(free: u64, usable: bool) -> TierRoom {
        TierRoom { cost: 10, free, usable }
    }

    #[test]
    fn takes_the_fastest_tier_with_room_and_refuses_when_all_are_full() {
        let c = Candidate { file: FileKey(1), size: 9, source: RequestSource::Demand };
        let mut p = FirstEpoch;
        assert_eq!(p.place(&c, &[room(10, true), room(100, true)], &Hints::default()), Decision::Admit(0));
        assert_eq!(p.place(&c, &[room(9, true), room(100, true)], &Hints::default()), Decision::Admit(1));
        assert_eq!(p.place(&c, &[room(100, false), room(100, true)], &Hints::default()), Decision::Admit(1));
        assert_eq!(p.place(&c, &[room(9, true), room(9, true)], &Hints::default()), Decision::Refuse(Why::NoRoom));
        assert_eq!(p.place(&c, &[], &Hints::default()), Decision::Refuse(Why::NoRoom));
    }

    #[test]
    fn refuses_what_users_never_want_copied() {
        let mut hints = Hints::default();
        hints.prioritise(FileKey(1), Priority::Never);
        let c = Candidate { file: FileKey(1), size: 9, source: RequestSource::Demand };
        assert_eq!(FirstEpoch.place(&c, &[room(100, true)], &hints), Decision::Refuse(Why::Unwanted));
    }
}
