//! [`PagedFetches`]: hands fetches to the thread that follows their readers: those of files that a
//! process reads by pages, and those whose rest is held back for a moment.

use crate::sync::lock;
use crate::tiering::copy::chunked_fetch::ChunkedFetch;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A fetch for the thread.
pub(crate) struct Handed {
    pub(crate) fetch: Arc<ChunkedFetch>,
    /// When the rest is to be fetched unless a process reads the file by pages. `None`: one does.
    pub(crate) held_until: Option<Instant>,
}

/// Fetches that the thread has not taken yet.
#[derive(Default)]
pub(crate) struct PagedFetches {
    handed: Mutex<Vec<Handed>>,
    some: Condvar,
}

impl PagedFetches {
    /// Hands over the fetch of a file that a process reads by pages.
    pub(crate) fn follow(&self, fetch: &Arc<ChunkedFetch>) {
        self.hand_over(Handed { fetch: fetch.clone(), held_until: None });
    }

    /// Hands over a fetch whose rest is held back until a time.
    pub(crate) fn hold(&self, fetch: &Arc<ChunkedFetch>, until: Instant) {
        self.hand_over(Handed { fetch: fetch.clone(), held_until: Some(until) });
    }

    fn hand_over(&self, one: Handed) {
        lock(&self.handed).push(one);
        self.some.notify_one();
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        let _handed = lock(&self.handed);
        self.some.notify_one();
    }

    /// Takes what was handed over; waits for it, for `most` at most.
    pub(crate) fn take(&self, most: Option<Duration>) -> Vec<Handed> {
        let handed = lock(&self.handed);
        if !handed.is_empty() {
            return { handed }.drain(..).collect();
        }
        let mut handed = match most {
            Some(most) => self.some.wait_timeout(handed, most).unwrap_or_else(PoisonError::into_inner).0,
            None => self.some.wait(handed).unwrap_or_else(PoisonError::into_inner),
        };
        handed.drain(..).collect()
    }
}
