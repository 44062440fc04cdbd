//! Nodes that did not serve an index when they were asked: they are not asked for its files for a
//! while.

use crate::sync::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a node that did not serve an index is not asked for its files.
const PAUSE: Duration = Duration::from_secs(5);

/// When each node did not serve an index.
#[derive(Debug, Default)]
pub(super) struct MissingIndexes(Mutex<HashMap<(u16, [u8; 16]), Instant>>);

impl MissingIndexes {
    /// Notes that a node does not serve an index.
    pub(super) fn note(&self, node: u16, index: [u8; 16], now: Instant) {
        let mut missing = lock(&self.0);
        missing.retain(|_, at| now.saturating_duration_since(*at) < PAUSE);
        missing.insert((node, index), now);
    }

    /// Whether a node did not serve an index a moment ago.
    pub(super) fn contains(&self, node: u16, index: [u8; 16], now: Instant) -> bool {
        lock(&self.0).get(&(node, index)).is_some_and(|at| now.saturating_duration_since(*at) < PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_asked_again_after_the_pause() {
        let (missing, now) = (MissingIndexes::default(), Instant::now());
        missing.note(1, [7; 16], now);
        assert!(
            missing.contains(1, [7; 16], now)
                && !missing.contains(1, [8; 16], now)
                && !missing.contains(2, [7; 16], now)
        );
        assert!(!missing.contains(1, [7; 16], now + PAUSE));
        missing.note(2, [7; 16], now + PAUSE);
        assert_eq!(lock(&missing.0).len(), 1, "what is over is forgotten");
    }
}
