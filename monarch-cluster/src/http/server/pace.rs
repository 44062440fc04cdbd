//! Limits on bytes a second, for the node and for each of its peers.
//!
//! Bytes are accounted for before they are sent: a sender waits until the bytes taken before have
//! had their time.

use monarch_storage::token_bucket::TokenBucket;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Unused time that is made up for: late timers cost no bandwidth.
const MAX_CREDIT: Duration = Duration::from_millis(50);
/// Peers that are remembered; beyond it those without a connection are forgotten.
const MAX_PEERS: usize = 4096;
/// Bytes sent at a time when there is a limit.
const SLICE_BYTES: (u64, u64) = (256 << 10, 1 << 20);

/// A limit of `rate` bytes a second.
fn bucket(rate: u64) -> Arc<TokenBucket> {
    Arc::new(TokenBucket::new(rate.max(1) as f64, MAX_CREDIT))
}

/// The limits of a server.
#[derive(Debug)]
pub(super) struct Paces {
    total: Option<Arc<TokenBucket>>,
    per_peer: Option<u64>,
    peers: Mutex<HashMap<Arc<str>, Arc<TokenBucket>>>,
}

impl Paces {
    pub(super) fn new(total: Option<u64>, per_peer: Option<u64>) -> Self {
        Self { total: total.map(bucket), per_peer, peers: Mutex::default() }
    }

    /// The limits that what is sent to `peer` is under, whatever the number of its connections.
    pub(super) fn of(&self, peer: &Arc<str>) -> Pace {
        let own = self.per_peer.map(|rate| {
            let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
            if peers.len() >= MAX_PEERS {
                peers.retain(|_, bucket| Arc::strong_count(bucket) > 1);
            }
            Arc::clone(peers.entry(Arc::clone(peer)).or_insert_with(|| bucket(rate)))
        });
        Pace { buckets: [self.total.clone(), own] }
    }
}

/// The limits that a connection is under.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    buckets: [Option<Arc<TokenBucket>>; 2],
}

impl Pace {
    /// Bytes to send at a time: all, unless there is a limit.
    pub(super) fn slice(&self) -> u64 {
        let rate = self.buckets.iter().flatten().map(|bucket| bucket.rate() as u64).min();
        rate.map_or(u64::MAX, |rate| (rate / 16).clamp(SLICE_BYTES.0, SLICE_BYTES.1))
    }

    /// Waits until `bytes` may be sent.
    pub(super) async fn wait(&self, bytes: u64) {
        let now = Instant::now();
        let pause = self.buckets.iter().flatten().map(|bucket| bucket.take(bytes as f64, now)).max();
        if let Some(pause) = pause.filter(|pause| !pause.is_zero()) {
            tokio::time::sleep_until((now + pause).into()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_small_for_low_limits_and_whole_without() {
        let peer: Arc<str> = "z".into();
        assert_eq!(Paces::new(None, None).of(&peer).slice(), u64::MAX);
        assert_eq!(Paces::new(Some(1 << 20), None).of(&peer).slice(), 256 << 10);
        assert_eq!(Paces::new(Some(1 << 40), Some(8 << 20)).of(&peer).slice(), 512 << 10);
        assert_eq!(Paces::new(Some(1 << 40), None).of(&peer).slice(), 1 << 20);
    }

    #[test]
    fn connections_of_a_peer_share_its_limit() {
        let paces = Paces::new(None, Some(1 << 20));
        let (a, b, other) = (paces.of(&"z".into()), paces.of(&"z".into()), paces.of(&"y".into()));
        let same = |x: &Pace, y: &Pace| {
            x.buckets[1].as_ref().zip(y.buckets[1].as_ref()).is_some_and(|(x, y)| Arc::ptr_eq(x, y))
        };
        assert!(same(&a, &b) && !same(&a, &other));
    }
}
