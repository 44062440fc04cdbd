//! [`ChunkCopyTask`]: one chunk of a large file while the engine copies it.

use crate::config::Direct;
use crate::engine::{Copied, CopyError, Marks, Sink, Source, SourceFile, Task};
use crate::metrics::{CopyOf, Origin};
use crate::tier::PartWriter;
use crate::tiering::copy::chunked_fetch::{ChunkMarks, ChunkedFetch, Room};
use crate::tiering::copy::chunked_fetches::{ChunkedFetches, kind_of};
use crate::tiering::copy::taken_chunk::{Counted, TakenChunk};
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
const MAX_RETRIES: u32 = 2;
/// Pause of a file after a tier has failed.
const TIER_FAILED_PAUSE: Duration = Duration::from_secs(5);

/// A chunk that is being copied, with the slots that it holds until it is dropped.
pub(crate) struct ChunkCopyTask<'a> {
    fetches: &'a ChunkedFetches,
    fetch: Arc<ChunkedFetch>,
    chunk: u32,
    room: Option<Room>,
    marks: ChunkMarks,
    sink: Option<PartWriter>,
    /// Whether its bytes were counted as written.
    written: Cell<bool>,
    failed: u32,
    /// When the task was made.
    begun: Instant,
    job: Job<'a>,
    /// The place among the chunks that no reader waits for.
    _ahead: Option<Counted<'a>>,
    /// The place among those of peers that one waits for.
    _from_peer: Option<Counted<'a>>,
}

impl<'a> ChunkCopyTask<'a> {
    pub(crate) fn new(fetches: &'a ChunkedFetches, taken: TakenChunk<'a>) -> Self {
        let TakenChunk { fetch, chunk, room, job, ahead, from_peer } = taken;
        let marks = ChunkMarks { fetch: fetch.clone(), demanded: ahead.is_none() };
        Self {
            fetches,
            fetch,
            chunk,
            room: Some(room),
            marks,
            sink: None,
            written: Cell::new(false),
            failed: 0,
            begun: Instant::now(),
            job,
            _ahead: ahead,
            _from_peer: from_peer,
        }
    }

    /// Opens the partial copy. `None` when that fails, which gives the file up.
    pub(crate) fn ready(mut self) -> Option<Self> {
        let (range, fetch) = (self.range(), &self.fetch);
        let tier = self.fetches.cx.tiers.get(fetch.tier)?;
        let opened = match &self.room {
            Some(Room::Window(slot)) => {
                let (file, number, is_fresh) = slot.place();
                file.open(number, &range, is_fresh)
            }
            _ => tier.parts.open(&fetch.part, range.start, range.end - range.start),
        };
        match opened {
            Ok(sink) => {
                if fetch.is_paged()
                    && let Some(file) = fetch.original()
                {
                    file.read_ahead(range);
                }
                self.sink = Some(sink);
                Some(self)
            }
            Err(e) => {
                if fetch.file.entry.word() == fetch.file.claim {
                    self.fetches.cx.tier_failed(tier, &e);
                }
                self.fetches.give_up(fetch, CopyOutcome::Refused(Refusal::TierFailed, Some(TIER_FAILED_PAUSE)));
                None
            }
        }
    }

    /// Notes that a lane has taken it.
    pub(crate) fn assigned(&mut self, lane: Lane) {
        if self.fetch.file.origin() != Origin::Pfs {
            return;
        }
        self.job.slot.uses_reserve(!self.marks.demanded);
        let range = self.range();
        self.fetches.lanes.note_assigned(&self.fetch.file.live, kind_of(&self.fetch), lane, range.end - range.start);
    }

    /// Ends its count among the chunks that are prefetched.
    fn land(&self) {
        if !self.marks.demanded {
            self.fetch.landed();
        }
    }

    /// Handles the end of the copy. Returns `true` if the chunk has to be copied again.
    fn settle(&mut self, end: Result<Copied, CopyError>) -> bool {
        let (fetches, fetch) = (self.fetches, self.fetch.clone());
        if let Ok(copied) = &end
            && fetch.file.origin() == Origin::Pfs
        {
            fetches.cx.stats.source_bytes.fetch_add(copied.bytes, Ordering::Relaxed);
        }
        let copied = match end.and_then(|copied| check_version(copied, &fetch)) {
            Ok(copied) => copied,
            Err(e) => return self.failed(&e),
        };
        if copied.identity.is_some() {
            fetch.checked();
        }
        if fetch.file.packed.is_none() {
            fetches.cx.stats.bytes.fetch_add(copied.bytes, Ordering::Relaxed);
            fetches.cx.stats.chunks.fetch_add(1, Ordering::Relaxed);
        }
        fetches.cx.latencies.copied(fetch.file.origin(), CopyOf::Chunk, self.begun.elapsed());
        if fetch.file.origin() == Origin::Pfs {
            fetches.accounting.note_copy(copied.bytes, self.begun.elapsed());
        }
        fetches.note_rate(copied.bytes, self.begun);
        if let Some(sum) = copied.checksum {
            fetches.peers.notify_chunk(&fetch.file, &self.range(), sum);
        }
        let last = fetch.summed(self.chunk, copied.checksum);
        self.room = self.room.take().and_then(|room| fetch.arrived(self.chunk, room));
        // (The fetch may have ended: then no process has seen the bytes, and their slot is free.)
        self.room = None;
        self.land();
        if last {
            fetches.complete(&fetch);
        } else {
            fetches.requeue(&fetch);
        }
        false
    }

    fn failed(&mut self, e: &CopyError) -> bool {
        let (fetches, fetch) = (self.fetches, &self.fetch);
        fetch.not_opened();
        let gone = fetch.file.entry.word() != fetch.file.claim;
        self.failed += 1;
        if let (CopyError::Source(e), Some((_, below)), false) = (e, &fetch.file.packed, gone) {
            // Its compressed copy is removed: the next demand fetches the file.
            fetches.cx.drop_damaged_packed(&fetch.file, *below, e);
            self.land();
            fetches.give_up(fetch, CopyOutcome::Stopped);
            return false;
        }
        let again = matches!(e, CopyError::Source(_)) && self.failed <= MAX_RETRIES && !self.written.get() && !gone;
        if again {
            return true;
        }
        self.room = None;
        self.land();
        let end = match e {
            CopyError::Stopped => {
                fetch.give_back(self.chunk);
                return false;
            }
            _ if gone => CopyOutcome::Bypass,
            CopyError::Sink(e) => {
                if let Some(tier) = fetches.cx.tiers.get(fetch.tier) {
                    fetches.cx.tier_failed(tier, e);
                }
                CopyOutcome::Refused(Refusal::TierFailed, Some(TIER_FAILED_PAUSE))
            }
            _ => fetches.publisher.after_failure(e, &fetch.file).unwrap_or(CopyOutcome::Stopped),
        };
        fetches.give_up(fetch, end);
        false
    }
}

/// Checks that the bytes are of the version that was indexed.
fn check_version(copied: Copied, fetch: &ChunkedFetch) -> Result<Copied, CopyError> {
    if copied.identity.is_none_or(|id| fetch.file.live.is_same(&id, &fetch.file.want)) {
        Ok(copied)
    } else {
        Err(CopyError::Changed)
    }
}

impl Task for ChunkCopyTask<'_> {
    fn source(&self) -> &dyn Source {
        &*self.fetch.file.live.source
    }
    fn rel(&self) -> &[u8] {
        &self.fetch.file.rel
    }
    fn range(&self) -> Range<u64> {
        self.fetch.range(self.chunk)
    }
    fn is_direct(&self) -> bool {
        if self.fetch.is_paged() {
            return false;
        }
        match self.fetches.cx.options.direct {
            Direct::Yes => true,
            Direct::No => false,
            Direct::Auto => !self.source().keeps_nowait(),
        }
    }
    fn file(&self) -> Option<Arc<dyn SourceFile>> {
        self.fetch.original()
    }
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }
    fn marks(&self) -> &dyn Marks {
        &self.marks
    }
    fn opened(&self, file: &Arc<dyn SourceFile>, took: Duration) {
        self.fetches.accounting.note_open(&self.fetch.file, took);
        if self.fetch.is_paged() {
            file.share_cache();
            file.read_ahead(self.range());
        }
        self.fetch.opened(file);
        self.fetches.requeue(&self.fetch);
    }
    fn is_whole_file(&self) -> bool {
        false
    }
    fn is_summed(&self) -> bool {
        // Peers ask for it, and a copy that is to be whole has it from those of its chunks.
        !self.fetch.streamed || self.fetches.peers.get().is_some()
    }
    fn is_checked(&self) -> bool {
        self.written.set(true);
        self.fetch.written()
    }
    fn done(&mut self, end: Result<Copied, CopyError>) -> bool {
        self.settle(end)
    }
}
