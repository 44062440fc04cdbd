//! Files that the PFS has released to tape: their size is known, and their bytes lie in an archive.
//! A read fetches them from there, which takes minutes, and a tape drive that other users need.
//!
//! They are recognised by their blocks: none, or the one that Lustre shows so that `tar` does not
//! take them for holes. Files that fit into an inode have no blocks either. Nor have, for a while,
//! files just written (delayed allocation, another client's cache). Some file systems, mostly in
//! user space, report no blocks at all: if nearly every file looks released, none counts as such.

use crate::parts_of::Cut;
use monarch_abi::index::{Index, Record};

/// Bytes of a file that may lie inside its inode, at most.
const MAX_INLINE_BYTES: u64 = 4096;
/// Age in nanoseconds, at the time of the scan, below which a file is not on tape yet.
const MIN_AGE_NS: i64 = 3600 * 1_000_000_000;
/// Blocks of 512 bytes that a released file may show, at most.
const MAX_BLOCKS: u32 = 1;

/// The released files of a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Their number.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether blocks mean nothing here: nearly all files look released.
    pub unknown: bool,
    scanned_ns: i64,
}

impl Released {
    /// Finds the released files of an index.
    #[must_use]
    pub fn of(index: &Index<'_>) -> Self {
        Self::with(index, Cut::for_machine())
    }

    pub(super) fn with(index: &Index<'_>, cut: Cut) -> Self {
        let none = Self { scanned_ns: index.header.scanned_ns, ..Self::default() };
        let parts = cut.each(index.len(), |part| {
            let (mut found, mut with_blocks) = (none, 0);
            for r in index.records_of(part).iter().filter(|r| r.is_file()) {
                with_blocks += u64::from(r.blocks > MAX_BLOCKS);
                if found.looks(r) {
                    found.files += 1;
                    // (Sparse files may have up to 2^63 bytes each.)
                    found.bytes = found.bytes.saturating_add(r.size);
                }
            }
            (found, with_blocks)
        });
        let (found, with_blocks) = parts.into_iter().fold((none, 0), |(all, blocks), (part, more)| {
            let (files, bytes) = (all.files + part.files, all.bytes.saturating_add(part.bytes));
            (Self { files, bytes, ..all }, blocks + more)
        });
        // 19 of 20.
        if found.files > 0 && with_blocks * 19 <= found.files {
            return Self { unknown: true, ..Self::default() };
        }
        found
    }

    /// Whether a file of that index is one of them.
    #[must_use]
    pub fn holds(&self, r: &Record) -> bool {
        self.files > 0 && r.is_file() && self.looks(r)
    }

    fn looks(&self, r: &Record) -> bool {
        r.size > MAX_INLINE_BYTES && r.blocks <= MAX_BLOCKS && self.scanned_ns.saturating_sub(r.mtime_ns) > MIN_AGE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Tree, build};
    use crate::shm::IndexBytes;

    /// An index of 100 files of 110,000 bytes, changed by `shape`.
    fn with(shape: impl Fn(usize, &mut Record)) -> (Released, Vec<bool>) {
        let mut tree = Tree::synthetic(1, 100);
        tree.entries_mut(1).iter_mut().enumerate().for_each(|(n, r)| shape(n, r));
        let built = build(tree, 1, [1; 16]);
        let index = IndexBytes(&built.index).open().expect("index");
        let released = Released::of(&index);
        let files = index.records().iter().filter(|r| r.is_file());
        (released, files.map(|r| released.holds(r)).collect())
    }

    #[test]
    fn sizes_that_add_up_to_more_than_64_bits_end_there() {
        // (A sparse file takes no blocks, whatever its size.)
        let sparse = |n: usize, r: &mut Record| {
            (r.size, r.blocks) = if n < 5 { (i64::MAX as u64, 0) } else { (r.size, 216) };
        };
        let (found, which) = with(sparse);
        assert_eq!((found.files, found.bytes), (5, u64::MAX));
        assert_eq!(which.iter().filter(|held| **held).count(), 5);
        let mut tree = Tree::synthetic(1, 100);
        tree.entries_mut(1).iter_mut().enumerate().for_each(|(n, r)| sparse(n, r));
        let built = build(tree, 1, [1; 16]);
        assert_eq!(IndexBytes(&built.index).open().expect("index").header.bytes, u64::MAX);
    }

    #[test]
    fn files_without_blocks_are_released() {
        let (found, which) = with(|n, r| r.blocks = if n % 10 < 2 { n as u32 % 2 } else { 216 });
        assert_eq!((found.files, found.bytes, found.unknown), (20, 2_200_000, false), "0 blocks, and Lustre's 1");
        assert!(which.iter().enumerate().all(|(n, &is)| is == (n % 10 < 2)), "{which:?}");
    }

    #[test]
    fn small_files_and_files_just_written_are_not() {
        let (found, which) = with(|n, r| match n % 4 {
            0 => (r.blocks, r.size) = (0, 4096),
            1 => (r.blocks, r.mtime_ns) = (0, crate::index::now_ns()),
            2 => r.blocks = 2,
            _ => {}
        });
        assert_eq!((found.files, found.unknown, which.iter().any(|&is| is)), (0, false, false));
    }

    #[test]
    fn where_hardly_any_file_has_blocks_they_tell_nothing() {
        for (with_blocks, unknown) in [(0, true), (5, true), (6, false)] {
            let (found, which) = with(|n, r| r.blocks = if n < with_blocks { 216 } else { 0 });
            assert_eq!(found.unknown, unknown, "{with_blocks} of 100 have blocks");
            let spared = which.iter().filter(|&&is| is).count();
            assert_eq!(spared, if unknown { 0 } else { 100 - with_blocks });
        }
        let (found, _) = with(|_, r| (r.blocks, r.size) = (0, 100));
        assert!(!found.unknown, "files that fit into an inode say nothing about the file system");
        let (found, _) = with(|n, r| (r.blocks, r.mtime_ns) = (0, if n < 50 { crate::index::now_ns() } else { 1 }));
        assert!(found.unknown, "nor do files just written");
        let (found, _) = with(|n, r| (r.blocks, r.size) = if n < 50 { (8, 100) } else { (0, 100_000) });
        assert_eq!((found.files, found.unknown), (50, false), "small files with blocks do");
    }
}
