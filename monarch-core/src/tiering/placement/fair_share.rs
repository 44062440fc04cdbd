//! [`FairShare`]: divides the quota among roots: when a file finds no space, copies of roots that
//! hold more than their fair share are dropped.
//!
//! The share of a root is that of its jobs among all jobs; a root without jobs has none. A root is
//! never brought below its share, and a root that is near its share takes nothing from others, so
//! that two jobs that both want more reach a balance. What each root holds is counted when it is
//! needed, at most once per [`MAX_COUNT_AGE`] (of very many copies a sample is counted). In
//! between, what was dropped counts as taken.

use crate::sync::lock;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::segments::{Segments, parts};
use crate::tiering::core::shared::Shared;
use crate::tiering::placement::guest_copies::GuestCopies;
use crate::tiering::queue::Queue;
use crate::tiering::queue::refetch::Refetch;
use crate::tiering::residency::Residency;
use crate::tiering::residency::catalog::Catalog;
use crate::tiering::residency::eviction::Eviction;
use monarch_abi::word::Refusal;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Age up to which a count is used; what is dropped meanwhile is subtracted.
const MAX_COUNT_AGE: Duration = Duration::from_secs(1);
/// Copies that one count looks at.
const MAX_COUNTED_COPIES: usize = 1 << 15;
/// A root counts as above its share only by more than one part in this many of all the space.
const MARGIN_DIVISOR: u64 = 64;
/// One part in this many of all the space is freed at a time.
const BATCH_DIVISOR: u64 = 256;
/// Pause of a file whose copy was dropped.
const DROPPED_PAUSE: Duration = Duration::from_secs(30);

/// Bytes that each root holds, by tier.
type Held = HashMap<usize, Vec<u64>>;

/// The jobs of each root, and the last count.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Number of jobs, by root.
    jobs: Vec<usize>,
    counted: Option<(Instant, Held)>,
    turn: Arc<Mutex<()>>,
}

impl Shares {
    /// The share of a root in `all` bytes.
    fn share(&self, root: usize, all: u64) -> u64 {
        let jobs = |n: usize| self.jobs.get(n).copied().unwrap_or(0) as u64;
        let total = (0..self.jobs.len()).map(jobs).sum::<u64>();
        let part = u128::from(all) * u128::from(jobs(root)) / u128::from(total.max(1));
        u64::try_from(part).unwrap_or(all)
    }

    fn holds(held: &Held, root: usize) -> u64 {
        held.get(&root).map_or(0, |tiers| tiers.iter().sum())
    }

    /// The root whose copies in this tier are dropped for a file of `root` that needs `cost` of
    /// `all` bytes, and how many bytes at most.
    fn victim(&self, held: &Held, root: usize, tier: usize, cost: u64, all: u64) -> Option<(usize, u64)> {
        if Self::holds(held, root) + cost > self.share(root, all) {
            return None;
        }
        let above = |other: &usize| Self::holds(held, *other).saturating_sub(self.share(*other, all));
        let here = |other: &usize| held.get(other).and_then(|tiers| tiers.get(tier)).copied().unwrap_or(0);
        let others = held.keys().copied().filter(|other| *other != root && here(other) > 0);
        let most = others.max_by_key(above)?;
        // (A root without jobs has no share, and no margin either.)
        let margin = if self.share(most, all) == 0 { 0 } else { all / MARGIN_DIVISOR };
        (above(&most) > margin.max(cost)).then(|| (most, above(&most)))
    }
}

/// Divides tiers among roots.
pub(crate) struct FairShare {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    catalog: Arc<Mutex<Catalog>>,
    eviction: Arc<Eviction>,
    refetch: Arc<Refetch>,
    guests: Arc<GuestCopies>,
    shares: Mutex<Shares>,
}

impl FairShare {
    pub(crate) fn new(shared: &Shared, queue: &Queue, residency: &Residency, guests: &Arc<GuestCopies>) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            catalog: residency.catalog.clone(),
            eviction: residency.eviction.clone(),
            refetch: queue.refetch.clone(),
            guests: guests.clone(),
            shares: Mutex::default(),
        }
    }

    /// Sets the number of jobs that use a root.
    pub(crate) fn set_jobs(&self, root: usize, jobs: usize) {
        let mut fair = lock(&self.shares);
        if fair.jobs.len() <= root {
            fair.jobs.resize(root + 1, 0);
        }
        let before = std::mem::replace(&mut fair.jobs[root], jobs);
        let others = fair.jobs.iter().enumerate().any(|(n, jobs)| n != root && *jobs > 0);
        drop(fair);
        if before > 0 && jobs == 0 && others {
            // Files that found no space may find some now.
            self.refetch.start_walk();
        }
    }

    /// Frees space for a file that no tier has space for, if its root holds less than its share.
    /// Returns `false` if none was freed.
    pub(crate) fn free_fair_share(&self, f: &ClaimedFile) -> bool {
        if self.guests.free_for_own(f) {
            return true;
        }
        let root = f.live.root;
        if lock(&self.shares).jobs.len() < 2 {
            return false;
        }
        // One copier at a time: the next one has to count what this one takes.
        let turn = lock(&self.shares).turn.clone();
        let _turn = lock(&turn);
        let all: u64 =
            self.cx.tiers.iter().map(|t| t.space.ledger.usage().capacity.saturating_sub(t.options.for_decoded)).sum();
        let mut held = self.held();
        for (at, tier) in self.cx.tiers.iter().enumerate().filter(|(_, t)| !t.space.suspended()) {
            let cost = tier.space.ledger.cost(f.want.size);
            let Some((victim, above)) = lock(&self.shares).victim(&held, root, at, cost, all) else { continue };
            let freed = self.drop_of_root(victim, at, cost.max(all / BATCH_DIVISOR).min(above));
            if let Some(bytes) = held.get_mut(&victim).and_then(|tiers| tiers.get_mut(at)) {
                *bytes = bytes.saturating_sub(freed);
            }
            // The root of this file counts as the holder of what was freed.
            let mine = held.entry(root).or_insert_with(|| vec![0; self.cx.tiers.len()]);
            if let Some(bytes) = mine.get_mut(at) {
                *bytes += freed;
            }
            if let Some((_, counted)) = &mut lock(&self.shares).counted {
                *counted = held;
            }
            return freed > 0;
        }
        false
    }

    /// Bytes that each root holds.
    fn held(&self) -> Held {
        if let Some((_, held)) = lock(&self.shares).counted.as_ref().filter(|(at, _)| at.elapsed() < MAX_COUNT_AGE) {
            return held.clone();
        }
        let (keys, of) = lock(&self.catalog).sample(MAX_COUNTED_COPIES);
        let mut held = Held::new();
        let (mut looked, mut seen) = (0, HashSet::new());
        for key in keys {
            looked += 1;
            // A copy that was dropped and made again is listed twice.
            if !seen.insert(key) {
                continue;
            }
            let Some(candidate) = self.segments.candidate(key).or_else(|| self.segments.packed_candidate(key)) else {
                continue;
            };
            let (size, word) = (candidate.entry.record.size, candidate.word);
            // Of a decompressed copy the compressed one counts: the other is transient.
            let packed =
                if word.is_marked() { self.cx.packed_below(word.tier(), candidate.name()) } else { word.packed_in() };
            let at = packed.unwrap_or_else(|| word.tier());
            let Some(tier) = self.cx.tiers.get(at) else { continue };
            let bytes = match packed {
                Some(_) => tier.packed.stat(candidate.name(), size).map_or(0, |copy| copy.charged),
                None => tier.space.ledger.cost(size),
            };
            let tiers = held.entry(candidate.live.root).or_insert_with(|| vec![0; self.cx.tiers.len()]);
            if let Some(sum) = tiers.get_mut(at) {
                *sum += bytes;
            }
        }
        let scale =
            |bytes: &mut u64| *bytes = u64::try_from(u128::from(*bytes) * of as u128 / looked.max(1)).unwrap_or(*bytes);
        held.values_mut().flatten().for_each(scale);
        lock(&self.shares).counted = Some((Instant::now(), held.clone()));
        held
    }

    /// Drops copies of a root in a tier, those placed last first, until `bytes` are free. Returns
    /// the bytes freed.
    fn drop_of_root(&self, root: usize, tier: usize, bytes: u64) -> u64 {
        let segments: Vec<bool> = {
            let segments = self.segments.read();
            segments.iter().map(|live| live.as_ref().is_some_and(|live| live.root == root)).collect()
        };
        let is_its = |key: u64| parts(key).is_some_and(|(number, _)| segments.get(number).copied().unwrap_or(false));
        let keys = lock(&self.catalog).last_of(is_its, MAX_COUNTED_COPIES);
        let before = self.cx.stats.evicted.load(Ordering::Relaxed);
        let freed = self.drop_keys(&keys, tier, bytes);
        let dropped = self.cx.stats.evicted.load(Ordering::Relaxed).saturating_sub(before);
        if dropped > 0
            && let Some(dir) = self.cx.tiers.get(tier)
            && let Some(more) = self.cx.log_limits.fair.now()
        {
            tracing::info!(
                tier = dir.name,
                dropped,
                more,
                "copies of a data set that takes more than its share were dropped for another data set"
            );
        }
        freed
    }

    /// Drops copies in a tier, in this order, until `bytes` are free. Returns the bytes freed.
    pub(crate) fn drop_keys(&self, keys: &[u64], tier: usize, bytes: u64) -> u64 {
        let Some(dir) = self.cx.tiers.get(tier) else { return 0 };
        let (mut freed, mut dropped) = (0, 0);
        for &key in keys {
            if freed >= bytes {
                break;
            }
            if let Some(candidate) = self.segments.packed_candidate(key).filter(|l| l.word.packed_in() == Some(tier)) {
                freed += self.eviction.drop_packed(&candidate, Refusal::Dropped, Some(DROPPED_PAUSE)).unwrap_or(0);
            } else if let Some(candidate) =
                self.segments.candidate(key).filter(|l| l.word.tier() == tier && !l.word.is_marked())
            {
                freed += if self.eviction.refuse(&candidate, Refusal::Dropped, Some(DROPPED_PAUSE)) {
                    dir.space.ledger.cost(candidate.entry.record.size)
                } else {
                    0
                };
            } else {
                continue;
            }
            dropped += 1;
        }
        self.cx.stats.evicted.fetch_add(dropped, Ordering::Relaxed);
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fair(jobs: &[usize]) -> Shares {
        Shares { jobs: jobs.to_vec(), ..Shares::default() }
    }

    #[test]
    fn who_holds_more_than_its_share_makes_way_and_nobody_is_brought_below() {
        let held = |a, b| Held::from([(0, vec![a]), (1, vec![b])]);
        let of = |jobs: &[usize], a, b, root| fair(jobs).victim(&held(a, b), root, 0, 10, 6400);
        // One root holds everything, the other one starts.
        assert_eq!(of(&[1, 1], 6400, 0, 1), Some((0, 3200)));
        assert_eq!(of(&[1, 3], 6400, 0, 1), Some((0, 4800)));
        // In balance: neither takes from the other.
        for a in 3100..=3300 {
            assert_eq!(of(&[1, 1], a, 6400 - a, 0), None, "{a}");
            assert_eq!(of(&[1, 1], a, 6400 - a, 1), None, "{a}");
        }
        // Its jobs are gone.
        assert_eq!(of(&[0, 1], 3200, 3200, 1), Some((0, 3200)));
        assert_eq!(of(&[0, 1], 5, 6000, 1), None);
        // A root that has its share gets no more.
        assert_eq!(of(&[1, 1], 6400, 3200, 1), None);
    }

    #[test]
    fn the_share_of_a_root_is_that_of_its_jobs() {
        let shares = fair(&[1, 3, 0]);
        assert_eq!([0, 1, 2, 9].map(|root| shares.share(root, 6400)), [1600, 4800, 0, 0]);
        assert_eq!(fair(&[0, 0]).share(0, 6400), 0, "no jobs");
        assert_eq!(fair(&[1]).share(0, u64::MAX), u64::MAX);
    }
}
