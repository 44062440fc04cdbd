//! Large files that no tier has room for: some chunks stay as long as there is room for chunks, the
//! others pass through the window.

use super::chunked_fetch::{ChunkedFetch, Room};
use super::chunked_fetches::ChunkedFetches;
use super::outcome::{ClaimedFile, CopyOutcome};
use super::stream_window::{self, Window};
use super::{LiveSegment, TieringEngine};
use crate::sync::lock;
use monarch_abi::chunks::LargeFile;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl TieringEngine {
    /// Room for a chunk. Of a file that is to be whole it is reserved already.
    pub(super) fn room_for(&self, fills: &ChunkedFetches, fill: &ChunkedFetch, chunk: u32) -> Option<Room> {
        if !fill.streamed {
            return Some(Room::Own);
        }
        let range = fill.range(chunk);
        let tier = self.tiers.get(fill.tier)?;
        let window = fills.window.as_ref()?;
        if window.may_keep(fill, &fills.streamed)
            && self.keeps(fill, range.end - range.start)
            && tier.grow_part(&fill.part, range.end - range.start)
        {
            fill.keep_some();
            return Some(Room::Own);
        }
        let slot = window.slot(fill, &fills.streamed, &self.tiers)?;
        Some(Room::Window(slot))
    }

    /// Whether there is room for a chunk of a file that does not fit as a whole.
    fn keeps(&self, fill: &ChunkedFetch, bytes: u64) -> bool {
        self.tiers.get(fill.tier).is_some_and(|tier| {
            let (u, kept) = self.usage_and_kept(fill.tier, tier);
            let free = u.capacity.saturating_sub(u.used + u.reserved + kept);
            !tier.suspended() && free >= bytes
        })
    }

    /// Lets a file that no tier has room for pass through the window; `false` if that cannot be.
    pub(super) fn stream(&self, file: &ClaimedFile, large: LargeFile<'static>) -> bool {
        let tier = {
            let mut fills = lock(&self.chunked_fetches);
            let Some(window) = fills.window.as_ref().filter(|w| w.takes(large.chunk)) else { return false };
            let (tier, most) = (window.tier, window.most());
            // (More than one: files that began at the same time may be too many.)
            let mut done = Vec::new();
            while fills.streamed.len() >= most
                && let Some(one) = stream_window::makes_way(&fills.streamed).cloned()
            {
                fills.remove(&one);
                done.push(one);
            }
            let has_place = fills.streamed.len() < most;
            drop(fills);
            done.iter().for_each(|one| self.end_fill(one, CopyOutcome::Streamed));
            if !has_place {
                return false;
            }
            tier
        };
        let Some(dir) = self.tiers.get(tier) else { return false };
        match dir.begin_part(file.want.size, false) {
            Ok(Some(part)) => {
                self.fill(file.clone(), large, (tier, part), true);
                true
            }
            Ok(None) => false,
            Err(e) => {
                self.tier_failed(dir, &e);
                false
            }
        }
    }

    /// Keeps room for a window if there are large files and not everything fits.
    pub(super) fn make_window(&self, live: &LiveSegment) {
        let state = &live.segment.state;
        let room: u64 = self.tiers.iter().map(|t| t.ledger.usage().capacity).sum();
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let bytes: u64 = segments.iter().flatten().map(|l| l.segment.index.header.bytes).fold(0, u64::saturating_add);
        drop(segments);
        // (Files of other nodes may be larger than what is kept for them.)
        let all_fit = bytes <= room / 16 * 15 && self.peers.get().is_none();
        if state.header.large == 0 || all_fit || !lock(&self.chunked_fetches).wants_window(state.header.chunk) {
            return;
        }
        let make_room = |tier, bytes| {
            self.shrink(tier, bytes);
        };
        let before = lock(&self.chunked_fetches).window.as_ref().map(Window::chunk);
        let make = |chunk| Window::make(&self.tiers, chunk, bytes <= room, make_room);
        if before.is_some() {
            // Its room is of use to the next one.
            lock(&self.chunked_fetches).drop_window();
        }
        let window = make(state.header.chunk).or_else(|| before.and_then(make));
        // Another root may have come first: then this one gives its room back.
        let mut fills = lock(&self.chunked_fetches);
        fills.window = fills.window.take().or(window);
    }

    /// Whether a file that no tier takes may be streamed if somebody reads it.
    pub(super) fn can_stream(&self, file: &ClaimedFile) -> bool {
        let takes =
            |large: LargeFile<'_>| lock(&self.chunked_fetches).window.as_ref().is_some_and(|w| w.takes(large.chunk));
        file.live.segment.state.large(file.entry.id).is_some_and(takes)
    }
}

impl ChunkedFetches {
    /// Whether there is no window for chunks of so many bytes, nor one that is in use.
    fn wants_window(&self, chunk: u64) -> bool {
        self.window.as_ref().is_none_or(|w| !w.takes(chunk) && self.streamed.is_empty())
    }

    /// Large files of no index are served any more: what is kept for a window is room for others.
    pub(super) fn drop_window(&mut self) {
        if self.streamed.is_empty() {
            self.window = None;
        }
    }

    /// Upkeep: fewer files may be read than before, and chunks that found no slot may find one.
    pub(super) fn tend_window(&mut self) {
        if let Some(window) = &mut self.window {
            window.tend();
        }
        self.share_window();
        for fill in self.streamed.clone() {
            self.line_up(&fill);
        }
    }

    /// Says to the readers of streamed files how many chunks they may ask for ahead, by how many
    /// such files there are.
    pub(super) fn share_window(&mut self) {
        let Some(window) = &mut self.window else { return };
        let ahead = window.divide(&self.streamed);
        self.streamed.iter().for_each(|f| f.large.head.ahead.store(ahead, Ordering::Relaxed));
    }
}
