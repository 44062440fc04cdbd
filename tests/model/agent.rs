//! The agent, after `tiering/{fetch,fills,evict}.rs`: the same steps in the same order, with the
//! product's own account of a file.

use crate::chunked_fetch::{ChunkedFetch, Room, Slots};
use crate::sync::{Mutex, Ordering};
use crate::sys::futex_wake;
use crate::tier::PartCopy;
use crate::word::{State, Word};
use crate::world::outcome::ClaimedFile;
use crate::world::{COPY, HOLE, NO_NAME, RIGHT, World, is_part};
use crate::{chunks, lock};
use std::sync::Arc;

/// See the module.
pub struct Agent {
    w: &'static World,
    fills: Mutex<Option<Arc<ChunkedFetch>>>,
    window: Arc<Slots>,
}

fn swap(w: &World, from: Word, to: Word) -> bool {
    w.segment.slot.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

impl Agent {
    pub fn new(w: &'static World) -> Arc<Self> {
        Arc::new(Self { w, fills: Mutex::new(None), window: Slots::new(8, ()) })
    }

    /// Takes over what was asked for: `TieringEngine::drain`.
    pub fn drain(&self) -> bool {
        let mut any = false;
        self.w.segment.state.drain(|_| any = true);
        any && !self.drain_chunk_requests()
    }

    /// `TieringEngine::heed`.
    pub fn drain_chunk_requests(&self) -> bool {
        let fills = lock(&self.fills);
        let Some(fill) = fills.clone() else { return false };
        fill.drain_chunk_requests();
        true
    }

    /// The present fill.
    pub fn fill(&self) -> Option<Arc<ChunkedFetch>> {
        lock(&self.fills).clone()
    }

    /// Claims the file and opens the partial copy with this number to readers:
    /// `TieringEngine::{begin, claim, fill}`.
    pub fn begin(&self, number: usize, streamed: bool, from: State) -> Option<Arc<ChunkedFetch>> {
        let w = self.w;
        let before = w.segment.entry().word();
        if before.state() == State::Partial {
            self.drain_chunk_requests();
        }
        let fetching = before.with(State::Fetching);
        if before.state() != from || !swap(w, before, fetching) {
            return None;
        }
        w.files[number].name.store(is_part(number), Ordering::Release);
        let large = w.large();
        large.begin(number as u64, if streamed { chunks::STREAMED } else { chunks::WHOLE });
        let claim = fetching.partial(0);
        let part = PartCopy { number: number as u64, size: w.segment.record.size };
        let file = ClaimedFile { entry: w.segment.entry(), claim };
        let fill = Arc::new(ChunkedFetch::new(file, large, (0, part), streamed, false, 8));
        let mut fills = lock(&self.fills);
        *fills = Some(fill.clone());
        if !swap(w, fetching, claim) {
            *fills = None;
            drop(fills);
            self.end(&fill, State::Bypass);
            return None;
        }
        fill.drain_chunk_requests();
        drop(fills);
        futex_wake(&w.segment.slot.word, 1);
        large.ticked();
        Some(fill)
    }

    /// Chunks that were asked for, on their way from here on: `TieringEngine::next_piece`.
    pub fn wanted(&self, fill: &ChunkedFetch) -> Option<(u32, Room)> {
        let taken = {
            let fills = lock(&self.fills);
            let (chunk, room, _) = fill.take(true, |_| Some(Room::Own))?;
            drop(fills);
            (chunk, room)
        };
        // It is open; others may go on: `Piece::opened`.
        fill.not_opened();
        fill.has_work(true);
        Some(taken)
    }

    /// The engine writes a chunk.
    pub fn write(&self, fill: &ChunkedFetch, chunk: u32) {
        self.w.files[fill.part.number as usize].bytes[chunk as usize].store(RIGHT, Ordering::Relaxed);
    }

    /// Room in the window.
    pub fn slot(&self) -> Room {
        Room::Window(self.window.take().unwrap())
    }

    /// `TierDir::punch`.
    pub fn punch(&self, fill: &ChunkedFetch, chunk: u32) {
        self.w.files[fill.part.number as usize].bytes[chunk as usize].store(HOLE, Ordering::Relaxed);
    }

    /// `TieringEngine::end_fill`.
    pub fn end(&self, fill: &Arc<ChunkedFetch>, to: State) {
        lock(&self.fills).take_if(|f| Arc::ptr_eq(f, fill));
        if !fill.end() {
            return;
        }
        if fill.file.entry.word() == fill.file.claim {
            swap(self.w, fill.file.claim, fill.file.claim.next(to));
            futex_wake(&self.w.segment.slot.word, 1);
        }
        fill.large.ticked();
        self.w.files[fill.part.number as usize].name.store(NO_NAME, Ordering::Release);
    }

    /// `TieringEngine::complete`; whether it was published.
    pub fn complete(&self, fill: &Arc<ChunkedFetch>) -> bool {
        if !fill.end() {
            return false;
        }
        lock(&self.fills).take_if(|f| Arc::ptr_eq(f, fill));
        self.w.files[fill.part.number as usize].name.store(COPY, Ordering::Release);
        let published = swap(self.w, fill.file.claim, fill.file.claim.resident(0));
        futex_wake(&self.w.segment.slot.word, 1);
        if !published {
            self.w.files[fill.part.number as usize].name.store(NO_NAME, Ordering::Release);
        }
        fill.large.ticked();
        published
    }

    /// `TieringEngine::drop_copy`.
    pub fn evict_copy(&self, number: usize) -> bool {
        let word = self.w.segment.entry().word();
        let refused = word.next(State::Refused);
        if word.state() != State::Resident || !swap(self.w, word, refused) {
            return false;
        }
        self.w.files[number].name.store(NO_NAME, Ordering::Release);
        swap(self.w, refused, refused.next(State::Absent))
    }
}
