//! Copies of an earlier agent that no entry has claimed yet.
//!
//! They are charged, and make way when room is needed. An entry claims one by its name; size and stamp must fit, too. Those that a power
//! loss may have hurt have to be verified before they are used.

use crate::tier::{ByName, Copy, Sum, TierDir};
use monarch_abi::hash::{CopyName, Stamp};
use monarch_abi::segment::{Entry, Segment};
use std::collections::BTreeMap;

/// Size, charge and stamp of a copy.
#[derive(Clone, Copy, Debug)]
struct Held {
    size: u64,
    charged: u64,
    stamp: Stamp,
}

/// The copies of one tier.
#[derive(Clone, Debug, Default)]
struct Heap {
    copies: ByName<Held>,
    bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Unclaimed {
    tiers: Vec<Heap>,
    /// What the bytes of those must come to that are to be verified.
    checks: BTreeMap<CopyName, Sum>,
}

impl Unclaimed {
    /// None, in so many tiers.
    #[must_use]
    pub fn new(tiers: usize) -> Self {
        Self { tiers: vec![Heap::default(); tiers], checks: BTreeMap::new() }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tiers.iter().all(|t| t.copies.is_empty())
    }

    /// Adds a copy in the tier at `at`; `false` if a faster tier has it already.
    pub fn add(&mut self, at: usize, copy: &Copy) -> bool {
        let known = self.tiers.iter().take(at).any(|t| t.copies.get(copy.name).is_some());
        if !known && let Some(t) = self.tiers.get_mut(at) {
            t.bytes += copy.charged;
            t.copies.insert(copy.name, Held { size: copy.size, charged: copy.charged, stamp: copy.stamp });
            if let Some(sum) = copy.check {
                self.checks.insert(copy.name, sum);
            }
        }
        !known
    }

    /// Bytes in the tier at `at` that could make way, as far as known.
    #[must_use]
    pub fn bytes(&self, at: usize) -> u64 {
        self.tiers.get(at).map_or(0, |t| if t.copies.is_empty() { 0 } else { t.bytes })
    }

    /// Whether there are some that have to be read in full before they are used.
    #[must_use]
    pub fn has_to_verify(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Takes the copy of an entry that can be used as it is; the tier it lies in. One that does not fit to its name is removed.
    pub fn claim(&mut self, segment: &Segment<'_>, e: &Entry<'_>, tiers: &[TierDir]) -> Option<usize> {
        if self.checks.contains_key(&segment.copy_name(e)) {
            return None;
        }
        self.claim_any(segment, e, tiers).map(|(at, _)| at)
    }

    /// The same with one that is to be verified first, if its bytes must come to something.
    pub(super) fn claim_any(
        &mut self,
        segment: &Segment<'_>,
        e: &Entry<'_>,
        tiers: &[TierDir],
    ) -> Option<(usize, Option<Sum>)> {
        let name = segment.copy_name(e);
        let check = self.checks.get(&name).copied();
        let (at, held) = self.take(name)?;
        if held.size == e.record.size && held.stamp.fp44() == e.master.fp >> 20 {
            return Some((at, check));
        }
        tiers.get(at)?.evict(name, held.size);
        None
    }

    fn take(&mut self, name: CopyName) -> Option<(usize, Held)> {
        let (at, held) = self.tiers.iter_mut().enumerate().find_map(|(at, t)| Some((at, t.copies.remove(name)?)))?;
        if let Some(t) = self.tiers.get_mut(at) {
            t.bytes = t.bytes.saturating_sub(held.charged);
        }
        self.checks.remove(&name);
        Some((at, held))
    }

    /// Puts a claimed copy back. One that cannot be looked at now stays charged and is found by the next agent.
    pub fn put_back(&mut self, at: usize, name: CopyName, tiers: &[TierDir]) {
        self.put_back_to_verify(at, name, tiers, None);
    }

    pub(super) fn put_back_to_verify(&mut self, at: usize, name: CopyName, tiers: &[TierDir], check: Option<Sum>) {
        if let Some(Ok(Some(copy))) = tiers.get(at).map(|t| t.stat(name)) {
            self.add(at, &Copy { check, ..copy });
        }
    }

    /// Removes some copy of the tier at `at`; `false` when there is none.
    pub fn make_way(&mut self, at: usize, tiers: &[TierDir]) -> bool {
        let Some(heap) = self.tiers.get_mut(at) else { return false };
        let Some((name, held)) = heap.copies.pop() else { return false };
        heap.bytes = heap.bytes.saturating_sub(held.charged);
        self.checks.remove(&name);
        if let Some(tier) = tiers.get(at) {
            tier.evict(name, held.size);
        }
        true
    }

    /// Removes copies of the tier at `at` until `bytes` are freed or none is left: how many, and the bytes.
    pub fn make_room(&mut self, at: usize, bytes: u64, tiers: &[TierDir]) -> (usize, u64) {
        let (mut dropped, mut freed) = (0, 0);
        while freed < bytes {
            let before = self.bytes(at);
            if !self.make_way(at, tiers) {
                break;
            }
            dropped += 1;
            freed += before.saturating_sub(self.bytes(at));
        }
        (dropped, freed)
    }

    /// Removes the copy of this name; its bytes, if it was here.
    pub fn evict(&mut self, name: CopyName, tiers: &[TierDir]) -> Option<u64> {
        let (at, held) = self.take(name)?;
        tiers.get(at)?.evict(name, held.size);
        Some(held.size)
    }

    /// Forgets a copy that is being removed.
    pub fn forget(&mut self, name: CopyName) {
        let _ = self.take(name);
    }
}
