//! Calls to the PFS that are made several at a time.

use std::sync::{Mutex, PoisonError};

/// Calls about a batch that the PFS gets at once, at most.
const MAX_CALLS: usize = 16;
/// From so many on, they are made by several threads.
const MIN_PARALLEL: usize = 4;

/// Makes a call to the PFS for each item, up to [`MAX_CALLS`] at once.
pub(super) fn several_at_a_time<T: Send>(items: &mut [T], call: impl Fn(&mut T) + Sync) {
    let threads = if items.len() < MIN_PARALLEL { 1 } else { items.len().min(MAX_CALLS) };
    let left = Mutex::new(items.iter_mut());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(item) = next() {
            call(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where there is no thread to be had, the others do its part.
            let _ = std::thread::Builder::new().name("outputs-batch".into()).spawn_scoped(scope, work);
        }
        work();
    });
}
