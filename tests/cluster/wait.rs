//! Waiting for what happens in other processes.

use std::time::{Duration, Instant};

/// How long a test waits for what should take a moment.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Polls until `done`; returns the time that it took.
#[track_caller]
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < WAIT_LIMIT, "still waiting for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    start.elapsed()
}
