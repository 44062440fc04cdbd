//! `ops_per_byte`: keeps the files that save most PFS time per byte of room.
//!
//! Source: the greedy solution of a knapsack by density v / cost (Dantzig, *Discrete-Variable
//! Extremum Problems*, 1957), made online by replacement.

mod cost;
mod ranks;

use crate::rooms::{barred, fastest_with_room, favoured, lacking};
use crate::{Candidate, Decision, Event, FileKey, Hints, Policy, TierRoom, Why};
use cost::{Cost, Line, PRIOR};
use ranks::{Ranks, Resident};
use std::collections::HashMap;

/// By how much a replacement must be better, as a share.
pub(crate) const MARGIN: f64 = 0.25;

/// The policy `ops_per_byte`.
///
/// **Problem.** Every file is read once an epoch; a resident file saves v(f) = a + b size(f) of the
/// PFS's time, the first part for open and metadata, and takes cost(f) bytes: a knapsack. With
/// mixed sizes small files save far more per byte than large ones. a and b are learned for each
/// index from the durations of fetches ([`cost`]).
///
/// **How.** Admits while there is room. When full, residents of least density are replaced, in the
/// tier where least is lost, if more is gained: each must have a density below the candidate's by
/// [`MARGIN`], and their total value must be below what the room will be worth by the same margin.
/// The room is worth the candidate and, in what it leaves over, the files refused so far in this
/// epoch that were denser than the tier's worst (the *claims*): one large file alone is worth more
/// than one small file, but not more than the hundred that fit in its place. Claims are used up in
/// proportion by each replacement. They are for files that come again later in the epoch or in the
/// next one, which is why this policy asks again.
///
/// **Churn.** A replacement costs one transfer, and at most one read from the PFS, of a victim that
/// was still to be read in this epoch; it gains more than MARGIN times the victims' value in each
/// later one. Chains end: each step raises the density by a quarter.
///
/// **Bound.** At rest no file outside is denser than a resident by more than MARGIN, unless the
/// files outside are worth less than the one resident that would have to go. With opt the
/// fractional optimum of the knapsack ([`crate::bounds::knapsack`]), which no set of files exceeds:
/// saved >= (opt - max v(f)) / (1 + MARGIN); where the sizes lie far apart, MARGIN decides nothing
/// and saved >= opt - max v(f).
///
/// **Memory.** About 130 bytes a resident file.
#[derive(Debug, Default)]
pub struct OpsPerByte {
    ranks: Ranks,
    /// By index (the upper half of keys): the learned cost, and the cost by which residents were
    /// ranked.
    costs: HashMap<u32, (Cost, Line)>,
    claims: Claims,
    /// Events since residents were ranked.
    since: usize,
    drifted: bool,
    priority_revision: u64,
}

/// Files refused in this epoch although denser than residents.
#[derive(Clone, Copy, Debug, Default)]
struct Claims {
    value: f64,
    cost: f64,
}

impl Claims {
    fn add(&mut self, value: f64, cost: u64) {
        self.value += value;
        self.cost += cost as f64;
    }

    /// The part of the claims that fits into some room.
    fn part(&self, room: f64) -> f64 {
        if self.cost > 0.0 { (room / self.cost).clamp(0.0, 1.0) } else { 0.0 }
    }

    fn use_up(&mut self, part: f64) {
        self.value *= 1.0 - part;
        self.cost *= 1.0 - part;
    }
}

/// The residents of a tier that would be dropped.
struct Offer {
    tier: usize,
    victims: Vec<FileKey>,
    loss: f64,
    freed: u64,
}

/// The density below which residents are dropped for a file.
fn limit(value: f64, room: &TierRoom) -> f64 {
    value / room.cost.max(1) as f64 / (1.0 + MARGIN)
}

impl OpsPerByte {
    fn value(&self, file: FileKey, size: u64) -> f64 {
        self.costs.get(&file.index()).map_or(PRIOR, |(_, line)| *line).seconds(size)
    }

    fn learn(&mut self, file: FileKey, size: u64, took: std::time::Duration) {
        let (cost, line) = self.costs.entry(file.index()).or_insert_with(|| (Cost::default(), PRIOR));
        cost.learn(size, took);
        self.drifted |= cost.line().differs(*line);
    }

    /// Ranks residents again when costs have drifted, at most once in as many events as there are
    /// residents, and when priorities have changed.
    fn rank_again(&mut self, hints: &Hints) {
        let drifted = self.drifted && self.since > self.ranks.len();
        if self.priority_revision == hints.priority_revision() && !drifted {
            return;
        }
        self.priority_revision = hints.priority_revision();
        (self.since, self.drifted) = (0, false);
        self.costs.values_mut().for_each(|(cost, line)| *line = cost.line());
        let mut ranks = std::mem::take(&mut self.ranks);
        ranks.rank_again(|file, r| Resident { value: self.value(file, r.size), high: favoured(file, hints), ..r });
        self.ranks = ranks;
    }

    /// The least valuable residents of a tier that must go for the candidate. Files that users
    /// favour are not among them.
    fn offer(&self, tier: usize, room: TierRoom, candidate: FileKey, limit: f64) -> Result<Offer, Why> {
        let needed = lacking(room);
        let mut offer = Offer { tier, victims: Vec::new(), loss: 0.0, freed: 0 };
        if self.ranks.bytes(tier) < needed {
            return Err(Why::NoRoom);
        }
        for (file, r) in self.ranks.worst(tier).filter(|(file, _)| *file != candidate) {
            if offer.freed >= needed {
                break;
            }
            if r.density() >= limit {
                return Err(Why::Unwanted);
            }
            offer.loss += r.value;
            offer.freed = offer.freed.saturating_add(r.cost);
            offer.victims.push(file);
        }
        if offer.freed >= needed { Ok(offer) } else { Err(Why::NoRoom) }
    }

    /// The victims for the candidate, in the tier where least is lost, if the exchange is worth it
    /// or users favour the candidate.
    fn exchange(&mut self, candidate: &Candidate, value: f64, tiers: &[TierRoom], hints: &Hints) -> Result<Offer, Why> {
        let high = favoured(candidate.file, hints);
        let limit = |room: &TierRoom| if high { f64::INFINITY } else { limit(value, room) };
        let usable = tiers.iter().enumerate().filter(|(_, room)| room.usable);
        let mut why = Why::NoRoom;
        let mut best: Option<Offer> = None;
        for (tier, room) in usable {
            match self.offer(tier, *room, candidate.file, limit(room)) {
                Ok(offer) if best.as_ref().is_none_or(|b| offer.loss < b.loss) => best = Some(offer),
                Ok(_) | Err(Why::NoRoom) => {}
                Err(Why::Unwanted) => why = Why::Unwanted,
            }
        }
        let offer = best.ok_or(why)?;
        let left = offer.freed.saturating_sub(lacking(tiers[offer.tier]));
        let part = self.claims.part(left as f64);
        let gain = value + part * self.claims.value;
        if !high && gain <= (1.0 + MARGIN) * offer.loss {
            return Err(Why::Unwanted);
        }
        self.claims.use_up(part);
        Ok(offer)
    }

    /// Notes a refused file if it is denser than some resident.
    fn claim(&mut self, value: f64, tiers: &[TierRoom]) {
        let denser = |(tier, room): (usize, &TierRoom)| {
            room.usable && self.ranks.worst(tier).next().is_some_and(|(_, r)| r.density() < limit(value, room))
        };
        if tiers.iter().enumerate().any(denser) {
            self.claims.add(value, tiers.iter().map(|t| t.cost).min().unwrap_or(0));
        }
    }

    fn replace(&mut self, offer: Offer) -> Decision {
        offer.victims.iter().for_each(|v| self.ranks.remove(*v));
        Decision::Replace { tier: offer.tier, victims: offer.victims }
    }
}

impl Policy for OpsPerByte {
    fn name(&self) -> &'static str {
        "ops_per_byte"
    }

    fn event(&mut self, event: &Event, hints: &Hints) {
        self.since = self.since.saturating_add(1);
        match *event {
            Event::Placed { file, size, cost, tier } => {
                let (value, high) = (self.value(file, size), favoured(file, hints));
                self.ranks.insert(file, tier, Resident { size, cost, value, high });
            }
            Event::Dropped { file } => self.ranks.remove(file),
            Event::Fetched { file, size, took } => self.learn(file, size, took),
            // Refused files come again, and are counted again.
            Event::Epoch { .. } => self.claims = Claims::default(),
            Event::IndexGone { index } => {
                self.ranks.forget_index(index);
                self.costs.remove(&index);
                // (Claims do not record their index.)
                self.claims = Claims::default();
            }
            Event::Access(_) | Event::Hinted | Event::Extent { .. } => {}
        }
    }

    fn place(&mut self, candidate: &Candidate, tiers: &[TierRoom], hints: &Hints) -> Decision {
        if barred(candidate.file, hints) {
            return Decision::Refuse(Why::Unwanted);
        }
        if let Some(tier) = fastest_with_room(tiers) {
            return Decision::Admit(tier);
        }
        self.rank_again(hints);
        let value = self.value(candidate.file, candidate.size);
        match self.exchange(candidate, value, tiers, hints) {
            Ok(offer) => self.replace(offer),
            Err(why) => {
                self.claim(value, tiers);
                Decision::Refuse(why)
            }
        }
    }

    fn asks_again(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestSource;
    use crate::hints::Priority;

    const SMALL: u64 = 1 << 10;
    const LARGE: u64 = 100 << 10;

    fn placed(p: &mut OpsPerByte, n: u64, size: u64, hints: &Hints) {
        p.event(&Event::Placed { file: FileKey(n), size, cost: size, tier: 0 }, hints);
    }

    fn place(p: &mut OpsPerByte, n: u64, size: u64, free: u64, hints: &Hints) -> Decision {
        let c = Candidate { file: FileKey(n), size, source: RequestSource::Demand };
        p.place(&c, &[TierRoom { cost: size, free, usable: true }], hints)
    }

    fn replaced(n: u64) -> Decision {
        Decision::Replace { tier: 0, victims: vec![FileKey(n)] }
    }

    #[test]
    fn a_large_file_goes_once_small_ones_would_fill_its_place() {
        let (mut p, hints) = (OpsPerByte::default(), Hints::default());
        placed(&mut p, 1, LARGE, &hints);
        // By the prior the large file is worth 2.02 ms, and small ones 1.01 ms each.
        assert_eq!(place(&mut p, 2, SMALL, 0, &hints), Decision::Refuse(Why::Unwanted));
        assert_eq!(place(&mut p, 3, SMALL, 0, &hints), Decision::Refuse(Why::Unwanted));
        assert_eq!(place(&mut p, 4, SMALL, 0, &hints), replaced(1));
        // Forgotten at once; and if it stays, known again.
        assert_eq!(place(&mut p, 5, SMALL, 0, &hints), Decision::Refuse(Why::NoRoom));
        placed(&mut p, 1, LARGE, &hints);
        p.event(&Event::Epoch { number: 2 }, &hints);
        assert_eq!(place(&mut p, 6, SMALL, 0, &hints), Decision::Refuse(Why::Unwanted));
    }

    #[test]
    fn equals_and_larger_files_replace_nothing() {
        let (mut p, hints) = (OpsPerByte::default(), Hints::default());
        (0..200).for_each(|n| placed(&mut p, n, SMALL, &hints));
        for n in 200..400 {
            assert_eq!(place(&mut p, n, SMALL, 0, &hints), Decision::Refuse(Why::Unwanted));
            assert_eq!(place(&mut p, n, LARGE, 0, &hints), Decision::Refuse(Why::Unwanted));
        }
    }

    #[test]
    fn favoured_files_are_admitted_and_stay() {
        let (mut p, mut hints) = (OpsPerByte::default(), Hints::default());
        placed(&mut p, 1, SMALL, &hints);
        hints.prioritise(FileKey(2), Priority::High);
        assert_eq!(place(&mut p, 2, SMALL, 0, &hints), replaced(1));
        placed(&mut p, 2, LARGE, &hints);
        (3..100).for_each(|n| assert_eq!(place(&mut p, n, SMALL, 0, &hints), Decision::Refuse(Why::NoRoom)));
        hints.prioritise(FileKey(2), Priority::Normal);
        (0..2).for_each(|_| assert_eq!(place(&mut p, 3, SMALL, 0, &hints), Decision::Refuse(Why::Unwanted)));
        assert_eq!(place(&mut p, 3, SMALL, 0, &hints), replaced(2));
    }

    #[test]
    fn a_refusal_says_whether_it_was_for_room() {
        let (mut p, mut hints) = (OpsPerByte::default(), Hints::default());
        assert_eq!(place(&mut p, 1, SMALL, 0, &hints), Decision::Refuse(Why::NoRoom));
        placed(&mut p, 1, SMALL, &hints);
        assert_eq!(place(&mut p, 2, SMALL, 0, &hints), Decision::Refuse(Why::Unwanted));
        // Not even all residents would make room for it.
        assert_eq!(place(&mut p, 3, LARGE, 0, &hints), Decision::Refuse(Why::NoRoom));
        hints.prioritise(FileKey(1), Priority::High);
        assert_eq!(place(&mut p, 2, SMALL, 0, &hints), Decision::Refuse(Why::NoRoom));
        hints.prioritise(FileKey(2), Priority::Never);
        assert_eq!(place(&mut p, 2, SMALL, LARGE, &hints), Decision::Refuse(Why::Unwanted));
    }

    #[test]
    fn the_cost_of_an_index_is_forgotten_with_it() {
        let (mut p, hints) = (OpsPerByte::default(), Hints::default());
        let file = FileKey(5 << 32);
        for n in 0..100 {
            p.event(&Event::Fetched { file, size: SMALL * n, took: std::time::Duration::from_secs(1) }, &hints);
        }
        place(&mut p, 1, SMALL, 0, &hints);
        assert!(p.drifted || p.value(file, SMALL) > 0.5);
        p.event(&Event::IndexGone { index: 5 }, &hints);
        assert!(p.costs.is_empty() && p.value(file, SMALL) == PRIOR.seconds(SMALL));
    }
}
