//! Limits on bytes a second, for the node and for each of its peers.
//!
//! Bytes are accounted for before they are sent: each bucket keeps the time at which it is even
//! again, and who takes from it waits until the bytes taken before have had their time. Up to 50 ms
//! that went unused are made up for, so that late timers cost no bandwidth.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Unused time that is made up for.
const CREDIT: Duration = Duration::from_millis(50);
/// Peers that are remembered; beyond it those without a connection are forgotten.
const PEERS_MAX: usize = 4096;
/// Bytes sent at a time when there is a limit.
const SLICES: (u64, u64) = (256 << 10, 1 << 20);

/// One limit.
#[derive(Debug)]
struct Bucket {
    rate: u64,
    even: Mutex<Option<Instant>>,
}

impl Bucket {
    fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), even: Mutex::new(None) }
    }

    /// Takes `bytes`; they may be sent at the time returned.
    fn take(&self, bytes: u64, now: Instant) -> Instant {
        let mut even = self.even.lock().unwrap_or_else(PoisonError::into_inner);
        let least = now.checked_sub(CREDIT).unwrap_or(now);
        let start = even.map_or(now, |even| even.max(least));
        let lasts = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        *even = Some(start.checked_add(lasts).unwrap_or(start));
        start
    }
}

/// The limits of a server.
#[derive(Debug)]
pub(super) struct Paces {
    total: Option<Arc<Bucket>>,
    per_peer: Option<u64>,
    peers: Mutex<HashMap<Arc<str>, Arc<Bucket>>>,
}

impl Paces {
    pub(super) fn new(total: Option<u64>, per_peer: Option<u64>) -> Self {
        Self { total: total.map(|rate| Arc::new(Bucket::new(rate))), per_peer, peers: Mutex::default() }
    }

    /// The limits that what is sent to `peer` is under, whatever the number of its connections.
    pub(super) fn of(&self, peer: &Arc<str>) -> Pace {
        let own = self.per_peer.map(|rate| {
            let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
            if peers.len() >= PEERS_MAX {
                peers.retain(|_, bucket| Arc::strong_count(bucket) > 1);
            }
            Arc::clone(peers.entry(Arc::clone(peer)).or_insert_with(|| Arc::new(Bucket::new(rate))))
        });
        Pace { buckets: [self.total.clone(), own] }
    }
}

/// The limits that a connection is under.
#[derive(Debug, Default)]
pub(super) struct Pace {
    buckets: [Option<Arc<Bucket>>; 2],
}

impl Pace {
    /// Bytes to send at a time: all, unless there is a limit.
    pub(super) fn slice(&self) -> u64 {
        let rate = self.buckets.iter().flatten().map(|bucket| bucket.rate).min();
        rate.map_or(u64::MAX, |rate| (rate / 16).clamp(SLICES.0, SLICES.1))
    }

    /// Waits until `bytes` may be sent.
    pub(super) async fn wait(&self, bytes: u64) {
        let now = Instant::now();
        let at = self.buckets.iter().flatten().map(|bucket| bucket.take(bytes, now)).max();
        if let Some(at) = at.filter(|at| *at > now) {
            tokio::time::sleep_until(at.into()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_spread_over_their_time() {
        let (bucket, start) = (Bucket::new(1000), Instant::now());
        assert_eq!(bucket.take(500, start), start);
        assert_eq!(bucket.take(500, start), start + Duration::from_millis(500));
        let late = start + Duration::from_millis(1020);
        assert_eq!(bucket.take(500, late), start + Duration::from_secs(1), "20 ms are made up for");
        let idle = start + Duration::from_secs(9);
        assert_eq!(bucket.take(500, idle), idle - CREDIT, "8 s are not");
    }

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
