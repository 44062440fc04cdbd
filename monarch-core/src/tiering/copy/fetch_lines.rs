//! TODO

use crate::tiering::copy::chunked_fetch::ChunkedFetch;
use crate::tiering::copy::stream_window::Window;
use crate::tiering::core::claimed_file::ClaimedFile;
use monarch_abi::chunks::LargeFile;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// See the module.
#[derive(Default)]
pub(crate) struct FetchLines {
    pub(crate) by_key: HashMap<u64, Arc<ChunkedFetch>>,
    /// Files with chunks that somebody waits for.
    demanded: VecDeque<Arc<ChunkedFetch>>,
    /// Files of which all is to be fetched.
    rest: VecDeque<Arc<ChunkedFetch>>,
    pub(crate) streamed: Vec<Arc<ChunkedFetch>>,
    pub(crate) window: Option<Window>,
    pub(crate) rate: Rate,
}

/// How fast chunks come.
#[derive(Default)]
pub(crate) struct Rate {
    since: Option<Instant>,
    bytes: u64,
}

impl Rate {
    /// Takes note of bytes; the rate, once there are enough of them.
    pub(crate) fn note(&mut self, bytes: u64) -> Option<u64> {
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

impl FetchLines {
    /// Whether there is no window for chunks of so many bytes, nor one that is in use.
    pub(crate) fn wants_window(&self, chunk: u64) -> bool {
        self.window.as_ref().is_none_or(|w| !w.takes(chunk) && self.streamed.is_empty())
    }

    /// Large files of no index are served any more: what is kept for a window is room for others.
    pub(crate) fn drop_window(&mut self) {
        if self.streamed.is_empty() {
            self.window = None;
        }
    }

    /// Upkeep: fewer files may be read than before, and chunks that found no slot may find one.
    pub(crate) fn tend_window(&mut self) {
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
    pub(crate) fn share_window(&mut self) {
        let Some(window) = &mut self.window else { return };
        let ahead = window.divide(&self.streamed);
        self.streamed.iter().for_each(|f| f.large.head.ahead.store(ahead, Ordering::Relaxed));
    }

    /// Puts a file in line for what it has to be fetched; whether there is something.
    pub(crate) fn line_up(&mut self, fill: &Arc<ChunkedFetch>) -> bool {
        let (wanted, rest) = (fill.has_work(true), fill.has_work(false));
        if wanted {
            put(&mut self.demanded, fill);
        }
        if rest {
            put(&mut self.rest, fill);
        }
        wanted || rest
    }

    pub(crate) fn remove(&mut self, fill: &Arc<ChunkedFetch>) {
        if self.by_key.get(&fill.file.key).is_some_and(|f| Arc::ptr_eq(f, fill)) {
            self.by_key.remove(&fill.file.key);
        }
        for line in [&mut self.demanded, &mut self.rest] {
            line.retain(|f| !Arc::ptr_eq(f, fill));
        }
        self.streamed.retain(|f| !Arc::ptr_eq(f, fill));
        self.share_window();
    }

    pub(crate) fn all(&self) -> Vec<Arc<ChunkedFetch>> {
        self.by_key.values().cloned().collect()
    }

    pub(crate) const fn line(&mut self, demanded: bool) -> &mut VecDeque<Arc<ChunkedFetch>> {
        if demanded { &mut self.demanded } else { &mut self.rest }
    }

    /// Whether chunks are in line that no reader waits for.
    pub(crate) fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Whether a file that no tier takes may be streamed if a reader asks for it.
    pub(crate) fn can_stream(&self, file: &ClaimedFile) -> bool {
        let takes = |large: LargeFile<'_>| self.window.as_ref().is_some_and(|w| w.takes(large.chunk));
        file.live.segment.state.large(file.entry.id).is_some_and(takes)
    }
}
