//! Limits of what the agent asks of the PFS: token buckets for bytes and for calls.
//!
//! Demands go first. A prefetch waits until the buckets are even, one request at a time, so that a
//! demand finds the debt of one request at most. A reader may have begun to wait for the prefetch
//! meanwhile, so after [`MAX_YIELD`] it proceeds like a demand. The calls of a scan wait in the
//! same way, in a queue of their own: they move no bytes, so only the limit of calls applies.

use crate::token_bucket::TokenBucket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The limits of a source.
#[derive(Debug, Default)]
pub struct Limits {
    bandwidth: Option<TokenBucket>,
    calls: Option<TokenBucket>,
    /// Held by the prefetch that is next.
    turn: Mutex<()>,
    /// Held by the call of a scan that is next.
    scan_turn: Mutex<()>,
    counted: Counted,
}

/// Calls to the PFS that were begun, with or without limits.
#[derive(Debug, Default)]
pub struct Counted {
    /// Opens, reads and stats for copies.
    pub calls: AtomicU64,
    /// Bytes that these reads asked for.
    pub bytes: AtomicU64,
    /// Calls of scans.
    pub scans: AtomicU64,
}

/// Unused time of a bucket that a caller may catch up on.
const BURST: Duration = Duration::from_millis(100);
/// Longest time for which a prefetch lets demands go first.
const MAX_YIELD: Duration = Duration::from_secs(1);
/// Pause until a caller asks again that found the turn taken.
const TURN_RETRY: Duration = Duration::from_millis(2);

impl Limits {
    /// Limits in bytes and calls a second.
    #[must_use]
    pub fn new(bandwidth: Option<u64>, iops: Option<u64>) -> Self {
        Self {
            bandwidth: bandwidth.map(|b| TokenBucket::new(b as f64, BURST)),
            calls: iops.map(|c| TokenBucket::new(c as f64, BURST)),
            turn: Mutex::default(),
            scan_turn: Mutex::default(),
            counted: Counted::default(),
        }
    }

    /// Bytes a second that calls may move, if that is limited.
    #[must_use]
    pub fn bandwidth_limit(&self) -> Option<u64> {
        self.bandwidth.as_ref().map(|b| b.rate() as u64)
    }

    /// Calls a second, if they are limited.
    #[must_use]
    pub fn iops_limit(&self) -> Option<u64> {
        self.calls.as_ref().map(|c| c.rate() as u64)
    }

    /// The calls counted so far.
    pub const fn counted(&self) -> &Counted {
        &self.counted
    }

    /// Counts a call that comes with another one, where there are no limits.
    pub fn passed(&self, bytes: u64) {
        self.counted.calls.fetch_add(1, Ordering::Relaxed);
        self.counted.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sleeps as long as the limits demand before a PFS call that moves `bytes` bytes, for which a
    /// reader waits (`waited_for`) or not.
    pub fn before_call(&self, bytes: u64, waited_for: bool) {
        self.passed(bytes);
        if !self.limit() {
            return;
        }
        let _turn = (!waited_for).then(|| until_even(&self.turn, |now| self.debt(now)));
        let pause = self.take(bytes, Instant::now());
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }

    /// Whether there is a limit.
    pub const fn limit(&self) -> bool {
        self.bandwidth.is_some() || self.calls.is_some()
    }

    /// Asks for a call without sleeping: the call is counted and may begin after the returned time.
    /// `since` is when the caller first asked.
    ///
    /// # Errors
    /// The time after which the caller has to ask again; nothing is counted.
    pub fn ask(&self, bytes: u64, waited_for: bool, since: Instant, now: Instant) -> Result<Duration, Duration> {
        let pause = self.pause(bytes, waited_for, since, now)?;
        self.passed(bytes);
        Ok(pause)
    }

    fn pause(&self, bytes: u64, waited_for: bool, since: Instant, now: Instant) -> Result<Duration, Duration> {
        if !self.limit() {
            return Ok(Duration::ZERO);
        }
        let rest = MAX_YIELD.saturating_sub(now.duration_since(since));
        if waited_for || rest.is_zero() {
            return Ok(self.take(bytes, now));
        }
        let _turn = self.turn.try_lock().map_err(|_| TURN_RETRY)?;
        match self.debt(now) {
            Duration::ZERO => Ok(self.take(bytes, now)),
            debt => Err(debt.min(rest)),
        }
    }

    /// Sleeps as long as the limit of calls demands before a call of a scan.
    pub fn before_scan_call(&self) {
        self.counted.scans.fetch_add(1, Ordering::Relaxed);
        let Some(calls) = &self.calls else { return };
        let _turn = until_even(&self.scan_turn, |now| calls.debt(now));
        let pause = calls.take(1.0, Instant::now());
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }

    /// Time until all buckets are even.
    fn debt(&self, now: Instant) -> Duration {
        let buckets = [&self.bandwidth, &self.calls].into_iter().flatten();
        buckets.map(|b| b.debt(now)).max().unwrap_or_default()
    }

    /// Takes the tokens of a call; the time to wait before it.
    fn take(&self, bytes: u64, now: Instant) -> Duration {
        let a = self.bandwidth.as_ref().map_or(Duration::ZERO, |b| b.take(bytes as f64, now));
        let b = self.calls.as_ref().map_or(Duration::ZERO, |c| c.take(1.0, now));
        a.max(b)
    }
}

/// Waits in the queue until there is no debt, for [`MAX_YIELD`] at most. The next in the queue
/// follows when the guard is dropped.
fn until_even<'a>(line: &'a Mutex<()>, debt: impl Fn(Instant) -> Duration) -> MutexGuard<'a, ()> {
    let turn = line.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    while start.elapsed() < MAX_YIELD {
        match debt(Instant::now()) {
            Duration::ZERO => break,
            debt => std::thread::sleep(debt.min(MAX_YIELD)),
        }
    }
    turn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_once_when_they_begin() {
        let now = Instant::now();
        for limits in [Limits::default(), Limits::new(None, Some(1))] {
            limits.before_call(7, true);
            assert!(limits.ask(5, true, now, now).is_ok());
            limits.before_scan_call();
            let refused = limits.limit() && limits.ask(5, false, now, now).is_err();
            assert_eq!(refused, limits.limit());
            let c = limits.counted();
            let seen = [&c.calls, &c.bytes, &c.scans].map(|n| n.load(Ordering::Relaxed));
            assert_eq!(seen, [2, 12, 1]);
        }
        let limits = Limits::new(Some(5_000_000), Some(700));
        assert_eq!((limits.bandwidth_limit(), limits.iops_limit()), (Some(5_000_000), Some(700)));
        assert_eq!((Limits::default().bandwidth_limit(), Limits::default().iops_limit()), (None, None));
    }

    #[test]
    fn demands_go_before_prefetches_that_wait() {
        // 64 requests of 50 ms each are waiting: a demand is behind one or two of them, not behind
        // all.
        let limits = Limits::new(Some(1 << 20), None);
        let request = (1 << 20) / 20;
        std::thread::scope(|s| {
            for _ in 0..64 {
                s.spawn(|| limits.before_call(request, false));
            }
            std::thread::sleep(Duration::from_millis(300));
            let start = Instant::now();
            limits.before_call(request, true);
            assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        });
    }

    #[test]
    fn demands_go_before_the_calls_of_a_scan() {
        // 16 threads of a scan keep 10 calls a second busy.
        let limits = Limits::new(None, Some(10));
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            let call = || {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    limits.before_scan_call();
                }
            };
            (0..16).for_each(|_| drop(s.spawn(call)));
            std::thread::sleep(Duration::from_millis(300));
            let start = Instant::now();
            limits.before_call(0, true);
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        });
    }

    #[test]
    fn a_scan_waits_for_the_limit_of_calls_and_for_no_other() {
        let limits = Limits::new(Some(1 << 20), Some(100));
        limits.before_call(8 << 20, true);
        let start = Instant::now();
        (0..50).for_each(|_| limits.before_scan_call());
        let took = start.elapsed().as_secs_f64();
        assert!((0.35..3.0).contains(&took), "50 calls at 100/s took {took} s behind 8 s of bytes");
    }

    #[test]
    fn prefetches_alone_get_the_whole_rate() {
        let limits = Limits::new(None, Some(200));
        let start = Instant::now();
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| (0..20).for_each(|_| limits.before_call(0, false)));
            }
        });
        let took = start.elapsed().as_secs_f64();
        assert!((0.65..5.0).contains(&took), "160 calls at 200/s took {took} s");
    }
}
