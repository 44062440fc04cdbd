//! Messages that could come once per file: at most one of a kind in ten seconds, with the number of
//! those left out.

use std::sync::Mutex;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(10);

/// One kind of message.
#[derive(Debug, Default)]
pub(crate) struct Kind(Mutex<(Option<Instant>, u64)>);

impl Kind {
    /// The number of messages left out so far, if it is time for one.
    pub(crate) fn now(&self) -> Option<u64> {
        let mut state = crate::sync::lock(&self.0);
        if state.0.is_some_and(|t| t.elapsed() < PAUSE) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(Instant::now());
        Some(std::mem::take(&mut state.1))
    }
}

/// The kinds.
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
