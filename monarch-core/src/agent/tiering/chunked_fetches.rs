//! All large files whose chunks are being fetched: beginning, giving out chunks, ending.

use super::chunk_copy_task::ChunkCopyTask;
use super::chunked_fetch::{ChunkedFetch, Room};
use super::compressor::CompressedReservation;
use super::engine_lane::Lane;
use super::engine_trial::Kind;
use super::outcome::{ClaimedFile, CopyOutcome};
use super::placer::CHOICES;
use super::stream_window::Window;
use super::{Job, TieringEngine};
use crate::metrics::Origin;
use crate::sync::lock;
use crate::tier::{PartCopy, TierDir};
use monarch_abi::chunks::{LargeFile, STREAMED, WHOLE};
use monarch_abi::sys::futex_wake;
use monarch_abi::word::Refusal;
use monarch_policies::{RequestSource, Why};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most chunks on their way that nobody waits for.
const AHEAD: usize = 16;
/// Most chunks of a file on their way that nobody asked for: writers of one file wait for each
/// other.
const WIDTH: u32 = 8;
/// The same where the source does not make anybody wait.
const LOCAL_WIDTH: u32 = 2;
/// Chunks that a reader in order asks for before it needs them.
const READ_AHEAD: u32 = 4;
/// How often others make way for a file.
const SHARES: u32 = 3;
/// Pause after a lack of room that may pass.
const RETRY: Duration = Duration::from_secs(5);
/// The same where as many files are being streamed as may be.
const PLACE: Duration = Duration::from_millis(500);
/// A file that is decoded and was not read for so long is given up when its room is needed.
const UNREAD: Duration = Duration::from_millis(200);
/// The same of one that comes from another node.
const LEFT: Duration = Duration::from_secs(10);
/// A streamed file that nobody has read for so long is given up; one of which some stays is kept
/// for so many times as long.
const FORGOTTEN: Duration = Duration::from_secs(60);
const KEPT: u32 = 60;

/// See the module.
#[derive(Default)]
pub(super) struct ChunkedFetches {
    by_key: HashMap<u64, Arc<ChunkedFetch>>,
    /// Files with chunks that somebody waits for.
    demanded: VecDeque<Arc<ChunkedFetch>>,
    /// Files of which all is to be fetched.
    rest: VecDeque<Arc<ChunkedFetch>>,
    pub(super) streamed: Vec<Arc<ChunkedFetch>>,
    pub(super) window: Option<Window>,
    rate: Rate,
}

/// How fast chunks come.
#[derive(Default)]
struct Rate {
    since: Option<Instant>,
    bytes: u64,
}

impl Rate {
    /// Takes note of bytes; the rate, once there are enough of them.
    fn note(&mut self, bytes: u64) -> Option<u64> {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        self.bytes += bytes;
        let took = now.duration_since(since);
        if took < Duration::from_millis(200) {
            return None;
        }
        let rate = (self.bytes as f64 / took.as_secs_f64()) as u64;
        *self = Self { since: Some(now), bytes: 0 };
        // After a pause it says nothing.
        (took < Duration::from_secs(2)).then_some(rate.max(1))
    }
}

fn put(line: &mut VecDeque<Arc<ChunkedFetch>>, fill: &Arc<ChunkedFetch>) {
    if !line.iter().any(|f| Arc::ptr_eq(f, fill)) {
        line.push_back(fill.clone());
    }
}

impl ChunkedFetches {
    /// Puts a file in line for what it has to be fetched; whether there is something.
    pub(super) fn line_up(&mut self, fill: &Arc<ChunkedFetch>) -> bool {
        let (wanted, rest) = (fill.has_work(true), fill.has_work(false));
        if wanted {
            put(&mut self.demanded, fill);
        }
        if rest {
            put(&mut self.rest, fill);
        }
        wanted || rest
    }

    pub(super) fn remove(&mut self, fill: &Arc<ChunkedFetch>) {
        if self.by_key.get(&fill.file.key).is_some_and(|f| Arc::ptr_eq(f, fill)) {
            self.by_key.remove(&fill.file.key);
        }
        for line in [&mut self.demanded, &mut self.rest] {
            line.retain(|f| !Arc::ptr_eq(f, fill));
        }
        self.streamed.retain(|f| !Arc::ptr_eq(f, fill));
        self.share_window();
    }

    fn all(&self) -> Vec<Arc<ChunkedFetch>> {
        self.by_key.values().cloned().collect()
    }
}

impl TieringEngine {
    /// Readers have asked for chunks of a file; `false` if none is being fetched.
    pub(super) fn drain_chunk_requests(&self, key: u64) -> bool {
        let mut fills = lock(&self.chunked_fetches);
        let Some(fill) = fills.by_key.get(&key).cloned() else { return false };
        let work = fill.drain_chunk_requests() && fills.line_up(&fill);
        drop(fills);
        // Copiers are those who heed.
        if work && self.lane_of_fill(&fill) == Lane::Rings {
            self.wake(Lane::Rings);
        }
        true
    }

    /// Has all of a file fetched, if its chunks are being fetched.
    pub(super) fn fetch_rest(&self, key: u64) {
        let mut fills = lock(&self.chunked_fetches);
        let Some(fill) = fills.by_key.get(&key).cloned() else { return };
        fill.fetch_rest();
        fills.line_up(&fill);
    }

    /// Whether as many chunks are on their way as may be that nobody waits for.
    pub(super) fn enough_ahead(&self) -> bool {
        self.pieces_ahead.load(Ordering::Acquire) >= AHEAD
    }

    /// Whether chunks are in line that nobody waits for.
    pub(super) fn has_rest(&self) -> bool {
        !lock(&self.chunked_fetches).rest.is_empty()
    }

    /// A chunk to be fetched in this lane, for a reader or ahead.
    pub(super) fn next_piece(&self, lane: Lane, demanded: bool) -> Option<ChunkCopyTask<'_>> {
        if !demanded && self.enough_ahead() {
            return None;
        }
        let mut fills = lock(&self.chunked_fetches);
        let mut others = false;
        // Each once: what cannot go on now is put in line again by what holds it up.
        for _ in 0..fills.line(demanded).len() {
            let Some(fill) = fills.line(demanded).pop_front() else { break };
            let its = self.lane_of_fill(&fill) == lane;
            if !its || (demanded && !self.throttle.has_slot(fill.file.peer.is_some())) {
                others |= !its;
                fills.line(demanded).push_back(fill);
                continue;
            }
            let taken = fill.take(demanded, |chunk| self.room_for(&fills, &fill, chunk));
            let Some((chunk, room, more)) = taken else { continue };
            let line = fills.line(demanded);
            match (more, demanded) {
                // Readers take turns; of what nobody waits for one file is finished before the
                // next.
                (true, true) => line.push_back(fill.clone()),
                (true, false) => line.push_front(fill.clone()),
                (false, _) => {}
            }
            let more = !line.is_empty();
            drop(fills);
            if more && lane == Lane::Threads && self.ctl.ctl.sleepers.load(Ordering::SeqCst) > 0 {
                futex_wake(&self.ctl.ctl.demand, 1);
            }
            return Some(self.piece(&fill, chunk, room, demanded));
        }
        drop(fills);
        if others && !demanded {
            // It may have gone to sleep while demands left it nothing.
            self.wake(lane.other());
        }
        None
    }

    fn piece(&self, fill: &Arc<ChunkedFetch>, chunk: u32, room: Room, demanded: bool) -> ChunkCopyTask<'_> {
        let source = if demanded { RequestSource::Demand } else { RequestSource::Prefetch };
        let ahead = (!demanded).then(|| Counted::new(&self.pieces_ahead));
        let mut job = Job::new(self, fill.file.key, source, fill.file.peer.is_some());
        if fill.file.packed.is_some() {
            job.slot.is_decoding();
        }
        ChunkCopyTask::new(self, fill.clone(), chunk, room, (job, ahead))
    }

    /// Begins to fetch the chunks of a claimed file.
    pub(super) fn begin_fill(&self, mut file: ClaimedFile, large: LargeFile<'static>) {
        if let Some((_, below)) = file.packed {
            return self.begin_decoding(file, large, below);
        }
        if file.passes() {
            return self.begin_passing(file, large);
        }
        let (mut tried, mut shares, mut turns, mut unwanted) = (vec![false; self.tiers.len()], 0, 0, false);
        loop {
            let Ok(at) = self.place(&file, &tried).inspect_err(|why| unwanted |= *why == Why::Unwanted) else {
                if !unwanted && shares < SHARES && self.make_fair_room(&file) {
                    shares += 1;
                    tried.fill(false);
                    continue;
                }
                break;
            };
            let Some(tier) = self.tiers.get(at) else { break };
            turns += 1;
            tried[at] = true;
            // Of one that is not fetched to its end nothing could be packed.
            if self.packs(at)
                && self.options.prefetch
                && let Some(room) = self.room_to_pack(at, &file.rel, file.want.size)
            {
                let asked = file.source == RequestSource::Demand;
                let above = self.retry_until_room(asked, || self.part_above(at, file.want.size, true));
                let Some((up, part, share)) = above else {
                    // It is asked for again, and somebody who waits reads it from the PFS.
                    self.defer(file.key);
                    return self.publish_outcome(&file, CopyOutcome::Stopped);
                };
                file.share = Some(Arc::new(share));
                file.below = Some(Arc::new(CompressedReservation { tier: at, room: Mutex::new(Some(room)) }));
                return self.fill(file, large, (up, part), false);
            }
            match self.room_for_part(at, tier, file.want.size) {
                Ok(Some(part)) => return self.fill(file, large, (at, part), false),
                Ok(None) => tried[at] = turns > CHOICES,
                Err(e) => self.tier_failed(tier, &e),
            }
        }
        if self.packs_under_way() && file.source == RequestSource::Prefetch {
            self.defer(file.key);
            return self.publish_outcome(&file, CopyOutcome::Stopped);
        }
        let transient =
            shares > 0 || self.packs_under_way() || tried.contains(&true) || self.tiers.iter().any(TierDir::suspended);
        let why = if transient { Refusal::TierFailed } else { Refusal::NoRoom };
        let mut pause = transient.then_some(RETRY);
        if file.source == RequestSource::Demand && !transient {
            if self.stream(&file, large) {
                return;
            }
            // Others are being streamed: their readers may end.
            pause = self.can_stream(&file).then_some(PLACE);
        }
        if let Some(more) = self.log_limits.full.now() {
            let name = crate::shown::bytes(&file.rel);
            tracing::info!(file = %name, size = file.want.size, more, "no tier has room for it");
        }
        self.publish_outcome(&file, CopyOutcome::Refused(why, pause));
    }

    /// Begins to fetch the chunks of a claimed file that another node owns.
    fn begin_passing(&self, mut file: ClaimedFile, large: LargeFile<'static>) {
        if let Some((at, part, share)) = self.passing_part(&file) {
            file.share = Some(Arc::new(share));
            return self.fill(file, large, (at, part), false);
        }
        if file.source != RequestSource::Demand || !self.stream(&file, large) {
            let end = self.no_passing_room(&file);
            self.publish_outcome(&file, end);
        }
    }

    /// Begins to decode the chunks of a claimed file.
    fn begin_decoding(&self, mut file: ClaimedFile, large: LargeFile<'static>, below: usize) {
        let asked = file.source == RequestSource::Demand;
        match self.retry_until_room(asked, || self.part_above(below, file.want.size, asked)) {
            Some((at, part, share)) => {
                file.share = Some(Arc::new(share));
                self.fill(file, large, (at, part), false);
            }
            None => {
                if !asked {
                    self.rest_decoding(file.key);
                }
                self.publish_outcome(&file, CopyOutcome::Packed(below));
            }
        }
    }

    /// Room for a partial copy; copies of an earlier run that nobody claims make way.
    fn room_for_part(&self, at: usize, tier: &TierDir, size: u64) -> std::io::Result<Option<PartCopy>> {
        loop {
            if let Some(part) = tier.begin_part(size, true)? {
                return Ok(Some(part));
            }
            if !self.orphans().make_way(at, &self.tiers) {
                return Ok(None);
            }
        }
    }

    /// Opens a partial copy to readers.
    pub(super) fn fill(
        &self,
        mut file: ClaimedFile,
        large: LargeFile<'static>,
        (at, part): (usize, PartCopy),
        streamed: bool,
    ) {
        // Of what passes through only what is asked for is fetched.
        let ahead = self.options.prefetch && (!file.passes() || self.is_elastic());
        let rest = !streamed && (ahead || file.source == RequestSource::Prefetch);
        let local = file.packed.is_some() || file.live.source.keeps_nowait();
        let width = if local { LOCAL_WIDTH } else { WIDTH };
        let word = &file.entry.master.word;
        let mut claim = file.claim.partial(at);
        if file.packed.is_some() || file.below.is_some() || (file.passes() && !streamed) {
            claim = claim.marked();
        }
        let before = std::mem::replace(&mut file.claim, claim);
        // One that upkeep has not found yet to be over: its chunks must not be told as those of the
        // new one.
        let old = lock(&self.chunked_fetches).by_key.get(&file.key).cloned();
        if let Some(old) = old {
            self.give_up(&old, CopyOutcome::Bypass);
        }
        large.begin(part.number, if streamed { STREAMED } else { WHOLE });
        let fill = Arc::new(ChunkedFetch::new(file.clone(), large, (at, part), streamed, rest, width));
        let mut fills = lock(&self.chunked_fetches);
        // Known before readers can ask for chunks.
        fills.by_key.insert(fill.file.key, fill.clone());
        large.head.ahead.store(READ_AHEAD, Ordering::Relaxed);
        let mut has_window = true;
        if streamed {
            // (It may be another one by now.)
            has_window = fills.window.as_ref().is_some_and(|w| w.tier == at && w.takes(large.chunk));
            fills.streamed.push(fill.clone());
            fills.share_window();
        }
        let open = word.compare_exchange(before.0, claim.0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !(open && has_window) {
            fills.remove(&fill);
            drop(fills);
            self.end_fill(&fill, if open { CopyOutcome::Stopped } else { CopyOutcome::Bypass });
            return;
        }
        fill.drain_chunk_requests();
        let work = fills.line_up(&fill);
        drop(fills);
        futex_wake(word, u32::MAX >> 1);
        large.ticked();
        if work {
            self.wake(self.lane_of_fill(&fill));
        }
    }

    /// The lane of a file's chunks.
    fn lane_of_fill(&self, fill: &ChunkedFetch) -> Lane {
        if fill.file.given().is_some() {
            return Lane::Threads;
        }
        self.lane_of(&fill.file.live, Kind::Chunks)
    }

    /// Something of a file may go on that could not before.
    pub(super) fn requeue(&self, fill: &Arc<ChunkedFetch>) {
        let mut fills = lock(&self.chunked_fetches);
        if !fills.by_key.get(&fill.file.key).is_some_and(|f| Arc::ptr_eq(f, fill)) {
            return;
        }
        let mut work = fills.line_up(fill);
        if fill.streamed {
            for other in fills.streamed.clone() {
                work |= fills.line_up(&other);
            }
        }
        drop(fills);
        if work {
            self.wake(self.lane_of_fill(fill));
        }
    }

    /// Bytes of a chunk have come.
    pub(super) fn note_rate(&self, bytes: u64) {
        let rate = lock(&self.chunked_fetches).rate.note(bytes);
        if let Some(now) = rate {
            let old = self.ctl.ctl.rate.load(Ordering::Relaxed);
            self.ctl.ctl.rate.store(old / 2 + now / 2, Ordering::Relaxed);
        }
    }

    /// All chunks are there: the partial copy becomes a copy.
    pub(super) fn complete(&self, fill: &Arc<ChunkedFetch>) {
        if !fill.end() {
            return;
        }
        lock(&self.chunked_fetches).remove(fill);
        let Some(tier) = self.tiers.get(fill.tier) else { return };
        let (sum, f) = (fill.sum(), &fill.file);
        f.note_sum_with(self, sum);
        let logged = f.packed.is_none() && f.below.is_none() && !f.passes();
        // (What fails goes out of the ledger at once.)
        f.share.iter().for_each(|share| share.hand_over());
        let published = tier.publish_part(&fill.part, f.name, f.stamp(), logged.then_some(sum));
        if let Ok(Some(_)) = published {
            f.share.iter().for_each(|share| share.charge());
        }
        let end = match published {
            Ok(Some(_)) if f.packed.is_some() || f.passes() => CopyOutcome::Decoded(fill.tier),
            Ok(Some(_)) if f.below.is_some() => {
                self.throttle.worked();
                self.source_facts.was_read(f.key, f.entry.record);
                CopyOutcome::Decoded(fill.tier)
            }
            Ok(Some(_)) => {
                self.throttle.worked();
                self.source_facts.was_read(fill.file.key, fill.file.entry.record);
                CopyOutcome::Resident(fill.tier)
            }
            Ok(None) => CopyOutcome::Failed(fill.file.start.elapsed()),
            Err(e) => {
                self.tier_failed(tier, &e);
                CopyOutcome::Refused(Refusal::TierFailed, Some(RETRY))
            }
        };
        self.publish_outcome(&fill.file, end);
        fill.large.ticked();
        if matches!(end, CopyOutcome::Decoded(_)) && fill.file.below.is_some() {
            self.to_be_packed(&fill.file, sum);
        }
    }

    /// Gives a file up that is being fetched.
    pub(super) fn give_up(&self, fill: &Arc<ChunkedFetch>, end: CopyOutcome) {
        lock(&self.chunked_fetches).remove(fill);
        self.end_fill(fill, end);
    }

    /// Its word first, so that readers look elsewhere; then its bytes.
    pub(super) fn end_fill(&self, fill: &Arc<ChunkedFetch>, end: CopyOutcome) {
        if !fill.end() {
            return;
        }
        // Of a word that says something else by now nothing is concluded: another fetch may have
        // begun.
        if fill.file.entry.word() == fill.file.claim {
            self.publish_outcome(&fill.file, end);
        } else {
            self.tell_over(&fill.file);
        }
        fill.large.ticked();
        fill.file.share.iter().for_each(|share| share.hand_over());
        if let Some(tier) = self.tiers.get(fill.tier) {
            let slots = fill.take_slots();
            if slots.is_empty() {
                return tier.drop_part(&fill.part);
            }
            fill.large.all_dropped();
            tier.drop_passing_part(&fill.part, slots);
        }
    }

    /// Upkeep: files whose word says something else by now, and streamed ones that nobody reads any
    /// more.
    pub fn tend_fills(&self) {
        let mut fills = lock(&self.chunked_fetches);
        fills.tend_window();
        let all = fills.all();
        let waits = !fills.line(true).is_empty();
        drop(fills);
        if waits {
            self.wake(Lane::Rings);
            self.wake(Lane::Threads);
        }
        for fill in all {
            if fill.file.entry.word() != fill.file.claim {
                self.give_up(&fill, CopyOutcome::Bypass);
            } else if fill.streamed && fill.idle() > FORGOTTEN * if fill.keeps_some() { KEPT } else { 1 } {
                self.give_up(&fill, CopyOutcome::Streamed);
            } else {
                fill.close_if_idle();
            }
        }
    }

    /// How many files are being fetched in chunks, and the bytes that are there of them.
    pub fn filling(&self) -> (u64, u64) {
        let all = lock(&self.chunked_fetches).all();
        let there = |f: &Arc<ChunkedFetch>| (u64::from(f.large.count()) * f.large.chunk).min(f.part.size);
        (all.len() as u64, all.iter().map(there).sum())
    }

    /// Drops what there is of some files in a tier until about `bytes` are free again; how many
    /// bytes were.
    pub(super) fn drop_fills(&self, tier: usize, bytes: u64, pause: Duration) -> (usize, u64) {
        let mut all = lock(&self.chunked_fetches).all();
        all.retain(|f| f.tier == tier);
        all.sort_by_key(|f| std::cmp::Reverse(f.file.start));
        let (mut dropped, mut freed) = (0, 0);
        for fill in all {
            if freed >= bytes {
                break;
            }
            freed += u64::from(fill.large.count()) * fill.large.chunk;
            dropped += 1;
            self.give_up(&fill, CopyOutcome::Refused(Refusal::Dropped, Some(pause)));
        }
        (dropped, freed)
    }

    /// Gives up the file of which nobody has asked for chunks for longest, if for a while at least,
    /// of those that are decoded or pass through here from another node; the next who asks has
    /// it begun anew.
    pub(super) fn drop_idle_passing(&self, tier: usize) -> bool {
        let mut all = lock(&self.chunked_fetches).all();
        let is_left = |f: &ChunkedFetch| match f.file.origin() {
            Origin::Packed => f.idle() > UNREAD,
            Origin::Node => f.file.passes() && !f.streamed && f.idle().min(f.rests()) > LEFT,
            Origin::Pfs => false,
        };
        all.retain(|f| f.tier == tier && is_left(f));
        let Some(fill) = all.into_iter().max_by_key(|f| f.idle()) else { return false };
        self.give_up(&fill, CopyOutcome::Stopped);
        true
    }

    /// Drops what there is of a file that is being fetched, if it is; its bytes.
    pub(super) fn drop_fill(&self, key: u64) -> Option<u64> {
        let fill = lock(&self.chunked_fetches).by_key.get(&key).cloned()?;
        let bytes = u64::from(fill.large.count()) * fill.large.chunk;
        self.give_up(&fill, CopyOutcome::Stopped);
        Some(bytes.min(fill.part.size))
    }
}

impl ChunkedFetches {
    const fn line(&mut self, demanded: bool) -> &mut VecDeque<Arc<ChunkedFetch>> {
        if demanded { &mut self.demanded } else { &mut self.rest }
    }
}

/// Counted for as long as it lives.
pub(super) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
