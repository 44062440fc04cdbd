//! `random`: drops residents drawn at random. A baseline.

use crate::keys::{Chance, KeyMap, forget_index};
use crate::rooms::{MAX_TIERS, favoured, place_or_replace};
use crate::{Candidate, Decision, Event, FileKey, Hints, Policy, TierRoom, Why};

/// Draws of favoured files after which a candidate is refused.
const MAX_FAVOURED_DRAWS: usize = 64;

#[derive(Debug, Default)]
struct Tier {
    /// Residents with their costs in bytes.
    files: Vec<(FileKey, u64)>,
    bytes: u64,
}

/// The policy `random`.
///
/// Admits to the fastest tier with room; once all are full, replaces residents of the slowest
/// usable one, drawn evenly with a seeded generator. Files that users favour are no victims. About
/// 55 bytes a resident file.
///
/// **Source.** The textbook; page caches under scans come close to it.
///
/// **When it is right.** Never better than `static` on epochs, but not as bad as `lru`, and it
/// needs no order: the yardstick for the worth of an order of residents.
///
/// **Bound.** Epochs shuffled independently, equal sizes, room for a share c: an expected share -c
/// ln(1 - c + c e^(-1/c)) of the opens hits ([`crate::bounds::random_shuffled`]; 0.28 at c = 1/2,
/// 0.07 at c = 1/4).
#[derive(Debug)]
pub struct Random {
    chance: Chance,
    tiers: Vec<Tier>,
    /// Tier and position of each file.
    places: KeyMap<(u8, u32)>,
}

impl Random {
    /// A cache that draws its victims with a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { chance: Chance::new(seed), tiers: Vec::new(), places: KeyMap::default() }
    }

    fn insert(&mut self, file: FileKey, cost: u64, tier: usize) {
        self.remove(file);
        if tier >= MAX_TIERS {
            return;
        }
        if self.tiers.len() <= tier {
            self.tiers.resize_with(tier + 1, Tier::default);
        }
        let into = &mut self.tiers[tier];
        self.places.insert(file, (tier as u8, into.files.len() as u32));
        into.files.push((file, cost));
        into.bytes = into.bytes.saturating_add(cost);
    }

    fn remove(&mut self, file: FileKey) -> Option<u64> {
        let (tier, at) = self.places.remove(&file)?;
        let from = self.tiers.get_mut(usize::from(tier))?;
        let (_, cost) = from.files.swap_remove(at as usize);
        from.bytes = from.bytes.saturating_sub(cost);
        if let Some((moved, _)) = from.files.get(at as usize) {
            self.places.entry(*moved).and_modify(|p| p.1 = at);
        }
        Some(cost)
    }

    fn forget_index(&mut self, index: u32) {
        forget_index(&mut self.places, index);
        for tier in &mut self.tiers {
            tier.files.retain(|(file, _)| file.index() != index);
            tier.files.shrink_to(2 * tier.files.len());
            tier.bytes = tier.files.iter().fold(0, |all, (_, cost)| all.saturating_add(*cost));
            for (at, (file, _)) in tier.files.iter().enumerate() {
                self.places.entry(*file).and_modify(|p| p.1 = at as u32);
            }
        }
    }

    fn draw(&mut self, tier: usize) -> Option<FileKey> {
        let files = &self.tiers.get(tier)?.files;
        files.get(self.chance.below(files.len())).map(|(file, _)| *file)
    }

    fn victims(&mut self, tier: usize, needed: u64, keep: FileKey, hints: &Hints) -> Option<Vec<FileKey>> {
        if self.tiers.get(tier)?.bytes < needed {
            return None;
        }
        let (mut victims, mut freed, mut misses) = (Vec::new(), 0u64, 0);
        while freed < needed {
            let Some(file) = self.draw(tier).filter(|_| misses < MAX_FAVOURED_DRAWS) else {
                victims.into_iter().for_each(|(file, cost)| self.insert(file, cost, tier));
                return None;
            };
            if file == keep || favoured(file, hints) {
                misses += 1;
            } else if let Some(cost) = self.remove(file) {
                freed = freed.saturating_add(cost);
                victims.push((file, cost));
            }
        }
        Some(victims.into_iter().map(|(file, _)| file).collect())
    }
}

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn event(&mut self, event: &Event, _hints: &Hints) {
        match *event {
            Event::Placed { file, cost, tier, .. } => self.insert(file, cost, tier),
            Event::Dropped { file } => {
                self.remove(file);
            }
            Event::IndexGone { index } => self.forget_index(index),
            _ => {}
        }
    }

    fn place(&mut self, candidate: &Candidate, tiers: &[TierRoom], hints: &Hints) -> Decision {
        place_or_replace(candidate, tiers, hints, |tier, needed| {
            self.victims(tier, needed, candidate.file, hints).ok_or(Why::NoRoom)
        })
    }

    fn asks_again(&self) -> bool {
        true
    }
}
