//! Directories that are being fetched: each once at a time, however many processes ask for it.
//!
//! A process waits for a fixed time from the beginning of a fetch; after that it is sent to the PFS
//! at once, while the fetch goes on. What failed is not tried again for a while.

use super::store::Key;
use crate::index::Directory;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a directory that could not be had is left alone.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// Most directories that are noted as such; beyond, all are forgotten.
const MAX_FAILED: usize = 65_536;
/// Most fetches at a time.
pub(super) const MAX_FLIGHTS: usize = 32;

/// A fetch under way, or its end.
#[derive(Debug)]
pub(super) struct Flight {
    began: Instant,
    end: Mutex<Option<Option<Arc<Directory>>>>,
    ended: Condvar,
}

impl Flight {
    /// Waits until the fetch has ended, for `patience` from its beginning at most.
    pub(super) fn wait(&self, patience: Duration) -> Option<Arc<Directory>> {
        let mut end = lock(&self.end);
        loop {
            if let Some(end) = &*end {
                return end.clone();
            }
            let left = patience.checked_sub(self.began.elapsed()).filter(|left| !left.is_zero())?;
            end = self.ended.wait_timeout(end, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What is to be done about a directory that is not in memory.
pub(super) enum Turn {
    /// The caller begins to fetch it, and ends that with [`Flights::end`].
    Begin(Arc<Flight>),
    /// It is being fetched.
    Wait(Arc<Flight>),
    /// It could not be had a moment ago, or too many are being fetched.
    Leave,
}

#[derive(Debug, Default)]
struct Tables {
    under_way: HashMap<Key, Arc<Flight>>,
    failed: HashMap<Key, Instant>,
}

/// Fetches under way.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<Tables>);

impl Flights {
    /// Says what is to be done about a directory at this time.
    pub(super) fn turn(&self, key: &Key, now: Instant) -> Turn {
        let tables = &mut *lock(&self.0);
        if let Some(flight) = tables.under_way.get(key) {
            return Turn::Wait(flight.clone());
        }
        match tables.failed.get(key) {
            Some(at) if now.saturating_duration_since(*at) < RETRY_PAUSE => return Turn::Leave,
            Some(_) => _ = tables.failed.remove(key),
            None => {}
        }
        if tables.under_way.len() >= MAX_FLIGHTS {
            return Turn::Leave;
        }
        let flight = Arc::new(Flight { began: now, end: Mutex::default(), ended: Condvar::new() });
        tables.under_way.insert(key.clone(), flight.clone());
        Turn::Begin(flight)
    }

    /// Ends a fetch: those that wait get the directory, or are sent to the PFS. It is kept before,
    /// so that no caller begins again.
    pub(super) fn end(&self, key: &Key, directory: Option<Arc<Directory>>) {
        let tables = &mut *lock(&self.0);
        if directory.is_none() {
            if tables.failed.len() >= MAX_FAILED {
                tables.failed.clear();
            }
            tables.failed.insert(key.clone(), Instant::now());
        }
        let Some(flight) = tables.under_way.remove(key) else { return };
        *lock(&flight.end) = Some(directory);
        flight.ended.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key { index: [1; 16], rel: format!("{n}").into_bytes().into() }
    }

    #[test]
    fn a_directory_is_fetched_once_and_left_alone_after_a_failure() {
        let (flights, now) = (Flights::default(), Instant::now());
        assert!(matches!(flights.turn(&key(1), now), Turn::Begin(_)));
        let Turn::Wait(flight) = flights.turn(&key(1), now) else { panic!("it is under way") };
        assert!(matches!(flights.turn(&key(2), now), Turn::Begin(_)));
        flights.end(&key(1), None);
        assert!(flight.wait(Duration::from_secs(60)).is_none(), "without a wait");
        assert!(matches!(flights.turn(&key(1), Instant::now()), Turn::Leave));
        let later = Instant::now() + RETRY_PAUSE;
        assert!(matches!(flights.turn(&key(1), later), Turn::Begin(_)));
    }

    #[test]
    fn the_wait_counts_from_the_beginning_of_the_fetch() {
        let (flights, now) = (Flights::default(), Instant::now());
        let Turn::Begin(flight) = flights.turn(&key(1), now) else { panic!("the first") };
        assert!(flight.wait(Duration::ZERO).is_none());
        let waiting = std::thread::spawn(move || flight.wait(Duration::from_secs(60)).is_none());
        flights.end(&key(1), None);
        assert!(waiting.join().unwrap());
    }

    #[test]
    fn no_more_are_fetched_at_a_time_than_the_bound_says() {
        let (flights, now) = (Flights::default(), Instant::now());
        let begun = (0..100).filter(|n| matches!(flights.turn(&key(*n), now), Turn::Begin(_))).count();
        assert_eq!(begun, MAX_FLIGHTS);
        flights.end(&key(0), None);
        assert!(matches!(flights.turn(&key(50), now), Turn::Begin(_)));
    }
}
