//! The residents of each tier, in the order of last use.
//!
//! One linked hash map a tier: a use, a placement and a drop cost O(1), about 50 bytes a resident
//! file. `lru` and `lfu` share this replacement and differ in the candidates that they admit.
//!
//! Files that users favour are skipped as victims and go to the far end of the order, so that they
//! are not met again at once; a decision looks at no more than [`MAX_FAVOURED_SKIPS`] of them.

use crate::keys::KeyHash;
use crate::rooms::{MAX_TIERS, favoured, place_or_replace};
use crate::{Candidate, Decision, Event, FileKey, Hints, TierRoom, Why};
use hashlink::LinkedHashMap;

/// Favoured files that one decision passes over.
const MAX_FAVOURED_SKIPS: usize = 64;

/// The residents of all tiers.
#[derive(Debug, Default)]
pub(crate) struct Residents {
    tiers: Vec<Tier>,
}

#[derive(Debug, Default)]
struct Tier {
    /// Bytes of each copy, the copy used longest ago first.
    order: LinkedHashMap<FileKey, u64, KeyHash>,
    bytes: u64,
}

impl Tier {
    fn remove(&mut self, file: FileKey) {
        if let Some(cost) = self.order.remove(&file) {
            self.bytes = self.bytes.saturating_sub(cost);
        }
    }

    fn forget_index(&mut self, index: u32) {
        self.order.retain(|file, _| file.index() != index);
        if self.order.len() < self.order.capacity() / 4 {
            self.order.shrink_to_fit();
        }
        self.bytes = self.order.values().fold(0, |all, cost| all.saturating_add(*cost));
    }
}

impl Residents {
    /// Counts copies and uses.
    pub(crate) fn event(&mut self, event: &Event) {
        match *event {
            Event::Placed { file, cost, tier, .. } => self.placed(file, cost, tier),
            Event::Dropped { file } => self.dropped(file),
            Event::IndexGone { index } => self.tiers.iter_mut().for_each(|t| t.forget_index(index)),
            Event::Access(a) => self.tiers.iter_mut().for_each(|t| {
                t.order.to_back(&a.file);
            }),
            _ => {}
        }
    }

    fn placed(&mut self, file: FileKey, cost: u64, tier: usize) {
        self.dropped(file);
        if tier >= MAX_TIERS {
            return;
        }
        if self.tiers.len() <= tier {
            self.tiers.resize_with(tier + 1, Tier::default);
        }
        let tier = &mut self.tiers[tier];
        tier.order.insert(file, cost);
        tier.bytes = tier.bytes.saturating_add(cost);
    }

    fn dropped(&mut self, file: FileKey) {
        self.tiers.iter_mut().for_each(|t| t.remove(file));
    }

    /// Admits where there is room, else replaces the residents used longest ago in the slowest
    /// usable tier, provided that each of them `yields`.
    pub(crate) fn place(
        &mut self,
        candidate: &Candidate,
        tiers: &[TierRoom],
        hints: &Hints,
        yields: impl Fn(FileKey) -> bool,
    ) -> Decision {
        place_or_replace(candidate, tiers, hints, |tier, needed| {
            self.victims(tier, needed, candidate.file, hints, yields)
        })
    }

    fn victims(
        &mut self,
        tier: usize,
        needed: u64,
        keep: FileKey,
        hints: &Hints,
        yields: impl Fn(FileKey) -> bool,
    ) -> Result<Vec<FileKey>, Why> {
        let tier = self.tiers.get_mut(tier).filter(|t| t.bytes >= needed).ok_or(Why::NoRoom)?;
        let (mut victims, mut passed, mut freed, mut why) = (Vec::new(), Vec::new(), 0u64, Why::NoRoom);
        for (&file, &cost) in &tier.order {
            if freed >= needed || passed.len() >= MAX_FAVOURED_SKIPS {
                break;
            }
            if file == keep || favoured(file, hints) {
                passed.push(file);
                continue;
            }
            if !yields(file) {
                why = Why::Unwanted;
                break;
            }
            victims.push(file);
            freed = freed.saturating_add(cost);
        }
        for file in passed {
            tier.order.to_back(&file);
        }
        if freed < needed {
            return Err(why);
        }
        victims.iter().for_each(|v| tier.remove(*v));
        Ok(victims)
    }
}
