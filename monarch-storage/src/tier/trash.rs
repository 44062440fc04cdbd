//! What a tier is getting rid of, and the bytes that are charged for it until it is gone.

use monarch_abi::hash::CopyName;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file that is unlinked once no process has it open.
#[derive(Debug)]
pub(super) struct TrashedFile {
    /// Below the tier's directory.
    pub(super) path: String,
    /// Bytes that are released with it.
    pub(super) charged: u64,
    /// Dropped when the file is gone.
    pub(super) _holds: Option<Held>,
}

/// What is kept for as long as a file exists.
pub(super) type Held = Box<dyn Any + Send>;

/// The files that are leaving a tier. Its lock is held from finding a copy's name to taking it
/// away.
#[derive(Debug, Default)]
pub(super) struct Trash(Mutex<Parts>);

#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) files: Vec<TrashedFile>,
    /// Evicted copies that could not be renamed yet: size, and whether they are charged even if
    /// they are not there.
    pub(super) stuck: BTreeMap<CopyName, (u64, bool)>,
    /// Charges that differ from what the size would cost (compression, metadata blocks): few on
    /// most file systems.
    pub(super) odd_charges: BTreeMap<CopyName, u64>,
    /// Copies evicted last whose names no copy has got since: their charge is released already.
    pub(super) evicted: VecDeque<CopyName>,
}

/// Entries of [`Parts::evicted`]. Two threads that evict the same copy do so within moments: one
/// turned its word, the other leaves the file to the PFS.
const MAX_EVICTED: usize = 64;

impl Parts {
    /// Remembers that a copy has been evicted.
    pub(super) fn note_evicted(&mut self, name: CopyName) {
        self.evicted.push_back(name);
        if self.evicted.len() > MAX_EVICTED {
            self.evicted.pop_front();
        }
    }
}

impl Trash {
    pub(super) fn lock(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the bytes charged for a copy whose size would have cost `usual`.
    pub(super) fn note_charge(&self, name: CopyName, usual: u64, charged: u64) {
        let mut parts = self.lock();
        parts.evicted.retain(|evicted| *evicted != name);
        if charged == usual {
            parts.odd_charges.remove(&name);
        } else {
            parts.odd_charges.insert(name, charged);
        }
    }
}
