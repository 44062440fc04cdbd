//! Which directories of an index decide about names that it lacks, and whether they may at all.

use super::environments::environments;
use monarch_abi::absent::{KERNEL, TRUSTED, UNASKED};
use monarch_abi::index::{DIR_INCOMPLETE, Dir, Index};
use monarch_config::{AbsentNames, AbsentRule};
use rustix::fs::AtFlags;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the words of the directories of an index, by position; none where the kernel decides
/// everywhere. `loaded`: the index was loaded from a file, and no directory answers before it was
/// compared.
///
/// A directory that changed less than `min_age` before the scan began answers nothing: what changed
/// in the same tick of the PFS's clock would not be seen.
#[must_use]
pub fn decider_words(index: &Index<'_>, names: &AbsentNames, loaded: bool) -> Vec<u32> {
    let serves = match names.rule {
        AbsentRule::Kernel => return Vec::new(),
        AbsentRule::Auto => environments(index),
        AbsentRule::Checked | AbsentRule::Index => vec![true; index.dirs().len()],
    };
    let first = if names.rule == AbsentRule::Index && !loaded { TRUSTED } else { UNASKED };
    let age_ns = i64::try_from(names.min_age.as_nanos()).unwrap_or(i64::MAX);
    let settled_ns = index.header.scan_began_ns.saturating_sub(age_ns);
    let is_settled = |dir: &Dir| {
        index.record(dir.id).is_some_and(|r| r.mtime_ns.max(r.ctime_ns) < settled_ns) && dir.flags & DIR_INCOMPLETE == 0
    };
    let word = |(dir, serves): (&Dir, bool)| if serves && is_settled(dir) { first } else { KERNEL };
    index.dirs().iter().zip(serves).map(word).collect()
}

/// Returns whether the file system of a root takes names for the same that differ in the case of
/// letters: then a listing does not tell which names it knows. Asks the PFS about one name.
#[must_use]
pub fn folds_case(index: &Index<'_>, words: &[u32], root: &Path) -> bool {
    let decides = |(dir, &word): (&Dir, &u32)| (word != KERNEL).then_some(*dir);
    let in_other_case = index.dirs().iter().zip(words).filter_map(decides).find_map(|dir| {
        let (_, r) = index.children(&dir, 0).find(|(_, r)| {
            let name = index.name(r).unwrap_or_default();
            name.iter().any(u8::is_ascii_alphabetic) && {
                let other = swapped(name);
                !index.children(&dir, 0).any(|(_, r)| index.name(r) == Some(&other))
            }
        })?;
        let parent = index.path_of(dir.id)?;
        Some((r.ino, root.join(OsStr::from_bytes(parent.get())).join(OsStr::from_bytes(&swapped(index.name(r)?)))))
    });
    in_other_case.is_some_and(|(ino, path)| {
        rustix::fs::statat(rustix::fs::CWD, &path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|st| st.st_ino == ino)
    })
}

/// A name with the case of its letters swapped.
fn swapped(name: &[u8]) -> Vec<u8> {
    let swap = |b: &u8| if b.is_ascii_lowercase() { b.to_ascii_uppercase() } else { b.to_ascii_lowercase() };
    name.iter().map(swap).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::index_of;
    use super::*;
    use crate::shm::IndexBytes;
    use std::time::Duration;

    const FILES: [&str; 3] = ["data/1", "env/lib/os.py", "env/pyvenv.cfg"];

    fn names(rule: AbsentRule, min_age: Duration) -> AbsentNames {
        AbsentNames { rule, every: Duration::from_secs(5), min_age }
    }

    #[test]
    fn each_rule_has_its_directories() {
        let built = index_of(&FILES);
        let index = IndexBytes(&built.index).open().expect("index");
        let of = |rule| decider_words(&index, &names(rule, Duration::ZERO), false);
        assert_eq!(of(AbsentRule::Kernel), [0; 0]);
        let paths = super::super::tests::paths_of_dirs(&index);
        let expected = paths.iter().map(|p| if p.starts_with("env") { UNASKED } else { KERNEL }).collect::<Vec<u32>>();
        assert_eq!((of(AbsentRule::Auto), paths.len()), (expected, 4));
        assert_eq!((of(AbsentRule::Checked), of(AbsentRule::Index)), (vec![UNASKED; 4], vec![TRUSTED; 4]));
        let loaded = decider_words(&index, &names(AbsentRule::Index, Duration::ZERO), true);
        assert_eq!(loaded, [UNASKED; 4], "compared once");
    }

    #[test]
    fn a_directory_that_has_just_changed_answers_nothing() {
        let built = index_of(&FILES);
        let index = IndexBytes(&built.index).open().expect("index");
        let words = decider_words(&index, &names(AbsentRule::Checked, Duration::from_secs(60)), false);
        assert_eq!(words, [KERNEL; 4]);
    }

    #[test]
    fn case_is_not_folded_here_and_a_second_name_is_no_sign_of_it() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("readme"), "1").expect("write");
        std::fs::hard_link(dir.path().join("readme"), dir.path().join("README")).expect("link");
        let built = super::super::tests::index_at(dir.path());
        let index = IndexBytes(&built.index).open().expect("index");
        assert!(!folds_case(&index, &[UNASKED], dir.path()), "both names are listed");
        std::fs::remove_file(dir.path().join("README")).expect("remove");
        let built = super::super::tests::index_at(dir.path());
        let index = IndexBytes(&built.index).open().expect("index");
        assert!(!folds_case(&index, &[UNASKED], dir.path()));
        // What a file system does that folds case: the other name leads to the same inode.
        std::fs::hard_link(dir.path().join("readme"), dir.path().join("README")).expect("link");
        assert!(folds_case(&index, &[UNASKED], dir.path()) && !folds_case(&index, &[KERNEL], dir.path()));
    }
}
