//! [`Orphans`]: copies of an earlier agent that no entry has claimed yet.
//!
//! They are charged to their tiers, and evicted when space is needed. An entry claims them by its
//! name: a plain copy, a compressed one, or both. Size and stamp must match, too. Copies that a
//! power loss may have damaged have to be verified before they are used. Of the same copy in two
//! tiers one is enough, unless the faster tier is emptied with the job and the slower one is not:
//! then both are kept.

use crate::tier::{ByName, Copy, Sum, TierDir};
use crate::tiering::core::claim::Claim;
use monarch_abi::hash::{CopyName, Stamp};
use monarch_abi::segment::{Entry, Segment};
use std::collections::{BTreeMap, HashSet};

/// Size, charge and stamp of a copy.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Size of the file.
    size: u64,
    charged: u64,
    stamp: Stamp,
}

/// The orphans of one tier.
#[derive(Clone, Debug, Default)]
struct Heap {
    copies: ByName<Held>,
    packed: ByName<Held>,
    bytes: u64,
    /// Whether the tier outlasts the job.
    stays: bool,
}

impl Heap {
    const fn of(&mut self, packed: bool) -> &mut ByName<Held> {
        if packed { &mut self.packed } else { &mut self.copies }
    }

    const fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.packed.is_empty()
    }
}

/// Copies of an earlier agent that no entry has claimed, by tier and name.
#[derive(Debug)]
pub struct Orphans {
    tiers: Vec<Heap>,
    /// Checksums of the copies that have to be verified.
    checks: BTreeMap<CopyName, Sum>,
}

impl Orphans {
    /// Makes an empty set; `stays` tells of each tier whether it outlasts the last job.
    #[must_use]
    pub fn new(stays: impl IntoIterator<Item = bool>) -> Self {
        let heap = |stays| Heap { stays, ..Heap::default() };
        Self { tiers: stays.into_iter().map(heap).collect(), checks: BTreeMap::new() }
    }

    /// Whether there are no orphans.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tiers.iter().all(Heap::is_empty)
    }

    /// Adds a copy in the tier `at`. Returns `false` if a faster tier that lasts as long has one
    /// like it.
    pub fn add(&mut self, at: usize, copy: &Copy) -> bool {
        let stays = self.tiers.get(at).is_some_and(|t| t.stays);
        let lasts = |t: &Heap| t.stays || !stays;
        let mut faster = self.tiers.iter_mut().take(at);
        let known = faster.any(|t| lasts(t) && t.of(copy.packed).get(copy.name).is_some());
        if !known && let Some(t) = self.tiers.get_mut(at) {
            if t.of(copy.packed).get(copy.name).is_some() {
                return true;
            }
            t.bytes += copy.charged;
            let held = Held { size: copy.size, charged: copy.charged, stamp: copy.stamp };
            t.of(copy.packed).insert(copy.name, held);
            if let Some(sum) = copy.check {
                self.checks.insert(copy.name, sum);
            }
        }
        !known
    }

    /// Bytes in the tier `at` that could be evicted, as far as known.
    #[must_use]
    pub fn bytes(&self, at: usize) -> u64 {
        self.tiers.get(at).map_or(0, |t| if t.is_empty() { 0 } else { t.bytes })
    }

    /// Whether some have to be read in full before they are used.
    #[must_use]
    pub fn has_to_verify(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Takes the copies of an entry that can be used without verification. Removes a copy that does
    /// not match its name.
    pub fn claim(&mut self, segment: &Segment<'_>, e: &Entry<'_>, tiers: &[TierDir]) -> Option<Claim> {
        if self.checks.contains_key(&segment.copy_name(e)) {
            return None;
        }
        self.claim_any(segment, e, tiers)
    }

    /// As [`Orphans::claim`], but also takes a copy that has to be verified first: then the claim
    /// has its checksum.
    pub(crate) fn claim_any(&mut self, segment: &Segment<'_>, e: &Entry<'_>, tiers: &[TierDir]) -> Option<Claim> {
        let name = segment.copy_name(e);
        let mut claim = Claim { check: self.checks.get(&name).copied(), ..Claim::default() };
        for packed in [false, true] {
            // A copy that cannot be decompressed stays here until it is evicted.
            let fits = |t: &TierDir| t.space.ledger.cost(e.record.size) <= t.options.for_decoded;
            let usable = |at: usize| !packed || tiers.iter().take(at).any(fits);
            let Some((at, held)) = self.take(name, packed, usable) else { continue };
            if held.size == e.record.size && held.stamp.fp44() == e.master.fp >> 20 {
                let found = if packed { &mut claim.packed } else { &mut claim.plain };
                *found = Some(at);
            } else if let Some(tier) = tiers.get(at) {
                remove(tier, name, held.size, packed);
            }
        }
        (!claim.is_empty()).then_some(claim)
    }

    fn take(&mut self, name: CopyName, packed: bool, usable: impl Fn(usize) -> bool) -> Option<(usize, Held)> {
        let mut tiers = self.tiers.iter_mut().enumerate().filter(|(at, _)| usable(*at));
        let (at, held) = tiers.find_map(|(at, t)| Some((at, t.of(packed).remove(name)?)))?;
        if let Some(t) = self.tiers.get_mut(at) {
            t.bytes = t.bytes.saturating_sub(held.charged);
        }
        if !packed {
            self.checks.remove(&name);
        }
        Some((at, held))
    }

    /// Puts claimed copies of a file of `size` bytes back. A copy that cannot be looked at now
    /// stays charged, and the next agent finds it.
    pub fn put_back(&mut self, claim: Claim, name: CopyName, size: u64, tiers: &[TierDir]) {
        if let Some(at) = claim.plain
            && let Some(Ok(Some(copy))) = tiers.get(at).map(|t| t.copies.stat(name))
        {
            self.add(at, &Copy { check: claim.check, ..copy });
        }
        if let Some(at) = claim.packed
            && let Some(copy) = tiers.get(at).and_then(|t| t.packed.stat(name, size))
        {
            self.add(at, &copy);
        }
    }

    /// Puts a plain copy in the tier `at` back.
    pub(crate) fn put_back_plain(&mut self, at: usize, name: CopyName, tiers: &[TierDir]) {
        self.put_back(Claim { plain: Some(at), ..Claim::default() }, name, 0, tiers);
    }

    /// Evicts one copy of the tier `at`. Returns `false` if there is none.
    pub fn make_way(&mut self, at: usize, tiers: &[TierDir]) -> bool {
        let Some(heap) = self.tiers.get_mut(at) else { return false };
        let plain = heap.copies.pop().map(|(name, held)| (name, held, false));
        let Some((name, held, packed)) = plain.or_else(|| heap.packed.pop().map(|(name, held)| (name, held, true)))
        else {
            return false;
        };
        heap.bytes = heap.bytes.saturating_sub(held.charged);
        if !packed {
            self.checks.remove(&name);
        }
        if let Some(tier) = tiers.get(at) {
            remove(tier, name, held.size, packed);
        }
        true
    }

    /// Evicts copies of the tier `at` until `bytes` are freed or none is left. Returns their number
    /// and bytes.
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

    /// Removes the copies of this name. Returns the bytes of the file, if there were any copies.
    pub fn evict(&mut self, name: CopyName, tiers: &[TierDir]) -> Option<u64> {
        let mut size = None;
        for packed in [false, true] {
            while let Some((at, held)) = self.take(name, packed, |_| true) {
                remove(tiers.get(at)?, name, held.size, packed);
                size = Some(held.size);
            }
        }
        size
    }

    /// Removes the copies of a root whose names are not `wanted`. Returns how many.
    pub fn drop_of_root(&mut self, root_id: u64, wanted: impl Fn(CopyName) -> bool, tiers: &[TierDir]) -> usize {
        let mut leave = Vec::new();
        for t in &self.tiers {
            let names = t.copies.iter().chain(t.packed.iter()).map(|(name, _)| name);
            leave.extend(names.filter(|&name| name.is_below(root_id) && !wanted(name)));
        }
        leave.into_iter().filter(|&name| self.evict(name, tiers).is_some()).count()
    }

    /// The names of the copies of this root.
    #[must_use]
    pub fn names_of_root(&self, root_id: u64) -> HashSet<CopyName> {
        let names = |t: &Heap| t.copies.iter().chain(t.packed.iter()).map(|(name, _)| name).collect::<Vec<_>>();
        self.tiers.iter().flat_map(names).filter(|name| name.is_below(root_id)).collect()
    }

    /// Forgets copies that are being removed.
    pub fn forget(&mut self, name: CopyName) {
        for packed in [false, true] {
            while self.take(name, packed, |_| true).is_some() {}
        }
    }
}

fn remove(tier: &TierDir, name: CopyName, size: u64, packed: bool) {
    if packed {
        let _ = tier.packed.evict(name, size);
    } else {
        tier.trash.evict(name, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that had moved up into memory was dropped below, and lost with the memory.
    #[test]
    fn a_copy_below_one_that_goes_with_the_job_stays() {
        let copy = Copy { name: CopyName(7), size: 10, charged: 4192, stamp: Stamp(1), check: None, packed: false };
        for (stays, both) in [([false, true], true), ([true, true], false), ([false, false], false)] {
            let mut unclaimed = Orphans::new(stays);
            assert!(unclaimed.add(0, &copy));
            assert_eq!(unclaimed.add(1, &copy), both);
            assert_eq!((unclaimed.bytes(0), unclaimed.bytes(1)), (4192, if both { 4192 } else { 0 }));
            unclaimed.forget(copy.name);
            assert!(unclaimed.is_empty());
        }
    }
}
