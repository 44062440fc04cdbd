//! Copies that are to be packed: they are made in the tier in front, where readers have them at
//! once, and then packed into the one below.
//!
//! Room below is promised before anything is fetched, as much as [`ratios`](super::ratio_estimator)
//! say. What does not get smaller by `min_ratio` is moved as it is.

use super::TieringEngine;
use super::engine_lane::Lane;
use super::migration::EvictionCandidate;
use super::orphans::Claim;
use super::outcome::ClaimedFile;
use super::transient_cache::{TransientCache, TransientReservation};
use crate::sync::lock;
use crate::tier::{CopyName, Reservation, Sum, Summing, TierDir};
use monarch_abi::hash::PathHash;
use monarch_abi::word::{Refusal, State};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of a sample, and how many are taken of a file of more than four units.
const SAMPLE: usize = 64 << 10;
const SAMPLES: u64 = 3;
/// How often, and how long, somebody who waits for a copy waits for room for it.
const PATIENCE: u32 = 20;
const MOMENT: Duration = Duration::from_millis(2);
/// How long after that nobody else waits.
const IN_VAIN: Duration = Duration::from_millis(500);
/// Pause after a tier has failed.
const RETRY: Duration = Duration::from_secs(5);

/// Where a copy is to be packed: the room for it there.
#[derive(Debug)]
pub(super) struct CompressedReservation {
    pub(super) tier: usize,
    pub(super) room: Mutex<Option<Reservation>>,
}

/// A copy that is to be packed.
pub(super) struct Waiting {
    key: u64,
    below: (usize, Option<Reservation>),
    sum: Sum,
    share: Option<std::sync::Arc<TransientReservation>>,
}

/// All of them.
#[derive(Default)]
pub(super) struct Compressor {
    waiting: VecDeque<Waiting>,
    /// Those that wait, and those that are being packed.
    keys: HashSet<u64>,
    packing: usize,
    /// When a file was deferred; no other is begun for a moment, or until one is packed.
    put_off: Option<Instant>,
    /// When somebody who waited found no room: who comes soon after does not wait.
    in_vain: Option<Instant>,
}

/// How packing a copy ended.
enum Packed {
    /// It lies packed below, in so many bytes.
    Yes(u64),
    /// It does not get smaller.
    NotWorth,
    NoRoom,
    Damaged,
    Stopped,
}

impl TieringEngine {
    /// A copy is there that is to be packed.
    pub(super) fn to_be_packed(&self, f: &ClaimedFile, sum: Sum) {
        let below = f.below.as_ref().map(|b| (b.tier, lock(&b.room).take()));
        let Some(below) = below else { return };
        let waiting = Waiting { key: f.key, below, sum, share: f.share.clone() };
        let mut packs = lock(&self.compressor);
        packs.keys.insert(f.key);
        packs.waiting.push_back(waiting);
        let more = packs.packing < self.packers;
        drop(packs);
        if more {
            self.wake(Lane::Threads);
        }
    }

    /// Whether so many copies wait to be packed that no more should be begun.
    pub(super) fn packs_enough(&self) -> bool {
        let packs = lock(&self.compressor);
        // Readers have as much room for themselves.
        let crowded = !packs.keys.is_empty() && self.transient.iter().any(TransientCache::is_crowded);
        let enough = crowded || packs.put_off.is_some_and(|at| at.elapsed() < MOMENT * 10);
        drop(packs);
        if enough {
            self.packs_wait.store(true, Ordering::SeqCst);
            self.held_back.store(true, Ordering::Relaxed);
        }
        enough
    }

    /// Whether copies are made, or are there, that are to be packed: then less room may be taken
    /// below than was promised.
    pub(super) fn packs_under_way(&self) -> bool {
        self.transient.iter().any(TransientCache::is_taken)
    }

    /// Whether a copy is yet to be packed.
    pub(super) fn is_to_be_packed(&self, key: u64) -> bool {
        lock(&self.compressor).keys.contains(&key)
    }

    /// Compresses what waits, as far as it gets until then: the copies in front go with the job.
    pub fn pack_rest(&self, within: Duration) {
        let start = Instant::now();
        let _ = self.packs_end.set(start + within);
        while start.elapsed() < within && (self.pack_one() || lock(&self.compressor).packing > 0) {
            if lock(&self.compressor).waiting.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// The next copy to be packed: as many at a time as processors can be spared.
    pub(super) fn next_pack(&self) -> Option<Waiting> {
        let mut packs = lock(&self.compressor);
        if packs.packing >= self.packers {
            return None;
        }
        let next = packs.waiting.pop_front()?;
        packs.packing += 1;
        Some(next)
    }

    /// Compresses a copy that was given out.
    pub(super) fn pack_next(&self, waiting: Waiting) {
        self.pack_out(waiting);
        let mut packs = lock(&self.compressor);
        packs.packing -= 1;
        packs.put_off = None;
        let more = !packs.waiting.is_empty();
        drop(packs);
        if more {
            self.wake(Lane::Threads);
        }
        if self.packs_wait.swap(false, Ordering::SeqCst) {
            self.wake(Lane::Threads);
            self.wake(Lane::Rings);
        }
    }

    fn pack_out(&self, waiting: Waiting) {
        let key = waiting.key;
        self.pack(waiting);
        lock(&self.compressor).keys.remove(&key);
    }

    /// Compresses a copy now, if one waits: somebody needs the room.
    pub(super) fn pack_one(&self) -> bool {
        let Some(waiting) = self.next_pack() else { return false };
        self.pack_next(waiting);
        true
    }

    fn pack(&self, waiting: Waiting) {
        // Evicted, changed or moved meanwhile: then there is nothing to be done.
        let Some(leaver) = self.leaver(waiting.key).filter(|l| l.word.is_marked()) else { return };
        let (up, rel) = (leaver.word.tier(), self.rel_of(&leaver));
        let ((to, room), sum) = (waiting.below, waiting.sum);
        let size = leaver.entry.record.size;
        let packed = self.pack_copy(&leaver, &rel, sum, (to, room), || self.may_pack());
        if !matches!(packed, Ok(Packed::Stopped)) {
            // It goes from here, or is among the decoded ones.
            waiting.share.iter().for_each(|share| share.hand_over());
        }
        match packed {
            Ok(Packed::Yes(stored)) => {
                lock(&self.ratios).learn(&rel, size, Some(stored));
                self.stats.packed.fetch_add(1, Ordering::Relaxed);
                if leaver.entry.word() == leaver.word {
                    self.tell_packed(leaver.key, size, (to, leaver.name()));
                    // Only from here on it may go.
                    self.add_decoded(up, leaver.key, size, None);
                } else {
                    self.packed_too_late(&leaver, to);
                }
            }
            Ok(Packed::NotWorth) => {
                lock(&self.ratios).learn(&rel, size, None);
                while !self.takes(to, size, 0) && self.orphans().make_way(to, &self.tiers) {}
                let room = self.takes(to, size, 0);
                if !self.move_copy(&leaver, sum, to, || self.may_pack()) {
                    self.cannot_stay(&leaver, if room { Refusal::TierFailed } else { Refusal::NoRoom });
                }
            }
            Ok(Packed::NoRoom) => self.cannot_stay(&leaver, Refusal::NoRoom),
            Ok(Packed::Damaged) => {
                self.found_damaged();
                self.drop_copy(leaver.key, &leaver.live, &leaver.entry, leaver.word);
            }
            Ok(Packed::Stopped) => {}
            Err(e) => {
                if let Some(tier) = self.tiers.get(to) {
                    self.tier_failed(tier, &e);
                }
                self.cannot_stay(&leaver, Refusal::TierFailed);
            }
        }
    }

    fn may_pack(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && self.packs_end.get().is_none_or(|end| Instant::now() < *end)
    }

    /// The word of a file has changed while its copy was packed: nobody knows of the packed one.
    fn packed_too_late(&self, leaver: &EvictionCandidate, to: usize) {
        let (name, size) = (leaver.name(), leaver.entry.record.size);
        match (leaver.entry.word().state(), self.tiers.get(to)) {
            // Changed by the job, or dropped on command.
            (State::Bypass | State::Absent, Some(tier)) => drop(tier.evict_packed(name, size)),
            // Its index was replaced: the next one claims it.
            _ => self.orphans().put_back(Claim { packed: Some(to), ..Claim::default() }, name, size, &self.tiers),
        }
    }

    /// Drops a copy that could not be packed: its room is that of others.
    fn cannot_stay(&self, leaver: &EvictionCandidate, why: Refusal) {
        if self.refuse(leaver, why, (why == Refusal::TierFailed).then_some(RETRY)) {
            self.stats.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves a copy down packed; `None` when the tier does not pack, or it is not worth it.
    pub(super) fn demote_packed(
        &self,
        leaver: &EvictionCandidate,
        sum: Sum,
        to: usize,
        may: impl Fn() -> bool,
    ) -> Option<bool> {
        let rel = self.rel_of(leaver);
        let size = leaver.entry.record.size;
        let tier = self.tiers.get(to).filter(|t| t.min_ratio.is_some() && t.ledger.cost(size) > t.ledger.cost(1))?;
        let known = self.could_be_decoded(to, size);
        let estimate = if known { lock(&self.ratios).estimate(&rel, size)? } else { return None };
        let room = tier.reserve_packed(estimate).ok().flatten();
        if room.is_none() {
            return Some(false);
        }
        match self.pack_copy(leaver, &rel, sum, (to, room), may) {
            Ok(Packed::Yes(stored)) => {
                lock(&self.ratios).learn(&rel, size, Some(stored));
                self.stats.packed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Packed::NotWorth) => {
                lock(&self.ratios).learn(&rel, size, None);
                return None;
            }
            _ => return Some(false),
        }
        let (word, packed) = (&leaver.entry.master.word, leaver.word.packed(to));
        let turned = word.compare_exchange(leaver.word.0, packed.0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        let from = if turned { leaver.word.tier() } else { to };
        match (self.tiers.get(from), turned) {
            (Some(tier), true) => {
                tier.evict_resident(leaver.name(), size);
                self.resync_policy(leaver.key);
            }
            (Some(tier), false) => drop(tier.evict_packed(leaver.name(), size)),
            _ => {}
        }
        Some(turned)
    }

    /// Path of a file below its root.
    fn rel_of(&self, leaver: &EvictionCandidate) -> Vec<u8> {
        let mut path = [0u8; monarch_abi::PATH_MAX];
        let len = leaver.live.segment.index.path(leaver.entry.id, &mut path).unwrap_or(0);
        path.get(..len).unwrap_or_default().to_vec()
    }

    /// Makes the packed copy of a resident one, which stays.
    fn pack_copy(
        &self,
        leaver: &EvictionCandidate,
        rel: &[u8],
        sum: Sum,
        (to, room): (usize, Option<Reservation>),
        may: impl Fn() -> bool,
    ) -> io::Result<Packed> {
        let (name, size) = (leaver.name(), leaver.entry.record.size);
        let (Some(from), Some(tier)) = (self.tiers.get(leaver.word.tier()), self.tiers.get(to)) else {
            return Ok(Packed::NoRoom);
        };
        let least = tier.min_ratio.unwrap_or(1.0);
        let copy = match from.open_copy(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Packed::Damaged),
            other => other?,
        };
        if !lock(&self.ratios).is_worth(rel) && !sample_is_worth(&copy, size, least)? {
            return Ok(Packed::NotWorth);
        }
        let room = match room {
            Some(room) => Some(room),
            None => self.room_below(to, tier, size),
        };
        let Some(room) = room else { return Ok(Packed::NoRoom) };
        let Some(mut writer) = tier.begin_packed(room, size, sum.piece)? else { return Ok(Packed::NoRoom) };
        let mut summing = Summing::new(sum.piece);
        let mut buf = vec![0; writer.unit().min(usize::try_from(size).unwrap_or(usize::MAX)).max(1)];
        while summing.bytes < size {
            if !may() {
                return Ok(Packed::Stopped);
            }
            let got = fill(&copy, &mut buf, summing.bytes)?;
            if got == 0 {
                break;
            }
            summing.update(&buf[..got]);
            if !writer.add(&buf[..got])? {
                return Ok(Packed::NoRoom);
            }
        }
        if summing.bytes != size || summing.end() != sum {
            return Ok(Packed::Damaged);
        }
        let stored = writer.bytes();
        // What counts is what is charged: a file of one block stays one of one block.
        if tier.ledger.cost(stored) as f64 * least > tier.ledger.cost(size) as f64 {
            return Ok(Packed::NotWorth);
        }
        let stamp = name.stamp(PathHash { fp: leaver.entry.master.fp, check: leaver.entry.record.check });
        Ok(writer.publish(name, stamp, sum)?.map_or(Packed::NoRoom, |_| Packed::Yes(stored)))
    }

    /// Promised room for the packed copy of a file, if it is to have one and there is some.
    pub(super) fn room_to_pack(&self, at: usize, rel: &[u8], size: u64) -> Option<Reservation> {
        let tier =
            self.tiers.get(at).filter(|t| self.could_be_decoded(at, size) && t.ledger.cost(size) > t.ledger.cost(1))?;
        let estimate = lock(&self.ratios).estimate(rel, size)?;
        self.room_below(at, tier, estimate)
    }

    /// Room in front, for somebody who waits for it perhaps after copies there were packed, or
    /// those closed that others have read.
    pub(super) fn retry_until_room<T>(&self, asked: bool, find: impl Fn() -> Option<T>) -> Option<T> {
        let in_vain = lock(&self.compressor).in_vain.is_some_and(|at| at.elapsed() < IN_VAIN);
        for _ in 0..if asked && !in_vain { PATIENCE } else { 0 } {
            let found = find();
            if found.is_some() || self.stop.load(Ordering::Relaxed) {
                return found;
            }
            if !self.pack_one() {
                for tier in self.tiers.iter().filter(|t| t.for_decoded > 0) {
                    tier.sweep();
                }
                std::thread::sleep(MOMENT);
            }
        }
        let found = find();
        if asked {
            lock(&self.compressor).in_vain = found.is_none().then(Instant::now);
        }
        found
    }

    /// A file is to be fetched a little later, when copies are packed that take the room for it.
    pub(super) fn defer(&self, key: u64) {
        lock(&self.compressor).put_off = Some(Instant::now());
        self.packs_wait.store(true, Ordering::SeqCst);
        lock(&self.work_queue).retry([key]);
    }

    /// Promised room for a packed copy; copies of an earlier run that nobody claims make way.
    pub(super) fn room_below(&self, at: usize, tier: &TierDir, bytes: u64) -> Option<Reservation> {
        loop {
            if let Some(room) = tier.reserve_packed(bytes).ok()? {
                return Some(room);
            }
            if !self.orphans().make_way(at, &self.tiers) {
                return None;
            }
        }
    }

    /// The packed copy of a claimed file, open, and its tier. One that is damaged goes.
    pub(super) fn packed_of(&self, f: &ClaimedFile) -> Option<(std::sync::Arc<crate::tier::PackedFile>, usize)> {
        for (at, tier) in self.tiers.iter().enumerate().filter(|(at, _)| self.could_be_decoded(*at, f.want.size)) {
            match tier.open_packed(f.name, f.want) {
                Ok(Some(file)) => return Some((std::sync::Arc::new(file), at)),
                Ok(None) => {}
                Err(e) => self.tier_failed(tier, &e),
            }
        }
        None
    }

    /// A packed copy cannot be decoded: it goes, and its file is fetched again.
    pub(super) fn packed_is_damaged(&self, f: &ClaimedFile, at: usize, e: &io::Error) {
        self.stats.damaged.fetch_add(1, Ordering::Relaxed);
        if let Some(tier) = self.tiers.get(at) {
            let _ = tier.evict_packed(f.name, f.want.size);
            if let Some(more) = self.log_limits.hurt.now() {
                let file = crate::shown::bytes(&f.rel);
                tracing::warn!(%file, tier = tier.name, error = %e, more, "a packed copy is damaged; the file is fetched again");
            }
        }
    }

    /// Takes away the packed copies of a name; whether there were any.
    pub(super) fn evict_packed(&self, name: CopyName, size: u64) -> bool {
        let packing = self.tiers.iter().filter(|t| t.packed().files > 0);
        packing.filter_map(|t| t.evict_packed(name, size)).count() > 0
    }

    /// Drops a packed copy of which there is no other; the bytes that it was charged.
    pub(super) fn drop_packed(&self, leaver: &EvictionCandidate, why: Refusal, pause: Option<Duration>) -> Option<u64> {
        let EvictionCandidate { key, entry, word, .. } = leaver;
        let tier = self.tiers.get(word.packed_in()?)?;
        let refused = word.refused(why);
        let is = &entry.master.word;
        is.compare_exchange(word.0, refused.0, Ordering::AcqRel, Ordering::Acquire).ok()?;
        self.tell_dropped(*key);
        let charged = tier.evict_packed(leaver.name(), entry.record.size);
        if let Some(pause) = pause {
            lock(&self.retry_backoff).add(pause, (*key, refused));
        }
        Some(charged.unwrap_or(0))
    }
}

/// Reads as much as fits, or up to the end.
fn fill(copy: &rustix::fd::OwnedFd, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buf.len() {
        match rustix::io::retry_on_intr(|| rustix::io::pread(copy, &mut buf[got..], at + got as u64))? {
            0 => break,
            n => got += n,
        }
    }
    Ok(got)
}

/// Whether parts of a file get smaller by so much. Of a small one all is tried anyway.
fn sample_is_worth(copy: &rustix::fd::OwnedFd, size: u64, least: f64) -> io::Result<bool> {
    if size <= SAMPLE as u64 * (SAMPLES + 1) {
        return Ok(true);
    }
    let (mut raw, mut stored) = (0, 0);
    let mut buf = vec![0; SAMPLE];
    let mut out = vec![0; lz4_flex::block::get_maximum_output_size(SAMPLE)];
    for n in 1..=SAMPLES {
        let got = fill(copy, &mut buf, size / (SAMPLES + 1) * n)?;
        raw += got;
        stored += lz4_flex::block::compress_into(&buf[..got], &mut out).unwrap_or(got).min(got);
    }
    // A sample alone gets a little less smaller than what it is a part of.
    Ok(stored as f64 * least <= raw as f64 * 1.05)
}
