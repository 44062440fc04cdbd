//! [`ChunkedFetch`]: a large file while its chunks are fetched: which are requested, in flight, and
//! present.
//!
//! Chunks that readers request go first. Then, if the file is prefetched at all, the rest follows
//! from the place of the last reader on. One chunk opens the file on the PFS for all others. A
//! sequential reader requests some chunks before it needs them; the entry says how many
//! ([`Large::ahead`](monarch_abi::chunks::Large::ahead)).

use crate::engine::{Marks, SourceFile};
use crate::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::tier::{PartCopy, Sum};
use crate::tiering::copy::chunk_progress::{Original, Progress};
use crate::tiering::copy::window_slots::Slot;
use crate::tiering::core::claimed_file::ClaimedFile;
use monarch_abi::chunks::{LargeFile, PAGED, READ_TO_END, REST};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the file on the PFS stays open without reads.
const KEEP_OPEN_FOR: Duration = Duration::from_secs(60);
/// Age of the last check of the file's identity up to which a chunk is published without another
/// one.
const MAX_CHECK_AGE: Duration = Duration::from_secs(1);

/// A large file whose chunks are fetched into a partial copy.
///
/// Methods: 32, most of them one step of [`Progress`] under its lock.
pub(crate) struct ChunkedFetch {
    pub(crate) file: ClaimedFile,
    pub(crate) large: LargeFile<'static>,
    /// Tier of the partial copy.
    pub(crate) tier: usize,
    pub(crate) part: PartCopy,
    /// Whether chunks are streamed through the window, because there is no space for all of them.
    pub(crate) streamed: bool,
    /// PFS calls in flight.
    calls: AtomicU32,
    progress: Mutex<Progress>,
}

/// A partial copy that has space in a tier.
pub(crate) struct PlacedPart {
    pub(crate) tier: usize,
    pub(crate) part: PartCopy,
}

/// What is in flight and present of a file.
pub(crate) struct ProgressView {
    /// One bit for each chunk that is in flight or present.
    pub(crate) taken: Vec<u64>,
    /// One bit for each chunk that is present.
    pub(crate) present: Vec<u64>,
    /// Number of chunks that are in flight or queued.
    pub(crate) in_flight: usize,
    /// Whether the rest is fetched, and whether a process has asked for it.
    pub(crate) rest: bool,
    pub(crate) rest_asked: bool,
}

/// The space of a chunk's bytes.
pub(crate) enum Room {
    /// Reserved for the file.
    Own,
    /// In the window of streamed files.
    Window(Slot),
}

impl ChunkedFetch {
    pub(crate) fn new(
        file: ClaimedFile,
        large: LargeFile<'static>,
        PlacedPart { tier, part }: PlacedPart,
        streamed: bool,
        rest: bool,
        width: u32,
    ) -> Self {
        let (now, chunks) = (Instant::now(), large.chunks());
        let progress = Progress {
            original: file.open_source().map_or(Original::Closed, Original::Supplied),
            wanted: VecDeque::new(),
            rest,
            cursor: 0,
            paged: false,
            rest_asked: false,
            unasked: 0,
            width,
            taken: vec![0; monarch_abi::chunks::words_of(chunks)],
            present: vec![0; monarch_abi::chunks::words_of(chunks)],
            sums: vec![0; if streamed { 0 } else { chunks as usize }],
            summed: 0,
            written: 0,
            passing: VecDeque::new(),
            keeps_some: false,
            asked: now,
            checked: None,
            busy: now,
            ended: false,
        };
        Self { file, large, tier, part, streamed, calls: AtomicU32::new(0), progress: Mutex::new(progress) }
    }

    /// The range of a chunk's bytes in the file.
    pub(crate) fn range(&self, chunk: u32) -> Range<u64> {
        let size = self.part.size;
        let start = u64::from(chunk).saturating_mul(self.large.chunk).min(size);
        start..size.min(start.saturating_add(self.large.chunk))
    }

    /// Takes what readers have requested. Returns whether they have. A reader that requests a chunk
    /// that is present has found its bit or tag damaged, or asked before it came: that is set
    /// again.
    pub(crate) fn drain_chunk_requests(&self) -> bool {
        let mut p = lock(&self.progress);
        let mut any = false;
        self.large.take_wanted(|chunk| {
            any = true;
            p.cursor = chunk + 1;
            if !p.ended && p.is_present(chunk) && !self.large.has(chunk) {
                match p.passing.iter_mut().find(|(passing, _)| *passing == chunk) {
                    Some((_, slot)) => slot.show(self.part.number, chunk),
                    None => self.large.arrived(chunk),
                }
            }
            if !p.is_taken(chunk) && !p.wanted.contains(&chunk) {
                p.wanted.push_back(chunk);
            }
        });
        let asked = self.large.head.rest.swap(0, Ordering::AcqRel);
        if asked != 0 {
            any = true;
            p.paged |= asked & PAGED != 0 && !self.streamed;
            p.rest_asked |= asked & REST != 0;
            p.rest = !self.streamed && !p.paged;
        }
        if any {
            p.asked = Instant::now();
        }
        any
    }

    /// Has the rest fetched, unless the file is streamed.
    pub(crate) fn fetch_rest(&self) {
        lock(&self.progress).rest = !self.streamed;
    }

    /// Whether a process reads the file of the PFS through the page cache.
    pub(crate) fn is_paged(&self) -> bool {
        lock(&self.progress).paged
    }

    /// Whether a process has asked for the whole file.
    pub(crate) fn is_rest_asked(&self) -> bool {
        lock(&self.progress).rest_asked
    }

    /// What is in flight and present, for the component that follows readers through the page
    /// cache. `None` once the fetch has ended.
    pub(crate) fn view(&self) -> Option<ProgressView> {
        let p = lock(&self.progress);
        let waiting = p.wanted.iter().filter(|&&c| !p.is_taken(c)).count();
        let in_flight = p.in_flight() + waiting;
        let view = ProgressView {
            taken: p.taken.clone(),
            present: p.present.clone(),
            in_flight,
            rest: p.rest,
            rest_asked: p.rest_asked,
        };
        (!p.ended).then_some(view)
    }

    /// Queues chunks, as if a reader had requested them.
    pub(crate) fn want(&self, chunks: &[u32]) {
        let mut p = lock(&self.progress);
        for &chunk in chunks {
            if !p.is_taken(chunk) && !p.wanted.contains(&chunk) {
                p.wanted.push_back(chunk);
            }
        }
    }

    /// Takes the next chunk to fetch, with its space, and whether there are more. It counts as in
    /// flight from here on. If `room` finds no space, the chunk stays queued.
    pub(crate) fn take(&self, demanded: bool, mut room: impl FnMut(u32) -> Option<Room>) -> Option<(u32, Room, bool)> {
        let chunks = self.large.chunks();
        // (Without the lock: `room` may drop a chunk of this very file.)
        let (chunk, room) = if self.streamed && demanded {
            let nearest_first = lock(&self.progress).wanted_from(self.reader_at())?;
            nearest_first.into_iter().find_map(|chunk| Some((chunk, room(chunk)?)))?
        } else {
            let chunk = lock(&self.progress).next(demanded, chunks)?;
            (chunk, room(chunk)?)
        };
        let mut p = lock(&self.progress);
        if p.ended || p.is_taken(chunk) || matches!(p.original, Original::Opening) {
            return None;
        }
        p.begin(chunk);
        p.unasked += u32::from(!demanded);
        let more = p.next(demanded, chunks).is_some();
        Some((chunk, room, more))
    }

    /// Whether there is a chunk to fetch now.
    pub(crate) fn has_work(&self, demanded: bool) -> bool {
        lock(&self.progress).next(demanded, self.large.chunks()).is_some()
    }

    /// The file that chunks are read from, if it is open.
    pub(crate) fn original(&self) -> Option<Arc<dyn SourceFile>> {
        match &lock(&self.progress).original {
            Original::Open(file) | Original::Supplied(file) => Some(file.clone()),
            Original::Closed | Original::Opening => None,
        }
    }

    /// Notes the file on the PFS that a chunk has opened.
    pub(crate) fn opened(&self, file: &Arc<dyn SourceFile>) {
        lock(&self.progress).original = Original::Open(file.clone());
    }

    /// Notes that the open of the file failed: the next chunk opens it.
    pub(crate) fn not_opened(&self) {
        let mut p = lock(&self.progress);
        if let Original::Opening = p.original {
            p.original = Original::Closed;
        }
    }

    /// Closes the file on the PFS if it has not been read for a while.
    pub(crate) fn close_if_idle(&self) {
        lock(&self.progress).close(KEEP_OPEN_FOR);
    }

    /// Notes that a chunk's bytes are all written. Returns whether to check the file's identity, as
    /// after the last chunk.
    pub(crate) fn written(&self) -> bool {
        let mut p = lock(&self.progress);
        p.written += 1;
        p.busy = Instant::now();
        let last = !self.streamed && p.written == self.large.chunks();
        last || p.checked.is_none_or(|t| t.elapsed() > MAX_CHECK_AGE)
    }

    /// Notes that the file's identity was as indexed.
    pub(crate) fn checked(&self) {
        lock(&self.progress).checked = Some(Instant::now());
    }

    /// Notes the checksum, if there is one, of a chunk that is about to be published. Returns
    /// whether it is the last one. (The chunk that was written last checks the file's identity;
    /// others may end after it.)
    pub(crate) fn summed(&self, chunk: u32, sum: Option<u64>) -> bool {
        let mut p = lock(&self.progress);
        if let (Some(s), Some(sum)) = (p.sums.get_mut(chunk as usize), sum) {
            *s = sum;
        }
        p.summed += 1;
        !self.streamed && p.summed == self.large.chunks()
    }

    /// The checksum of the file, once all chunks are present.
    pub(crate) fn sum(&self) -> Sum {
        Sum::of_pieces(&lock(&self.progress).sums, self.large.chunk)
    }

    /// Publishes a chunk. Returns its space if the fetch has ended. Readers see it before the fetch
    /// can end or the chunk can be dropped: otherwise its bit could be another partial copy's, or
    /// that of bytes that are gone.
    pub(crate) fn arrived(&self, chunk: u32, room: Room) -> Option<Room> {
        let mut p = lock(&self.progress);
        if p.ended {
            return Some(room);
        }
        p.mark_present(chunk);
        match room {
            Room::Window(mut slot) => {
                slot.show(self.part.number, chunk);
                p.passing.push_back((chunk, slot));
                drop(p);
                self.large.ticked();
            }
            Room::Own => self.large.arrived(chunk),
        }
        None
    }

    /// Notes that a prefetched chunk is no longer in flight.
    pub(crate) fn landed(&self) {
        let mut p = lock(&self.progress);
        p.unasked = p.unasked.saturating_sub(1);
    }

    /// Notes that a chunk could not be fetched.
    pub(crate) fn give_back(&self, chunk: u32) {
        lock(&self.progress).give_back(chunk);
    }

    /// Drops the chunk in the window that readers need least, for `next`, another chunk of this
    /// file, or of another one. Returns its slot, which may be overwritten.
    pub(crate) fn pass_on(&self, next: Option<u32>) -> Option<Slot> {
        let at = self.reader_at();
        let mut p = lock(&self.progress);
        let least_needed = p.least_needed(at, next)?;
        let (chunk, mut slot) = p.passing.remove(least_needed)?;
        slot.hide();
        self.large.count_drop();
        p.give_back(chunk);
        drop(p);
        // A reader that looked between tag and count sleeps again without knowing.
        self.large.ticked();
        Some(slot)
    }

    /// Number of chunks in the window.
    pub(crate) fn passing(&self) -> usize {
        lock(&self.progress).passing.len()
    }

    /// Number of chunks in the window or on their way into it. (Those on their way into space of
    /// their own count, too.)
    pub(crate) fn held(&self) -> usize {
        let p = lock(&self.progress);
        p.passing.len() + p.in_flight()
    }

    /// Takes all its slots, once it has ended. The caller counts a drop before they are used again.
    pub(crate) fn take_slots(&self) -> Vec<Slot> {
        let mut p = lock(&self.progress);
        let hidden = |(_, mut slot): (u32, Slot)| {
            slot.hide();
            slot
        };
        p.passing.drain(..).map(hidden).collect()
    }

    /// The chunk that its reader is at.
    fn reader_at(&self) -> u32 {
        self.large.head.reading.load(Ordering::Relaxed)
    }

    /// Whether its reader has reached the end.
    pub(crate) fn is_read(&self) -> bool {
        self.reader_at() == READ_TO_END
    }

    /// Notes that a chunk of a streamed file has space of its own.
    pub(crate) fn keep_some(&self) {
        lock(&self.progress).keeps_some = true;
    }

    /// Whether some chunks of a streamed file stay for its next reader.
    pub(crate) fn keeps_some(&self) -> bool {
        lock(&self.progress).keeps_some
    }

    /// Time since the last request of a reader.
    pub(crate) fn idle(&self) -> Duration {
        lock(&self.progress).asked.elapsed()
    }

    /// Time since a chunk was in flight.
    pub(crate) fn rests(&self) -> Duration {
        lock(&self.progress).busy.elapsed()
    }

    /// Ends the fetch. Returns `false` if it had ended.
    pub(crate) fn end(&self) -> bool {
        let mut p = lock(&self.progress);
        p.close(Duration::ZERO);
        !std::mem::replace(&mut p.ended, true)
    }
}

/// Shows readers the PFS calls for one chunk.
pub(crate) struct ChunkMarks {
    pub(crate) fetch: Arc<ChunkedFetch>,
    pub(crate) demanded: bool,
}

impl Marks for ChunkMarks {
    fn in_pfs(&self, inside: bool) {
        let calls = &self.fetch.calls;
        let now = if inside {
            calls.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            calls.fetch_sub(1, Ordering::Relaxed).saturating_sub(1)
        };
        // The entry may be that of another partial copy by now.
        let head = self.fetch.large.head;
        if head.part.load(Ordering::Relaxed) == self.fetch.part.number {
            head.in_pfs.store(now, Ordering::Relaxed);
        }
    }
    fn progress(&self) {
        self.fetch.large.head.tick.fetch_add(1, Ordering::Relaxed);
    }
    fn waited_for(&self) -> bool {
        self.demanded
    }
}
