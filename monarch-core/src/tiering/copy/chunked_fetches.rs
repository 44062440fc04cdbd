//! [`ChunkedFetches`]: all large files whose chunks are being fetched: starts them, gives out their
//! chunks, ends them.
//!
//! Invariant: the state word of a file changes before its partial copy is removed.

use crate::metrics::Origin;
use crate::sync::lock;
use crate::tier::PartCopy;
use crate::tiering::compression::compressor::Compressor;
use crate::tiering::copy::accounting::CopyAccounting;
use crate::tiering::copy::chunk_copy_task::ChunkCopyTask;
use crate::tiering::copy::chunked_fetch::{ChunkedFetch, Room};
use crate::tiering::copy::fetch_lines::FetchLines;
use crate::tiering::copy::publisher::Publisher;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::engine_trial::Kind;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::outcome::CopyOutcome;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::source_facts::SourceFacts;
use crate::tiering::placement::reclaim::Reclaimer;
use crate::tiering::queue::engine_lane::EngineLanes;
use crate::tiering::queue::inflight_slots::{InflightSlots, Job};
use crate::tiering::queue::waker::Waker;
use crate::tiering::residency::transient_copies::TransientCopies;
use crate::tiering::throttle::PrefetchThrottle;
use monarch_abi::chunks::{LargeFile, STREAMED, WHOLE};
use monarch_abi::sys::futex_wake;
use monarch_abi::word::Refusal;
use monarch_policies::RequestSource;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Chunks in flight that no reader waits for.
const AHEAD: usize = 16;
/// Chunks of one file in flight that no reader requested: writers of one file wait for each other.
const WIDTH: u32 = 8;
/// The same limit for a source that answers without waiting.
const LOCAL_WIDTH: u32 = 2;
/// Chunks that a sequential reader requests before it needs them.
const READ_AHEAD: u32 = 4;
/// Pause after a lack of space that may pass.
const RETRY: Duration = Duration::from_secs(5);
/// Time without reads after which a file that is being decompressed is given up when its space is
/// needed.
const UNREAD: Duration = Duration::from_millis(200);
/// The same for a file from a peer.
const LEFT: Duration = Duration::from_secs(10);
/// Time without reads after which a streamed file is given up; one with chunks that stay is kept
/// for [`KEPT`] times as long.
const FORGOTTEN: Duration = Duration::from_secs(60);
const KEPT: u32 = 60;

/// Adds one to a count until it is dropped.
pub(crate) struct Counted<'a>(&'a AtomicUsize);

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

/// The large files whose chunks are being fetched.
pub(crate) struct ChunkedFetches {
    pub(crate) cx: Arc<Context>,
    fetch_lines: Arc<Mutex<FetchLines>>,
    throttle: Arc<PrefetchThrottle>,
    waker: Arc<Waker>,
    source_facts: Arc<SourceFacts>,
    pub(crate) peers: Arc<PeerLink>,
    pub(crate) lanes: Arc<EngineLanes>,
    transient: Arc<TransientCopies>,
    pub(crate) compressor: Arc<Compressor>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) accounting: Arc<CopyAccounting>,
    slots: Arc<InflightSlots>,
    pieces_ahead: AtomicUsize,
}

impl ChunkedFetches {
    #[expect(clippy::too_many_arguments, reason = "it is handed each component that it uses")]
    pub(crate) fn new(
        cx: &Arc<Context>,
        fetch_lines: &Arc<Mutex<FetchLines>>,
        throttle: &Arc<PrefetchThrottle>,
        waker: &Arc<Waker>,
        source_facts: &Arc<SourceFacts>,
        peers: &Arc<PeerLink>,
        lanes: &Arc<EngineLanes>,
        transient: &Arc<TransientCopies>,
        compressor: &Arc<Compressor>,
        publisher: &Arc<Publisher>,
        accounting: &Arc<CopyAccounting>,
        slots: &Arc<InflightSlots>,
    ) -> Self {
        Self {
            cx: cx.clone(),
            fetch_lines: fetch_lines.clone(),
            throttle: throttle.clone(),
            waker: waker.clone(),
            source_facts: source_facts.clone(),
            peers: peers.clone(),
            lanes: lanes.clone(),
            transient: transient.clone(),
            compressor: compressor.clone(),
            publisher: publisher.clone(),
            accounting: accounting.clone(),
            slots: slots.clone(),
            pieces_ahead: AtomicUsize::new(0),
        }
    }

    /// Takes the requests of readers for chunks of a file. Returns `false` if the file is not being
    /// fetched in chunks.
    pub(crate) fn drain_chunk_requests(&self, key: u64) -> bool {
        let mut fills = lock(&self.fetch_lines);
        let Some(fill) = fills.by_key.get(&key).cloned() else { return false };
        let work = fill.drain_chunk_requests() && fills.line_up(&fill);
        drop(fills);
        // The caller is a copier: only rings have to be woken.
        if work && self.lane_of_fill(&fill) == Lane::Rings {
            self.waker.wake(Lane::Rings);
        }
        true
    }

    /// Has the rest of a file fetched, if its chunks are being fetched.
    pub(crate) fn fetch_rest(&self, key: u64) {
        let mut fills = lock(&self.fetch_lines);
        let Some(fill) = fills.by_key.get(&key).cloned() else { return };
        fill.fetch_rest();
        fills.line_up(&fill);
    }

    /// Whether as many chunks are in flight for prefetch as are allowed.
    pub(crate) fn enough_ahead(&self) -> bool {
        self.pieces_ahead.load(Ordering::Acquire) >= AHEAD
    }

    /// The next chunk to fetch in this lane, for a reader or ahead.
    pub(crate) fn next_piece(&self, lane: Lane, demanded: bool) -> Option<ChunkCopyTask<'_>> {
        if !demanded && self.enough_ahead() {
            return None;
        }
        let mut fills = lock(&self.fetch_lines);
        let mut others = false;
        // Each file once: a file that cannot continue now is queued again by what holds it up.
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
                // Readers take turns. Prefetch finishes one file before the next.
                (true, true) => line.push_back(fill.clone()),
                (true, false) => line.push_front(fill.clone()),
                (false, _) => {}
            }
            let more = !line.is_empty();
            drop(fills);
            if more && lane == Lane::Threads && self.cx.ctl.ctl.sleepers.load(Ordering::SeqCst) > 0 {
                futex_wake(&self.cx.ctl.ctl.demand, 1);
            }
            return Some(self.piece(&fill, chunk, room, demanded));
        }
        drop(fills);
        if others && !demanded {
            // The other lane may sleep since demands left it no slot.
            self.waker.wake(lane.other());
        }
        None
    }

    fn piece(&self, fill: &Arc<ChunkedFetch>, chunk: u32, room: Room, demanded: bool) -> ChunkCopyTask<'_> {
        let source = if demanded { RequestSource::Demand } else { RequestSource::Prefetch };
        let ahead = (!demanded).then(|| Counted::new(&self.pieces_ahead));
        let mut job = Job::new(&self.slots, fill.file.key, source, fill.file.peer.is_some());
        if fill.file.packed.is_some() {
            job.slot.is_decoding();
        }
        ChunkCopyTask::new(self, fill.clone(), chunk, room, (job, ahead))
    }

    /// Publishes a partial copy: readers can request its chunks from here on.
    pub(crate) fn fill(
        &self,
        mut file: ClaimedFile,
        large: LargeFile<'static>,
        (at, part): (usize, PartCopy),
        streamed: bool,
    ) {
        // Of a transient copy for a peer's file only requested chunks are fetched, unless there is
        // space to keep it.
        let ahead = self.cx.options.prefetch && (!file.passes() || self.cx.is_elastic());
        let rest = !streamed && (ahead || file.source == RequestSource::Prefetch);
        let local = file.packed.is_some() || file.live.source.keeps_nowait();
        let width = if local { LOCAL_WIDTH } else { WIDTH };
        let word = &file.entry.master.word;
        let mut claim = file.claim.partial(at);
        if file.packed.is_some() || file.below.is_some() || (file.passes() && !streamed) {
            claim = claim.marked();
        }
        let before = std::mem::replace(&mut file.claim, claim);
        // An earlier fetch of this file may not have been ended yet: its chunks must not be
        // announced as those of the new one.
        let old = lock(&self.fetch_lines).by_key.get(&file.key).cloned();
        if let Some(old) = old {
            self.give_up(&old, CopyOutcome::Bypass);
        }
        large.begin(part.number, if streamed { STREAMED } else { WHOLE });
        let fill = Arc::new(ChunkedFetch::new(file.clone(), large, (at, part), streamed, rest, width));
        let mut fills = lock(&self.fetch_lines);
        // Listed before readers can request chunks.
        fills.by_key.insert(fill.file.key, fill.clone());
        large.head.ahead.store(READ_AHEAD, Ordering::Relaxed);
        let mut has_window = true;
        if streamed {
            // (It may be another window by now.)
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
            self.waker.wake(self.lane_of_fill(&fill));
        }
    }

    /// The lane of a file's chunks.
    fn lane_of_fill(&self, fill: &ChunkedFetch) -> Lane {
        if fill.file.given().is_some() {
            return Lane::Threads;
        }
        self.lanes.lane_of(&fill.file.live, Kind::Chunks)
    }

    /// Queues a file again that may continue now.
    pub(crate) fn requeue(&self, fill: &Arc<ChunkedFetch>) {
        let mut fills = lock(&self.fetch_lines);
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
            self.waker.wake(self.lane_of_fill(fill));
        }
    }

    /// Notes the bytes of a chunk, and publishes the rate for readers.
    pub(crate) fn note_rate(&self, bytes: u64) {
        let rate = lock(&self.fetch_lines).rate.note(bytes);
        if let Some(now) = rate {
            let old = self.cx.ctl.ctl.rate.load(Ordering::Relaxed);
            self.cx.ctl.ctl.rate.store(old / 2 + now / 2, Ordering::Relaxed);
        }
    }

    /// Turns the partial copy into a copy, once all chunks are present.
    pub(crate) fn complete(&self, fill: &Arc<ChunkedFetch>) {
        if !fill.end() {
            return;
        }
        lock(&self.fetch_lines).remove(fill);
        let Some(tier) = self.cx.tiers.get(fill.tier) else { return };
        let (sum, f) = (fill.sum(), &fill.file);
        f.note_sum(sum);
        self.peers.tell_sum(f, sum);
        let logged = f.packed.is_none() && f.below.is_none() && !f.passes();
        // (What fails is given back to the ledger at once.)
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
                self.cx.tier_failed(tier, &e);
                CopyOutcome::Refused(Refusal::TierFailed, Some(RETRY))
            }
        };
        self.publisher.publish_outcome(&fill.file, end);
        fill.large.ticked();
        if matches!(end, CopyOutcome::Decoded(_)) && fill.file.below.is_some() {
            self.compressor.to_be_packed(&fill.file, sum);
        }
    }

    /// Gives up the fetch of a file.
    pub(crate) fn give_up(&self, fill: &Arc<ChunkedFetch>, end: CopyOutcome) {
        lock(&self.fetch_lines).remove(fill);
        self.end_fill(fill, end);
    }

    /// Ends a fetch: changes the word first, so that readers look elsewhere, then removes the
    /// bytes.
    pub(crate) fn end_fill(&self, fill: &Arc<ChunkedFetch>, end: CopyOutcome) {
        if !fill.end() {
            return;
        }
        // A word that has changed stays as it is: another fetch may have begun.
        if fill.file.entry.word() == fill.file.claim {
            self.publisher.publish_outcome(&fill.file, end);
        } else {
            self.peers.tell_over(&fill.file);
        }
        fill.large.ticked();
        fill.file.share.iter().for_each(|share| share.hand_over());
        if let Some(tier) = self.cx.tiers.get(fill.tier) {
            let slots = fill.take_slots();
            if slots.is_empty() {
                return tier.drop_part(&fill.part);
            }
            fill.large.all_dropped();
            tier.drop_passing_part(&fill.part, slots);
        }
    }

    /// Maintenance: ends the fetches of files whose word has changed, and of streamed files without
    /// readers.
    pub(crate) fn tend_fills(&self) {
        let mut fills = lock(&self.fetch_lines);
        fills.tend_window();
        let all = fills.all();
        let waits = !fills.line(true).is_empty();
        drop(fills);
        if waits {
            self.waker.wake(Lane::Rings);
            self.waker.wake(Lane::Threads);
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

    /// Number of files that are being fetched in chunks, and the bytes of them that are present.
    pub(crate) fn filling(&self) -> (u64, u64) {
        let all = lock(&self.fetch_lines).all();
        let there = |f: &Arc<ChunkedFetch>| (u64::from(f.large.count()) * f.large.chunk).min(f.part.size);
        (all.len() as u64, all.iter().map(there).sum())
    }

    /// Finds space for a chunk. The space of a file that is not streamed is reserved already.
    pub(crate) fn room_for(&self, fills: &FetchLines, fill: &ChunkedFetch, chunk: u32) -> Option<Room> {
        if !fill.streamed {
            return Some(Room::Own);
        }
        let range = fill.range(chunk);
        let tier = self.cx.tiers.get(fill.tier)?;
        let window = fills.window.as_ref()?;
        if window.may_keep(fill, &fills.streamed)
            && self.keeps(fill, range.end - range.start)
            && tier.grow_part(&fill.part, range.end - range.start)
        {
            fill.keep_some();
            return Some(Room::Own);
        }
        let slot = window.slot(fill, &fills.streamed, &self.cx.tiers)?;
        Some(Room::Window(slot))
    }

    /// Whether there is space for a chunk of a file that does not fit as a whole.
    fn keeps(&self, fill: &ChunkedFetch, bytes: u64) -> bool {
        self.cx.tiers.get(fill.tier).is_some_and(|tier| {
            let (u, kept) = self.transient.usage_and_kept(fill.tier, tier);
            let free = u.capacity.saturating_sub(u.used + u.reserved + kept);
            !tier.suspended() && free >= bytes
        })
    }
}

impl Reclaimer for ChunkedFetches {
    fn drop_fills(&self, tier: usize, bytes: u64, pause: Duration) -> (usize, u64) {
        let mut all = lock(&self.fetch_lines).all();
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

    fn drop_idle_passing(&self, tier: usize) -> bool {
        let mut all = lock(&self.fetch_lines).all();
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

    fn drop_fill(&self, key: u64) -> Option<u64> {
        let fill = lock(&self.fetch_lines).by_key.get(&key).cloned()?;
        let bytes = u64::from(fill.large.count()) * fill.large.chunk;
        self.give_up(&fill, CopyOutcome::Stopped);
        Some(bytes.min(fill.part.size))
    }
}
