//! Copies on their way between tiers: down instead of away when a tier has to shrink, up when
//! somebody opens them and a faster tier has room.
//!
//! A copy is made in the other tier like any other, the word is turned to it, and then the old one
//! goes: whoever has read the word before finds the old copy, or looks at the word again. Bytes are
//! compared with the log on the way. A copy that moves to where it goes with the job is left below,
//! unclaimed.

use super::{LiveSegment, TieringEngine};
use crate::agent::protocol::Ahead;
use crate::sync::lock;
use crate::tier::{AT_ONCE, ByName, CopyName, Logged, Sum, Summing, TierDir, write_all_at};
use monarch_abi::hash::PathHash;
use monarch_abi::segment::Entry;
use monarch_abi::word::{State, Word};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Copies that are waiting to be moved up; what does not fit is marked again by the next open.
const WAITING: usize = 1 << 16;
/// Copies that are moved up at a time: the log is read once for them.
const BATCH: usize = 8192;
/// A faster tier keeps one part in so many free of copies that are moved up, for files that are yet
/// to come.
const SPARE: u64 = 32;

/// A resident copy that is to leave its tier.
pub(super) struct EvictionCandidate {
    pub(super) key: u64,
    pub(super) live: LiveSegment,
    pub(super) entry: Entry<'static>,
    pub(super) word: Word,
}

impl EvictionCandidate {
    pub(super) fn name(&self) -> CopyName {
        self.live.segment.copy_name(&self.entry)
    }
}

/// Copies that were opened where they could be faster.
#[derive(Debug, Default)]
pub(super) struct Promotions(VecDeque<u64>);

impl TieringEngine {
    /// A file with a packed copy, if that is all it has now.
    pub(super) fn packed_leaver(&self, key: u64) -> Option<EvictionCandidate> {
        let (live, entry) = self.entry(key)?;
        let word = entry.word();
        word.packed_in().map(|_| EvictionCandidate { key, live, entry, word })
    }

    /// A file with a copy, if it has one now.
    pub(super) fn leaver(&self, key: u64) -> Option<EvictionCandidate> {
        let (live, entry) = self.entry(key)?;
        let word = entry.word();
        (word.state() == State::Resident).then_some(EvictionCandidate { key, live, entry, word })
    }

    /// What the bytes of these copies in a tier must come to. Without a record a copy is not moved.
    pub(super) fn sums_of(&self, tier: &TierDir, leavers: &[EvictionCandidate]) -> ByName<Logged> {
        let names: HashSet<CopyName> = leavers.iter().map(EvictionCandidate::name).collect();
        tier.sums(&names).unwrap_or_default()
    }

    /// Moves a copy down instead of dropping it, if a slower tier has room and it can be done by
    /// then.
    pub(super) fn demote(&self, leaver: &EvictionCandidate, sum: Sum, until: Instant) -> bool {
        let from = leaver.word.tier();
        let in_time = || Instant::now() < until;
        let moves = |to: usize| {
            let packed = if in_time() { self.demote_packed(leaver, sum, to, in_time) } else { Some(false) };
            packed.unwrap_or_else(|| {
                self.takes(to, leaver.entry.record.size, 0) && self.move_copy(leaver, sum, to, in_time)
            })
        };
        let moved = self.is_below(leaver) || (from + 1..self.tiers.len()).any(moves);
        if moved {
            // Whoever sends it down has taken it out of the list; one that moves up is still there.
            lock(&self.catalog).add(leaver.key);
            self.stats.demoted.fetch_add(1, Ordering::Relaxed);
        }
        moved
    }

    /// Turns the word of a copy to the one that was left below when it moved up, if that is there.
    fn is_below(&self, leaver: &EvictionCandidate) -> bool {
        let EvictionCandidate { key, live, entry, word } = leaver;
        let left = self.orphans().claim(&live.segment, entry, &self.tiers);
        let Some(claim) = left else { return false };
        let size = entry.record.size;
        if claim.plain.or(claim.packed).is_none_or(|to| to <= word.tier()) {
            self.orphans().put_back(claim, leaver.name(), size, &self.tiers);
            return false;
        }
        let turned = claim.word(*word);
        if entry.master.word.compare_exchange(word.0, turned.0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.orphans().put_back(claim, leaver.name(), size, &self.tiers);
            return false;
        }
        if let Some(from) = self.tiers.get(word.tier()) {
            from.evict_resident(leaver.name(), size);
        }
        self.resync_policy(*key);
        true
    }

    /// Moves copies up that were opened lately, while nothing else is to be fetched.
    pub fn promote(&self) {
        let upper = self.tiers.iter().enumerate().take(self.tiers.len().saturating_sub(1));
        let mut spare = upper.map(|(at, t)| spare_of(t).saturating_sub(self.kept_for_decoded(at)));
        if spare.all(|bytes| bytes == 0) || self.ahead() != Ahead::Idle {
            return;
        }
        let waits = lock(&self.promotions).0.is_empty();
        if waits {
            self.drain_touched();
        }
        let mut hot = lock(&self.promotions);
        let n = hot.0.len().min(BATCH);
        let keys: Vec<u64> = hot.0.drain(..n).collect();
        drop(hot);
        let mut leavers: Vec<EvictionCandidate> = keys.into_iter().filter_map(|key| self.leaver(key)).collect();
        for (at, tier) in self.tiers.iter().enumerate().skip(1) {
            let (here, elsewhere): (Vec<_>, Vec<_>) = leavers.into_iter().partition(|l| l.word.tier() == at);
            leavers = elsewhere;
            if here.is_empty() {
                continue;
            }
            let sums = self.sums_of(tier, &here);
            let go_on = || !self.stop.load(Ordering::Relaxed);
            for leaver in here {
                let to = (0..at).find(|&to| self.takes(to, leaver.entry.record.size, SPARE));
                let (Some(to), Some(logged)) = (to, sums.get(leaver.name())) else { continue };
                if self.move_copy(&leaver, logged.sum, to, go_on) {
                    self.stats.promoted.fetch_add(1, Ordering::Relaxed);
                }
                // What somebody waits for goes first.
                if !go_on() || self.ahead() != Ahead::Idle {
                    return;
                }
            }
        }
    }

    /// A copy was opened that could move up.
    pub(super) fn mark_hot(&self, key: u64) {
        let mut hot = lock(&self.promotions);
        if hot.0.len() < WAITING {
            hot.0.push_back(key);
        }
    }

    /// Whether a tier has room for a file, and for one part in `spare` of its capacity beside it.
    pub(super) fn takes(&self, tier: usize, size: u64, spare: u64) -> bool {
        self.tiers.get(tier).is_some_and(|t| {
            let (u, kept) = self.usage_and_kept(tier, t);
            let spare = u.capacity.checked_div(spare).unwrap_or(0);
            !t.suspended() && u.used + u.reserved + t.ledger.cost(size) + kept + spare <= u.capacity
        })
    }

    /// A copy was found damaged.
    pub(super) fn found_damaged(&self) {
        self.stats.damaged.fetch_add(1, Ordering::Relaxed);
        if let Some(more) = self.log_limits.damaged.now() {
            tracing::warn!(copies = 1, more, "copies were removed or damaged by somebody else; they are made again");
        }
    }

    /// Moves a copy to another tier as long as it may; `false` if it stays where it was, or was
    /// found damaged and dropped.
    pub(super) fn move_copy(&self, leaver: &EvictionCandidate, sum: Sum, to: usize, may: impl Fn() -> bool) -> bool {
        let EvictionCandidate { key, live, entry, word } = leaver;
        let (Some(from), Some(tier)) = (self.tiers.get(word.tier()), self.tiers.get(to)) else { return false };
        let (name, size) = (leaver.name(), entry.record.size);
        let copied = || -> io::Result<Option<Option<u64>>> {
            let Some(copy) = tier.create(size)? else { return Ok(None) };
            let ino = rustix::fs::fstat(copy.fd())?.st_ino;
            let file = from.open_copy(name)?;
            let mut buf = vec![0; AT_ONCE.min(usize::try_from(size).unwrap_or(AT_ONCE).max(1))];
            let mut summing = Summing::new(sum.piece);
            while summing.bytes < size {
                if !may() {
                    return Ok(None);
                }
                let got = rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut *buf, summing.bytes))?;
                if got == 0 {
                    break;
                }
                write_all_at(copy.fd(), &buf[..got], summing.bytes)?;
                summing.update(&buf[..got]);
            }
            if summing.bytes != size || summing.end() != sum {
                return Ok(Some(None));
            }
            let stamp = name.stamp(PathHash { fp: entry.master.fp, check: entry.record.check });
            // Whoever has made a copy there meanwhile was asked for it.
            Ok(copy.publish_new(name, stamp, sum)?.map(|_| Some(ino)))
        };
        let ino = match copied() {
            Ok(Some(Some(ino))) => ino,
            Ok(Some(None)) => {
                self.found_damaged();
                self.drop_copy(leaver.key, live, entry, *word);
                return false;
            }
            Ok(None) => return false,
            Err(e) => {
                // Which of the two it was shows with the next call to either.
                tracing::debug!(from = from.name, to = tier.name, error = %e, "a copy could not be moved");
                return false;
            }
        };
        if entry.master.word.compare_exchange(word.0, word.resident(to).0, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            tier.evict_own(name, size, ino);
            return false;
        }
        if from.stays && !tier.stays {
            // It goes with the job up there: the one below is left for the next one, and makes way
            // when room is needed.
            self.orphans().put_back_plain(word.tier(), name, &self.tiers);
        } else {
            from.evict_resident(name, size);
        }
        self.tell_placed(*key, entry.record.size, to);
        true
    }
}

/// Bytes of a tier that copies which are moved up may take.
fn spare_of(tier: &TierDir) -> u64 {
    let u = tier.ledger.usage();
    if tier.suspended() { 0 } else { u.capacity.saturating_sub(u.used + u.reserved + u.capacity / SPARE) }
}
