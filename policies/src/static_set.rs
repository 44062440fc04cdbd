//! `static`: a fixed set of files, chosen by hash, that never changes.
//!
//! Source: the MinIO cache of CoorDL: Mohan et al., *Analyzing and Mitigating Data Stalls in DNN
//! Training*, VLDB 2021: on epochs that are shuffled a cache that never replaces has the fewest
//! misses. There the first files that are read make up the set. Here it is chosen beforehand.

use crate::keys::seeded;
use crate::rooms::{barred, fastest_with_room, favoured};
use crate::{Candidate, Decision, Event, FileKey, Hints, Policy, TierRoom, Why};

/// The policy `static`.
///
/// File f is in the set iff hash(seed, number and size of f) < p 2^64, with p = min(1, 1.01 c + 2
/// sqrt(c (1 - c) / n)) and c = capacity / bytes of all n files.
///
/// **Why by hash.** The set does not depend on which reader comes first, and sets of smaller tiers
/// lie within those of larger ones. It is the same after a restart, in the next job and on every
/// node, as long as these are: the seed, the listing below a root (a file's number is its place
/// there) and sizes, capacity and the extent of all roots together. The numbers that the indexes of
/// roots get, now or after a new listing, do not matter: only the lower half of the key is hashed.
/// (Files with the same number and size in two roots are in or out together.)
///
/// **How much.** p is a little more than c, by two standard deviations of the number of files that
/// a hash picks: too many do no harm (room bounds what is taken; only the few at the margin depend
/// on the order of arrival), too few would leave room unused. Room that is left over after one
/// whole epoch is open to any file: after an epoch that both began and ended since the extent was
/// known, or of which half of the files were opened since. Its number in the job does not matter.
/// When there are more than twice the files, or an index goes, that count starts again. Without a
/// known extent, or where everything fits, the policy is `first_epoch`.
///
/// **When it is right.** As `first_epoch`; better where jobs come and go over the same data set.
///
/// **Bound.** Each later epoch hits a share c of its opens (equal sizes), in whatever order
/// ([`crate::bounds::static_set`]).
#[derive(Clone, Debug)]
pub struct StaticSet {
    seed: u64,
    /// Files with a hash up to this one are in the set; `None`: all are.
    threshold: Option<u64>,
    chance: Chance,
}

/// Whether the files of the set had their chance to be read.
#[derive(Clone, Copy, Debug, Default)]
struct Chance {
    /// All files, when it began; 0 when their number is not known.
    files: u64,
    /// Whether an epoch has begun since.
    begun: bool,
    /// Opens of this epoch since.
    opens: u64,
    /// A whole epoch has passed.
    passed: bool,
}

impl Chance {
    fn epoch_began(&mut self) {
        self.passed |= self.files > 0 && (self.begun || self.opens >= self.files.div_ceil(2));
        (self.begun, self.opens) = (true, 0);
    }

    fn extent(&mut self, files: u64) {
        if self.files == 0 || files / 2 > self.files {
            *self = Self { files, ..Self::default() };
        }
    }
}

impl StaticSet {
    /// A set that is drawn with a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, threshold: None, chance: Chance::default() }
    }

    fn takes(&self, c: &Candidate, hints: &Hints) -> bool {
        self.chance.passed || self.threshold.is_none_or(|t| self.hash(c.file, c.size) <= t) || favoured(c.file, hints)
    }

    fn hash(&self, file: FileKey, size: u64) -> u64 {
        seeded(u64::from(file.0 as u32), seeded(size, self.seed))
    }
}

/// Largest hash of a file in the set, see [`StaticSet`]; `None` where all fits.
fn threshold(files: u64, bytes: u64, capacity: u64) -> Option<u64> {
    if capacity >= bytes || files == 0 {
        return None;
    }
    let c = capacity as f64 / bytes as f64;
    let p = 1.01 * c + 2.0 * (c * (1.0 - c) / files as f64).sqrt();
    // (A conversion from float saturates.)
    (p < 1.0).then_some((p * u64::MAX as f64) as u64)
}

impl Policy for StaticSet {
    fn name(&self) -> &'static str {
        "static"
    }

    fn event(&mut self, event: &Event, _hints: &Hints) {
        match *event {
            Event::Extent { files, bytes, capacity } => {
                self.threshold = threshold(files, bytes, capacity);
                self.chance.extent(files);
            }
            Event::Epoch { .. } => self.chance.epoch_began(),
            Event::Access(_) => self.chance.opens = self.chance.opens.saturating_add(1),
            // The files of its successor get an epoch, too.
            Event::IndexGone { .. } => self.chance = Chance { files: self.chance.files, ..Chance::default() },
            _ => {}
        }
    }

    fn place(&mut self, candidate: &Candidate, tiers: &[TierRoom], hints: &Hints) -> Decision {
        if barred(candidate.file, hints) || !self.takes(candidate, hints) {
            return Decision::Refuse(Why::Unwanted);
        }
        fastest_with_room(tiers).map_or(Decision::Refuse(Why::NoRoom), Decision::Admit)
    }

    /// Files outside the set are asked for once more, when room that was left over is open to any
    /// file.
    fn asks_again(&self) -> bool {
        self.threshold.is_some() && !self.chance.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, RequestSource, Served};
    use std::time::Duration;

    fn chosen(p: &mut StaticSet, room: u64) -> Vec<u64> {
        let fits = |p: &mut StaticSet, n: &u64| {
            let c = Candidate { file: FileKey(*n), size: 1, source: RequestSource::Demand };
            p.place(&c, &[TierRoom { cost: 1, free: room, usable: true }], &Hints::default()) == Decision::Admit(0)
        };
        (0..10_000).filter(|n| fits(p, n)).collect()
    }

    #[test]
    fn the_set_follows_from_seed_and_extent_and_smaller_ones_lie_within_larger_ones() {
        let with = |seed, capacity| {
            let mut p = StaticSet::new(seed);
            p.event(&Event::Extent { files: 10_000, bytes: 10_000, capacity }, &Hints::default());
            chosen(&mut p, 1)
        };
        let (small, large) = (with(1, 2_500), with(1, 5_000));
        assert!((2_500..2_750).contains(&small.len()), "{}", small.len());
        assert!((5_000..5_300).contains(&large.len()), "{}", large.len());
        assert!(small.iter().all(|n| large.contains(n)));
        assert_eq!(small, with(1, 2_500));
        assert_ne!(small, with(2, 2_500));
        assert_eq!(with(1, 10_000).len(), 10_000);
    }

    #[test]
    fn room_left_after_an_epoch_is_open_to_any_file() {
        let mut p = StaticSet::new(1);
        assert_eq!(chosen(&mut p, 1).len(), 10_000);
        p.event(&Event::Extent { files: 10_000, bytes: 10_000, capacity: 100 }, &Hints::default());
        p.event(&Event::Epoch { number: 1 }, &Hints::default());
        assert!(chosen(&mut p, 1).len() < 200);
        assert!(p.asks_again());
        p.event(&Event::Epoch { number: 2 }, &Hints::default());
        assert_eq!(chosen(&mut p, 1).len(), 10_000);
        assert_eq!(chosen(&mut p, 0).len(), 0);
        assert!(!p.asks_again());
    }

    fn small() -> StaticSet {
        let mut p = StaticSet::new(1);
        p.event(&Event::Extent { files: 10_000, bytes: 10_000, capacity: 100 }, &Hints::default());
        p
    }

    fn epoch(p: &mut StaticSet, number: u32) {
        p.event(&Event::Epoch { number }, &Hints::default());
    }

    fn open(p: &mut StaticSet, n: u64) {
        let access = Access { file: FileKey(n), size: 1, at: Duration::ZERO, stream: 0, served: Served::Pfs };
        p.event(&Event::Access(access), &Hints::default());
    }

    #[test]
    fn a_resumed_job_has_its_epoch_whatever_its_number() {
        let mut p = small();
        epoch(&mut p, 37);
        assert!(chosen(&mut p, 1).len() < 200 && p.asks_again());
        epoch(&mut p, 38);
        assert_eq!(chosen(&mut p, 1).len(), 10_000);
        // Epochs that are found from opens begin with the second one.
        let mut p = small();
        (0..10_000).for_each(|n| open(&mut p, n));
        epoch(&mut p, 2);
        assert_eq!(chosen(&mut p, 1).len(), 10_000);
        // Before the extent was known there was no set.
        let mut p = StaticSet::new(1);
        (1..9).for_each(|n| epoch(&mut p, n));
        p.event(&Event::Extent { files: 10_000, bytes: 10_000, capacity: 100 }, &Hints::default());
        assert!(chosen(&mut p, 1).len() < 200);
        epoch(&mut p, 9);
        assert!(chosen(&mut p, 1).len() < 200);
    }

    #[test]
    fn an_index_that_is_gone_gives_its_room_to_the_set_first() {
        let mut p = small();
        (1..3).for_each(|n| epoch(&mut p, n));
        assert_eq!(chosen(&mut p, 1).len(), 10_000);
        p.event(&Event::IndexGone { index: 0 }, &Hints::default());
        assert!(chosen(&mut p, 1).len() < 200);
        (3..5).for_each(|n| epoch(&mut p, n));
        assert_eq!(chosen(&mut p, 1).len(), 10_000);
    }

    #[test]
    fn the_number_of_an_index_does_not_matter_and_sizes_do() {
        let mut p = small();
        let mut takes = |index: u64, n: u64, size: u64| {
            let c = Candidate { file: FileKey(index << 32 | n), size, source: RequestSource::Demand };
            let room = |free| [TierRoom { cost: size, free, usable: true }];
            let refused = p.place(&c, &room(0), &Hints::default());
            let admitted = p.place(&c, &room(size), &Hints::default()) == Decision::Admit(0);
            assert_eq!(refused, Decision::Refuse(if admitted { Why::NoRoom } else { Why::Unwanted }));
            admitted
        };
        let mut set = |index, size| (0..10_000).filter(|n| takes(index, *n, size)).collect::<Vec<_>>();
        assert_eq!(set(1, 7), set(9, 7));
        assert_ne!(set(1, 7), set(1, 8));
    }
}
