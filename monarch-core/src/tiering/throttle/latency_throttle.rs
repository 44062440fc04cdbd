//! [`LatencyThrottle`]: divides the number of prefetches while the PFS answers slowly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Latency of opens on the PFS. Opens move no data, so large files do not look like a slow PFS.
#[derive(Debug)]
pub(super) struct LatencyThrottle {
    best_us: AtomicU64,
    recent_us: AtomicU64,
}

impl Default for LatencyThrottle {
    fn default() -> Self {
        Self { best_us: AtomicU64::new(u64::MAX), recent_us: AtomicU64::new(0) }
    }
}

impl LatencyThrottle {
    /// Notes how long an open took.
    pub(super) fn note(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 16).clamp(1, u64::MAX / 16);
        self.best_us.fetch_min(us, Ordering::Relaxed);
        let old = self.recent_us.load(Ordering::Relaxed);
        let recent = if old == 0 { us } else { (old * 15 + us) / 16 };
        self.recent_us.store(recent, Ordering::Relaxed);
    }

    /// Recent and best latency of opens, in microseconds.
    pub(super) fn figures(&self) -> (u64, u64) {
        (self.recent_us.load(Ordering::Relaxed), self.best_us.load(Ordering::Relaxed))
    }

    /// Divisor of the number of prefetches: 2, 4 or 8 once the latency is 8, 16 or 32 times its
    /// best; 1 below that and in any case below 50 ms.
    pub(super) fn divisor(&self) -> usize {
        let recent = self.recent_us.load(Ordering::Relaxed);
        let best = self.best_us.load(Ordering::Relaxed).max(1);
        match recent {
            0..50_000 => 1,
            r if r / best < 8 => 1,
            r if r / best < 16 => 2,
            r if r / best < 32 => 4,
            _ => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_open_counts_in_full() {
        let throttle = LatencyThrottle::default();
        throttle.note(Duration::from_millis(2));
        assert_eq!(throttle.figures(), (2000, 2000));
    }

    #[test]
    fn a_slow_pfs_gets_fewer_prefetches_and_a_quick_one_all_again() {
        let throttle = LatencyThrottle::default();
        (0..50).for_each(|_| throttle.note(Duration::from_millis(1)));
        assert_eq!(throttle.divisor(), 1);
        (0..100).for_each(|_| throttle.note(Duration::from_millis(500)));
        assert_eq!(throttle.divisor(), 8);
        (0..100).for_each(|_| throttle.note(Duration::from_millis(1)));
        assert_eq!(throttle.divisor(), 1);
    }

    #[test]
    fn a_pfs_that_was_never_quicker_is_not_slow() {
        let throttle = LatencyThrottle::default();
        (0..100).for_each(|_| throttle.note(Duration::from_millis(80)));
        assert_eq!(throttle.divisor(), 1);
    }
}
