//! [`Streaming`]: streams large files that no tier has space for through the window.

use crate::sync::lock;
use crate::tiering::copy::chunked_fetch::PlacedPart;
use crate::tiering::copy::chunked_fetches::ChunkedFetches;
use crate::tiering::copy::fetch_lines::FetchLines;
use crate::tiering::copy::fetching::Fetching;
use crate::tiering::copy::stream_window;
use crate::tiering::copy::stream_window::Window;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::outcome::CopyOutcome;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::{LiveSegment, Segments};
use crate::tiering::core::shared::Shared;
use crate::tiering::placement::Placement;
use crate::tiering::placement::reclaim::Reclaim;
use monarch_abi::chunks::LargeFile;
use std::sync::{Arc, Mutex};

/// Streams large files that no tier has space for.
pub(crate) struct Streaming {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    fetch_lines: Arc<Mutex<FetchLines>>,
    peers: Arc<PeerLink>,
    reclaim: Arc<Reclaim>,
    fetches: Arc<ChunkedFetches>,
}

impl Streaming {
    pub(crate) fn new(shared: &Shared, placement: &Placement, fetching: &Fetching) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            fetch_lines: fetching.fetch_lines.clone(),
            peers: shared.peers.clone(),
            reclaim: placement.reclaim.clone(),
            fetches: fetching.fetches.clone(),
        }
    }

    /// Streams a file through the window. Returns `false` if it cannot be.
    pub(crate) fn stream(&self, file: &ClaimedFile, large: LargeFile<'static>) -> bool {
        let tier = {
            let mut lines = lock(&self.fetch_lines);
            let Some(window) = lines.window.as_ref().filter(|w| w.takes(large.chunk)) else { return false };
            let (tier, most) = (window.tier, window.most());
            // (More than one: files that started at the same time may be too many.)
            let mut done = Vec::new();
            while lines.streamed.len() >= most
                && let Some(one) = stream_window::next_to_end(&lines.streamed).cloned()
            {
                lines.remove(&one);
                done.push(one);
            }
            let has_place = lines.streamed.len() < most;
            drop(lines);
            done.iter().for_each(|one| self.fetches.end_fetch(one, CopyOutcome::Streamed));
            if !has_place {
                return false;
            }
            tier
        };
        let Some(dir) = self.cx.tiers.get(tier) else { return false };
        match dir.parts.begin(file.want.size, false) {
            Ok(Some(part)) => {
                self.fetches.start(file.clone(), large, PlacedPart { tier, part }, true);
                true
            }
            Ok(None) => false,
            Err(e) => {
                self.cx.tier_failed(dir, &e);
                false
            }
        }
    }

    /// Makes the window if there are large files and not everything fits.
    pub(crate) fn make_window(&self, live: &LiveSegment) {
        let state = &live.segment.state;
        let room: u64 = self.cx.tiers.iter().map(|t| t.space.ledger.usage().capacity).sum();
        let segments = self.segments.read();
        let bytes: u64 = segments.iter().flatten().map(|l| l.segment.index.header.bytes).fold(0, u64::saturating_add);
        drop(segments);
        // (Files of peers may be larger than the space for transient copies.)
        let all_fit = bytes <= room / 16 * 15 && self.peers.get().is_none();
        if state.header.large == 0 || all_fit || !lock(&self.fetch_lines).wants_window(state.header.chunk) {
            return;
        }
        let make_room = |tier, bytes| {
            self.reclaim.shrink(tier, bytes);
        };
        let before = lock(&self.fetch_lines).window.as_ref().map(Window::chunk);
        let make = |chunk| Window::make(&self.cx.tiers, &self.cx.ctl.ctl.stream, chunk, bytes <= room, make_room);
        if before.is_some() {
            // The next window can use its space.
            lock(&self.fetch_lines).drop_window();
        }
        let window = make(state.header.chunk).or_else(|| before.and_then(make));
        // Another root may have made one first: then this window gives its space back.
        let mut lines = lock(&self.fetch_lines);
        lines.window = lines.window.take().or(window);
    }
}
