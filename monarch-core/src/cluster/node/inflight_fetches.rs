//! Fetches from the PFS that are under way, and who answered for each file when it began: if that
//! is another node by the end, it is told.
//!
//! An entry lives as long as its fetch: it goes when the copy is complete, when the fetch ends
//! otherwise, and with the source that began it.

use super::{FileRef, lock};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most fetches that are remembered: more than can be under way. Of a copy beyond that nobody is
/// told.
const MOST: usize = 1 << 16;

/// One beginning of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beginning(u64);

#[derive(Debug)]
struct Entry {
    /// Who answered for the file, in which of its lives.
    life: (u16, u64),
    began: Beginning,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Begun {
    fetches: Mutex<HashMap<FileRef, Entry>>,
    serial: AtomicU64,
}

impl Begun {
    /// A file is about to be read from the PFS.
    pub(super) fn begin(&self, file: &FileRef, life: (u16, u64)) -> Beginning {
        let began = Beginning(self.serial.fetch_add(1, Ordering::Relaxed));
        let mut fetches = lock(&self.fetches);
        if fetches.len() < MOST || fetches.contains_key(file) {
            fetches.insert(*file, Entry { life, began });
        }
        began
    }

    /// The fetch of a file has ended; who answered for it when it began, if that is remembered.
    pub(super) fn end(&self, file: &FileRef) -> Option<(u16, u64)> {
        lock(&self.fetches).remove(file).map(|e| e.life)
    }

    /// The same, unless another fetch of the file has begun since.
    pub(super) fn end_this(&self, file: &FileRef, began: Beginning) {
        let mut fetches = lock(&self.fetches);
        if fetches.get(file).is_some_and(|e| e.began == began) {
            fetches.remove(file);
        }
    }

    /// Whether a file is being read from the PFS.
    pub(super) fn contains(&self, file: &FileRef) -> bool {
        lock(&self.fetches).contains_key(file)
    }

    /// An index is not served any more.
    pub(super) fn forget(&self, index: &[u8; 16]) {
        lock(&self.fetches).retain(|f, _| f.index != *index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(id: u32) -> FileRef {
        FileRef { index: [1; 16], id, fp: u64::from(id) }
    }

    fn len(begun: &Begun) -> usize {
        lock(&begun.fetches).len()
    }

    #[test]
    fn fetches_that_failed_are_not_remembered() {
        let begun = Begun::default();
        for id in 0..10 {
            begun.begin(&file(id), (3, 5));
            assert!(begun.contains(&file(id)));
            assert_eq!(begun.end(&file(id)), Some((3, 5)));
            assert!(!begun.contains(&file(id)));
            assert_eq!(begun.end(&file(id)), None);
        }
        assert_eq!(len(&begun), 0);
    }

    #[test]
    fn what_ends_late_does_not_end_the_next_fetch() {
        let begun = Begun::default();
        let first = begun.begin(&file(1), (3, 5));
        let second = begun.begin(&file(1), (4, 5));
        begun.end_this(&file(1), first);
        assert_eq!(len(&begun), 1);
        begun.end_this(&file(1), second);
        assert_eq!(len(&begun), 0);
    }

    #[test]
    fn fetches_that_are_remembered_are_bounded_and_none_of_them_is_lost() {
        let begun = Begun::default();
        for id in 0..MOST as u32 + 100 {
            begun.begin(&file(id), (3, 5));
        }
        assert_eq!(len(&begun), MOST);
        begun.begin(&file(0), (7, 7));
        assert_eq!((begun.end(&file(0)), begun.end(&file(1))), (Some((7, 7)), Some((3, 5))));
        begun.forget(&[2; 16]);
        assert_eq!(len(&begun), MOST - 2);
        begun.forget(&[1; 16]);
        assert_eq!(len(&begun), 0);
    }
}
