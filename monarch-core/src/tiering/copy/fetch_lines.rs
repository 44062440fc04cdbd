//! [`FetchLines`]: the chunked fetches, by key and in the lines in which their chunks are given
//! out; the window of streamed files.

use crate::tiering::copy::chunked_fetch::ChunkedFetch;
use crate::tiering::copy::stream_window::Window;
use crate::tiering::core::claimed_file::ClaimedFile;
use monarch_abi::chunks::LargeFile;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The chunked fetches. A fetch is in a line while it has chunks to give out there.
#[derive(Default)]
pub(crate) struct FetchLines {
    pub(crate) by_key: HashMap<u64, Arc<ChunkedFetch>>,
    /// Files with chunks that a reader waits for.
    demanded: VecDeque<Arc<ChunkedFetch>>,
    /// Files whose rest is fetched.
    rest: VecDeque<Arc<ChunkedFetch>>,
    pub(crate) streamed: Vec<Arc<ChunkedFetch>>,
    pub(crate) window: Option<Window>,
    pub(crate) rate: Rate,
}

/// Time with fetches under way after which there is a result.
const MEASURED_TIME: Duration = Duration::from_millis(200);

/// Measures the throughput of chunks.
#[derive(Default)]
pub(crate) struct Rate {
    /// The last span of time without a pause that was counted.
    last: Option<(Instant, Instant)>,
    /// Time with fetches under way, and their bytes, since the last result.
    busy: Duration,
    bytes: u64,
}

impl Rate {
    /// Notes bytes that were fetched from `begun` to `now`. Returns the rate in bytes a second of
    /// the time in which something was being fetched, once there is enough of it.
    pub(crate) fn note(&mut self, bytes: u64, begun: Instant, now: Instant) -> Option<u64> {
        let (from, until) = match self.last {
            Some((from, until)) if begun <= until => {
                self.busy += now.saturating_duration_since(until) + from.saturating_duration_since(begun);
                (from.min(begun), until.max(now))
            }
            _ => {
                self.busy += now.saturating_duration_since(begun);
                (begun, now)
            }
        };
        self.last = Some((from, until));
        self.bytes += bytes;
        if self.busy < MEASURED_TIME {
            return None;
        }
        let rate = (self.bytes as f64 / self.busy.as_secs_f64()) as u64;
        (self.bytes, self.busy) = (0, Duration::ZERO);
        Some(rate.max(1))
    }
}

fn put(line: &mut VecDeque<Arc<ChunkedFetch>>, fetch: &Arc<ChunkedFetch>) {
    if !line.iter().any(|f| Arc::ptr_eq(f, fetch)) {
        line.push_back(fetch.clone());
    }
}

impl FetchLines {
    /// Whether a window for chunks of `chunk` bytes has to be made: there is none, or only a
    /// smaller one that is not in use.
    pub(crate) fn wants_window(&self, chunk: u64) -> bool {
        self.window.as_ref().is_none_or(|w| !w.takes(chunk) && self.streamed.is_empty())
    }

    /// Drops the window unless it is in use: no index with large files is served any more.
    pub(crate) fn drop_window(&mut self) {
        if self.streamed.is_empty() {
            self.window = None;
        }
    }

    /// Maintenance: fewer files may be read than before, and chunks that found no slot may find
    /// one.
    pub(crate) fn maintain_window(&mut self) {
        if let Some(window) = &mut self.window {
            window.tend();
        }
        self.share_window();
        for fetch in self.streamed.clone() {
            self.enqueue(&fetch);
        }
    }

    /// Publishes to the readers of streamed files how many chunks they may request ahead.
    pub(crate) fn share_window(&mut self) {
        let Some(window) = &mut self.window else { return };
        let ahead = window.divide(&self.streamed);
        self.streamed.iter().for_each(|f| f.large.head.ahead.store(ahead, Ordering::Relaxed));
    }

    /// Queues a file for the chunks that it has to fetch. Returns whether there are any.
    pub(crate) fn enqueue(&mut self, fetch: &Arc<ChunkedFetch>) -> bool {
        let (wanted, rest) = (fetch.has_work(true), fetch.has_work(false));
        if wanted {
            put(&mut self.demanded, fetch);
        }
        if rest {
            put(&mut self.rest, fetch);
        }
        wanted || rest
    }

    /// Removes a fetch from all lists.
    pub(crate) fn remove(&mut self, fetch: &Arc<ChunkedFetch>) {
        if self.by_key.get(&fetch.file.key).is_some_and(|f| Arc::ptr_eq(f, fetch)) {
            self.by_key.remove(&fetch.file.key);
        }
        for line in [&mut self.demanded, &mut self.rest] {
            line.retain(|f| !Arc::ptr_eq(f, fetch));
        }
        self.streamed.retain(|f| !Arc::ptr_eq(f, fetch));
        self.share_window();
    }

    /// All fetches.
    pub(crate) fn all(&self) -> Vec<Arc<ChunkedFetch>> {
        self.by_key.values().cloned().collect()
    }

    /// The line of fetches with chunks for readers, or for prefetch.
    pub(crate) const fn line(&mut self, demanded: bool) -> &mut VecDeque<Arc<ChunkedFetch>> {
        if demanded { &mut self.demanded } else { &mut self.rest }
    }

    /// Whether chunks are queued that no reader waits for.
    pub(crate) fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Whether a file that no tier takes can be streamed when a reader asks for it.
    pub(crate) fn can_stream(&self, file: &ClaimedFile) -> bool {
        let takes = |large: LargeFile<'_>| self.window.as_ref().is_some_and(|w| w.takes(large.chunk));
        file.live.segment.state.large(file.entry.id).is_some_and(takes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_time_with_fetches_under_way() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!((rate.note(1000, at(0), at(100)), rate.note(500, at(20), at(150))), (None, None));
        assert_eq!(rate.note(500, at(150), at(250)), Some(8000), "bytes a second, side by side");
        assert_eq!(rate.note(1000, at(1000), at(1100)), None);
        assert_eq!(rate.note(1000, at(1900), at(2000)), Some(10_000), "pauses count for nothing");
        assert_eq!(rate.note(0, at(5000), at(5500)), Some(1), "never 0");
        assert_eq!(rate.note(1000, at(6050), at(6060)), None);
        assert_eq!(rate.note(1000, at(6000), at(6200)), Some(10_000), "one that began first and ended last");
        // Sixteen side by side, each of which takes longer than the time between two ends.
        let many: Vec<_> = (1..=100).filter_map(|n| rate.note(1000, at(7000 + n * 10), at(7160 + n * 10))).collect();
        assert!(many.iter().skip(1).all(|&rate| rate == 100_000), "{many:?}");
    }
}
