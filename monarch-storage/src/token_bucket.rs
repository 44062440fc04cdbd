//! Limits of a rate: calls or bytes a second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A token bucket that hands out debts: a caller may overdraw it once and then sleeps until the
/// balance is even, so that large requests need no large burst.
#[derive(Debug)]
pub struct TokenBucket {
    rate: f64,
    burst: Duration,
    even_at: Mutex<Instant>,
}

impl TokenBucket {
    /// A bucket of `rate` tokens a second. Unused time is made up for up to `burst`, so that timers
    /// that are late cost nothing of the rate.
    #[must_use]
    pub fn new(rate: f64, burst: Duration) -> Self {
        Self { rate: rate.max(f64::MIN_POSITIVE), burst, even_at: Mutex::new(Instant::now()) }
    }

    /// Tokens a second.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        self.rate
    }

    /// Returns the time from `now` until the balance is even.
    #[must_use]
    pub fn debt(&self, now: Instant) -> Duration {
        self.even_at.lock().unwrap_or_else(PoisonError::into_inner).saturating_duration_since(now)
    }

    /// Takes `n` tokens at time `now`. Returns how long the caller has to sleep before it uses
    /// them.
    #[must_use]
    pub fn take(&self, n: f64, now: Instant) -> Duration {
        let mut even = self.even_at.lock().unwrap_or_else(PoisonError::into_inner);
        let floor = now.checked_sub(self.burst).unwrap_or(now);
        let start = (*even).max(floor);
        *even = start + Duration::from_secs_f64((n / self.rate).min(3600.0));
        start.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: Duration = Duration::from_millis(100);

    #[test]
    fn the_long_run_rate_is_the_rate() {
        let bucket = TokenBucket::new(1000.0, BURST);
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
        let bucket = TokenBucket::new(1000.0, BURST);
        let later = Instant::now() + Duration::from_secs(60);
        let free = (0..1000).take_while(|_| bucket.take(1.0, later).is_zero()).count();
        assert!((100..=102).contains(&free), "{free} tokens at once");
    }

    #[test]
    fn unused_time_up_to_the_burst_is_made_up_for() {
        let bucket = TokenBucket::new(1000.0, Duration::from_millis(50));
        // The bucket was made a moment ago: its time is even at `start` at the latest.
        let start = Instant::now() + Duration::from_secs(1);
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(bucket.take(550.0, start), Duration::ZERO, "50 of them in time that was not used");
        assert_eq!(bucket.take(500.0, start), Duration::from_millis(500));
        assert_eq!(bucket.take(500.0, after(1020)), Duration::ZERO, "20 ms late");
        assert_eq!(bucket.debt(after(1020)), Duration::from_millis(480), "20 ms are made up for");
        assert_eq!(bucket.take(500.0, after(9000)), Duration::ZERO);
        assert_eq!(bucket.debt(after(9000)), Duration::from_millis(450), "8 s are not");
    }
}
