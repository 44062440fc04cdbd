//! Environments of software: directories from which an interpreter imports. It asks for many names
//! that are not there, as it looks for each module in one directory after the other.

use crate::parts_of::Cut;
use monarch_abi::index::{Dir, Index, Record};

/// Entries by which a directory and all below it is an environment: of venv, of conda, the
/// standard library of Python.
const MARKERS: [&[u8]; 3] = [b"pyvenv.cfg", b"conda-meta", STANDARD_LIBRARY];
const STANDARD_LIBRARY: &[u8] = b"os.py";
/// Names of directories that are environments with all below them.
const DIRECTORIES: [&[u8]; 2] = [b"site-packages", b"dist-packages"];

/// Returns which directories of an index belong to environments, by their position: all below a
/// directory with one of the markers, and below installed packages; of an interpreter
/// (`PREFIX/lib/python3.11/os.py`) also the directories `PREFIX`, `PREFIX/bin` and `PREFIX/lib`
/// themselves.
pub(super) fn environments(index: &Index<'_>) -> Vec<bool> {
    environments_with(index, Cut::for_machine())
}

pub(super) fn environments_with(index: &Index<'_>, cut: Cut) -> Vec<bool> {
    // Directories with a marker; below them, nothing needs one.
    let parts = cut.each(index.len(), |part| {
        let (first, dirs) = index.dirs_of(part);
        let (mut marked, mut behind) = (Vec::new(), 0);
        for (position, dir) in (first..).zip(dirs) {
            if dir.id >= behind
                && let Some(marker) = marker(index, dir)
            {
                behind = dir.end;
                marked.push((position, marker == STANDARD_LIBRARY));
            }
        }
        marked
    });
    let mut found = vec![false; index.dirs().len()];
    let mut behind = 0;
    for (position, is_library) in parts.into_iter().flatten() {
        let Some(dir) = index.dir_at(position).filter(|dir| dir.id >= behind) else { continue };
        behind = dir.end;
        let (_, below) = index.dirs_of(dir.id..dir.end);
        found.iter_mut().skip(position).take(below.len()).for_each(|is| *is = true);
        if is_library {
            prefix(index, dir).for_each(|at| found[at] = true);
        }
    }
    found
}

/// The entry, or the own name, by which a directory is an environment.
pub(super) fn marker<'a>(index: &Index<'a>, dir: &Dir) -> Option<&'a [u8]> {
    let own = index.record(dir.id).and_then(|r| index.name(r)).filter(|name| DIRECTORIES.contains(name));
    // (Lengths first: names lie apart from records.)
    let is_marker = |r: &Record| MARKERS.iter().any(|m| m.len() == usize::from(r.name_len) && index.name(r) == Some(m));
    own.or_else(|| index.children(dir, 0).find(|(_, r)| is_marker(r)).and_then(|(_, r)| index.name(r)))
}

/// The positions of `PREFIX`, `PREFIX/bin` and `PREFIX/lib` of a standard library
/// `PREFIX/lib/python3.11`.
pub(super) fn prefix(index: &Index<'_>, library: &Dir) -> impl Iterator<Item = usize> {
    let name = |dir: &Dir| index.record(dir.id).and_then(|r| index.name(r)).unwrap_or_default();
    let lib = library.parent as usize;
    let is_lib = |dir: &&Dir| matches!(name(dir), b"lib" | b"lib64") && name(library).starts_with(b"python");
    let prefix = index.dir_at(lib).filter(is_lib).map(|dir| dir.parent as usize);
    let bin = prefix.and_then(|at| {
        let (_, r) = index.children(index.dir_at(at)?, 0).find(|(_, r)| r.is_dir() && index.name(r) == Some(b"bin"))?;
        Some(r.aux as usize)
    });
    prefix.into_iter().chain(bin).chain(prefix.map(|_| lib))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{index_of, paths_of_dirs};
    use super::environments;

    fn found(files: &[&str]) -> Vec<String> {
        let built = index_of(files);
        let index = crate::shm::IndexBytes(&built.index).open().expect("index");
        let is = environments(&index);
        paths_of_dirs(&index).into_iter().zip(is).filter_map(|(path, is)| is.then_some(path)).collect()
    }

    #[test]
    fn venv_conda_interpreter_and_packages_are_environments_with_all_below_them() {
        let files = [
            "conda/conda-meta/history",
            "conda/share/x/1",
            "data/train/1.jpg",
            "py/bin/python3",
            "py/lib/libpython.so",
            "py/lib/python3.11/encodings/ascii.py",
            "py/lib/python3.11/os.py",
            "py/lib/other/1",
            "tools/dist-packages/six/__init__.py",
            "venv/lib/python3.11/site-packages/torch/__init__.py",
            "venv/pyvenv.cfg",
        ];
        let expected = [
            "conda",
            "conda/conda-meta",
            "conda/share",
            "conda/share/x",
            "py",
            "py/bin",
            "py/lib",
            "py/lib/python3.11",
            "py/lib/python3.11/encodings",
            "tools/dist-packages",
            "tools/dist-packages/six",
            "venv",
            "venv/lib",
            "venv/lib/python3.11",
            "venv/lib/python3.11/site-packages",
            "venv/lib/python3.11/site-packages/torch",
        ];
        let mut now = found(&files);
        now.sort();
        assert_eq!(now, expected);
    }

    #[test]
    fn a_data_set_a_repository_and_a_lone_os_py_beside_data_are_not() {
        assert!(found(&["train/a/1.jpg", "src/main.py", ".git/config", "node_modules/x/1.js"]).is_empty());
        let mut own = found(&["code/os.py", "code/x/1.py", "data/1.npy"]);
        own.sort();
        assert_eq!(own, ["code", "code/x"]);
    }
}
