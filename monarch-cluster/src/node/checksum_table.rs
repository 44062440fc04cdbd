//! Checksums of copies, so that this node can tell whether its disk has damaged them; and their
//! tags, so that a node that gets a copy from here can tell whether these bytes were sent.
//!
//! A checksum is that of the bytes as the PFS sent them, taken while the copy was made or kept in
//! the tier's log. A tag is made from the copy when a part is first sent. What is read for that is
//! compared with the checksum of the part; of one that has none, the whole copy is compared before,
//! unless it is large. The table takes eight bytes a file, as many a chunk of large files, and
//! about fifty a tag.

use crate::sync::lock;
use crate::tag::Tag;
use monarch_storage::sharing::FileRef;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A part of a file: offset and length, in bytes.
type Part = (u64, u64);
/// Parts of one index whose checksum is kept, and as many whose tag is. Beyond that, all are
/// forgotten.
const MAX_PARTS: usize = 1 << 20;

#[derive(Debug, Default)]
struct OfIndex {
    /// By file; 0: not known.
    whole: Vec<AtomicU64>,
    parts: Mutex<HashMap<(u32, Part), u64>>,
    tags: Mutex<HashMap<(u32, Part), Tag>>,
    /// Files whose copy here was found to have the checksum of the whole.
    compared: Mutex<HashSet<u32>>,
}

/// Checksums by index.
#[derive(Debug, Default)]
pub(super) struct ChecksumTable {
    indexes: Mutex<HashMap<[u8; 16], Arc<OfIndex>>>,
}

impl ChecksumTable {
    /// Makes room for an index with this number of entries.
    pub(super) fn add_index(&self, index: [u8; 16], entries: usize) {
        let make =
            || Arc::new(OfIndex { whole: (0..entries).map(|_| AtomicU64::new(0)).collect(), ..OfIndex::default() });
        lock(&self.indexes).entry(index).or_insert_with(make);
    }

    /// Forgets an index that is not served any more.
    pub(super) fn forget_index(&self, index: &[u8; 16]) {
        lock(&self.indexes).remove(index);
    }

    fn of(&self, file: &FileRef) -> Option<Arc<OfIndex>> {
        lock(&self.indexes).get(&file.index).cloned()
    }

    /// Notes the checksum of a whole copy that is there now.
    pub(super) fn note(&self, file: &FileRef, sum: u64) {
        if let Some(of) = self.of(file)
            && let Some(slot) = of.whole.get(file.id as usize)
        {
            slot.store(sum, Ordering::Relaxed);
            lock(&of.compared).remove(&file.id);
        }
    }

    /// Notes the checksum of a part of a copy.
    pub(super) fn note_part(&self, file: &FileRef, part: Part, sum: u64) {
        if let Some(of) = self.of(file) {
            keep(&of.parts, (file.id, part), sum);
        }
    }

    /// Notes the tag of a part of a copy.
    pub(super) fn note_tag(&self, file: &FileRef, part: Part, tag: Tag) {
        if let Some(of) = self.of(file) {
            keep(&of.tags, (file.id, part), tag);
        }
    }

    /// The tag of a part of a copy, if it was made.
    pub(super) fn tag(&self, file: &FileRef, part: Part) -> Option<Tag> {
        lock(&self.of(file)?.tags).get(&(file.id, part)).copied()
    }

    /// Forgets the checksums of a file's parts, all tags of it, and that its copy was compared.
    pub(super) fn forget_parts(&self, file: &FileRef) {
        if let Some(of) = self.of(file) {
            lock(&of.parts).retain(|(id, _), _| *id != file.id);
            lock(&of.tags).retain(|(id, _), _| *id != file.id);
            lock(&of.compared).remove(&file.id);
        }
    }

    /// Whether a copy was compared with the checksum of the whole, and is sound.
    pub(super) fn is_compared(&self, file: &FileRef) -> bool {
        self.of(file).is_some_and(|of| lock(&of.compared).contains(&file.id))
    }

    /// Notes that a copy was compared with the checksum of the whole, and is sound.
    pub(super) fn note_compared(&self, file: &FileRef) {
        if let Some(of) = self.of(file) {
            lock(&of.compared).insert(file.id);
        }
    }

    /// The checksum of a part of a file of `size` bytes, if it is known.
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

/// Adds to a table, which is begun again when it is full.
fn keep<V>(table: &Mutex<HashMap<(u32, Part), V>>, key: (u32, Part), value: V) {
    let mut table = lock(table);
    if table.len() >= MAX_PARTS {
        table.clear();
    }
    table.insert(key, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_files_and_parts() {
        let (sums, index) = (ChecksumTable::default(), [1; 16]);
        let file = |id| FileRef { index, id, fp: 9 };
        sums.note(&file(0), 5);
        assert_eq!(sums.get(&file(0), (0, 10), 10), None, "an index that is not known");
        sums.add_index(index, 2);
        sums.note(&file(0), 5);
        sums.note(&file(7), 5);
        sums.note_part(&file(1), (4, 4), 6);
        assert_eq!(sums.get(&file(0), (0, 10), 10), Some(5));
        assert_eq!(sums.get(&file(0), (0, 9), 10), None);
        assert_eq!((sums.get(&file(1), (4, 4), 10), sums.get(&file(1), (0, 4), 10)), (Some(6), None));
        sums.note_part(&file(0), (4, 4), 7);
        let tag = crate::tag::TagKey::new([1; 32]).of_body(0, b"");
        sums.note_tag(&file(1), (4, 4), tag);
        assert_eq!((sums.tag(&file(1), (4, 4)), sums.tag(&file(1), (4, 5))), (Some(tag), None));
        sums.forget_parts(&file(1));
        assert_eq!(sums.tag(&file(1), (4, 4)), None);
        assert_eq!((sums.get(&file(1), (4, 4), 10), sums.get(&file(0), (4, 4), 10)), (None, Some(7)));
        sums.forget_index(&index);
        assert_eq!(sums.get(&file(0), (0, 10), 10), None);
    }
}
