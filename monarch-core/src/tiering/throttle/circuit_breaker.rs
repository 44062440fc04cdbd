//! [`CircuitBreaker`]: stops prefetch while the PFS answers with errors.
//!
//! After [`MAX_ERRORS`] errors in a row one file at a time is tried, after pauses that double,
//! until a copy succeeds. So prefetch does not run at full speed over a PFS that is down. Demands
//! are not held back, and any copy that succeeds ends the pause.

use crate::sync::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Errors in a row that stop prefetch.
const MAX_ERRORS: u32 = 8;
/// First pause between probes.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between probes.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Stops prefetch, but for probes, while the PFS fails.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    errors: u32,
    /// While only probes go through: when the next one is due, and the pause before it.
    open: Option<(Instant, Duration)>,
}

impl CircuitBreaker {
    /// Notes an error. An error of a file that has failed before (`known`) is not counted.
    pub(super) fn failed(&self, now: Instant, known: bool) {
        let mut s = lock(&self.0);
        match s.open {
            // Copies that were in flight when prefetch was stopped.
            Some((at, _)) if now < at => {}
            Some((_, pause)) => {
                let pause = (pause * 2).min(MAX_PAUSE);
                s.open = Some((now + pause, pause));
            }
            None if known => {}
            None => {
                s.errors += 1;
                if s.errors >= MAX_ERRORS {
                    s.open = Some((now + FIRST_PAUSE, FIRST_PAUSE));
                }
            }
        }
    }

    /// Notes a copy that succeeded.
    pub(super) fn worked(&self) {
        *lock(&self.0) = State::default();
    }

    /// Whether only probes go through.
    pub(super) fn is_open(&self) -> bool {
        lock(&self.0).open.is_some()
    }

    /// Time until the next probe, while only probes go through.
    pub(super) fn next_try(&self, now: Instant) -> Option<Duration> {
        lock(&self.0).open.map(|(at, _)| at.saturating_duration_since(now))
    }

    /// How many of `slots` files may be prefetched now.
    pub(super) fn slots(&self, now: Instant, slots: usize) -> usize {
        lock(&self.0).open.map_or(slots, |(at, _)| usize::from(now >= at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_a_row_leave_one_probe_at_a_time_until_one_succeeds() {
        let (breaker, start) = (CircuitBreaker::default(), Instant::now());
        let mut now = start;
        (0..100).for_each(|_| breaker.failed(now, true));
        assert_eq!(breaker.slots(now, 56), 56, "a few bad files that are tried again");
        (0..64).for_each(|_| breaker.failed(now, false));
        let mut probes = Vec::new();
        for _ in 0..7 {
            assert_eq!(breaker.slots(now, 56), 0);
            assert!(breaker.next_try(now).is_some_and(|rest| breaker.slots(now + rest, 56) == 1));
            while breaker.slots(now, 56) == 0 {
                now += Duration::from_millis(500);
            }
            probes.push(now.duration_since(start).as_secs());
            breaker.failed(now, true);
        }
        assert_eq!(probes, [1, 3, 7, 15, 31, 61, 91]);
        breaker.worked();
        assert_eq!((breaker.slots(now, 56), breaker.next_try(now)), (56, None));
    }
}
