//! Second tries, copies that have to go, copies that somebody removed or damaged.

use super::migration::EvictionCandidate;
use super::{LiveSegment, TieringEngine, parts};
use crate::agent::protocol::{Range, Tally};
use crate::sync::lock;
use crate::tier::{ByName, TierDir};
use monarch_abi::demand::file_key;
use monarch_abi::hash::CopyName;
use monarch_abi::segment::Entry;
use monarch_abi::word::{Refusal, State, Word};
use std::collections::{HashSet, VecDeque};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Resident copies in the order they were placed. Some may have gone meanwhile: their words tell.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    keys: VecDeque<u64>,
    /// Where the audit goes on.
    audited: usize,
    /// The copies that readers opened last, which the audit looks at in every round.
    opened: Opened,
}

/// [`MAX_OPENED`] distinct copies that readers opened: the first of them goes for a new one, and
/// comes back with its next open.
#[derive(Debug, Default)]
struct Opened {
    keys: VecDeque<u64>,
    members: HashSet<u64>,
}

impl Opened {
    fn add(&mut self, key: u64) {
        if !self.members.insert(key) {
            return;
        }
        self.keys.push_back(key);
        if self.keys.len() > MAX_OPENED
            && let Some(first) = self.keys.pop_front()
        {
            self.members.remove(&first);
        }
    }
}

/// Entries of the list of copies that may be of copies that have gone.
const LISTED: usize = 1 << 14;
/// Copies looked at in one round of the audit, besides those that were opened last.
const AUDIT: usize = 128;
/// Copies opened last that are looked at in each round: about a millisecond's worth of `fstatat`.
const MAX_OPENED: usize = 1024;
/// Second tries in one round.
const TRIES: usize = 4096;
/// The same after a tier has failed, until a copy succeeds.
const PROBES: usize = 8;
/// Words looked at in one round of a walk.
const WALK: u32 = 50_000;
/// How long copies are moved instead of dropped in one round: space is to be free again within a
/// second.
const MOVING: Duration = Duration::from_millis(300);
/// Pause after a copy was dropped for lack of space.
const DROPPED: Duration = Duration::from_secs(30);

impl Catalog {
    pub(super) fn add(&mut self, key: u64) {
        self.keys.push_back(key);
    }

    /// So many of them, spread evenly, and how many there are.
    pub(super) fn sample(&self, most: usize) -> (Vec<u64>, usize) {
        let step = self.keys.len().div_ceil(most.max(1)).max(1);
        (self.keys.iter().step_by(step).copied().collect(), self.keys.len())
    }

    /// Those placed last that are wanted, last first, so many at most.
    pub(super) fn last_of(&self, wanted: impl Fn(u64) -> bool, most: usize) -> Vec<u64> {
        self.keys.iter().rev().copied().filter(|key| wanted(*key)).take(most).collect()
    }

    /// The next copies to be looked at, round and round, and those that were opened last.
    fn some(&mut self) -> Vec<u64> {
        let n = self.keys.len().min(AUDIT);
        let from = if self.audited < self.keys.len() { self.audited } else { 0 };
        self.audited = from + n;
        let next = self.keys.iter().cycle().skip(from).take(n);
        next.filter(|key| !self.opened.members.contains(key)).chain(&self.opened.keys).copied().collect()
    }
}

impl TieringEngine {
    /// Puts files whose pause is over back to Absent, so that demand and prefetch see them again:
    /// some in each round. While no tier takes copies they stay Refused, so that their readers
    /// go to the PFS without asking; after that a few show whether one does again.
    pub fn second_tries(&self) {
        if self.all_rest() {
            return;
        }
        let now = Instant::now();
        let mut again = Vec::new();
        let tries = if self.tiers.iter().any(TierDir::doubtful) { PROBES } else { TRIES };
        for _ in 0..tries {
            let due = lock(&self.retry_backoff).due(now);
            let Some((key, word)) = due else { break };
            let Some((_, entry)) = self.entry(key) else { continue };
            if swap(&entry, word, word.next(State::Absent)) {
                again.push(key);
            }
        }
        self.fetch_again(again);
        if lock(&self.retry_backoff).walk_due(now) {
            *lock(&self.walk) = Some((0, 0));
        }
        self.walk_on();
    }

    /// Goes on with a walk that turns every Refused word to Absent, if there is one.
    fn walk_on(&self) {
        let mut walk = lock(&self.walk);
        let Some((number, from)) = *walk else { return };
        if number >= self.segments.read().unwrap_or_else(PoisonError::into_inner).len() {
            *walk = None;
            if self.options.prefetch {
                lock(&self.work_queue).begin_all();
                self.wake_all();
            }
            return;
        }
        let len = self.segment(number).map_or(0, |live| live.segment.index.len() as u32);
        let to = len.min(from.saturating_add(WALK));
        for id in from..to {
            if let Some((_, entry)) = self.entry(file_key(number, id)) {
                let w = entry.word();
                if w.state() == State::Refused {
                    swap(&entry, w, w.next(State::Absent));
                }
            }
        }
        *walk = Some(if to == len { (number + 1, 0) } else { (number, to) });
    }

    /// Files on tape wait for somebody who wants them.
    fn fetch_again(&self, mut keys: Vec<u64>) {
        keys.retain(|&key| !self.is_released(key));
        if self.options.prefetch && !keys.is_empty() {
            lock(&self.work_queue).retry(keys);
            self.wake_all();
        }
    }

    pub(super) fn entry(&self, key: u64) -> Option<(LiveSegment, Entry<'static>)> {
        let (number, id) = parts(key)?;
        let live = self.segment(number)?;
        let entry = live.segment.by_id(id)?;
        Some((live, entry))
    }

    /// Takes copies out of a tier until about `bytes` are free again: first those that nobody has
    /// claimed, then those placed last, which go to a slower tier if one has room and there is
    /// time. How many were dropped.
    pub fn shrink(&self, tier: usize, bytes: u64) -> usize {
        let Some(dir) = self.tiers.get(tier) else { return 0 };
        let (mut dropped, mut freed) = self.orphans().make_room(tier, bytes, &self.tiers);
        if freed < bytes {
            freed += self.drop_some_decoded(tier, bytes - freed, true);
        }
        if freed < bytes {
            let (ended, partial) = self.drop_fills(tier, bytes - freed, DROPPED);
            dropped += ended;
            freed += partial;
        }
        // (Partial copies are no files of the ledger.)
        let leavers = if dir.ledger.usage().files == 0 {
            Vec::new()
        } else {
            self.placed_last(tier, bytes.saturating_sub(freed))
        };
        let can_move = tier + 1 < self.tiers.len();
        let sums = if can_move && !leavers.is_empty() { self.sums_of(dir, &leavers) } else { ByName::default() };
        let until = Instant::now() + MOVING;
        for leaver in leavers {
            if leaver.word.packed_in().is_some() {
                dropped += usize::from(self.drop_packed(&leaver, Refusal::Dropped, Some(DROPPED)).is_some());
                continue;
            }
            if sums.get(leaver.name()).is_some_and(|logged| self.demote(&leaver, logged.sum, until)) {
                continue;
            }
            dropped += usize::from(self.refuse(&leaver, Refusal::Dropped, Some(DROPPED)));
        }
        self.stats.evicted.fetch_add(dropped as u64, Ordering::Relaxed);
        dropped
    }

    /// Drops a copy; its file is Refused, until a pause is over if there is one. `false` when its
    /// word has changed.
    pub(super) fn refuse(&self, leaver: &EvictionCandidate, why: Refusal, pause: Option<Duration>) -> bool {
        let refused = leaver.word.refused(why);
        let Some(tier) = self.tiers.get(leaver.word.tier()).filter(|_| swap(&leaver.entry, leaver.word, refused))
        else {
            return false;
        };
        tier.evict_resident(leaver.name(), leaver.entry.record.size);
        self.tell_dropped(leaver.key);
        if let Some(pause) = pause {
            lock(&self.retry_backoff).add(pause, (leaver.key, refused));
        }
        true
    }

    /// Takes the copies of a tier that were placed last out of the list, until they come to so many
    /// bytes.
    fn placed_last(&self, tier: usize, bytes: u64) -> Vec<EvictionCandidate> {
        let (mut leavers, mut kept, mut sum) = (Vec::new(), Vec::new(), 0);
        while sum < bytes {
            let Some(key) = lock(&self.catalog).keys.pop_back() else { break };
            let Some(leaver) = self.leaver(key).or_else(|| self.packed_leaver(key)) else {
                kept.extend(self.is_listed(key).then_some(key));
                continue;
            };
            let (word, dir) = (leaver.word, self.tiers.get(tier));
            if word.packed_in() == Some(tier) {
                let packed = dir.and_then(|t| t.stat_packed(leaver.name(), leaver.entry.record.size));
                sum += packed.map_or(0, |copy| copy.charged);
                leavers.push(leaver);
            } else if word.state() == State::Resident && word.tier() == tier {
                sum = dir.map_or(0, |t| t.ledger.cost(leaver.entry.record.size)).saturating_add(sum);
                leavers.push(leaver);
            } else {
                kept.push(key);
            }
        }
        lock(&self.catalog).keys.extend(kept.into_iter().rev());
        leavers
    }

    /// Whether a file has a copy, or may have a packed one of which the word says nothing while it
    /// is being decoded.
    fn is_listed(&self, key: u64) -> bool {
        let state =
            |w: Word| matches!(w.state(), State::Requested | State::Fetching | State::Partial | State::Resident);
        self.entry(key).map(|(_, entry)| entry.word()).is_some_and(|w| state(w) || w.packed_in().is_some())
    }

    /// Keeps logs in bounds, which grow with every copy made. It takes as long as all copies take
    /// to be looked at.
    pub fn tidy_logs(&self) {
        let may = || !self.stop.load(Ordering::Relaxed);
        for (at, tier) in self.tiers.iter().enumerate() {
            let short = tier.tidy_log(may);
            if short > 0 {
                self.shrink(at, short);
                // At once, before others take the room; otherwise it is tried again later.
                let _ = tier.tidy_log(may);
            }
        }
    }

    /// The same of the list of copies.
    pub fn tidy(&self) {
        let live: u64 = self.tiers.iter().map(|t| t.ledger.usage().files).sum();
        let many = 2 * live as usize + LISTED;
        let keys = match &mut *lock(&self.catalog) {
            placed if placed.keys.len() > many => std::mem::take(&mut placed.keys),
            _ => return,
        };
        let mut seen = HashSet::new();
        // The last place of each counts: that is when it was placed.
        let mut kept: VecDeque<u64> = VecDeque::new();
        keys.into_iter()
            .rev()
            .filter(|key| seen.insert(*key) && self.is_listed(*key))
            .for_each(|key| kept.push_front(key));
        let mut placed = lock(&self.catalog);
        kept.append(&mut placed.keys);
        placed.keys = kept;
    }

    /// Notes copies that readers have opened. A program of root can write to the copy behind such a
    /// descriptor, if it makes its own system calls: the audit looks at these copies in every
    /// round. Nobody else can, since copies are read-only files of the agent's user.
    pub(super) fn note_opened(&self, keys: impl Iterator<Item = u64>) {
        if self.ctl.ctl.uid == 0 {
            let mut placed = lock(&self.catalog);
            keys.for_each(|key| placed.opened.add(key));
        }
    }

    /// Looks whether some of the resident copies are still what they were, and drops those that are
    /// not. Everything is looked at in turn, a few hundred copies a second.
    pub fn audit(&self) {
        let keys = lock(&self.catalog).some();
        let bad: Vec<u64> = keys.into_iter().filter(|&key| self.drop_if_damaged(key).unwrap_or(false)).collect();
        if bad.is_empty() {
            return;
        }
        self.tell_of_damage(bad.len());
        self.fetch_again(bad);
    }

    fn drop_if_damaged(&self, key: u64) -> Option<bool> {
        let (live, entry) = self.entry(key)?;
        let w = entry.word();
        if w.state() != State::Resident {
            return Some(false);
        }
        let tier = self.tiers.get(w.tier())?;
        let name = live.segment.copy_name(&entry);
        let found = match tier.stat(name) {
            Ok(found) => found,
            Err(_) => {
                // The disk fails; that says nothing about the copy. Readers who cannot open it go
                // to the PFS.
                tier.rest();
                return Some(false);
            }
        };
        let sound = found.is_some_and(|c| {
            c.size == entry.record.size && c.stamp.fp44() == entry.master.fp >> 20 && c.stamp.matches(name)
        });
        Some(!sound && self.drop_copy(key, &live, &entry, w))
    }

    /// Drops a copy that a reader has found damaged, and turned the word of.
    pub(super) fn drop_damaged(&self, key: u64, live: &LiveSegment, entry: &Entry<'static>) {
        let w = entry.word();
        let refused = w.refused(Refusal::Dropped);
        if w.refusal() != Some(Refusal::Damaged) || !swap(entry, w, refused) {
            return;
        }
        let (name, size) = (live.segment.copy_name(entry), entry.record.size);
        self.orphans().forget(name);
        self.tiers.iter().for_each(|tier| tier.evict(name, size));
        // A packed copy has checksums of its own.
        let below = self.packed_below(0, name);
        if below.is_none() {
            self.tell_dropped(key);
        }
        swap(entry, refused, below.map_or(refused.next(State::Absent), |tier| refused.packed(tier)));
        self.tell_of_damage(1);
        self.fetch_again(vec![key]);
    }

    /// Whether a copy is what the log of its tier says; `None` if it has no record there. Reads
    /// both in full.
    pub fn is_as_logged(&self, live: &LiveSegment, entry: &Entry<'static>) -> Option<bool> {
        let tier = self.tiers.get(entry.word().tier())?;
        let name = live.segment.copy_name(entry);
        let logged = tier.sums(&HashSet::from([name])).ok()?;
        let sum = logged.get(name).filter(|l| !l.packed)?.sum;
        Some(tier.verify(name, entry.record.size, sum))
    }

    /// Drops a copy that was found damaged while its word was `seen`; `false` if it is another by
    /// now.
    pub fn drop_found_damaged(&self, key: u64, live: &LiveSegment, entry: &Entry<'static>, seen: Word) -> bool {
        let dropped = seen.state() == State::Resident && self.drop_copy(key, live, entry, seen);
        if dropped {
            self.tell_of_damage(1);
        }
        dropped
    }

    /// Has a file fetched again whose copy was dropped.
    pub fn make_again(&self, key: u64) {
        self.fetch_again(vec![key]);
    }

    fn tell_of_damage(&self, copies: usize) {
        self.stats.damaged.fetch_add(copies as u64, Ordering::Relaxed);
        if let Some(more) = self.log_limits.damaged.now() {
            tracing::warn!(copies, more, "copies were removed or damaged by somebody else; they are made again");
        }
    }

    /// Drops the copy that a word speaks of; `false` when the word has changed.
    pub(super) fn drop_copy(&self, key: u64, live: &LiveSegment, entry: &Entry<'static>, w: Word) -> bool {
        let Some(tier) = self.tiers.get(w.tier()) else { return false };
        // Refused until it is out of the way: whoever copied the file anew at once would have the
        // new copy evicted.
        let refused = w.refused(Refusal::Dropped);
        if !swap(entry, w, refused) {
            return false;
        }
        let name = live.segment.copy_name(entry);
        tier.evict_resident(name, entry.record.size);
        let below = if w.is_marked() { self.packed_below(w.tier(), name) } else { None };
        if below.is_none() {
            self.tell_dropped(key);
        }
        swap(entry, refused, below.map_or(refused.next(State::Absent), |tier| refused.packed(tier)));
        true
    }

    /// Drops the copies in these ranges, and those that nobody has claimed if asked to, all or by
    /// name. They are made again when somebody asks.
    pub fn evict_ranges(&self, ranges: &[Range], unclaimed: bool, copies: &[String]) -> Tally {
        let mut tally = Tally::default();
        for r in ranges {
            let len = self.segment(r.segment).map_or(0, |live| live.segment.index.len() as u32);
            for id in r.from..r.end.min(len) {
                let key = file_key(r.segment, id);
                let Some((live, entry)) = self.entry(key) else { continue };
                let mut w = entry.word();
                let first_name = core::ptr::eq(entry.slot, entry.master);
                if first_name && w.state() == State::Partial {
                    // First what it is decoded from, if it is.
                    self.evict_packed(live.segment.copy_name(&entry), entry.record.size);
                    if let Some(partial) = self.drop_fill(key) {
                        tally.add(partial);
                    }
                    w = entry.word();
                }
                if first_name && (w.is_marked() || w.packed_in().is_some()) {
                    let name = live.segment.copy_name(&entry);
                    self.evict_packed(name, entry.record.size);
                }
                if first_name && w.packed_in().is_some() && swap(&entry, w, w.next(State::Absent)) {
                    tally.add(entry.record.size);
                    self.tell_dropped(key);
                }
                if first_name && w.state() == State::Resident && self.drop_copy(key, &live, &entry, w) {
                    tally.add(entry.record.size);
                    // One that was left below when it moved up.
                    let _ = self.orphans().evict(live.segment.copy_name(&entry), &self.tiers);
                }
            }
        }
        for name in copies.iter().filter_map(|name| CopyName::parse(name.as_bytes())) {
            if let Some(bytes) = self.orphans().evict(name, &self.tiers) {
                tally.add(bytes);
            }
        }
        if unclaimed {
            for at in 0..self.tiers.len() {
                let (dropped, bytes) = self.orphans().make_room(at, u64::MAX, &self.tiers);
                tally.files += dropped as u64;
                tally.bytes += bytes;
            }
        }
        self.stats.evicted.fetch_add(tally.files, Ordering::Relaxed);
        tally
    }

    /// Takes note of copies that were resident before this agent started.
    pub fn note_placed(&self, keys: impl Iterator<Item = u64>) {
        lock(&self.catalog).keys.extend(keys);
    }
}

fn swap(entry: &Entry<'static>, from: Word, to: Word) -> bool {
    entry.master.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_last_is_looked_at_in_each_round() {
        let mut placed = Catalog::default();
        (0..100_000).for_each(|key| placed.add(key));
        (50_000..50_100).for_each(|key| placed.opened.add(key));
        for _ in 0..3 {
            let round = placed.some();
            assert_eq!(round.len(), AUDIT + 100);
            assert!((50_000..50_100).all(|key| round.contains(&key)));
        }
        // More of them push the first ones out, and no copy is looked at twice in a round.
        (0..2 * MAX_OPENED as u64).for_each(|key| placed.opened.add(key));
        let round = placed.some();
        assert_eq!(round.iter().collect::<HashSet<_>>().len(), round.len());
        assert!(!round.contains(&50_000) && round.contains(&(2 * MAX_OPENED as u64 - 1)));
    }
}
