//! Files of software: environments of Python and conda, installed packages, source trees. A job
//! opens a small part of them, one by one; to fetch them all ahead costs the PFS more than the job
//! itself would.
//!
//! Recognised by what the directories of package managers are called and hold, elsewhere by the
//! names of the files: [`Software::of`].

use monarch_abi::index::{Dir, Index, Record};

/// Entries by which a directory and all below it is software: environments and installations.
const MARKERS: [&[u8]; 3] = [b"pyvenv.cfg", b"conda-meta", b"os.py"];
/// Names of directories that are software with all below them.
const DIRECTORIES: [&[u8]; 6] =
    [b"site-packages", b"dist-packages", b"node_modules", b"__pycache__", b".git", b"__pypackages__"];
/// What follows the last dot in names of code.
const SUFFIXES: [&[u8]; 40] = [
    b"py", b"pyc", b"pyi", b"pyx", b"pxd", b"so", b"a", b"o", b"dylib", b"c", b"cc", b"cpp", b"cxx", b"cu", b"cuh",
    b"h", b"hh", b"hpp", b"hxx", b"inl", b"java", b"class", b"jar", b"js", b"mjs", b"ts", b"rs", b"go", b"rb", b"pl",
    b"pm", b"r", b"rdb", b"rdx", b"lua", b"m4", b"jl", b"ji", b"f90", b"cmake",
];
/// Files of a directory from which their names count.
const MIN_NAMED: u32 = 4;

/// The files of software below a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Software {
    /// Their number.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them have names of shared libraries.
    pub libraries: u64,
    /// Their ids, first and behind the last; in order, with gaps between.
    ranges: Vec<(u32, u32)>,
}

impl Software {
    /// Finds the software of an index:
    ///
    /// * all below a directory with `pyvenv.cfg`, `conda-meta` or `os.py` (the standard library of
    ///   Python), and below directories such as `site-packages`, `node_modules` and `.git`;
    /// * the files of any other directory half of whose files have names of code.
    #[must_use]
    pub fn of(index: &Index<'_>) -> Self {
        let mut found = Self::default();
        let (mut at, mut behind) = (0, 0);
        while let Some(dir) = index.dir_at(at) {
            at += 1;
            // A part of a tree that is software as a whole.
            if dir.id < behind {
                continue;
            }
            if is_software(index, dir) {
                behind = dir.end;
                found.add(index, (dir.id, dir.end));
            } else if has_code(index, dir) {
                let own = index.children(dir, 0).filter(|(_, r)| r.is_file()).map(|(id, _)| id);
                own.for_each(|id| found.add(index, (id, id + 1)));
            }
        }
        // A directory's own files stand before and behind those of its subdirectories.
        found.ranges.sort_unstable();
        found.ranges.dedup_by(|next, before| {
            let joins = next.0 <= before.1;
            before.1 = if joins { before.1.max(next.1) } else { before.1 };
            joins
        });
        found
    }

    /// Whether a file of that index is one of them.
    #[must_use]
    pub fn holds(&self, id: u32) -> bool {
        let behind = self.ranges.partition_point(|&(from, _)| from <= id);
        self.ranges[..behind].last().is_some_and(|&(_, end)| id < end)
    }

    fn add(&mut self, index: &Index<'_>, range: (u32, u32)) {
        for r in (range.0..range.1).filter_map(|id| index.record(id)).filter(|r| r.is_file()) {
            self.files += 1;
            // (Sparse files may have up to 2^63 bytes each.)
            self.bytes = self.bytes.saturating_add(r.size);
            self.libraries += u64::from(index.name(r).is_some_and(is_library));
        }
        match self.ranges.last_mut() {
            Some(last) if last.1 == range.0 => last.1 = range.1,
            _ => self.ranges.push(range),
        }
    }
}

/// Whether a directory is software with all below it.
fn is_software(index: &Index<'_>, dir: &Dir) -> bool {
    let name = |r: &Record| index.name(r).unwrap_or_default();
    index.record(dir.id).is_some_and(|r| DIRECTORIES.contains(&name(r)))
        || index.children(dir, 0).any(|(_, r)| MARKERS.contains(&name(r)))
}

/// Whether half of the files of a directory have names of code.
fn has_code(index: &Index<'_>, dir: &Dir) -> bool {
    let (mut files, mut code) = (0, 0);
    for (_, r) in index.children(dir, 0).filter(|(_, r)| r.is_file()) {
        files += 1;
        code += u32::from(index.name(r).is_some_and(is_code));
    }
    files >= MIN_NAMED && code * 2 >= files
}

/// Whether a file has a name of code.
fn is_code(name: &[u8]) -> bool {
    suffix(name).is_some_and(|suffix| SUFFIXES.iter().any(|code| code.eq_ignore_ascii_case(suffix)))
}

/// Whether a file has the name of a shared library.
#[must_use]
pub fn is_library(name: &[u8]) -> bool {
    suffix(name) == Some(b"so")
}

/// What follows the last dot of a name; libraries have a version behind (`libm.so.6`).
fn suffix(mut name: &[u8]) -> Option<&[u8]> {
    while let Some(dot) = name.iter().rposition(|&b| b == b'.').filter(|&dot| dot > 0) {
        let (stem, suffix) = (&name[..dot], &name[dot + 1..]);
        let is_version = !suffix.is_empty() && suffix.iter().all(u8::is_ascii_digit);
        if !is_version {
            return Some(suffix);
        }
        name = stem;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{ScanOptions, ScanProgress, build, scan};
    use crate::shm::IndexBytes;
    use std::fs;

    /// The files of a tree that count as software, of a tree with these files.
    fn software(files: &[&str]) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a directory");
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
            fs::write(path, "123").expect("write");
        }
        let built = build(
            scan(dir.path(), ScanOptions { threads: 1, max_memory: 1 << 30 }, &ScanProgress::default())
                .expect("a scan"),
            1,
            [1; 16],
        );
        let index = IndexBytes(&built.index).open().expect("index");
        let software = Software::of(&index);
        let held = (0..index.len() as u32).filter(|&id| software.holds(id));
        let mut paths: Vec<String> = held
            .filter(|&id| index.record(id).is_some_and(Record::is_file))
            .map(|id| {
                let mut room = [0; monarch_abi::PATH_MAX];
                let len = index.path(id, &mut room).expect("a path");
                String::from_utf8_lossy(&room[..len]).into_owned()
            })
            .collect();
        assert_eq!((software.files, software.bytes), (paths.len() as u64, 3 * paths.len() as u64));
        paths.sort();
        paths
    }

    #[test]
    fn environments_and_installations_are_software_as_a_whole() {
        let all = [
            "a/1.jpg",
            "env/bin/python",
            "env/pyvenv.cfg",
            "env/share/data/1.jpg",
            "miniconda/conda-meta/history",
            "miniconda/pkgs/x/1.json",
            "opt/lib/python3.11/encodings/ascii.py",
            "opt/lib/python3.11/os.py",
            "opt/lib/python3.11/site-packages/torch/version.txt",
            "web/node_modules/x/README",
            "z/2.jpg",
        ];
        let found = software(&all);
        assert_eq!(found, all[1..10]);
    }

    #[test]
    fn elsewhere_names_decide_for_each_directory() {
        let all =
            ["src/Makefile", "src/a.c", "src/a.h", "src/b.cc", "src/lib/libx.so.1.2", "src/data/1.c", "src/data/2.png"];
        assert_eq!(software(&all), ["src/Makefile", "src/a.c", "src/a.h", "src/b.cc"]);
        let libraries = ["lib/libc.so.6", "lib/libm.so.6", "lib/libx.a", "lib/README", "lib/sub/1.bin"];
        assert_eq!(software(&libraries), ["lib/README", "lib/libc.so.6", "lib/libm.so.6", "lib/libx.a"]);
    }

    #[test]
    fn a_data_set_is_none() {
        let all =
            ["train/a/1.jpg", "train/a/2.jpg", "train/b/1.npy", "labels.json", "README.md", "load.py", "so", "x.c/1"];
        assert!(software(&all).is_empty());
        // A clone of a data set: what git keeps is software, its files are not.
        assert_eq!(
            software(&[".git/config", ".git/objects/ab/cd", "data/1.parquet"]),
            [".git/config", ".git/objects/ab/cd"]
        );
    }

    #[test]
    fn names_of_code_are_told_from_others() {
        for code in ["a.py", "a.PY", "libm.so.6", "x.cpython-311-x86_64-linux-gnu.so", "a.tar.c"] {
            assert!(is_code(code.as_bytes()), "{code}");
        }
        for other in ["py", ".py", "a.jpg", "1.5", "so.1", "a.", "", "..", "data.c.bin"] {
            assert!(!is_code(other.as_bytes()), "{other}");
        }
    }
}
