//! Residents by the PFS time that they save per byte, a tier at a time.

use crate::FileKey;
use crate::keys::{KeyMap, forget_index};
use crate::rooms::MAX_TIERS;
use std::collections::BTreeSet;

/// What is known of a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    pub(super) size: u64,
    pub(super) cost: u64,
    /// Seconds of the PFS that it saves each time it is read.
    pub(super) value: f64,
    /// Whether users favour it.
    pub(super) high: bool,
}

impl Resident {
    pub(super) fn density(&self) -> f64 {
        self.value / self.cost.max(1) as f64
    }
}

/// Positive floats compare as their bits do. Files that users favour come last.
type Rank = (bool, u64, FileKey);

fn rank(file: FileKey, r: &Resident) -> Rank {
    (r.high, r.density().to_bits(), file)
}

#[derive(Debug, Default)]
struct Tier {
    order: BTreeSet<Rank>,
    bytes: u64,
}

/// The residents of all tiers by rank.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    residents: KeyMap<(Resident, u8)>,
    tiers: Vec<Tier>,
}

impl Ranks {
    pub(super) fn len(&self) -> usize {
        self.residents.len()
    }

    /// Bytes of the copies in a tier.
    pub(super) fn bytes(&self, tier: usize) -> u64 {
        self.tiers.get(tier).map_or(0, |t| t.bytes)
    }

    pub(super) fn insert(&mut self, file: FileKey, tier: usize, resident: Resident) {
        self.remove(file);
        if tier >= MAX_TIERS {
            return;
        }
        if self.tiers.len() <= tier {
            self.tiers.resize_with(tier + 1, Tier::default);
        }
        self.tiers[tier].order.insert(rank(file, &resident));
        self.tiers[tier].bytes = self.tiers[tier].bytes.saturating_add(resident.cost);
        self.residents.insert(file, (resident, tier as u8));
    }

    pub(super) fn remove(&mut self, file: FileKey) {
        let Some((resident, tier)) = self.residents.remove(&file) else { return };
        if let Some(tier) = self.tiers.get_mut(usize::from(tier)) {
            tier.order.remove(&rank(file, &resident));
            tier.bytes = tier.bytes.saturating_sub(resident.cost);
        }
    }

    pub(super) fn forget_index(&mut self, index: u32) {
        forget_index(&mut self.residents, index);
        for tier in &mut self.tiers {
            tier.order.retain(|(.., file)| file.index() != index);
            let costs = tier.order.iter().filter_map(|(.., file)| Some(self.residents.get(file)?.0.cost));
            tier.bytes = costs.fold(0, u64::saturating_add);
        }
    }

    /// The residents of a tier that users do not favour, those that save least per byte first.
    pub(super) fn worst(&self, tier: usize) -> impl Iterator<Item = (FileKey, Resident)> + '_ {
        let order = self.tiers.get(tier).into_iter().flat_map(|t| &t.order);
        order.take_while(|(high, ..)| !high).filter_map(|(.., file)| Some((*file, self.residents.get(file)?.0)))
    }

    /// Gives each resident a new value.
    pub(super) fn rank_again(&mut self, new: impl Fn(FileKey, Resident) -> Resident) {
        self.tiers.iter_mut().for_each(|t| t.order.clear());
        for (file, (resident, tier)) in &mut self.residents {
            *resident = new(*file, *resident);
            if let Some(tier) = self.tiers.get_mut(usize::from(*tier)) {
                tier.order.insert(rank(*file, resident));
            }
        }
    }
}
