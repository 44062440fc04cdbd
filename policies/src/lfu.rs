//! `lfu`: keeps files that are used often (TinyLFU). A baseline.
//!
//! Source: Einziger, Friedman, Manes, *TinyLFU: A Highly Efficient Cache Admission Policy*, ACM
//! Transactions on Storage 13(4), 2017.

mod sketch;

use crate::residents::Residents;
use crate::rooms::favoured;
use crate::{Candidate, Decision, Event, Hints, Policy, TierRoom};
use sketch::Sketch;

/// The policy `lfu`.
///
/// Residents are kept in the order of last use, as by `lru`. A candidate replaces the residents
/// used longest ago only if it was opened more often of late than each of them, by the count of a
/// [`sketch`]. On a draw the resident stays, as in the paper.
///
/// **When it is right.** Some files are read more often than others, and stay so: weighted
/// sampling, several jobs over parts of one data set. It is wrong where all files are read once an
/// epoch: a file that was just opened counts one more than a resident that is yet to be read in
/// this epoch, and replaces it. Files that users favour come in without being counted.
///
/// **Bound.** For independent opens with fixed odds the share of hits tends to the odds of the C
/// files opened most. On shuffled epochs it is at most c ([`crate::bounds::min_shuffled`]).
///
/// **An index that is gone** is forgotten but for its counts, which the sketch cannot separate:
/// should its number come again for other files, they count until they have aged, within some ten
/// opens a file.
///
/// **Memory.** About 50 bytes a resident file as for `lru`, and 2 to 4 bytes a file of the data set
/// for the sketch.
#[derive(Debug)]
pub struct Lfu {
    residents: Residents,
    opened: Sketch,
}

impl Lfu {
    /// A cache whose sketch hashes with a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { residents: Residents::default(), opened: Sketch::new(seed) }
    }
}

impl Policy for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn event(&mut self, event: &Event, _hints: &Hints) {
        self.residents.event(event);
        match event {
            Event::Access(a) => self.opened.add(a.file),
            Event::Extent { files, .. } => self.opened.fit(*files),
            _ => {}
        }
    }

    fn place(&mut self, candidate: &Candidate, tiers: &[TierRoom], hints: &Hints) -> Decision {
        let count = if favoured(candidate.file, hints) { u8::MAX } else { self.opened.count(candidate.file) };
        let opened = &self.opened;
        self.residents.place(candidate, tiers, hints, |victim| opened.count(victim) < count)
    }

    fn asks_again(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, FileKey, RequestSource, Served, Why};
    use std::time::Duration;

    #[test]
    fn a_refusal_says_whether_it_was_for_room() {
        let (mut p, hints) = (Lfu::new(1), Hints::default());
        let place = |p: &mut Lfu, n, source, cost| {
            let c = Candidate { file: FileKey(n), size: cost, source };
            p.place(&c, &[TierRoom { cost, free: 0, usable: true }], &hints)
        };
        let open = |p: &mut Lfu, n| {
            let access = Access { file: FileKey(n), size: 1, at: Duration::ZERO, stream: 0, served: Served::Pfs };
            p.event(&Event::Access(access), &Hints::default());
        };
        p.event(&Event::Placed { file: FileKey(1), size: 1, cost: 1, tier: 0 }, &Hints::default());
        open(&mut p, 1);
        open(&mut p, 2);
        // No more often than the resident that would go.
        assert_eq!(place(&mut p, 2, RequestSource::Demand, 1), Decision::Refuse(Why::Unwanted));
        assert_eq!(place(&mut p, 2, RequestSource::Demand, 9), Decision::Refuse(Why::NoRoom));
        assert_eq!(place(&mut p, 2, RequestSource::Prefetch, 1), Decision::Refuse(Why::NoRoom));
        open(&mut p, 2);
        let replaces = Decision::Replace { tier: 0, victims: vec![FileKey(1)] };
        assert_eq!(place(&mut p, 2, RequestSource::Demand, 1), replaces);
    }
}
