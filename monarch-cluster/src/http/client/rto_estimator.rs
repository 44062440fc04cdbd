//! How long a silent peer is waited for, from how long it usually takes.
//!
//! The smoothed time and its deviation are kept as TCP keeps them for retransmission (RFC 6298,
//! sections 2 and 5.5): patience is the smoothed time and four deviations, doubled each time it was
//! too short, and halfway back to normal with each answer. It is never below 300 ms, three of the
//! server's signs of life, so that one that is lost does not count, nor below 15 % of the
//! configured timeout: a long one means slow nodes; nor above that timeout, which is also
//! what it begins with.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Least patience.
const MIN_PATIENCE: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(super) struct RtoEstimator {
    most: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    smoothed: Option<Duration>,
    deviation: Duration,
    doublings: u32,
}

impl RtoEstimator {
    pub(super) fn new(most: Duration) -> Self {
        Self { most, state: Mutex::default() }
    }

    /// How long to wait for the next sign of life.
    pub(super) fn patience(&self) -> Duration {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(smoothed) = state.smoothed else { return self.most };
        let normal = (smoothed + state.deviation * 4).max(MIN_PATIENCE).max(self.most * 3 / 20);
        normal.saturating_mul(1 << state.doublings).min(self.most)
    }

    /// It gave one after `time`.
    pub(super) fn heard_after(&self, time: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (smoothed, deviation) = match state.smoothed {
            None => (time, time / 2),
            Some(old) => ((old * 7 + time) / 8, (state.deviation * 3 + old.abs_diff(time)) / 4),
        };
        *state = State { smoothed: Some(smoothed), deviation, doublings: state.doublings.saturating_sub(1) };
    }

    /// It gave none for as long as it was waited for.
    pub(super) fn was_silent(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.doublings = (state.doublings + 1).min(8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn patience_follows_the_peer_within_its_bounds() {
        let pulse = RtoEstimator::new(MS * 2000);
        assert_eq!(pulse.patience(), MS * 2000, "nothing known");
        pulse.heard_after(MS);
        assert_eq!(pulse.patience(), MIN_PATIENCE);
        pulse.heard_after(MS * 1000);
        assert!(pulse.patience() > MS * 1000 && pulse.patience() < MS * 1200, "{:?}", pulse.patience());
        (0..50).for_each(|_| pulse.heard_after(MS));
        assert_eq!(pulse.patience(), MIN_PATIENCE);
        pulse.heard_after(MS * 60_000);
        assert_eq!(pulse.patience(), MS * 2000);
    }

    #[test]
    fn who_sets_a_long_timeout_has_slow_nodes() {
        let pulse = RtoEstimator::new(MS * 20_000);
        (0..50).for_each(|_| pulse.heard_after(MS));
        assert_eq!(pulse.patience(), MS * 3000);
    }

    #[test]
    fn silence_doubles_it_and_answers_bring_it_back() {
        let pulse = RtoEstimator::new(MS * 2000);
        pulse.heard_after(MS);
        pulse.was_silent();
        assert_eq!(pulse.patience(), MIN_PATIENCE * 2);
        (0..99).for_each(|_| pulse.was_silent());
        assert_eq!(pulse.patience(), MS * 2000);
        (0..8).for_each(|_| pulse.heard_after(MS));
        assert_eq!(pulse.patience(), MIN_PATIENCE);
    }

    #[test]
    fn a_short_timeout_is_kept() {
        let pulse = RtoEstimator::new(MS * 10);
        pulse.heard_after(MS);
        assert_eq!(pulse.patience(), MS * 10);
    }
}
