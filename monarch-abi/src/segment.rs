//! An index and its state: the unit that appears, is superseded and retires while processes run.

use crate::hash::{CopyName, Stamp, path_hash};
use crate::index::{Dir, Index, Record};
use crate::state::{NO_ID, Slot, StateMap};
use crate::word::{State, Word};
use core::sync::atomic::Ordering;

/// A mapped segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// What was scanned.
    pub index: Index<'a>,
    /// What became of it.
    pub state: StateMap<'a>,
}

/// An entry that was found.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its id.
    pub id: u32,
    /// Its metadata.
    pub record: &'a Record,
    /// The slot of this name.
    pub slot: &'a Slot,
    /// The slot whose word counts (another one for further names of a hard-linked inode).
    pub master: &'a Slot,
}

impl Entry<'_> {
    /// The state word as it is now.
    #[must_use]
    #[inline]
    pub fn word(&self) -> Word {
        Word(self.master.word.load(Ordering::Acquire))
    }
}

impl<'a> Segment<'a> {
    /// The entry with exactly this relative path. An empty path is the root.
    #[must_use]
    #[inline(never)]
    pub fn lookup(&self, rel: &[u8]) -> Option<Entry<'a>> {
        self.lookup_inlined(rel)
    }

    /// [`Segment::lookup`] in the code of its caller, for calls of which each instruction counts.
    #[must_use]
    #[inline(always)]
    pub fn lookup_inlined(&self, rel: &[u8]) -> Option<Entry<'a>> {
        let h = path_hash(self.index.header.seed, rel);
        for bucket in self.state.probe_buckets(h.fp >> 20) {
            for slot in &bucket.slots {
                if slot.fp == h.fp {
                    // (An empty slot has no record.)
                    let record = self.index.record(slot.id)?;
                    if record.check == h.check {
                        return self.entry(slot, record);
                    }
                } else if slot.id == NO_ID {
                    return None;
                }
            }
        }
        None
    }

    /// The entry a slot stands for.
    #[inline]
    fn entry(&self, slot: &'a Slot, record: &'a Record) -> Option<Entry<'a>> {
        let word = Word(slot.word.load(Ordering::Acquire));
        let master = if word.state() == State::Link { self.state.slot(record.aux)? } else { slot };
        Some(Entry { id: slot.id, record, slot, master })
    }

    /// The entry of a large file.
    #[must_use]
    #[inline]
    pub fn large_entry(&self, file: &crate::chunks::LargeFile<'_>) -> Option<Entry<'a>> {
        let slot = self.state.slot(file.head.slot).filter(|s| s.id == file.head.id)?;
        Some(Entry { id: slot.id, record: self.index.record(slot.id)?, slot, master: slot })
    }

    /// The entry with this id, found by its path. (Not inlined: callers that open files have little
    /// stack to spare.)
    #[must_use]
    #[inline(never)]
    pub fn by_id(&self, id: u32) -> Option<Entry<'a>> {
        self.lookup(self.index.path_of(id)?.get())
    }

    /// Every regular file once: further names of hard-linked inodes are left out. In the order of
    /// the table.
    pub fn files(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        self.files_that(|_| true)
    }

    /// The same of those whose word is wanted, which is looked at first: the table lies close
    /// together, the records do not.
    pub fn files_that<F: Fn(Word) -> bool>(&self, wanted: F) -> impl Iterator<Item = Entry<'a>> + use<'a, F> {
        let index = self.index;
        self.state.all().filter_map(move |slot| {
            let word = Word(slot.word.load(Ordering::Acquire));
            if word.state() == State::Link || !wanted(word) {
                return None;
            }
            let record = index.record(slot.id).filter(|r| r.is_file())?;
            Some(Entry { id: slot.id, record, slot, master: slot })
        })
    }

    /// The name of the copy of an entry's version. Further names of a hard-linked inode share the
    /// copy of the master.
    #[must_use]
    #[inline(always)]
    pub fn copy_name(&self, e: &Entry<'_>) -> CopyName {
        let check = if core::ptr::eq(e.slot, e.master) {
            e.record.check
        } else {
            self.index.record(e.master.id).map_or(0, |r| r.check)
        };
        let hash = crate::hash::PathHash { fp: e.master.fp, check };
        CopyName::new(self.index.header.root_id, hash, &e.record.identity())
    }

    /// The entry of which a file of `size` bytes with this stamp is a copy.
    #[must_use]
    pub fn by_stamp(&self, stamp: Stamp, size: u64) -> Option<Entry<'a>> {
        for slot in self.state.probe(stamp.fp44()) {
            if slot.fp >> 20 == stamp.fp44() {
                let record = self.index.record(slot.id)?;
                let entry = Entry { id: slot.id, record, slot, master: slot };
                if record.size == size && stamp.matches(self.copy_name(&entry)) {
                    return Some(entry);
                }
            }
        }
        None
    }

    /// The entry whose copy has this name. Goes through all entries.
    #[must_use]
    pub fn by_copy_name(&self, name: CopyName) -> Option<Entry<'a>> {
        self.files().find(|e| self.copy_name(e) == name)
    }

    /// The directory of a directory entry whose listing is held.
    #[must_use]
    pub fn listed_dir(&self, e: &Entry<'_>) -> Option<&'a Dir> {
        self.index.dir(e.record).filter(|d| d.flags & crate::index::DIR_INCOMPLETE == 0)
    }
}
