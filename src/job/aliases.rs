//! Finds symbolic links in the working directory, the arguments and the environment that lead into
//! a root: other spellings by which the job will name its files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Most spellings that are added.
const MAX_SPELLINGS: usize = 32;

/// Returns all spellings below which a path named by `words` lies in one of `roots` (real paths),
/// each with the position of the root.
pub(crate) fn find<'a>(roots: &[PathBuf], words: impl Iterator<Item = &'a OsStr>) -> Vec<(usize, PathBuf)> {
    let mut found = BTreeSet::new();
    let cwd = std::env::current_dir().unwrap_or_default();
    // $PWD is the working directory as the shell spells it.
    if let Some(pwd) = std::env::var_os("PWD") {
        add(roots, Path::new(&pwd), &mut found);
    }
    if let Ok(entries) = std::fs::read_dir(&cwd) {
        for e in entries.flatten().take(1000) {
            if e.file_type().is_ok_and(|t| t.is_symlink()) {
                add(roots, &e.path(), &mut found);
            }
        }
    }
    for word in words {
        // `--data=/x`, `PATH`-like lists and plain paths.
        for part in word.as_bytes().split(|&c| c == b'=' || c == b':' || c == b',') {
            if part.contains(&b'/') || cwd.join(OsStr::from_bytes(part)).is_symlink() {
                add(roots, &cwd.join(OsStr::from_bytes(part)), &mut found);
            }
        }
    }
    found.into_iter().take(MAX_SPELLINGS).collect()
}

/// Walks a path and adds every prefix that is a link and leads into, to, or towards a root.
fn add(roots: &[PathBuf], path: &Path, found: &mut BTreeSet<(usize, PathBuf)>) {
    if !path.is_absolute() || path.as_os_str().len() > 2048 {
        return;
    }
    let mut prefix = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => prefix.push(name),
            // Only the kernel knows what `..` behind a link means.
            Component::ParentDir => return,
            _ => continue,
        }
        if !prefix.is_symlink() {
            continue;
        }
        let Ok(real) = prefix.canonicalize() else { return };
        for (n, root) in roots.iter().enumerate() {
            if real.starts_with(root) {
                found.insert((n, prefix.clone()));
            } else if let Ok(rest) = root.strip_prefix(&real) {
                found.insert((n, prefix.join(rest)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_into_and_towards_a_root_are_found() {
        let dir = tempfile::tempdir().expect("temp dir");
        let base = dir.path().canonicalize().expect("real path");
        let root = base.join("real/set");
        std::fs::create_dir_all(root.join("train")).expect("mkdir");
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, base.join(name)).expect("link");
        link(&root, "to");
        link(&root.join("train"), "into");
        link(&base.join("real"), "towards");
        link(&base, "elsewhere");
        let words = ["to/x.jpg", "--data=into", "towards/set", "elsewhere/nothing"];
        let words: Vec<_> = words
            .iter()
            .map(|w| match w.split_once('=') {
                Some((k, v)) => format!("{k}={}", base.join(v).display()),
                None => base.join(w).display().to_string(),
            })
            .collect();
        let found = find(std::slice::from_ref(&root), words.iter().map(OsStr::new));
        let has = |p: PathBuf| found.contains(&(0, p));
        assert!(has(base.join("to")), "{found:?}");
        assert!(has(base.join("into")), "{found:?}");
        assert!(has(base.join("towards/set")), "{found:?}");
    }
}
