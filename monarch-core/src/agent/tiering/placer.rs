//! Copies that make way for others because the policy says so.

use super::TieringEngine;
use super::outcome::ClaimedFile;
use crate::sync::lock;
use crate::tier::TierDir;
use monarch_abi::word::{Refusal, State};
use monarch_policies::hints::{Priority, Purpose};
use monarch_policies::{Decision, FileKey, Why};
use std::sync::atomic::Ordering;

/// How often a tier is chosen for one copy: somebody else may be quicker, and who has open what
/// makes way keeps it a while.
pub(super) const CHOICES: u32 = 4;

/// Files of the known order that are passed over at a time.
const STEPS: usize = 512;
/// How often a policy that passes over many files is asked at a time.
const TURNS: usize = 16;
/// Copies that are looked at to find some that may make way for what the user wants kept.
const LOOKED_AT: usize = 1 << 12;

impl TieringEngine {
    /// Where the policy wants a copy, tiers in `skip` aside, once what it replaces is out of the
    /// way.
    ///
    /// # Errors
    /// Why it is left on the PFS.
    pub(super) fn place(&self, f: &ClaimedFile, skip: &[bool]) -> Result<usize, Why> {
        match self.decide(f, skip) {
            Decision::Admit(tier) => Ok(tier),
            Decision::Replace { tier, victims } => {
                self.make_way(tier, &victims);
                Ok(tier)
            }
            Decision::Refuse(why) => self.make_way_for_high(f, skip).ok_or(why),
        }
    }

    /// Drops copies that the policy has chosen. It takes them for gone, and is told where that is
    /// wrong.
    fn make_way(&self, tier: usize, victims: &[FileKey]) {
        let again = lock(&self.policy).asks_again();
        for &FileKey(key) in victims {
            if let Some(leaver) = self.packed_leaver(key) {
                let here = leaver.word.packed_in() == Some(tier);
                if here && self.drop_packed(&leaver, Refusal::Replaced, None).is_some() {
                    self.stats.replaced.fetch_add(1, Ordering::Relaxed);
                    if again {
                        self.consider_again(key);
                    }
                } else {
                    self.resync_policy(key);
                }
                continue;
            }
            let Some(leaver) = self.leaver(key) else { continue };
            let here = leaver.word.tier() == tier && !leaver.word.is_marked();
            if here && self.refuse(&leaver, Refusal::Replaced, None) {
                self.stats.replaced.fetch_add(1, Ordering::Relaxed);
                if again {
                    self.consider_again(key);
                }
                continue;
            }
            // Moved, decoded, or changed just now.
            self.resync_policy(key);
        }
    }

    /// Makes room for a file that the user wants kept, at the cost of others, those placed last;
    /// the tier where it is.
    fn make_way_for_high(&self, f: &ClaimedFile, skip: &[bool]) -> Option<usize> {
        if lock(&self.hints).priority(FileKey(f.key)) != Priority::High {
            return None;
        }
        let usable = |(at, tier): &(usize, &TierDir)| !skip.get(*at).copied().unwrap_or(true) && !tier.suspended();
        let (at, tier) = self.tiers.iter().enumerate().rfind(usable)?;
        let cost = tier.ledger.cost(f.want.size);
        let last = lock(&self.catalog).last_of(|_| true, LOOKED_AT);
        let keys: Vec<u64> = {
            let hints = lock(&self.hints);
            last.into_iter().filter(|key| hints.priority(FileKey(*key)) == Priority::Normal).collect()
        };
        // Nothing goes in vain.
        let here = |key: &u64| self.leaver(*key).filter(|l| l.word.tier() == at && !l.word.is_marked());
        let mut sum = 0;
        let enough = keys.iter().filter_map(here).any(|l| {
            sum = tier.ledger.cost(l.entry.record.size).saturating_add(sum);
            sum >= cost
        });
        (enough && self.drop_keys(&keys, at, cost) >= cost).then_some(at)
    }

    /// Whether a file is to be considered anew each time it is opened.
    pub(super) fn asks_again(&self) -> bool {
        lock(&self.policy).asks_again()
    }

    /// Whether a tier has room for a file of this size now.
    pub(super) fn has_room(&self, size: u64) -> bool {
        self.tiers.iter().any(|t| !t.suspended() && free(t) >= t.ledger.cost(size))
    }

    /// A file to be fetched before anybody asks: one that the policy wants, or the next one in the
    /// known order while there is room. While somebody else has the policy there is none: it is
    /// asked again soon.
    pub(super) fn next_in_order(&self) -> Option<u64> {
        let (Ok(mut policy), Ok(mut hints)) = (self.policy.try_lock(), self.hints.try_lock()) else { return None };
        if !hints.has_order() {
            return None;
        }
        let room = self.tiers.iter().filter(|t| !t.suspended()).map(free).sum();
        let mut next = None;
        for _ in 0..TURNS {
            next = policy.next(room, &hints);
            if next.is_some() || !policy.unfinished() {
                break;
            }
        }
        if let Some(FileKey(key)) = next {
            drop((policy, hints));
            // Nobody waits for a tape without having asked.
            if self.is_released(key) {
                return None;
            }
            self.consider_again(key);
            return Some(key);
        }
        if room < self.mean_size.load(Ordering::Relaxed) {
            return None;
        }
        for _ in 0..STEPS {
            let FileKey(key) = hints.upcoming(Purpose::Fetch)?;
            let is_absent = |key| self.entry(key).is_some_and(|(_, entry)| entry.word().state() == State::Absent);
            if is_absent(key) && !self.is_released(key) {
                return Some(key);
            }
        }
        None
    }
}

/// Bytes below the quota of a tier.
fn free(tier: &TierDir) -> u64 {
    let u = tier.ledger.usage();
    u.capacity.saturating_sub(u.used + u.reserved)
}
