//! [`ChunkCopyTask`]: one chunk of a large file while the engine copies it.

use crate::config::Direct;
use crate::engine::{Copied, CopyError, Marks, Sink, Source, SourceFile, Task};
use crate::metrics::{CopyOf, Origin};
use crate::tier::PartWriter;
use crate::tiering::copy::chunked_fetch::{ChunkMarks, ChunkedFetch, Room};
use crate::tiering::copy::chunked_fetches::{ChunkedFetches, Counted};
use crate::tiering::core::engine_trial::Kind;
use crate::tiering::core::lane::Lane;
use crate::tiering::core::outcome::CopyOutcome;
use crate::tiering::queue::inflight_slots::Job;
use monarch_abi::word::Refusal;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often a chunk is tried again before its file is given up for a while.
const TRIES: u32 = 2;
/// Pause of a file after a tier has failed.
const RETRY: Duration = Duration::from_secs(5);

/// A chunk that is being copied, with the slots that it holds until it is dropped.
pub(crate) struct ChunkCopyTask<'a> {
    fetches: &'a ChunkedFetches,
    fill: Arc<ChunkedFetch>,
    chunk: u32,
    room: Option<Room>,
    marks: ChunkMarks,
    sink: Option<PartWriter>,
    /// Whether its bytes were counted as written.
    written: Cell<bool>,
    failed: u32,
    /// When the task was made.
    begun: Instant,
    counted: (Job<'a>, Option<Counted<'a>>),
}

impl<'a> ChunkCopyTask<'a> {
    pub(crate) fn new(
        fetches: &'a ChunkedFetches,
        fill: Arc<ChunkedFetch>,
        chunk: u32,
        room: Room,
        counted: (Job<'a>, Option<Counted<'a>>),
    ) -> Self {
        let marks = ChunkMarks { fill: fill.clone(), demanded: counted.1.is_none() };
        let room = Some(room);
        let written = Cell::new(false);
        Self { fetches, fill, chunk, room, marks, sink: None, written, failed: 0, begun: Instant::now(), counted }
    }

    /// Opens the partial copy. `None` when that fails, which gives the file up.
    pub(crate) fn ready(mut self) -> Option<Self> {
        let (range, fill) = (self.range(), &self.fill);
        let tier = self.fetches.cx.tiers.get(fill.tier)?;
        match tier.open_part(&fill.part, range.start, range.end - range.start) {
            Ok(sink) => {
                self.sink = Some(sink);
                Some(self)
            }
            Err(e) => {
                if fill.file.entry.word() == fill.file.claim {
                    self.fetches.cx.tier_failed(tier, &e);
                }
                self.fetches.give_up(fill, CopyOutcome::Refused(Refusal::TierFailed, Some(RETRY)));
                None
            }
        }
    }

    /// Notes that a lane has taken it.
    pub(crate) fn given(&mut self, lane: Lane) {
        if self.fill.file.origin() != Origin::Pfs {
            return;
        }
        self.counted.0.slot.uses_reserve(!self.marks.demanded);
        let range = self.range();
        self.fetches.lanes.given(&self.fill.file.live, Kind::Chunks, lane, range.end - range.start);
    }

    /// Ends its count among the chunks that are prefetched.
    fn land(&self) {
        if !self.marks.demanded {
            self.fill.landed();
        }
    }

    /// Removes its bytes, which are of no use, before another chunk takes its slot of the window,
    /// and before this chunk can be fetched again.
    fn leave(&mut self) {
        let Some(Room::Window(slot)) = self.room.take() else { return };
        let range = self.range();
        if let Some(sink) = &self.sink
            && let Err(e) = sink.punch(range.start, range.end - range.start)
        {
            tracing::debug!(error = %e, "a chunk that is of no use keeps its blocks");
            self.fill.keep_slot(slot);
        }
    }

    /// Handles the end of the copy. Returns `true` if the chunk has to be copied again.
    fn settle(&mut self, end: Result<Copied, CopyError>) -> bool {
        let (fetches, fill) = (self.fetches, self.fill.clone());
        let copied = match end.and_then(|copied| same(copied, &fill)) {
            Ok(copied) => copied,
            Err(e) => return self.failed(&e),
        };
        if copied.identity.is_some() {
            fill.checked();
        }
        if fill.file.packed.is_none() {
            fetches.cx.stats.bytes.fetch_add(copied.bytes, Ordering::Relaxed);
            fetches.cx.stats.chunks.fetch_add(1, Ordering::Relaxed);
        }
        fetches.cx.latencies.copied(fill.file.origin(), CopyOf::Chunk, self.begun.elapsed());
        if fill.file.origin() == Origin::Pfs {
            fetches.accounting.note_copy(copied.bytes, self.begun.elapsed());
        }
        fetches.note_rate(copied.bytes);
        fetches.peers.tell_piece(&fill.file, &self.range(), copied.checksum);
        let last = fill.summed(self.chunk, copied.checksum);
        self.room = self.room.take().and_then(|room| fill.arrived(self.chunk, room));
        self.leave();
        self.land();
        if last {
            fetches.complete(&fill);
        } else {
            fetches.requeue(&fill);
        }
        false
    }

    fn failed(&mut self, e: &CopyError) -> bool {
        let (fetches, fill) = (self.fetches, &self.fill);
        fill.not_opened();
        let gone = fill.file.entry.word() != fill.file.claim;
        self.failed += 1;
        if let (CopyError::Source(e), Some((_, below)), false) = (e, &fill.file.packed, gone) {
            // Its compressed copy is removed: the next demand fetches the file.
            fetches.cx.packed_is_damaged(&fill.file, *below, e);
            self.land();
            fetches.give_up(fill, CopyOutcome::Stopped);
            return false;
        }
        let again = matches!(e, CopyError::Source(_)) && self.failed <= TRIES && !self.written.get() && !gone;
        if again {
            return true;
        }
        self.leave();
        let fill = &self.fill;
        self.land();
        let end = match e {
            CopyError::Stopped => {
                fill.give_back(self.chunk);
                return false;
            }
            _ if gone => CopyOutcome::Bypass,
            CopyError::Sink(e) => {
                if let Some(tier) = fetches.cx.tiers.get(fill.tier) {
                    fetches.cx.tier_failed(tier, e);
                }
                CopyOutcome::Refused(Refusal::TierFailed, Some(RETRY))
            }
            _ => fetches.publisher.after_failure(e, &fill.file).unwrap_or(CopyOutcome::Stopped),
        };
        fetches.give_up(fill, end);
        false
    }
}

/// Checks that the bytes are of the version that was indexed.
fn same(copied: Copied, fill: &ChunkedFetch) -> Result<Copied, CopyError> {
    if copied.identity.is_none_or(|id| fill.file.live.is_same(&id, &fill.file.want)) {
        Ok(copied)
    } else {
        Err(CopyError::Changed)
    }
}

impl Task for ChunkCopyTask<'_> {
    fn source(&self) -> &dyn Source {
        &*self.fill.file.live.source
    }
    fn rel(&self) -> &[u8] {
        &self.fill.file.rel
    }
    fn range(&self) -> Range<u64> {
        self.fill.range(self.chunk)
    }
    fn is_direct(&self) -> bool {
        match self.fetches.cx.options.direct {
            Direct::Yes => true,
            Direct::No => false,
            Direct::Auto => !self.source().keeps_nowait(),
        }
    }
    fn file(&self) -> Option<Arc<dyn SourceFile>> {
        self.fill.original()
    }
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }
    fn marks(&self) -> &dyn Marks {
        &self.marks
    }
    fn opened(&self, file: &Arc<dyn SourceFile>, took: Duration) {
        self.fetches.accounting.note_open(&self.fill.file, took);
        self.fill.opened(file);
        self.fetches.requeue(&self.fill);
    }
    fn is_whole_file(&self) -> bool {
        false
    }
    fn is_checked(&self) -> bool {
        self.written.set(true);
        self.fill.written()
    }
    fn done(&mut self, end: Result<Copied, CopyError>) -> bool {
        self.settle(end)
    }
}
