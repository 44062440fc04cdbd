//! Manners towards the PFS: token buckets for bandwidth and calls.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A token bucket that hands out debts: a caller may overdraw it once and then sleeps until the balance is even, so that
/// large requests need no large burst.
#[derive(Debug)]
pub struct TokenBucket {
    rate: f64,
    even_at: Mutex<Instant>,
}

/// How far behind the clock a bucket may fall: the burst, in time.
const BURST: Duration = Duration::from_millis(100);

impl TokenBucket {
    /// A bucket of `rate` tokens a second.
    #[must_use]
    pub fn new(rate: f64) -> Self {
        Self { rate: rate.max(f64::MIN_POSITIVE), even_at: Mutex::new(Instant::now()) }
    }

    /// Takes `n` tokens at time `now`; how long to sleep first.
    pub fn take(&self, n: f64, now: Instant) -> Duration {
        let mut even = self.even_at.lock().unwrap_or_else(PoisonError::into_inner);
        let floor = now.checked_sub(BURST).unwrap_or(now);
        let start = (*even).max(floor);
        *even = start + Duration::from_secs_f64((n / self.rate).min(3600.0));
        start.saturating_duration_since(now)
    }
}

/// The limits of a source.
#[derive(Debug, Default)]
pub struct Limits {
    bandwidth: Option<TokenBucket>,
    calls: Option<TokenBucket>,
}

impl Limits {
    /// Limits in bytes and calls a second.
    #[must_use]
    pub fn new(bandwidth: Option<u64>, iops: Option<u64>) -> Self {
        Self {
            bandwidth: bandwidth.map(|b| TokenBucket::new(b as f64)),
            calls: iops.map(|c| TokenBucket::new(c as f64)),
        }
    }

    /// Sleeps as long as the limits demand before a PFS call that moves `bytes`.
    pub fn before_call(&self, bytes: u64) {
        let now = Instant::now();
        let a = self.bandwidth.as_ref().map_or(Duration::ZERO, |b| b.take(bytes as f64, now));
        let b = self.calls.as_ref().map_or(Duration::ZERO, |c| c.take(1.0, now));
        let pause = a.max(b);
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_run_rate_is_the_rate() {
        let bucket = TokenBucket::new(1000.0);
        let start = Instant::now();
        let mut now = start;
        for _ in 0..5000 {
            now += bucket.take(1.0, now);
        }
        let took = now.duration_since(start).as_secs_f64();
        assert!((4.8..=5.0).contains(&took), "5000 tokens at 1000/s took {took}s");
    }

    #[test]
    fn an_idle_bucket_gives_no_more_than_its_burst() {
        let bucket = TokenBucket::new(1000.0);
        let later = Instant::now() + Duration::from_secs(60);
        let free = (0..1000).take_while(|_| bucket.take(1.0, later).is_zero()).count();
        assert!((100..=102).contains(&free), "{free} tokens at once");
    }
}
