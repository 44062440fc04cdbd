//! TODO

use crate::tier::Reservation;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A part of the room for decoded copies, taken for as long as this lives.
#[derive(Debug)]
pub(crate) struct TransientReservation {
    taken: Arc<AtomicU64>,
    charged: Arc<AtomicU64>,
    bytes: u64,
    is_charged: AtomicBool,
}

impl TransientReservation {
    /// Of `bytes` that were added to `taken`.
    pub(crate) const fn new(taken: Arc<AtomicU64>, charged: Arc<AtomicU64>, bytes: u64) -> Self {
        Self { taken, charged, bytes, is_charged: AtomicBool::new(false) }
    }

    /// The ledger has been told.
    pub(crate) fn charge(&self) {
        if !self.is_charged.swap(true, Ordering::AcqRel) {
            self.charged.fetch_add(self.bytes, Ordering::AcqRel);
        }
    }

    /// What it was taken for is about to be among the copies, or the ledger to be told that it is
    /// not.
    pub(crate) fn hand_over(&self) {
        if self.is_charged.swap(false, Ordering::AcqRel) {
            self.charged.fetch_sub(self.bytes, Ordering::AcqRel);
        }
    }
}

impl Drop for TransientReservation {
    fn drop(&mut self) {
        self.hand_over();
        self.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Where a copy is to be packed: the room for it there.
#[derive(Debug)]
pub(crate) struct CompressedReservation {
    pub(crate) tier: usize,
    pub(crate) room: Mutex<Option<Reservation>>,
}
