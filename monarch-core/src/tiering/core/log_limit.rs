//! [`LogLimits`]: limits messages that could be logged once per file to one of a kind per
//! [`LOG_PAUSE`]. The next message gives the number of those that were left out.

use std::sync::Mutex;
use std::time::{Duration, Instant};

const LOG_PAUSE: Duration = Duration::from_secs(10);

/// The limit of one kind of message: when the last one was logged, and how many were left out
/// since.
#[derive(Debug, Default)]
pub(crate) struct Kind(Mutex<(Option<Instant>, u64)>);

impl Kind {
    /// Returns the number of messages left out since the last one if a message may be logged now,
    /// otherwise counts one more.
    pub(crate) fn now(&self) -> Option<u64> {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> Option<u64> {
        let mut state = crate::sync::lock(&self.0);
        if state.0.is_some_and(|last| now.saturating_duration_since(last) < LOG_PAUSE) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}

/// The kinds of messages that are limited.
#[derive(Debug, Default)]
pub(crate) struct LogLimits {
    pub(crate) changed: Kind,
    pub(crate) unreadable: Kind,
    pub(crate) pfs: Kind,
    pub(crate) tier: Kind,
    pub(crate) damaged: Kind,
    pub(crate) hurt: Kind,
    pub(crate) full: Kind,
    pub(crate) crowded: Kind,
    pub(crate) fair: Kind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_in_ten_seconds_counts_those_left_out() {
        let (kind, start) = (Kind::default(), Instant::now());
        let at = |s: u64| kind.at(start + Duration::from_secs(s));
        assert_eq!([at(0), at(1), at(9)], [Some(0), None, None]);
        assert_eq!([at(10), at(11), at(21)], [Some(2), None, Some(1)]);
    }
}
