//! What copies come to, so that who gets one from here can tell whether it arrived.
//!
//! A checksum is that of the bytes as the PFS sent them, taken while the copy was made or kept in
//! the tier's log. Of parts that nobody has summed it is taken from the copy when they are first
//! sent, which is compared with the sum of the whole before, unless it is large. Eight bytes a
//! file, and as many a chunk of large ones.

use super::FileRef;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A part of a file: offset and length.
type Part = (u64, u64);
/// Parts of which the sum is kept; beyond, all are forgotten.
const PARTS: usize = 1 << 20;

#[derive(Debug, Default)]
struct OfIndex {
    /// By file; 0: not known.
    whole: Vec<AtomicU64>,
    parts: Mutex<HashMap<(u32, Part), u64>>,
    /// Files whose copy here was found to be what the sum of the whole says.
    compared: Mutex<HashSet<u32>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sums {
    indexes: Mutex<HashMap<[u8; 16], Arc<OfIndex>>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sums {
    /// Makes room for an index of so many entries.
    pub(super) fn add(&self, index: [u8; 16], entries: usize) {
        let make =
            || Arc::new(OfIndex { whole: (0..entries).map(|_| AtomicU64::new(0)).collect(), ..OfIndex::default() });
        lock(&self.indexes).entry(index).or_insert_with(make);
    }

    /// An index is gone.
    pub(super) fn forget(&self, index: &[u8; 16]) {
        lock(&self.indexes).remove(index);
    }

    fn of(&self, file: &FileRef) -> Option<Arc<OfIndex>> {
        lock(&self.indexes).get(&file.index).cloned()
    }

    /// A copy is there, and comes to this as a whole.
    pub(super) fn note(&self, file: &FileRef, sum: u64) {
        if let Some(of) = self.of(file)
            && let Some(slot) = of.whole.get(file.id as usize)
        {
            slot.store(sum, Ordering::Relaxed);
            lock(&of.compared).remove(&file.id);
        }
    }

    /// A part of a copy comes to this.
    pub(super) fn note_part(&self, file: &FileRef, part: Part, sum: u64) {
        if let Some(of) = self.of(file) {
            let mut parts = lock(&of.parts);
            if parts.len() >= PARTS {
                parts.clear();
            }
            parts.insert((file.id, part), sum);
        }
    }

    /// What parts of a file come to is to be found out anew.
    pub(super) fn forget_parts(&self, file: &FileRef) {
        if let Some(of) = self.of(file) {
            lock(&of.parts).retain(|(id, _), _| *id != file.id);
            lock(&of.compared).remove(&file.id);
        }
    }

    /// Whether a copy was compared with the sum of the whole, and is sound.
    pub(super) fn is_compared(&self, file: &FileRef) -> bool {
        self.of(file).is_some_and(|of| lock(&of.compared).contains(&file.id))
    }

    /// It was, and is.
    pub(super) fn note_compared(&self, file: &FileRef) {
        if let Some(of) = self.of(file) {
            lock(&of.compared).insert(file.id);
        }
    }

    /// What a part of a file comes to, if that is known.
    pub(super) fn get(&self, file: &FileRef, part: Part, size: u64) -> Option<u64> {
        let of = self.of(file)?;
        let whole = || of.whole.get(file.id as usize).map(|s| s.load(Ordering::Relaxed)).filter(|s| *s != 0);
        if part == (0, size)
            && let Some(sum) = whole()
        {
            return Some(sum);
        }
        lock(&of.parts).get(&(file.id, part)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_files_and_parts() {
        let (sums, index) = (Sums::default(), [1; 16]);
        let file = |id| FileRef { index, id, fp: 9 };
        sums.note(&file(0), 5);
        assert_eq!(sums.get(&file(0), (0, 10), 10), None, "an index that is not known");
        sums.add(index, 2);
        sums.note(&file(0), 5);
        sums.note(&file(7), 5);
        sums.note_part(&file(1), (4, 4), 6);
        assert_eq!(sums.get(&file(0), (0, 10), 10), Some(5));
        assert_eq!(sums.get(&file(0), (0, 9), 10), None);
        assert_eq!((sums.get(&file(1), (4, 4), 10), sums.get(&file(1), (0, 4), 10)), (Some(6), None));
        sums.note_part(&file(0), (4, 4), 7);
        sums.forget_parts(&file(1));
        assert_eq!((sums.get(&file(1), (4, 4), 10), sums.get(&file(0), (4, 4), 10)), (None, Some(7)));
        sums.forget(&index);
        assert_eq!(sums.get(&file(0), (0, 10), 10), None);
    }
}
