//! The agent's steps around a large file, in the order of the agent, with the product's own state
//! of a file.

use crate::chunked_fetch::{ChunkedFetch, PlacedPart, Room};
use crate::sync::{Mutex, Ordering};
use crate::sys::futex_wake;
use crate::tier::{PartCopy, WindowFile};
use crate::window_slots::{Slot, Slots};
use crate::word::{State, Word};
use crate::world::outcome::ClaimedFile;
use crate::world::{COPY, NO_NAME, RIGHT, SLOTS, WINDOW, World, is_part};
use crate::{chunks, lock};
use std::sync::Arc;

/// The agent of the model.
pub struct Agent {
    w: &'static World,
    current: Mutex<Option<Arc<ChunkedFetch>>>,
    window: Arc<Slots>,
}

fn swap(w: &World, from: Word, to: Word) -> bool {
    w.segment.slot.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

impl Agent {
    pub fn new(w: &'static World) -> Arc<Self> {
        Arc::new(Self { w, current: Mutex::new(None), window: Slots::new(SLOTS as u32, &w.map.ctl.stream, WindowFile) })
    }

    /// Takes over the demands: `TieringEngine::drain`.
    pub fn drain(&self) -> bool {
        let mut any = false;
        self.w.segment.state.drain(|_| any = true);
        any && !self.drain_chunk_requests()
    }

    /// `TieringEngine::drain_chunk_requests`.
    pub fn drain_chunk_requests(&self) -> bool {
        let current = lock(&self.current);
        let Some(fetch) = current.clone() else { return false };
        fetch.drain_chunk_requests();
        true
    }

    /// The present fetch.
    pub fn fetch(&self) -> Option<Arc<ChunkedFetch>> {
        lock(&self.current).clone()
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
        let fetch = Arc::new(ChunkedFetch::new(file, large, PlacedPart { tier: 0, part }, streamed, false, 8));
        let mut current = lock(&self.current);
        *current = Some(fetch.clone());
        if !swap(w, fetching, claim) {
            *current = None;
            drop(current);
            self.end(&fetch, State::Bypass);
            return None;
        }
        fetch.drain_chunk_requests();
        drop(current);
        futex_wake(&w.segment.slot.word, 1);
        large.ticked();
        Some(fetch)
    }

    /// A chunk that a reader requested, under way from here on: `ChunkedFetches::next_chunk`.
    pub fn wanted(&self, fetch: &ChunkedFetch) -> Option<(u32, Room)> {
        let taken = {
            let current = lock(&self.current);
            let (chunk, room, _) = fetch.take(true, |_| Some(Room::Own))?;
            drop(current);
            (chunk, room)
        };
        // It is open; other copiers may continue: `Piece::opened`.
        fetch.not_opened();
        fetch.has_work(true);
        Some(taken)
    }

    /// The engine writes a chunk.
    pub fn write(&self, fetch: &ChunkedFetch, chunk: u32) {
        self.w.files[fetch.part.number as usize].bytes[chunk as usize].store(RIGHT, Ordering::Relaxed);
    }

    /// A free slot of the window.
    pub fn slot(&self) -> Slot {
        self.window.take(|| true).unwrap()
    }

    /// The engine writes a byte into a slot, over what was there.
    pub fn overwrite(&self, slot: &Slot, byte: u32) {
        self.w.files[WINDOW].bytes[slot.place().1 as usize].store(byte, Ordering::Relaxed);
    }

    /// Drops the only chunk in the window, as if its reader were past it.
    pub fn pass_on(&self, fetch: &ChunkedFetch) -> Option<Slot> {
        fetch.large.head.reading.store(chunks::READ_TO_END, Ordering::Relaxed);
        fetch.pass_on(None)
    }

    /// A chunk that is written into a slot of the window.
    pub fn streamed(&self, slot: Slot) -> Room {
        self.overwrite(&slot, RIGHT);
        Room::Window(slot)
    }

    /// `ChunkedFetches::end_fetch`.
    pub fn end(&self, fetch: &Arc<ChunkedFetch>, to: State) {
        lock(&self.current).take_if(|f| Arc::ptr_eq(f, fetch));
        if !fetch.end() {
            return;
        }
        if fetch.file.entry.word() == fetch.file.claim {
            swap(self.w, fetch.file.claim, fetch.file.claim.next(to));
            futex_wake(&self.w.segment.slot.word, 1);
        }
        fetch.large.ticked();
        let slots = fetch.take_slots();
        if !slots.is_empty() {
            fetch.large.count_drop();
        }
        drop(slots);
        self.w.files[fetch.part.number as usize].name.store(NO_NAME, Ordering::Release);
    }

    /// `TieringEngine::complete`; whether it was published.
    pub fn complete(&self, fetch: &Arc<ChunkedFetch>) -> bool {
        if !fetch.end() {
            return false;
        }
        lock(&self.current).take_if(|f| Arc::ptr_eq(f, fetch));
        self.w.files[fetch.part.number as usize].name.store(COPY, Ordering::Release);
        let published = swap(self.w, fetch.file.claim, fetch.file.claim.resident(0));
        futex_wake(&self.w.segment.slot.word, 1);
        if !published {
            self.w.files[fetch.part.number as usize].name.store(NO_NAME, Ordering::Release);
        }
        fetch.large.ticked();
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
