//! A directory with everything below it, as text that can be compared.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Times before this age were set explicitly.
const SET_BEFORE: Duration = Duration::from_hours(24 * 365);

/// Names relative to the top, and what is there: kind, mode, owner, links, size, times that were
/// set explicitly, extended attributes, a link's target, and a sum of the bytes.
pub type Tree = BTreeMap<PathBuf, String>;

/// Reads a directory.
pub fn tree(top: &Path) -> Tree {
    let mut found = Tree::new();
    walk(top, Path::new(""), &mut found);
    found
}

fn walk(top: &Path, below: &Path, found: &mut Tree) {
    for entry in fs::read_dir(top.join(below)).expect("own directory").flatten() {
        let name = below.join(entry.file_name());
        let path = top.join(&name);
        found.insert(name.clone(), told(&path));
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            walk(top, &name, found);
        }
    }
}

fn told(path: &Path) -> String {
    let m = fs::symlink_metadata(path).expect("own file");
    let kind = m.file_type();
    let mut text = format!("{:06o} {}:{}", m.mode(), m.uid(), m.gid());
    if !kind.is_dir() {
        text += &format!(" x{} {} B", m.nlink(), m.size());
        let modified = SystemTime::UNIX_EPOCH + Duration::new(m.mtime() as u64, m.mtime_nsec() as u32);
        if modified.elapsed().is_ok_and(|age| age > SET_BEFORE) {
            text += &format!(" at {}.{:09}", m.mtime(), m.mtime_nsec());
        }
    }
    if kind.is_symlink() {
        text += &format!(" -> {}", fs::read_link(path).expect("own link").display());
    } else if kind.is_file() {
        text += &format!(" {:016x}", sum(&fs::read(path).expect("own file")));
    }
    if !kind.is_symlink() && !kind.is_fifo() {
        for (name, value) in attributes(path) {
            text += &format!(" {name}={value:?}");
        }
    }
    text
}

/// FNV-1a.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Extended attributes.
fn attributes(path: &Path) -> Vec<(String, Vec<u8>)> {
    let c = CString::new(path.as_os_str().as_bytes()).expect("path");
    let mut names = [0u8; 4096];
    // SAFETY: a path that ends with a NUL, and a buffer of this function with its length.
    let len = unsafe { libc::llistxattr(c.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    let names = names.get(..len.max(0) as usize).unwrap_or_default();
    let mut found: Vec<_> = names
        .split(|&b| b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let name = CString::new(name).expect("name");
            let mut value = [0u8; 4096];
            // SAFETY: texts that end with a NUL, and a buffer of this closure with its length.
            let len = unsafe { libc::lgetxattr(c.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
            (name.to_string_lossy().into_owned(), value.get(..len.max(0) as usize).unwrap_or_default().to_vec())
        })
        .collect();
    found.sort();
    found
}

/// Names at which two trees differ, with what each has there.
pub fn differences(a: &Tree, b: &Tree) -> Vec<String> {
    let none = "(nothing)".to_owned();
    let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let of = |tree: &Tree, name: &PathBuf| tree.get(name).unwrap_or(&none).clone();
    let differ = names.into_iter().filter(|&name| a.get(name) != b.get(name));
    differ.map(|name| format!("{}\n- {}\n+ {}", name.display(), of(a, name), of(b, name))).collect()
}
