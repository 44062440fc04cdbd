//! How much of each kind an index holds, and where its parts lie.

use super::read_dir::DirScan;
use super::scan::Tree;
use monarch_abi::index::{Dir, IndexHeader, Record};

pub(super) use monarch_abi::state::MAX_ENTRIES;

/// Bytes of all link targets: their offsets have 32 bits, of which the largest has another meaning.
/// Links beyond are left to the kernel.
pub(super) const MAX_LINK_BYTES: usize = u32::MAX as usize - 1;

/// A tree with more entries than an index holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the root has {entries} files, directories and links, an index holds {limit}: name parts of it as roots of their own"
)]
pub struct IndexTooLarge {
    /// Entries of the tree.
    pub entries: usize,
    /// Entries that an index holds.
    pub limit: u64,
}

/// What there is of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) entries: usize,
    pub(super) dirs: usize,
    /// Bytes of the names.
    pub(super) names: usize,
    /// Bytes of the link targets.
    pub(super) links: usize,
    pub(super) owners: usize,
    pub(super) has_btime: bool,
}

impl Sizes {
    /// Counts what a tree holds: the directories that its entries lead to, each once.
    pub(super) fn of(tree: &Tree) -> Self {
        let mut s = Self { entries: 1, dirs: 1, owners: tree.owners.len(), ..Self::default() };
        s.has_btime = tree.root_btime != i64::MIN;
        for d in &tree.dirs {
            s.entries += d.entries.len();
            s.names += d.entries.iter().map(|r| d.name(r).len()).sum::<usize>();
            s.dirs += d.entries.iter().filter(|r| r.is_dir()).count();
            s.links += link_bytes(d);
            s.has_btime = s.has_btime || d.btimes.iter().any(|&t| t != i64::MIN);
        }
        s
    }
}

fn link_bytes(d: &DirScan) -> usize {
    d.entries.iter().filter(|r| r.is_link()).map(|r| d.link(r.aux).map_or(4, <[u8]>::len)).sum()
}

/// Where the parts of an index lie behind its header: the start and length of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    at: [(usize, usize); 6],
    /// Length of the index file.
    pub(super) len: usize,
}

impl Parts {
    /// Lays out an index.
    ///
    /// # Errors
    /// There are more than `max_entries`.
    pub(super) fn of(s: &Sizes, max_entries: u64) -> Result<Self, IndexTooLarge> {
        if s.entries as u64 > max_entries {
            return Err(IndexTooLarge { entries: s.entries, limit: max_entries });
        }
        let btimes = if s.has_btime { s.entries * size_of::<i64>() } else { 0 };
        let links = s.links.min(MAX_LINK_BYTES);
        let lengths = [
            s.entries * size_of::<Record>(),
            s.dirs * size_of::<Dir>(),
            s.names,
            links,
            s.owners * size_of::<u64>(),
            btimes,
        ];
        let mut end = size_of::<IndexHeader>();
        let at = lengths.map(|length| {
            let start = end.next_multiple_of(64);
            end = start + length;
            (start, length)
        });
        Ok(Self { at, len: end.next_multiple_of(4096) })
    }

    /// The parts of an index of this layout: records, directories, names, links, owners, birth
    /// times.
    pub(super) fn split<'a>(&self, index: &'a mut [u8]) -> [&'a mut [u8]; 6] {
        let (mut rest, mut passed) = (index, 0);
        self.at.map(|(start, length)| {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(start - passed);
            let (part, behind) = from.split_at_mut(length);
            (rest, passed) = (behind, start + length);
            part
        })
    }

    /// Enters offsets and length into a header.
    pub(super) fn enter(&self, header: &mut IndexHeader) {
        let [records, dirs, names, links, owners, btimes] = self.at;
        header.len = self.len as u64;
        header.records_off = records.0 as u64;
        header.dirs_off = dirs.0 as u64;
        header.names_off = names.0 as u64;
        header.links_off = links.0 as u64;
        header.owners_off = owners.0 as u64;
        header.btimes_off = if btimes.1 == 0 { 0 } else { btimes.0 as u64 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_entries_than_an_index_holds_are_refused() {
        let tree = Tree::synthetic(3, 4);
        let sizes = Sizes::of(&tree);
        assert_eq!((sizes.entries, sizes.dirs), (16, 4));
        assert!(Parts::of(&sizes, 16).is_ok());
        let refused = Parts::of(&sizes, 15).expect_err("one too many");
        assert_eq!(refused, IndexTooLarge { entries: 16, limit: 15 });
        let real = Sizes { entries: MAX_ENTRIES as usize + 1, ..sizes };
        assert!(Parts::of(&real, MAX_ENTRIES).is_err());
        assert!(refused.to_string().contains("an index holds 15"), "{refused}");
    }

    #[test]
    fn the_largest_index_has_offsets_that_fit() {
        let all = MAX_ENTRIES as usize;
        let sizes =
            Sizes { entries: all, dirs: all, names: all * 255, links: usize::MAX, owners: 65_535, has_btime: true };
        let parts = Parts::of(&sizes, MAX_ENTRIES).expect("as large as may be");
        let mut header = IndexHeader::default();
        parts.enter(&mut header);
        assert!(sizes.names < 1 << 40, "offsets of names have 40 bits");
        assert!(
            MAX_LINK_BYTES < u32::MAX as usize && header.owners_off - header.links_off <= 1 << 32,
            "those of links 32"
        );
        assert!(header.len > header.btimes_off && header.len < 1 << 44);
    }
}
