//! Walks the regular files of a scanned tree.

use super::scan::Tree;
use monarch_abi::index::Record;

/// Calls `each` with the path of each regular file of `tree`, relative to the directory that was
/// scanned, and with its record.
pub fn each_file(tree: &Tree, mut each: impl FnMut(&[u8], &Record)) {
    let mut path: Vec<u8> = Vec::new();
    // Of each open directory: its place in the table, its next entry, the length of its path.
    let mut open = vec![(0, 0, 0)];
    while let Some((dir, next, len)) = open.last_mut() {
        path.truncate(*len);
        let Some((scan, entry)) = tree.dirs.get(*dir).and_then(|scan| Some((scan, scan.entries.get(*next)?))) else {
            open.pop();
            continue;
        };
        *next += 1;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(scan.name(entry));
        if entry.is_dir() {
            open.push((entry.aux as usize, 0, path.len()));
        } else if entry.is_file() {
            each(&path, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use crate::index::{ScanOptions, ScanProgress, scan};

    #[test]
    fn every_file_is_visited_once_with_its_path_and_size() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        std::fs::create_dir(dir.path().join("empty")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        let mut wanted = Vec::new();
        for (size, name) in ["top", "a/one", "a/b/c/two", "a/b/three", "z"].iter().enumerate() {
            std::fs::write(dir.path().join(name), vec![0; size]).unwrap();
            wanted.push((name.to_string(), size as u64));
        }
        let options = ScanOptions { threads: 2, max_memory: 1 << 20 };
        let tree = scan(dir.path(), options, &ScanProgress::default()).unwrap();
        let mut found = Vec::new();
        super::each_file(&tree, |path, record| found.push((String::from_utf8_lossy(path).into_owned(), record.size)));
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
    }
}
