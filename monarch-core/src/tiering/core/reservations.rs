//! Reservations of space that a copy holds beside that of its own tier: for transient copies, and
//! for its compressed copy.

use crate::tier::Reservation;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A part of the space for transient copies. Given back on drop.
#[derive(Debug)]
pub(crate) struct TransientReservation {
    taken: Arc<AtomicU64>,
    charged: Arc<AtomicU64>,
    bytes: u64,
    is_charged: AtomicBool,
}

impl TransientReservation {
    /// Takes over `bytes` that the caller has added to `taken`.
    pub(crate) const fn new(taken: Arc<AtomicU64>, charged: Arc<AtomicU64>, bytes: u64) -> Self {
        Self { taken, charged, bytes, is_charged: AtomicBool::new(false) }
    }

    /// Notes that the ledger counts these bytes, too.
    pub(crate) fn charge(&self) {
        if !self.is_charged.swap(true, Ordering::AcqRel) {
            self.charged.fetch_add(self.bytes, Ordering::AcqRel);
        }
    }

    /// Ends the double count: the copy is about to be listed, or to be given back to the ledger.
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

/// The tier that a copy is compressed into now, and the space reserved there, if there is some yet.
#[derive(Debug)]
pub(crate) struct CompressionTarget {
    pub(crate) tier: usize,
    pub(crate) room: Option<Reservation>,
}

/// The tier that a copy is to be compressed into, and the space reserved there.
#[derive(Debug)]
pub(crate) struct CompressedReservation {
    pub(crate) tier: usize,
    pub(crate) room: Mutex<Option<Reservation>>,
}
