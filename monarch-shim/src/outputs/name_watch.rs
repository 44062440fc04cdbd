//! [`NameWatch`]: what other processes make of a name while a call is about to make it.
//!
//! Such a call asks the PFS first, and the overlay afterwards, with the lock of the journal held.
//! What another process enters in between, the overlay tells; but once that is published, it may
//! tell nothing any more. And what a plain call makes or removes in between, it never tells. Both
//! are counted.

use super::beside;
use super::journal::Journal;
use super::place::Place;
use core::sync::atomic::{AtomicU64, Ordering};

/// A name, from before the PFS is asked for it until the lock of the journal is held.
#[derive(Clone, Copy)]
pub struct NameWatch {
    /// Of changes of the name on the PFS.
    count: &'static AtomicU64,
    seen: u64,
    /// Whether plain calls about the name matter. (One that takes too long is overtaken.)
    heeds_plain_calls: bool,
}

impl NameWatch {
    /// Of a call that is to make the name, or take it, before or after all others. Waits for plain
    /// calls about it that are under way.
    pub fn exclusive(place: &Place) -> Self {
        Self { heeds_plain_calls: beside::wait_for_plain_call(place), ..Self::shared(place) }
    }

    /// Of a plain removal, which has a slot itself: heeds no plain calls.
    pub fn shared(place: &Place) -> Self {
        let count = place.root.map.changes_of(place.rel());
        Self { count, seen: count.load(Ordering::Acquire), heeds_plain_calls: false }
    }

    /// Whether this is about the name of a place, also after links were followed.
    pub fn is_of(&self, place: &Place) -> bool {
        core::ptr::eq(self.count, place.root.map.changes_of(place.rel()))
    }

    /// Whether others may have changed the name since, or are about to, of which the overlay does
    /// not tell.
    pub fn is_changed(&self, place: &Place, lock: &Journal<'_>) -> bool {
        // (Those that are under way first: they are counted before they have ended.)
        self.heeds_plain_calls && beside::is_under_way(place, lock) || self.count.load(Ordering::Acquire) != self.seen
    }
}
