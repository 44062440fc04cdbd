//! Directories in memory, within a bound.
//!
//! What is read from the PFS stays, so that no directory is read twice: when the bound is reached,
//! the rest is left to the PFS. What comes from other nodes makes room for others when it was not
//! used for a while: a job that needs more at a time than fits is not answered by sending the same
//! directories again and again.

use crate::index::Directory;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A directory: identifier of its index, path relative to the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) index: [u8; 16],
    pub(super) rel: Arc<[u8]>,
}

/// Bytes of a directory in the tables, beside its path.
const KEY_BYTES: usize = 160;
/// A directory that takes more than this part of the bound is a large one.
const LARGE_PART: u64 = 4;

#[derive(Debug)]
struct Kept {
    directory: Arc<Directory>,
    bytes: u64,
    use_number: u64,
    used: Instant,
}

#[derive(Debug, Default)]
struct Tables {
    by_key: HashMap<Key, Kept>,
    /// In the order of their last use.
    by_use: BTreeMap<u64, Key>,
    bytes: u64,
    uses: u64,
    /// Whether one did not fit. Only directories that go change that.
    is_full: bool,
    /// Directories that would take a large part of the bound, and did not fit.
    refused: HashSet<Key>,
}

/// Directories within a bound.
#[derive(Debug)]
pub(super) struct DirectoryStore {
    max_bytes: u64,
    /// Time without use after which a directory goes for another one; `None`: never.
    min_idle: Option<Duration>,
    tables: Mutex<Tables>,
}

impl DirectoryStore {
    /// Keeps up to `max_bytes`. Directories that were not used for `min_idle` go for others.
    pub(super) fn new(max_bytes: u64, min_idle: Option<Duration>) -> Self {
        Self { max_bytes, min_idle, tables: Mutex::default() }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory, if it is kept; it counts as used now.
    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<Arc<Directory>> {
        let tables = &mut *self.tables();
        let kept = tables.by_key.get_mut(key)?;
        tables.uses += 1;
        let key = tables.by_use.remove(&kept.use_number)?;
        tables.by_use.insert(tables.uses, key);
        (kept.use_number, kept.used) = (tables.uses, now);
        Some(kept.directory.clone())
    }

    /// Whether another directory may find room, so that it is worth fetching.
    pub(super) fn may_have_room(&self, key: &Key, now: Instant) -> bool {
        let tables = self.tables();
        !tables.refused.contains(key) && (!tables.is_full || self.oldest(&tables, now).is_some())
    }

    /// The directory that goes next, if it may go.
    fn oldest(&self, tables: &Tables, now: Instant) -> Option<Key> {
        let min_idle = self.min_idle?;
        let (_, key) = tables.by_use.first_key_value()?;
        let used = tables.by_key.get(key)?.used;
        (now.saturating_duration_since(used) >= min_idle).then(|| key.clone())
    }

    /// Keeps a directory if there is room, or others may go for it; whether it is kept.
    pub(super) fn put(&self, key: Key, directory: Arc<Directory>, now: Instant) -> bool {
        let bytes = (directory.held_bytes() + key.rel.len() + KEY_BYTES) as u64;
        let tables = &mut *self.tables();
        tables.remove(&key);
        while tables.bytes + bytes > self.max_bytes
            && bytes <= self.max_bytes
            && let Some(oldest) = self.oldest(tables, now)
        {
            tables.remove(&oldest);
        }
        if tables.bytes + bytes > self.max_bytes {
            // (Smaller ones may fit beside a large one. Where others go, it may fit later itself.)
            let large = if self.min_idle.is_some() { self.max_bytes } else { self.max_bytes / LARGE_PART };
            match bytes > large {
                true => _ = tables.refused.insert(key),
                false => tables.is_full = true,
            }
            return false;
        }
        tables.uses += 1;
        let use_number = tables.uses;
        tables.by_use.insert(use_number, key.clone());
        tables.by_key.insert(key, Kept { directory, bytes, use_number, used: now });
        tables.bytes += bytes;
        true
    }

    /// Forgets the directories of all indexes but these.
    pub(super) fn retain(&self, indexes: &[[u8; 16]]) {
        let tables = &mut *self.tables();
        let gone: Vec<Key> = tables.by_key.keys().filter(|key| !indexes.contains(&key.index)).cloned().collect();
        gone.iter().for_each(|key| tables.remove(key));
        tables.refused.retain(|key| indexes.contains(&key.index));
    }

    /// Directories that are kept, and the bytes that they take.
    pub(super) fn usage(&self) -> (u64, u64) {
        let tables = self.tables();
        (tables.by_key.len() as u64, tables.bytes)
    }
}

impl Tables {
    fn remove(&mut self, key: &Key) {
        if let Some(kept) = self.by_key.remove(key) {
            self.by_use.remove(&kept.use_number);
            self.bytes -= kept.bytes;
            self.is_full = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(2);

    fn key(index: u8, rel: &str) -> Key {
        Key { index: [index; 16], rel: rel.as_bytes().into() }
    }

    fn directory(files: u32) -> (Arc<Directory>, u64) {
        let dir = Arc::new(Directory::synthetic(1, files));
        let bytes = (dir.held_bytes() + 1 + KEY_BYTES) as u64;
        (dir, bytes)
    }

    #[test]
    fn what_was_read_stays_and_the_bound_is_never_exceeded() {
        let ((dir, one), now) = (directory(20), Instant::now());
        let store = DirectoryStore::new(8 * one, None);
        let kept = (0..9).map(|n| store.put(key(1, &n.to_string()), dir.clone(), now));
        assert_eq!(kept.filter(|kept| *kept).count(), 8);
        assert!(!store.may_have_room(&key(1, "x"), now + 1000 * IDLE), "it would be read again and again");
        assert_eq!(store.usage(), (8, 8 * one));
        assert!(store.get(&key(1, "0"), now).is_some() && store.get(&key(1, "8"), now).is_none());
        assert!(store.put(key(1, "0"), dir, now), "what is kept again counts once");
        assert_eq!(store.usage(), (8, 8 * one));
    }

    #[test]
    fn a_directory_that_is_too_large_is_not_read_again_and_leaves_room_for_others() {
        let ((dir, one), now) = (directory(20), Instant::now());
        let store = DirectoryStore::new(8 * one, None);
        let (large, _) = directory(2000);
        assert!(store.may_have_room(&key(1, "large"), now) && !store.put(key(1, "large"), large, now));
        assert!(!store.may_have_room(&key(1, "large"), now) && store.may_have_room(&key(1, "a"), now));
        assert!(store.put(key(1, "a"), dir, now));
    }

    #[test]
    fn what_others_sent_goes_when_it_was_not_used_for_a_while() {
        let ((dir, one), start) = (directory(20), Instant::now());
        let store = DirectoryStore::new(8 * one, Some(IDLE));
        let names: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        for name in &names[..8] {
            assert!(store.may_have_room(&key(1, name), start) && store.put(key(1, name), dir.clone(), start));
        }
        assert!(!store.put(key(1, "8"), dir.clone(), start) && !store.may_have_room(&key(1, "9"), start));
        let later = start + IDLE;
        assert!(store.get(&key(1, "0"), later).is_some() && store.get(&key(2, "0"), later).is_none());
        assert!(store.may_have_room(&key(1, "8"), later) && store.put(key(1, "8"), dir.clone(), later));
        let there: Vec<bool> = names.iter().map(|name| store.get(&key(1, name), later).is_some()).collect();
        assert_eq!(there, [true, false, true, true, true, true, true, true, true]);
        for n in 100..300 {
            store.put(key(1, &n.to_string()), dir.clone(), later + n * IDLE);
            assert!(store.usage().1 <= 8 * one);
        }
    }

    #[test]
    fn what_others_sent_may_be_large_and_fit_later() {
        let ((dir, one), start) = (directory(20), Instant::now());
        let store = DirectoryStore::new(2 * one, Some(IDLE));
        let kept = ["a", "b", "c"].map(|name| store.put(key(1, name), dir.clone(), start));
        assert_eq!(kept, [true, true, false]);
        assert!(store.may_have_room(&key(1, "c"), start + IDLE) && store.put(key(1, "c"), dir, start + IDLE));
        let (large, _) = directory(2000);
        assert!(!store.put(key(1, "large"), large, start + IDLE), "it never fits");
        assert!(!store.may_have_room(&key(1, "large"), start + 9 * IDLE));
    }

    #[test]
    fn the_directories_of_an_index_go_with_it() {
        let ((dir, one), now) = (directory(3), Instant::now());
        let store = DirectoryStore::new(8 * one, None);
        assert!([1, 2].iter().all(|index| store.put(key(*index, "a"), dir.clone(), now)));
        assert_eq!((0..9).filter(|n| store.put(key(1, &n.to_string()), dir.clone(), now)).count(), 6);
        store.retain(&[[2; 16]]);
        assert!(store.get(&key(1, "a"), now).is_none() && store.get(&key(2, "a"), now).is_some());
        assert!(store.may_have_room(&key(2, "b"), now) && store.put(key(2, "b"), dir, now));
        store.retain(&[]);
        assert_eq!(store.usage(), (0, 0));
    }
}
