//! What the tasks of a server have in common.

use super::answer::Handler;
use super::file_pieces::Rooms;
use super::options::Options;
use super::pace::Paces;
use super::stats::{Metrics, Refusals};
use super::strangers::Strangers;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;

/// Threads that work out the keys of TLS at a time. An end that does not know the secret can make
/// the server do that: it gets this many of the server's threads, and proven peers the others.
pub(super) const HANDSHAKES_AT_A_TIME: usize = 1;

/// What the tasks of a server have in common.
pub(super) struct Shared {
    pub(super) options: Options,
    /// Proven connections at a time.
    pub(super) limit: Arc<AtomicUsize>,
    /// Those that are open.
    pub(super) proven: AtomicUsize,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) refusals: Refusals,
    pub(super) paces: Paces,
    pub(super) strangers: Arc<Strangers>,
    /// Where pieces of files are read to, to be encrypted.
    pub(super) rooms: Rooms,
    /// Places for those that work out the keys of TLS.
    pub(super) handshake_gate: Semaphore,
}

impl Shared {
    /// Whether all places of proven connections are taken.
    pub(super) fn is_full(&self) -> bool {
        self.proven.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed)
    }
}

/// An authenticated connection, counted for as long as this lives.
pub(super) struct Proven<'a>(&'a Shared);

impl<'a> Proven<'a> {
    /// One more, unless all places are taken.
    pub(super) fn new(shared: &'a Shared) -> Option<Self> {
        let limit = shared.limit.load(Ordering::Relaxed);
        let more = |n: usize| (n < limit).then_some(n + 1);
        shared.proven.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then_some(Self(shared))
    }
}

impl Drop for Proven<'_> {
    fn drop(&mut self) {
        self.0.proven.fetch_sub(1, Ordering::Relaxed);
    }
}
