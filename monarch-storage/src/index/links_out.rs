//! Links below a root that lead out of it: unless they lead into another root, what lies behind
//! them is read from the PFS.

use crate::parts_of::Cut;
use monarch_abi::PATH_MAX;
use monarch_abi::index::Index;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Most links that are looked at.
const MAX_LINKS: usize = 100_000;
/// Directories of the operating system: links there, as virtual environments have them, are no part
/// of a data set.
pub const OF_THE_SYSTEM: [&str; 12] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev", "/run", "/var", "/boot"];

/// The links of a root that lead out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinksOut {
    /// Their number.
    pub links: u64,
    /// The innermost directory that holds all that they lead to.
    pub dir: PathBuf,
}

impl LinksOut {
    /// Finds the links of an index that lead out of its root, and in no root of `roots`. Asks the
    /// PFS nothing: targets are taken by name.
    #[must_use]
    pub fn of(index: &Index<'_>, root: &Path, roots: &[PathBuf]) -> Option<Self> {
        Self::with(index, root, roots, Cut::for_machine())
    }

    fn with(index: &Index<'_>, root: &Path, roots: &[PathBuf], cut: Cut) -> Option<Self> {
        let mut found: Option<Self> = None;
        for id in links(index, cut) {
            let Some(record) = index.record(id) else { continue };
            let mut room = [0; PATH_MAX];
            let Some(len) = index.path(id, &mut room) else { continue };
            let Some(target) = index.link_target(record) else { continue };
            let link = root.join(OsStr::from_bytes(room.get(..len).unwrap_or_default()));
            let above = link.parent().unwrap_or(root);
            let Some(target) = plain(&above.join(OsStr::from_bytes(target))) else { continue };
            let is_inside = target.starts_with(root) || roots.iter().any(|other| target.starts_with(other));
            if is_inside || OF_THE_SYSTEM.iter().any(|dir| target.starts_with(dir)) {
                continue;
            }
            let dir = target.parent().unwrap_or(&target);
            found = Some(match found {
                None => Self { links: 1, dir: dir.to_owned() },
                Some(all) => Self { links: all.links + 1, dir: common(&all.dir, dir) },
            });
        }
        found
    }
}

/// The ids of the first links of an index.
pub(super) fn links(index: &Index<'_>, cut: Cut) -> impl Iterator<Item = u32> {
    let parts = cut.each(index.len(), |part| {
        let entries = part.clone().zip(index.records_of(part));
        entries.filter(|(_, r)| r.is_link()).map(|(id, _)| id).take(MAX_LINKS).collect::<Vec<u32>>()
    });
    parts.into_iter().flatten().take(MAX_LINKS)
}

/// The path without `.` and `..`; `None` when it leads above `/`.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => out.pop().then_some(())?,
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    Some(out)
}

/// The innermost directory that holds both.
fn common(a: &Path, b: &Path) -> PathBuf {
    a.ancestors().find(|above| b.starts_with(above)).unwrap_or(Path::new("/")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{ScanOptions, ScanProgress, build, scan};
    use crate::shm::IndexBytes;
    use std::os::unix::fs::symlink;

    fn found(links: &[(&str, &str)], roots: &[&str]) -> Option<(u64, String)> {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().canonicalize().expect("a path");
        let root = top.join("root");
        std::fs::create_dir_all(root.join("a/b")).expect("mkdir");
        for (link, target) in links {
            symlink(target.replace("TOP", top.to_str().expect("text")), root.join(link)).expect("link");
        }
        let options = ScanOptions { threads: 1, max_memory: 1 << 30 };
        let built = build(scan(&root, options, &ScanProgress::default()).expect("a scan"), 1, [1; 16]);
        let index = IndexBytes(&built.index).open().expect("index");
        let roots: Vec<PathBuf> = roots.iter().map(|r| top.join(r)).collect();
        let out = LinksOut::of(&index, &root, &roots)?;
        let dir = out.dir.strip_prefix(&top).unwrap_or(&out.dir).to_string_lossy().into_owned();
        Some((out.links, dir))
    }

    #[test]
    fn links_are_followed_by_name_and_those_that_stay_or_are_of_the_system_are_none() {
        let deep =
            [("a/b/x", "../../../store/1/x"), ("a/y", "TOP/store/2/y"), ("a/near", "b"), ("a/sys", "/usr/bin/env")];
        assert_eq!(found(&deep, &[]), Some((2, "store".to_owned())));
        assert_eq!(found(&deep, &["store/1"]), Some((1, "store/2".to_owned())));
        assert_eq!(found(&deep, &["store"]), None);
        assert_eq!(found(&[("up", "../../../../../../../../../../.."), ("in", "../root/a")], &[]), None);
        assert_eq!(found(&[], &[]), None);
    }
}
