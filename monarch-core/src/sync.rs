//! Locks and atomics. Those of the chunks of one file are used by this path alone: the model test
//! (`tests/model.rs`) compiles that very file with ones that try every order.

use std::sync::{MutexGuard, PoisonError};

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicU32, Ordering};

/// Locks; what a thread that panicked has left is taken as it is.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
