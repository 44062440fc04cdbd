//! Mutexes that a panicked thread leaves usable.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex; one poisoned by a panicked thread is taken over, as all data here stay usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
