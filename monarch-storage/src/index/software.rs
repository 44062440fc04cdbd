//! Files of software: environments of Python and conda, installed packages, source trees. A job
//! opens a small part of them, one by one; to fetch them all ahead costs the PFS more than the job
//! itself would.
//!
//! Recognised by what the directories of package managers are called and hold, elsewhere by the
//! names of the files: [`Software::of`].

use crate::parts_of::Cut;
use monarch_abi::index::{Dir, Index, Record};
use std::ops::Range;

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
        Self::with(index, Cut::for_machine())
    }

    pub(super) fn with(index: &Index<'_>, cut: Cut) -> Self {
        let mut ranges = Vec::new();
        let mut behind = 0;
        for found in cut.each(index.len(), |part| findings(index, index.dirs_of(part).1)).into_iter().flatten() {
            // A part of a tree that is software as a whole.
            if found.dir < behind {
                continue;
            }
            if found.is_whole() {
                behind = found.range.1;
            }
            ranges.push(found.range);
        }
        // A directory's own files stand before and behind those of its subdirectories.
        ranges.sort_unstable();
        ranges.dedup_by(|next, before| {
            let joins = next.0 <= before.1;
            before.1 = if joins { before.1.max(next.1) } else { before.1 };
            joins
        });
        let none = Self { ranges, ..Self::default() };
        let counts = cut.each(index.len(), |part| none.count(index, part));
        counts.into_iter().fold(none.clone(), |all, (files, bytes, libraries)| Self {
            files: all.files + files,
            bytes: all.bytes.saturating_add(bytes),
            libraries: all.libraries + libraries,
            ..all
        })
    }

    /// Whether a file of that index is one of them.
    #[must_use]
    pub fn holds(&self, id: u32) -> bool {
        let behind = self.ranges.partition_point(|&(from, _)| from <= id);
        self.ranges[..behind].last().is_some_and(|&(_, end)| id < end)
    }

    /// The files among the entries of a part: their number, bytes, and how many are libraries.
    fn count(&self, index: &Index<'_>, part: Range<u32>) -> (u64, u64, u64) {
        let first = self.ranges.partition_point(|&(_, end)| end <= part.start);
        let here = self.ranges[first..].iter().take_while(|&&(from, _)| from < part.end);
        let ids = here.map(|&(from, end)| from.max(part.start)..end.min(part.end));
        let files = ids.flat_map(|ids| index.records_of(ids)).filter(|r| r.is_file());
        files.fold((0, 0, 0), |(files, bytes, libraries), r| {
            let is_library = u64::from(index.name(r).is_some_and(is_library));
            // (Sparse files may have up to 2^63 bytes each.)
            (files + 1, u64::saturating_add(bytes, r.size), libraries + is_library)
        })
    }
}

/// Software, and the directory by which it is.
#[derive(Clone, Copy, Debug)]
struct Finding {
    /// The id of the directory.
    dir: u32,
    /// The ids of what is software, first and behind the last: the directory with all below it, or
    /// files of its own that follow each other.
    range: (u32, u32),
}

impl Finding {
    const fn is_whole(&self) -> bool {
        self.dir == self.range.0
    }
}

/// What is software by one of these directories, or would be if a directory above were not.
fn findings(index: &Index<'_>, dirs: &[Dir]) -> Vec<Finding> {
    let (mut found, mut behind) = (Vec::<Finding>::new(), 0);
    let mut suffixes = Suffixes::default();
    for dir in dirs {
        if dir.id < behind {
            continue;
        }
        if is_software(index, dir) {
            behind = dir.end;
            found.push(Finding { dir: dir.id, range: (dir.id, dir.end) });
        } else if suffixes.has_code(index, dir) {
            for id in index.children(dir, 0).filter(|(_, r)| r.is_file()).map(|(id, _)| id) {
                match found.last_mut().filter(|last| last.dir == dir.id && last.range.1 == id) {
                    Some(last) => last.range.1 = id + 1,
                    None => found.push(Finding { dir: dir.id, range: (id, id + 1) }),
                }
            }
        }
    }
    found
}

/// Whether a directory is software with all below it.
pub(super) fn is_software(index: &Index<'_>, dir: &Dir) -> bool {
    let name = |r: &Record| index.name(r).unwrap_or_default();
    // (Lengths first: names lie apart from records.)
    let is_marker = |r: &Record| MARKERS.iter().any(|m| m.len() == usize::from(r.name_len) && name(r) == *m);
    index.record(dir.id).is_some_and(|r| DIRECTORIES.contains(&name(r)))
        || index.children(dir, 0).any(|(_, r)| is_marker(r))
}

/// Tells names of code. Most files of a directory have the same suffix: the answer for the last one
/// is kept.
#[derive(Debug, Default)]
pub(super) struct Suffixes<'a> {
    last: &'a [u8],
    is_code: bool,
}

impl<'a> Suffixes<'a> {
    /// Whether half of the files of a directory have names of code.
    pub(super) fn has_code(&mut self, index: &Index<'a>, dir: &Dir) -> bool {
        let (mut files, mut code) = (0, 0);
        for (_, r) in index.children(dir, 0).filter(|(_, r)| r.is_file()) {
            files += 1;
            code += u32::from(index.name(r).is_some_and(|name| self.is_code(name)));
        }
        files >= MIN_NAMED && code * 2 >= files
    }

    /// Whether a file has a name of code.
    fn is_code(&mut self, name: &'a [u8]) -> bool {
        let Some(suffix) = suffix(name) else { return false };
        if suffix != self.last {
            self.last = suffix;
            self.is_code = SUFFIXES.iter().any(|code| code.eq_ignore_ascii_case(suffix));
        }
        self.is_code
    }
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
        let mut suffixes = Suffixes::default();
        for code in ["a.py", "a.PY", "libm.so.6", "x.cpython-311-x86_64-linux-gnu.so", "a.tar.c"] {
            assert!(suffixes.is_code(code.as_bytes()), "{code}");
        }
        for other in ["py", ".py", "a.jpg", "1.5", "so.1", "a.", "", "..", "data.c.bin"] {
            assert!(!suffixes.is_code(other.as_bytes()), "{other}");
        }
    }
}
