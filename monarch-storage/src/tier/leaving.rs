//! Copies of a tier on their way out, and what is charged until they are gone.

use monarch_abi::hash::CopyName;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file that is to be unlinked.
#[derive(Debug)]
pub(super) struct Dying {
    /// Below the tier's directory.
    pub(super) path: String,
    pub(super) charged: u64,
    /// Dropped when it is gone.
    pub(super) _holds: Option<Held>,
}

/// What stays for as long as a file is there.
pub(super) type Held = Box<dyn Any + Send>;

/// What is on its way out, and what will be released for it.
#[derive(Debug, Default)]
pub(super) struct Leaving(Mutex<Parts>);

#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) dying: Vec<Dying>,
    /// Evicted copies that still have their names: size, and whether they are charged even if they
    /// are not there.
    pub(super) stuck: BTreeMap<CopyName, (u64, bool)>,
    /// Charges that are not what the size says (compression, metadata blocks): few on most file
    /// systems.
    pub(super) odd: BTreeMap<CopyName, u64>,
    /// Copies taken out last whose name has none since: what was charged for them is released
    /// already.
    pub(super) out: VecDeque<CopyName>,
}

/// Two who take out the same copy do so within moments: one whose word they turned, and one who
/// leaves the file to the PFS.
const OUT: usize = 64;

impl Parts {
    pub(super) fn is_out(&mut self, name: CopyName) {
        self.out.push_back(name);
        if self.out.len() > OUT {
            self.out.pop_front();
        }
    }
}

impl Leaving {
    pub(super) fn lock(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what was charged for a copy whose size would have cost `usual`.
    pub(super) fn note_charge(&self, name: CopyName, usual: u64, charged: u64) {
        let mut parts = self.lock();
        parts.out.retain(|out| *out != name);
        if charged == usual {
            parts.odd.remove(&name);
        } else {
            parts.odd.insert(name, charged);
        }
    }
}
