//! Which paths concern Monarch: those below the roots of a job, in any spelling, and none of the
//! names that Monarch itself makes.

use monarch_abi::outputs::is_hidden;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The directories of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Directories of tiers: changes there are Monarch's own.
    pub tiers: Vec<PathBuf>,
    /// Spellings of data roots and output roots.
    pub roots: Vec<PathBuf>,
}

/// What a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Below no root.
    Outside,
    /// Below a root.
    Inside,
    /// It has a `..`: only the kernel knows where that leads.
    Unclear,
    /// Monarch's own: never answered, as the caller may hold the lock that the answer would need.
    Own,
}

impl Scope {
    /// What an absolute path is, by its text.
    pub(crate) fn verdict(&self, path: &[u8]) -> Verdict {
        let mut plain = Vec::with_capacity(path.len());
        for part in path.split(|&c| c == b'/').filter(|part| !part.is_empty() && *part != b".") {
            if part == b".." {
                return Verdict::Unclear;
            }
            plain.push(b'/');
            plain.extend_from_slice(part);
        }
        let lies_in = |dirs: &[PathBuf]| dirs.iter().any(|dir| is_below(&plain, dir.as_os_str().as_bytes()));
        let name = plain.rsplit(|&c| c == b'/').next().unwrap_or_default();
        if lies_in(&self.tiers) || is_hidden(name) {
            return Verdict::Own;
        }
        if lies_in(&self.roots) { Verdict::Inside } else { Verdict::Outside }
    }

    /// [`Scope::verdict`] with the kernel asked where `..` leads. May wait for a file system.
    pub(crate) fn settled(&self, path: &[u8]) -> Verdict {
        match self.verdict(path) {
            Verdict::Unclear => {}
            clear => return clear,
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let real = match (path.file_name(), path.parent()) {
            (Some(name), Some(parent)) => parent.canonicalize().map(|parent| parent.join(name)),
            _ => path.canonicalize(),
        };
        real.map_or(Verdict::Outside, |real| self.verdict(real.as_os_str().as_bytes()))
    }

    /// As bytes, for the helper.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for path in &self.tiers {
            all.extend_from_slice(path.as_os_str().as_bytes());
            all.push(0);
        }
        all.push(0);
        for path in &self.roots {
            all.extend_from_slice(path.as_os_str().as_bytes());
            all.push(0);
        }
        all
    }

    /// From [`Scope::to_bytes`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut all = Self::default();
        let mut is_tier = true;
        for text in bytes.split(|&c| c == 0) {
            if text.is_empty() {
                is_tier = false;
                continue;
            }
            let path = PathBuf::from(OsString::from_vec(text.to_vec()));
            if is_tier { all.tiers.push(path) } else { all.roots.push(path) }
        }
        all
    }
}

fn is_below(path: &[u8], dir: &[u8]) -> bool {
    !dir.is_empty() && path.strip_prefix(dir).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        Scope { tiers: vec!["/nvme/monarch".into()], roots: vec!["/pfs/data".into(), "/pfs/out".into()] }
    }

    #[test]
    fn paths_are_judged_in_any_spelling() {
        let of = |path: &str| scope().verdict(path.as_bytes());
        for inside in ["/pfs/out", "/pfs/out/a", "//pfs/./out//a/b", "/pfs/data/x/"] {
            assert_eq!(of(inside), Verdict::Inside, "{inside}");
        }
        for outside in ["/pfs/outer", "/pfs", "/", "/tmp/pfs/out"] {
            assert_eq!(of(outside), Verdict::Outside, "{outside}");
        }
        assert_eq!(of("/tmp/../pfs/out/a"), Verdict::Unclear);
        assert_eq!(of("/pfs/out/..a"), Verdict::Inside);
    }

    #[test]
    fn names_of_monarch_are_never_answered() {
        let of = |path: &str| scope().verdict(path.as_bytes());
        assert_eq!(of("/nvme/monarch/outputs/1/tree/a"), Verdict::Own);
        assert_eq!(of("/pfs/out/d/.monarch-part-1"), Verdict::Own);
        assert_eq!(of("/pfs/out/.monarch-pending-node"), Verdict::Own);
    }

    #[test]
    fn a_path_through_a_parent_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("root");
        std::fs::create_dir_all(root.join("d")).unwrap();
        let scope = Scope { tiers: Vec::new(), roots: vec![root.clone()] };
        let of = |path: PathBuf| scope.settled(path.as_os_str().as_bytes());
        assert_eq!(of(root.join("d/../new")), Verdict::Inside);
        assert_eq!(of(root.join("../new")), Verdict::Outside);
        assert_eq!(of(root.join("none/../new")), Verdict::Outside);
    }

    #[test]
    fn a_scope_survives_its_bytes() {
        for scope in [scope(), Scope::default(), Scope { tiers: Vec::new(), roots: vec!["/a".into()] }] {
            assert_eq!(Scope::from_bytes(&scope.to_bytes()), scope);
        }
    }
}
