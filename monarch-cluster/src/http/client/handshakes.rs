//! How many connections to a peer are being opened at a time.
//!
//! A server has few places for connections that have not authenticated, and closes the oldest of an
//! address where there are more. A node that asks for a hundred chunks at once would take the
//! places from itself.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Connections to one peer that may be unauthenticated at a time: a quarter of the places that a
/// server has for one address.
const MAX_HANDSHAKES: usize = 16;

/// Those that are under way.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    running: Mutex<usize>,
    ended: Condvar,
}

/// A place among them, until it is dropped.
#[derive(Debug)]
pub(super) struct Place<'a>(&'a Handshakes);

impl Handshakes {
    /// Waits for a place; no longer than `patience`, as a peer that does not answer holds up all.
    pub(super) fn enter(&self, patience: Duration) -> Place<'_> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.wait_timeout_while(running, patience, |running| *running >= MAX_HANDSHAKES);
        let (mut running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *running += 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_begins_when_another_has_ended_or_patience_has() {
        let all = Handshakes::default();
        let mut places: Vec<_> = (0..MAX_HANDSHAKES).map(|_| all.enter(Duration::from_secs(60))).collect();
        places.push(all.enter(Duration::from_millis(1)));
        assert_eq!(*all.running.lock().unwrap(), MAX_HANDSHAKES + 1);
        std::thread::scope(|scope| {
            let one = scope.spawn(|| drop(all.enter(Duration::from_secs(60))));
            drop(places);
            one.join().unwrap();
        });
        assert_eq!(*all.running.lock().unwrap(), 0);
    }
}
