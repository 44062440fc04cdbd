//! [`Directories`]: counts opens by directory, for the report of a job.

use crate::snapshot::Directory;
use monarch_abi::PATH_MAX;
use monarch_abi::accesses::Served;
use monarch_abi::index::Index;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Directories that are counted; opens in further ones are not.
const MAX_DIRECTORIES: usize = 1 << 14;
/// Directories in a report.
const MAX_REPORTED: usize = 10;

/// Counters of directories, by root, segment and position in the segment. (A directory of two
/// segments is reported once.)
#[derive(Debug, Default)]
pub(crate) struct Directories(HashMap<(usize, usize, usize), Directory>);

impl Directories {
    /// Counts an open.
    pub(crate) fn add(&mut self, (root, segment): (usize, usize), index: &Index<'_>, id: u32, size: u64, from: Served) {
        let Some(at) = index.parent_of(id) else { return };
        let len = self.0.len();
        let counted = match self.0.entry((root, segment, at)) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(_) if len >= MAX_DIRECTORIES => return,
            std::collections::hash_map::Entry::Vacant(e) => {
                let mut path = [0; PATH_MAX];
                let len = index.dir_at(at).and_then(|dir| index.path(dir.id, &mut path)).unwrap_or(0);
                let path = PathBuf::from(OsString::from_vec(path.get(..len).unwrap_or_default().to_vec()));
                e.insert(Directory { path, ..Directory::default() })
            }
        };
        counted.opens += 1;
        counted.bytes = counted.bytes.saturating_add(size);
        if from == Served::Pfs {
            counted.pfs += 1;
            counted.pfs_bytes = counted.pfs_bytes.saturating_add(size);
        }
    }

    /// The directories of a root for which the PFS gave most bytes, or from which most was read.
    pub(crate) fn most(&self, root: usize) -> Vec<Directory> {
        let mut by_path: BTreeMap<&PathBuf, Directory> = BTreeMap::new();
        for (_, d) in self.0.iter().filter(|((of, ..), _)| *of == root) {
            let sum =
                by_path.entry(&d.path).or_insert_with(|| Directory { path: d.path.clone(), ..Directory::default() });
            sum.opens += d.opens;
            sum.bytes = sum.bytes.saturating_add(d.bytes);
            sum.pfs += d.pfs;
            sum.pfs_bytes = sum.pfs_bytes.saturating_add(d.pfs_bytes);
        }
        let mut all: Vec<Directory> = by_path.into_values().collect();
        all.sort_by_key(|d| std::cmp::Reverse((d.pfs_bytes, d.bytes, d.opens)));
        all.truncate(MAX_REPORTED);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_abi::index::Record;

    #[test]
    fn directories_are_counted_and_those_that_cost_most_come_first() {
        let dir = tempfile::tempdir().unwrap();
        for (name, files) in [("a", 1), ("b/c", 2), ("", 1)] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            (0..files).for_each(|n| std::fs::write(dir.path().join(name).join(format!("f{n}")), "x").unwrap());
        }
        let options = crate::index::ScanOptions { threads: 1, max_memory: 1 << 30 };
        let tree = crate::index::scan(dir.path(), options, &crate::index::ScanProgress::default()).unwrap();
        let built = crate::index::build(tree, 7, [3; 16]);
        let index = crate::shm::IndexBytes(&built.index).open().unwrap();
        let mut all = Directories::default();
        for segment in [0, 3] {
            for id in (0..index.len() as u32).filter(|&id| index.record(id).is_some_and(Record::is_file)) {
                let mut path = [0; PATH_MAX];
                let len = index.path(id, &mut path).unwrap();
                let from = if path[..len].starts_with(b"b/c") { Served::Pfs } else { Served::Tier };
                all.add((1, segment), &index, id, if path[0] == b'a' { 100 } else { 10 }, from);
            }
        }
        let told: Vec<_> = all.most(1).into_iter().map(|d| (d.path, d.opens, d.bytes, d.pfs, d.pfs_bytes)).collect();
        let expected = [("b/c", 4, 40, 4, 40), ("a", 2, 200, 0, 0), ("", 2, 20, 0, 0)];
        assert_eq!(told, expected.map(|(path, opens, bytes, pfs, of)| (PathBuf::from(path), opens, bytes, pfs, of)));
        assert!(all.most(0).is_empty());
    }
}
