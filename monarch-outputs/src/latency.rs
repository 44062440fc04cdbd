//! How many copies run at once: fewer while the PFS answers slowly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Latencies below this are no reason to slow down, in microseconds.
const QUICK_US: u64 = 50_000;

/// Latency of opens on the PFS, which move no data. Its divisor is that of prefetches.
#[derive(Debug)]
pub struct LatencyLimit {
    best_us: AtomicU64,
    recent_us: AtomicU64,
}

impl Default for LatencyLimit {
    fn default() -> Self {
        Self { best_us: AtomicU64::new(u64::MAX), recent_us: AtomicU64::new(0) }
    }
}

impl LatencyLimit {
    /// Notes how long an open took.
    pub fn note(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 16).clamp(1, u64::MAX / 16);
        self.best_us.fetch_min(us, Ordering::Relaxed);
        let old = self.recent_us.load(Ordering::Relaxed);
        self.recent_us.store(if old == 0 { us } else { (old * 15 + us) / 16 }, Ordering::Relaxed);
    }

    /// How many of `most` copies may run.
    #[must_use]
    pub fn limit(&self, most: usize) -> usize {
        let recent = self.recent_us.load(Ordering::Relaxed);
        let best = self.best_us.load(Ordering::Relaxed).max(1);
        let divisor = match recent / best {
            _ if recent < QUICK_US => 1,
            0..8 => 1,
            8..16 => 2,
            16..32 => 4,
            _ => 8,
        };
        (most / divisor).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_pfs_gets_fewer_copies_and_a_quick_one_all_again() {
        let latency = LatencyLimit::default();
        (0..50).for_each(|_| latency.note(Duration::from_millis(1)));
        assert_eq!(latency.limit(16), 16);
        (0..100).for_each(|_| latency.note(Duration::from_millis(500)));
        assert_eq!(latency.limit(16), 2);
        (0..100).for_each(|_| latency.note(Duration::from_millis(1)));
        assert_eq!(latency.limit(16), 16);
    }
}
