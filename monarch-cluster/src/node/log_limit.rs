//! A message that could come once per file, logged at most once in a period.

use crate::sync::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Least time between two messages.
const PERIOD: Duration = Duration::from_secs(10);

/// When the message was logged last, and how many were left out since.
#[derive(Debug, Default)]
pub(super) struct LogLimit(Mutex<(Option<Instant>, u64)>);

impl LogLimit {
    /// Whether to log the message now: how many were left out since the last one, or `None`.
    pub(super) fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        let (last, left_out) = &mut *state;
        if last.is_some_and(|at| now.saturating_duration_since(at) < PERIOD) {
            *left_out += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_within_a_period_are_counted_and_not_logged() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        assert_eq!(limit.admit(start), Some(0));
        assert_eq!((limit.admit(start), limit.admit(start + PERIOD / 2)), (None, None));
        assert_eq!((limit.admit(start + PERIOD), limit.admit(start + 2 * PERIOD)), (Some(2), Some(0)));
    }
}
