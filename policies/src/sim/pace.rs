//! The number of files that are fetched ahead at a time: all, fewer while opens take much longer
//! than the best open. The agent's rule (`source.backoff`): above 50 ms, and above 8, 16, 32 times
//! the best, a half, a quarter, an eighth.

use super::model::Time;

/// Durations of opens at the PFS.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    best: Time,
    recent: Time,
}

/// Nanoseconds: an open this quick is never taken for slow.
const QUICK_OPEN_NS: Time = 50_000_000;

impl Pace {
    pub(super) const NEW: Self = Self { best: Time::MAX, recent: 0 };

    /// Notes the duration of an open by the agent.
    pub(super) fn note(&mut self, took: Time) {
        self.best = self.best.min(took.max(1));
        self.recent = (self.recent * 15 + took) / 16;
    }

    pub(super) fn divisor(self) -> usize {
        match self.recent / self.best {
            _ if self.recent < QUICK_OPEN_NS => 1,
            0..8 => 1,
            8..16 => 2,
            16..32 => 4,
            _ => 8,
        }
    }
}
