//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; the state that a panicked thread has left is used as it is.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
