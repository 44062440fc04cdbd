//! Changes of the job in directories that the index does not hold (`index.distributed`): which
//! answers about them are the kernel's.
//!
//! A change sets a bit that the hash of its path chooses, for good. Another path may have the same
//! bit: then the kernel answers about that as well. There are two arrays of the same length: what
//! this node's job has changed, which the agent passes on, and what came from other nodes.

use crate::hash::path_hash;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bits of each array.
pub const BITS: u32 = 1 << 19;
/// Words of each array.
pub const WORDS: usize = BITS as usize / 64;
/// Bytes of both arrays.
pub const BYTES: u64 = 2 * WORDS as u64 * 8;
/// The bit that leaves all directories to the kernel.
pub const CLOSED: u32 = 0;

/// What a mark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The attributes of what has a path.
    Entry,
    /// The names in a directory, and what they stand for.
    Names,
}

/// The bit of a path relative to its root. Never [`CLOSED`].
#[must_use]
pub fn bit_of(subject: Subject, rel: &[u8]) -> u32 {
    let hash = path_hash(subject as u64, rel).fp;
    #[expect(clippy::cast_possible_truncation, reason = "less than BITS")]
    let bit = (hash % u64::from(BITS - 1)) as u32;
    bit + 1
}

/// The directory of a path; that of the root itself is the root.
#[must_use]
pub fn parent_of(rel: &[u8]) -> &[u8] {
    let len = rel.iter().rposition(|&c| c == b'/').unwrap_or(0);
    rel.get(..len).unwrap_or_default()
}

/// Both arrays of a segment. Without them nothing is asked of other nodes.
#[derive(Clone, Copy, Debug)]
pub struct Marks<'a> {
    pub(crate) own: &'a [AtomicU64],
    pub(crate) heard: &'a [AtomicU64],
}

impl<'a> Marks<'a> {
    /// Marks in these words, of which the first half is what this node's job has changed.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        let (own, heard) = words.split_at(words.len() / 2);
        Self { own, heard }
    }

    /// Whether directories that the index does not hold are asked for.
    #[must_use]
    #[inline]
    pub const fn is_on(&self) -> bool {
        !self.own.is_empty()
    }

    /// Notes that the job on this node changes the attributes of what has this path.
    pub fn note_entry(&self, rel: &[u8]) {
        self.set(bit_of(Subject::Entry, rel));
    }

    /// Notes that the job on this node makes, removes or replaces this name. What it stands for, if
    /// it is a directory, is another one from then on, and the directory of the name changes, too.
    pub fn note_name(&self, rel: &[u8]) {
        let dir = parent_of(rel);
        self.set(bit_of(Subject::Names, dir));
        self.set(bit_of(Subject::Entry, dir));
        self.set(bit_of(Subject::Names, rel));
    }

    /// Leaves all directories to the kernel, on all nodes.
    pub fn close(&self) {
        self.set(CLOSED);
    }

    /// The same on this node only.
    pub fn close_here(&self) {
        self.hear(CLOSED);
    }

    /// Whether all directories are left to the kernel.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_set(CLOSED)
    }

    /// Notes a bit that another node has sent.
    pub fn hear(&self, bit: u32) {
        set(self.heard, bit);
    }

    fn set(&self, bit: u32) {
        set(self.own, bit);
    }

    /// Whether the kernel answers about the attributes of a path.
    #[must_use]
    pub fn covers_entry(&self, rel: &[u8]) -> bool {
        self.is_set(bit_of(Subject::Entry, rel)) || self.covers_names(parent_of(rel))
    }

    /// Whether the kernel answers about the names in a directory.
    #[must_use]
    pub fn covers_names(&self, rel: &[u8]) -> bool {
        self.is_set(CLOSED) || self.is_set(bit_of(Subject::Names, rel))
    }

    /// Whether a bit is set, here or by another node.
    #[must_use]
    pub fn is_set(&self, bit: u32) -> bool {
        [self.own, self.heard].iter().any(|words| {
            words.get(bit as usize / 64).is_none_or(|word| word.load(Ordering::Acquire) & 1 << (bit % 64) != 0)
        })
    }

    /// Bits of this node's job that are not in `known`, which has [`WORDS`] words; they are entered
    /// there.
    pub fn take_new(&self, known: &mut [u64], mut found: impl FnMut(u32)) {
        for (at, (word, known)) in (0..).zip(self.own.iter().zip(known)) {
            let now = word.load(Ordering::Acquire);
            let mut new = now & !*known;
            *known |= now;
            while new != 0 {
                found(at * 64 + new.trailing_zeros());
                new &= new - 1;
            }
        }
    }
}

fn set(words: &[AtomicU64], bit: u32) {
    if let Some(word) = words.get(bit as usize / 64) {
        let mask = 1 << (bit % 64);
        // (Most changes are of what has changed before.)
        if word.load(Ordering::Relaxed) & mask == 0 {
            word.fetch_or(mask, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn words() -> Vec<AtomicU64> {
        (0..2 * WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn a_name_that_changes_leaves_its_directory_to_the_kernel_and_no_other() {
        let words = words();
        let marks = Marks::new(&words);
        assert!(marks.is_on());
        marks.note_name(b"a/b/new");
        assert!(marks.covers_names(b"a/b") && marks.covers_names(b"a/b/new"), "it may have been a directory");
        assert!(marks.covers_entry(b"a/b/old") && marks.covers_entry(b"a/b"), "the directory's own times");
        assert!(!marks.covers_names(b"a") && !marks.covers_entry(b"a/c") && !marks.covers_names(b"a/bb"));
    }

    #[test]
    fn a_file_that_changes_leaves_the_listing_as_it_is() {
        let words = words();
        let marks = Marks::new(&words);
        marks.note_entry(b"a/b");
        assert!(marks.covers_entry(b"a/b") && !marks.covers_entry(b"a/c") && !marks.covers_names(b"a"));
        marks.note_name(b"top");
        assert!(marks.covers_names(b"") && marks.covers_entry(b"other"), "the root is its own directory");
    }

    #[test]
    fn only_what_the_job_here_has_changed_is_passed_on_and_once() {
        let words = words();
        let (marks, mut known) = (Marks::new(&words), std::vec![0; WORDS]);
        let mut take = |marks: &Marks<'_>| {
            let mut found = Vec::new();
            marks.take_new(&mut known, |bit| found.push(bit));
            found
        };
        marks.hear(bit_of(Subject::Names, b"theirs"));
        marks.close_here();
        assert!(marks.covers_names(b"theirs") && marks.covers_names(b"any"));
        assert_eq!(take(&marks), []);
        marks.note_entry(b"ours");
        assert_eq!(take(&marks), [bit_of(Subject::Entry, b"ours")]);
        assert_eq!(take(&marks), []);
        marks.close();
        assert_eq!(take(&marks), [CLOSED]);
    }

    #[test]
    fn without_arrays_everything_is_the_kernels() {
        let marks = Marks::new(&[]);
        marks.note_name(b"a");
        assert!(!marks.is_on() && marks.covers_entry(b"b"));
    }
}
