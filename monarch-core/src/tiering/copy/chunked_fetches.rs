//! [`ChunkedFetches`]: all large files whose chunks are being fetched: starts them, gives out their
//! chunks, ends them.
//!
//! Invariant: the state word of a file changes before its partial copy is removed.

use crate::metrics::Origin;
use crate::snapshot::Range;
use crate::sync::lock;
use crate::tiering::compression::Compression;
use crate::tiering::compression::compressor::Compressor;
use crate::tiering::copy::accounting::CopyAccounting;
use crate::tiering::copy::chunked_fetch::{ChunkedFetch, PlacedPart, Room};
use crate::tiering::copy::fetch_lines::FetchLines;
use crate::tiering::copy::paged_fetches::PagedFetches;
use crate::tiering::copy::publisher::Publisher;
use crate::tiering::copy::shards::next_shard;
use crate::tiering::copy::taken_chunk::{Counted, TakenChunk};
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::engine_trial::Kind;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::outcome::CopyOutcome;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::parts;
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::SourceFacts;
use crate::tiering::placement::reclaim::Reclaimer;
use crate::tiering::queue::Queue;
use crate::tiering::queue::engine_lane::EngineLanes;
use crate::tiering::queue::inflight_slots::{InflightSlots, Job};
use crate::tiering::queue::waker::Waker;
use crate::tiering::queue::work_queue::WorkQueue;
use crate::tiering::residency::Residency;
use crate::tiering::residency::transient_copies::TransientCopies;
use crate::tiering::throttle::PrefetchThrottle;
use monarch_abi::chunks::{LargeFile, STREAMED, WHOLE};
use monarch_abi::sys::futex_wake;
use monarch_abi::word::{Refusal, State};
use monarch_policies::RequestSource;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Chunks in flight that no reader waits for.
const MAX_CHUNKS_AHEAD: usize = 16;
/// Bytes of chunks in flight from peers that readers wait for, and chunks that may be in flight
/// whatever their size.
const MAX_REMOTE_BYTES: u64 = 16 << 20;
const MIN_REMOTE_CHUNKS: usize = 4;
/// Chunks of one file in flight that no reader requested: writers of one file wait for each other.
const MAX_UNASKED_CHUNKS: u32 = 8;
/// The same limit for a source that answers without waiting.
const MAX_UNASKED_CHUNKS_LOCAL: u32 = 2;
/// Chunks that a sequential reader requests before it needs them.
const READ_AHEAD_CHUNKS: u32 = 4;
/// How long the rest of a file is not fetched after a process has opened it.
const HOLD_REST_FOR: Duration = Duration::from_millis(100);
/// Pause after a lack of space that may pass.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Time without reads after which a file that is being decompressed is given up when its space is
/// needed.
const UNREAD_AFTER: Duration = Duration::from_millis(200);
/// The same for a file from a peer.
const PEER_UNREAD_AFTER: Duration = Duration::from_secs(10);
/// Time without reads after which a streamed file is given up; one with chunks that stay is kept
/// for [`KEEPER_FACTOR`] times as long.
const STREAM_UNREAD_AFTER: Duration = Duration::from_secs(60);
const KEEPER_FACTOR: u32 = 60;

/// Whether one more chunk of so many bytes may come from a peer beside those in flight.
const fn is_few(in_flight: usize, chunk: u64) -> bool {
    in_flight < MIN_REMOTE_CHUNKS || (in_flight as u64 + 1).saturating_mul(chunk) <= MAX_REMOTE_BYTES
}

/// The kind of work that the chunks of a file are for the trial of the engines.
pub(crate) const fn kind_of(fetch: &ChunkedFetch) -> Kind {
    if fetch.streamed { Kind::Streamed } else { Kind::Chunks }
}

/// The large files whose chunks are being fetched.
///
/// Fields: 16, fourteen components and two counts.
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
    pub(crate) paged: Arc<PagedFetches>,
    work: Arc<WorkQueue>,
    chunks_ahead: AtomicUsize,
    chunks_from_peers: AtomicUsize,
}

impl ChunkedFetches {
    pub(crate) fn new(
        shared: &Shared,
        queue: &Queue,
        residency: &Residency,
        compression: &Compression,
        fetch_lines: &Arc<Mutex<FetchLines>>,
        publisher: &Arc<Publisher>,
        accounting: &Arc<CopyAccounting>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            fetch_lines: fetch_lines.clone(),
            throttle: queue.throttle.clone(),
            waker: queue.waker.clone(),
            source_facts: shared.source_facts.clone(),
            peers: shared.peers.clone(),
            lanes: queue.lanes.clone(),
            transient: residency.transient.clone(),
            compressor: compression.compressor.clone(),
            publisher: publisher.clone(),
            accounting: accounting.clone(),
            slots: queue.slots.clone(),
            paged: Arc::default(),
            work: queue.work.clone(),
            chunks_ahead: AtomicUsize::new(0),
            chunks_from_peers: AtomicUsize::new(0),
        }
    }

    /// Takes the requests of readers for chunks of a file. Returns `false` if the file is not being
    /// fetched in chunks.
    pub(crate) fn drain_chunk_requests(&self, key: u64) -> bool {
        let mut lines = lock(&self.fetch_lines);
        let Some(fetch) = lines.by_key.get(&key).cloned() else { return false };
        let work = self.drain_requests(&fetch) && lines.enqueue(&fetch);
        drop(lines);
        // The caller is a copier: only rings have to be woken.
        if work && self.lane_of_fetch(&fetch) == Lane::Rings {
            self.waker.wake(Lane::Rings);
        }
        true
    }

    /// Takes what readers have requested of a file. A file that a process now reads by pages is
    /// followed.
    fn drain_requests(&self, fetch: &Arc<ChunkedFetch>) -> bool {
        let was_paged = fetch.is_paged();
        let any = fetch.drain_chunk_requests();
        if !was_paged && fetch.is_paged() {
            // The bytes of others do not pass the page cache.
            if fetch.file.origin() == Origin::Pfs { self.paged.follow(fetch) } else { fetch.fetch_rest() }
        }
        any
    }

    /// Has the rest of a file fetched, if its chunks are being fetched.
    pub(crate) fn fetch_rest(&self, key: u64) {
        let mut lines = lock(&self.fetch_lines);
        let Some(fetch) = lines.by_key.get(&key).cloned() else { return };
        fetch.fetch_rest();
        lines.enqueue(&fetch);
    }

    /// Whether as many chunks are in flight for prefetch as are allowed.
    pub(crate) fn enough_ahead(&self) -> bool {
        self.chunks_ahead.load(Ordering::Acquire) >= MAX_CHUNKS_AHEAD
    }

    /// Whether a chunk that a reader waits for may be started. Of nodes that all ask the owner of a
    /// large file for it, each has few chunks in flight: with many, the owner answers so late that
    /// the asking nodes read the PFS instead.
    fn has_slot(&self, fetch: &ChunkedFetch) -> bool {
        let remote = fetch.file.peer.is_some();
        let in_flight = self.chunks_from_peers.load(Ordering::Acquire);
        self.throttle.has_slot(remote) && (!remote || is_few(in_flight, fetch.large.chunk))
    }

    /// Whether a chunk may be fetched that no reader has requested. A reader may wait for the whole
    /// file; the window of streamed files does not grow.
    fn may_go_on(&self, fetch: &ChunkedFetch) -> bool {
        if !self.throttle.is_under_memory_pressure() || fetch.streamed || fetch.is_rest_asked() {
            return true;
        }
        let is_closed = self.cx.tiers.get(fetch.tier).is_some_and(|tier| tier.space.closed_to_prefetch());
        !is_closed && self.throttle.may_prefetch_beside()
    }

    /// The next chunk to fetch in this lane, for a reader or ahead.
    pub(crate) fn next_chunk(&self, lane: Lane, demanded: bool) -> Option<TakenChunk<'_>> {
        if !demanded && self.enough_ahead() {
            return None;
        }
        let mut lines = lock(&self.fetch_lines);
        let mut others = false;
        // Each file once: a file that cannot continue now is queued again by what holds it up.
        for _ in 0..lines.line(demanded).len() {
            let Some(fetch) = lines.line(demanded).pop_front() else { break };
            let its = self.lane_of_fetch(&fetch) == lane;
            let has_slot = if demanded { self.has_slot(&fetch) } else { self.may_go_on(&fetch) };
            if !its || !has_slot {
                others |= !its;
                lines.line(demanded).push_back(fetch);
                continue;
            }
            let taken = fetch.take(demanded, |chunk| self.room_for(&lines, &fetch, chunk));
            let Some((chunk, room, more)) = taken else { continue };
            let line = lines.line(demanded);
            match (more, demanded) {
                // Readers take turns. Prefetch finishes one file before the next.
                (true, true) => line.push_back(fetch.clone()),
                (true, false) => line.push_front(fetch.clone()),
                (false, _) => {}
            }
            let more = !line.is_empty();
            drop(lines);
            if more && lane == Lane::Threads && self.cx.ctl.ctl.sleepers.load(Ordering::SeqCst) > 0 {
                futex_wake(&self.cx.ctl.ctl.demand, 1);
            }
            return Some(self.counted(fetch, chunk, room, demanded));
        }
        drop(lines);
        if others && !demanded {
            // The other lane may sleep since demands left it no slot.
            self.waker.wake(lane.other());
        }
        None
    }

    /// Counts a chunk that was taken, until it is dropped.
    fn counted(&self, fetch: Arc<ChunkedFetch>, chunk: u32, room: Room, demanded: bool) -> TakenChunk<'_> {
        let source = if demanded { RequestSource::Demand } else { RequestSource::Prefetch };
        let ahead = (!demanded).then(|| Counted::new(&self.chunks_ahead));
        let from_peer = (demanded && fetch.file.peer.is_some()).then(|| Counted::new(&self.chunks_from_peers));
        let mut job = Job::new(&self.slots, fetch.file.key, source, fetch.file.peer.is_some());
        if fetch.file.packed.is_some() {
            job.slot.is_decoding();
        }
        TakenChunk { fetch, chunk, room, job, ahead, from_peer }
    }

    /// Publishes a partial copy: readers can request its chunks from here on.
    pub(crate) fn start(
        &self,
        mut file: ClaimedFile,
        large: LargeFile<'static>,
        PlacedPart { tier: at, part }: PlacedPart,
        streamed: bool,
    ) {
        // Of a transient copy for a peer's file only requested chunks are fetched, unless there is
        // space to keep it.
        let ahead = self.cx.options.prefetch && (!file.passes() || self.cx.is_elastic());
        let rest = !streamed && (ahead || file.source == RequestSource::Prefetch);
        // What opens a file may map it in a moment: bytes read past the page cache would be read
        // twice.
        let is_held = rest && file.source == RequestSource::Demand && file.origin() == Origin::Pfs;
        let rest = rest && !is_held;
        let local = file.packed.is_some() || file.live.source.keeps_nowait();
        let width = if local { MAX_UNASKED_CHUNKS_LOCAL } else { MAX_UNASKED_CHUNKS };
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
        let fetch =
            Arc::new(ChunkedFetch::new(file.clone(), large, PlacedPart { tier: at, part }, streamed, rest, width));
        let mut lines = lock(&self.fetch_lines);
        // Listed before readers can request chunks.
        lines.by_key.insert(fetch.file.key, fetch.clone());
        large.head.ahead.store(READ_AHEAD_CHUNKS, Ordering::Relaxed);
        let mut has_window = true;
        if streamed {
            // (It may be another window by now.)
            has_window = lines.window.as_ref().is_some_and(|w| w.tier == at && w.takes(large.chunk));
            lines.streamed.push(fetch.clone());
            lines.share_window();
        }
        let open = word.compare_exchange(before.0, claim.0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !(open && has_window) {
            lines.remove(&fetch);
            drop(lines);
            self.end_fetch(&fetch, if open { CopyOutcome::Stopped } else { CopyOutcome::Bypass });
            return;
        }
        self.drain_requests(&fetch);
        if is_held && !fetch.is_paged() {
            self.paged.hold(&fetch, Instant::now() + HOLD_REST_FOR);
        }
        let work = lines.enqueue(&fetch);
        drop(lines);
        futex_wake(word, u32::MAX >> 1);
        large.ticked();
        if work {
            self.waker.wake(self.lane_of_fetch(&fetch));
        }
    }

    /// The lane of a file's chunks.
    fn lane_of_fetch(&self, fetch: &ChunkedFetch) -> Lane {
        if fetch.file.open_source().is_some() {
            return Lane::Threads;
        }
        self.lanes.lane_of(&fetch.file.live, kind_of(fetch))
    }

    /// Queues a file again that may continue now.
    pub(crate) fn requeue(&self, fetch: &Arc<ChunkedFetch>) {
        let mut lines = lock(&self.fetch_lines);
        if !lines.by_key.get(&fetch.file.key).is_some_and(|f| Arc::ptr_eq(f, fetch)) {
            return;
        }
        let mut work = lines.enqueue(fetch);
        if fetch.streamed {
            for other in lines.streamed.clone() {
                work |= lines.enqueue(&other);
            }
        }
        drop(lines);
        if work {
            self.waker.wake(self.lane_of_fetch(fetch));
        }
    }

    /// Notes the bytes of a chunk whose fetch was begun at this time, and publishes the rate for
    /// readers.
    pub(crate) fn note_rate(&self, bytes: u64, begun: Instant) {
        let rate = lock(&self.fetch_lines).rate.note(bytes, begun, Instant::now());
        if let Some(now) = rate {
            let old = self.cx.ctl.ctl.rate.load(Ordering::Relaxed);
            self.cx.ctl.ctl.rate.store(old / 2 + now / 2, Ordering::Relaxed);
        }
    }

    /// Turns the partial copy into a copy, once all chunks are present.
    pub(crate) fn complete(&self, fetch: &Arc<ChunkedFetch>) {
        if !fetch.end() {
            return;
        }
        lock(&self.fetch_lines).remove(fetch);
        let Some(tier) = self.cx.tiers.get(fetch.tier) else { return };
        let (sum, f) = (fetch.sum(), &fetch.file);
        f.note_sum(sum);
        self.peers.notify_copied(f, sum);
        let logged = f.packed.is_none() && f.below.is_none() && !f.passes();
        // (What fails is given back to the ledger at once.)
        f.share.iter().for_each(|share| share.hand_over());
        let published = tier.parts.publish(&fetch.part, f.name, f.stamp(), logged.then_some(sum));
        if let Ok(Some(_)) = published {
            f.share.iter().for_each(|share| share.charge());
        }
        let end = match published {
            Ok(Some(_)) if f.packed.is_some() || f.passes() => CopyOutcome::Decoded(fetch.tier),
            Ok(Some(_)) if f.below.is_some() => {
                self.throttle.worked();
                self.source_facts.was_read(f.key, f.entry.record);
                CopyOutcome::Decoded(fetch.tier)
            }
            Ok(Some(_)) => {
                self.throttle.worked();
                self.source_facts.was_read(fetch.file.key, fetch.file.entry.record);
                CopyOutcome::Resident(fetch.tier)
            }
            Ok(None) => CopyOutcome::Failed(fetch.file.start.elapsed()),
            Err(e) => {
                self.cx.tier_failed(tier, &e);
                CopyOutcome::Refused(Refusal::TierFailed, Some(RETRY_PAUSE))
            }
        };
        self.publisher.publish_outcome(&fetch.file, end);
        fetch.large.ticked();
        if !matches!(end, CopyOutcome::Failed(_) | CopyOutcome::Refused(..)) {
            self.prefetch_next_shard(&fetch.file);
        }
        if matches!(end, CopyOutcome::Decoded(_)) && fetch.file.below.is_some() {
            self.compressor.enqueue(&fetch.file, sum);
        }
    }

    /// Prefetches the part of a checkpoint that follows a part whose copy is complete.
    fn prefetch_next_shard(&self, file: &ClaimedFile) {
        let Some(rel) = next_shard(&file.rel).filter(|_| self.cx.options.prefetch) else { return };
        let Some(next) = file.live.segment.lookup(&rel).filter(|e| e.word().state() == State::Absent) else { return };
        let Some((segment, _)) = parts(file.key) else { return };
        self.work.lines().asked.push_front(Range { segment, from: next.id, end: next.id + 1 });
        self.waker.wake_all();
    }

    /// Gives up the fetch of a file.
    pub(crate) fn give_up(&self, fetch: &Arc<ChunkedFetch>, end: CopyOutcome) {
        lock(&self.fetch_lines).remove(fetch);
        self.end_fetch(fetch, end);
    }

    /// Ends a fetch: changes the word first, so that readers look elsewhere, then removes the
    /// bytes.
    pub(crate) fn end_fetch(&self, fetch: &Arc<ChunkedFetch>, end: CopyOutcome) {
        if !fetch.end() {
            return;
        }
        // A word that has changed stays as it is: another fetch may have begun.
        if fetch.file.entry.word() == fetch.file.claim {
            self.publisher.publish_outcome(&fetch.file, end);
        } else {
            self.peers.notify_ended(&fetch.file);
        }
        fetch.large.ticked();
        fetch.file.share.iter().for_each(|share| share.hand_over());
        if let Some(tier) = self.cx.tiers.get(fetch.tier) {
            let slots = fetch.take_slots();
            if !slots.is_empty() {
                // (Counted before they are overwritten.)
                fetch.large.count_drop();
            }
            drop(slots);
            tier.parts.discard(&fetch.part);
        }
    }

    /// Maintenance: ends the fetches of files whose word has changed, and of streamed files without
    /// readers.
    pub(crate) fn maintain(&self) {
        let mut lines = lock(&self.fetch_lines);
        lines.maintain_window();
        let all = lines.all();
        let waits = !lines.line(true).is_empty();
        // (Files without readers leave the window after a minute.)
        let unused = lines.window.as_ref().filter(|_| lines.streamed.is_empty()).map(|w| w.slots.clone());
        drop(lines);
        unused.iter().for_each(|slots| _ = slots.release(u64::MAX));
        if waits {
            self.waker.wake(Lane::Rings);
            self.waker.wake(Lane::Threads);
        }
        for fetch in all {
            if fetch.file.entry.word() != fetch.file.claim {
                self.give_up(&fetch, CopyOutcome::Bypass);
            } else if fetch.streamed
                && fetch.idle() > STREAM_UNREAD_AFTER * if fetch.keeps_some() { KEEPER_FACTOR } else { 1 }
            {
                self.give_up(&fetch, CopyOutcome::Streamed);
            } else {
                fetch.close_if_idle();
            }
        }
    }

    /// Number of files that are being fetched in chunks, and the bytes of them that are present.
    pub(crate) fn partial_copies(&self) -> (u64, u64) {
        let all = lock(&self.fetch_lines).all();
        let chunks = |f: &ChunkedFetch| u64::from(f.large.count()) + f.passing() as u64;
        let there = |f: &Arc<ChunkedFetch>| (chunks(f) * f.large.chunk).min(f.part.size);
        (all.len() as u64, all.iter().map(there).sum())
    }

    /// Finds space for a chunk. The space of a file that is not streamed is reserved already.
    pub(crate) fn room_for(&self, lines: &FetchLines, fetch: &ChunkedFetch, chunk: u32) -> Option<Room> {
        if !fetch.streamed {
            return Some(Room::Own);
        }
        let range = fetch.range(chunk);
        let tier = self.cx.tiers.get(fetch.tier)?;
        let window = lines.window.as_ref()?;
        if window.may_keep(fetch, &lines.streamed)
            && self.keeps(fetch, range.end - range.start)
            && tier.parts.grow(&fetch.part, range.end - range.start)
        {
            fetch.keep_some();
            return Some(Room::Own);
        }
        let slot = window.slot(fetch, chunk, &lines.streamed, &self.cx.tiers)?;
        Some(Room::Window(slot))
    }

    /// Whether there is space for a chunk of a file that does not fit as a whole.
    fn keeps(&self, fetch: &ChunkedFetch, bytes: u64) -> bool {
        self.cx.tiers.get(fetch.tier).is_some_and(|tier| {
            let (u, kept) = self.transient.usage_and_kept(fetch.tier, tier);
            let free = u.capacity.saturating_sub(u.used + u.reserved + kept);
            !tier.space.suspended() && free >= bytes
        })
    }
}

impl Reclaimer for ChunkedFetches {
    fn drop_fetches(&self, tier: usize, bytes: u64, pause: Duration) -> (usize, u64) {
        let mut all = lock(&self.fetch_lines).all();
        all.retain(|f| f.tier == tier);
        all.sort_by_key(|f| std::cmp::Reverse(f.file.start));
        let (mut dropped, mut freed) = (0, 0);
        for fetch in all {
            if freed >= bytes {
                break;
            }
            freed += u64::from(fetch.large.count()) * fetch.large.chunk;
            dropped += 1;
            self.give_up(&fetch, CopyOutcome::Refused(Refusal::Dropped, Some(pause)));
        }
        let slots = lock(&self.fetch_lines).window.as_ref().filter(|w| w.tier == tier).map(|w| w.slots.clone());
        freed += slots.map_or(0, |slots| slots.release(bytes.saturating_sub(freed)));
        (dropped, freed)
    }

    fn drop_idle_fetch(&self, tier: usize) -> bool {
        let mut all = lock(&self.fetch_lines).all();
        let is_left = |f: &ChunkedFetch| match f.file.origin() {
            Origin::Packed => f.idle() > UNREAD_AFTER,
            Origin::Node => f.file.passes() && !f.streamed && f.idle().min(f.rests()) > PEER_UNREAD_AFTER,
            Origin::Pfs => false,
        };
        all.retain(|f| f.tier == tier && is_left(f));
        let Some(fetch) = all.into_iter().max_by_key(|f| f.idle()) else { return false };
        self.give_up(&fetch, CopyOutcome::Stopped);
        true
    }

    fn drop_fetch(&self, key: u64) -> Option<u64> {
        let fetch = lock(&self.fetch_lines).by_key.get(&key).cloned()?;
        let bytes = u64::from(fetch.large.count()) * fetch.large.chunk;
        self.give_up(&fetch, CopyOutcome::Stopped);
        Some(bytes.min(fetch.part.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by eight nodes that mapped 2 GiB at once: the owner's answers to 64 requests of each
    /// took more than 3 s, and a fifth of the file was read from the PFS instead.
    #[test]
    fn few_large_chunks_come_from_peers_at_a_time() {
        let most = |chunk: u64| (0..1000).take_while(|&in_flight| is_few(in_flight, chunk)).count();
        assert_eq!([64 << 10, 1 << 20, 4 << 20, 64 << 20].map(most), [256, 16, 4, 4]);
    }
}
