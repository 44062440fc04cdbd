//! The file system under a tier: its directory, held, and the room on it.
//!
//! A tier names all that it makes, renames, opens and removes relative to this directory, whatever
//! becomes of the path that led to it.

use crate::held_dir::HeldDir;
use crate::private_dir::{self, PrivateDirError};
use monarch_config::trusted::{Exposed, WalkError};
use rustix::fs::StatVfs;
use rustix::io::Errno;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The type of tmpfs, as `statfs` gives it.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// The directory of evicted files that a process may still have open.
pub(super) const TRASH: &str = "trash";
/// Its name in versions before 0.2.0.
pub(super) const OLD_TRASH: &str = "dying";
/// Directories of a tier.
pub(super) const DIRS: [&str; 4] = ["copies", "tmp", "part", TRASH];

/// The directory of a tier.
#[derive(Debug)]
pub(super) struct TierFs(HeldDir);

/// Why the directory of a tier cannot be used.
#[derive(Debug)]
pub(super) enum NoTierFs {
    /// What was tried, and what the kernel said.
    Io(&'static str, Errno),
    /// This directory, in which it is to lie, is missing.
    NoParent(PathBuf),
    /// Another user can put another directory in its place.
    Exposed(Exposed),
    /// Other users have all candidate names.
    Squatted,
}

impl Deref for TierFs {
    type Target = HeldDir;
    fn deref(&self) -> &HeldDir {
        &self.0
    }
}

/// Returns the first directory on the way to a path that does not exist.
fn first_missing(path: &Path) -> PathBuf {
    path.ancestors().take_while(|dir| !dir.exists()).last().unwrap_or(path).to_owned()
}

impl TierFs {
    /// Makes, or opens, the private directory in `base`.
    pub(super) fn make(base: &Path) -> Result<Self, NoTierFs> {
        let base = HeldDir::make(base).map_err(|e| match e {
            WalkError::Exposed(e) => NoTierFs::Exposed(e),
            WalkError::Io(Errno::NOENT) => NoTierFs::NoParent(first_missing(base)),
            WalkError::Io(e) => NoTierFs::Io("create it", e),
        })?;
        let private = private_dir::open(&Arc::new(base), "monarch").map_err(|e| match e {
            PrivateDirError::Squatted => NoTierFs::Squatted,
            PrivateDirError::Io(e) => NoTierFs::Io("create a private directory in it", e),
        })?;
        Ok(Self(private))
    }

    /// Makes the directories of a tier that are missing.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn make_dirs(&self) -> rustix::io::Result<()> {
        DIRS.into_iter().try_for_each(|name| self.make_dir(name))?;
        (0..256).try_for_each(|i| self.make_dir(format!("copies/{i:02x}")))
    }

    /// Size and free space of the file system.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn room(&self) -> rustix::io::Result<StatVfs> {
        rustix::fs::fstatvfs(self.fd())
    }

    /// Whether the file system is in memory.
    pub(super) fn is_in_memory(&self) -> bool {
        rustix::fs::fstatfs(self.fd()).is_ok_and(|fs| fs.f_type as u64 == TMPFS_MAGIC)
    }
}

#[cfg(test)]
mod tests {
    use crate::tier::{Copy, Sum, TierDir, TierError, write_all_at};
    use monarch_abi::hash::{CopyName, PathHash};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};
    use xxhash_rust::xxh3::xxh3_64;

    const NAMES: [&str; 5] = ["copies", "part", "trash", "tmp", "copies/ab"];

    fn name(n: u128) -> CopyName {
        CopyName(n << 120 | 7)
    }

    fn publish(tier: &TierDir, n: u128) -> Copy {
        let file = tier.copies.create(3).unwrap().unwrap();
        write_all_at(file.fd(), b"abc", 0).unwrap();
        let stamp = name(n).stamp(PathHash { fp: 1 << 40, check: 5 });
        file.publish(name(n), stamp, Sum::whole(xxh3_64(b"abc"))).unwrap().unwrap()
    }

    /// A directory that looks like a tier, with files that are dear to a user.
    fn victim(at: PathBuf) -> PathBuf {
        NAMES.iter().for_each(|name| fs::create_dir_all(at.join(name)).unwrap());
        for name in NAMES.iter().chain(&["."]) {
            for file in ["dear", "log", "lock", "seed", "log.new"] {
                fs::write(at.join(name).join(file), "dear").unwrap();
            }
        }
        at
    }

    fn below(at: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut all = Vec::new();
        for entry in fs::read_dir(at).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                all.extend(below(&path));
            } else {
                all.push((path.clone(), fs::read(&path).unwrap_or_default()));
            }
        }
        all.sort();
        all
    }

    #[test]
    fn a_tier_that_is_exchanged_for_a_link_is_emptied_where_it_went_and_what_the_link_leads_to_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let victim = victim(dir.path().join("victim"));
        let before = below(&victim);
        let tier = TierDir::open("t", &dir.path().join("tier"), 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        let first = publish(&tier, 1);
        assert!(tier.in_place());
        let away = dir.path().join("away");
        fs::rename(&tier.path, &away).unwrap();
        symlink(&victim, &tier.path).unwrap();
        assert!(!tier.in_place());
        // The tier continues where the directory is.
        let second = publish(&tier, 2);
        let part = tier.parts.begin(1 << 20, true).unwrap().unwrap();
        tier.parts.open(&part, 0, 4096).unwrap();
        assert!(away.join(format!("part/{:016x}", part.number)).is_file());
        assert!(tier.copies.stat(second.name).unwrap().is_some() && tier.copies.open(first.name).is_ok());
        tier.trash.evict(first.name, 3);
        tier.parts.discard(&part);
        tier.trash.sweep();
        assert!(tier.copies.stat(first.name).unwrap().is_none());
        let stats = tier.compactor.compact_if_due(|| true);
        assert_eq!((stats, below(&victim) == before), (0, true));
        tier.remove_all().1.unwrap();
        assert!(below(&victim) == before, "nothing of the other directory was removed");
        assert_eq!(fs::read_dir(&away).unwrap().count(), 0, "nothing of the tier is left");
        assert!(tier.path.is_symlink());
    }

    #[test]
    fn a_directory_of_a_tier_that_is_exchanged_for_a_link_is_not_followed_when_the_tier_goes() {
        let dir = tempfile::tempdir().unwrap();
        let victim = victim(dir.path().join("victim"));
        let before = below(&victim);
        let tier = TierDir::open("t", &dir.path().join("tier"), 64 << 20, 0).unwrap();
        tier.recover(|_| {}).unwrap();
        for name in ["copies", "part", "trash", "tmp"] {
            fs::rename(tier.path.join(name), dir.path().join(name)).unwrap();
            symlink(victim.join(name), tier.path.join(name)).unwrap();
        }
        assert!(
            tier.copies.create(3).is_err()
                && tier.parts.begin(1 << 20, true).is_err()
                && tier.space.list("tmp").is_err()
        );
        tier.remove_all().1.unwrap();
        assert!(below(&victim) == before && !tier.path.exists());
    }

    #[test]
    fn a_tier_below_a_directory_that_others_may_write_to_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().join("parent");
        fs::create_dir(&parent).unwrap();
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o777)).unwrap();
        let opened = TierDir::open("t", &parent.join("tier"), 64 << 20, 0);
        let Err(e @ TierError::Exposed { .. }) = opened else { panic!("{opened:?}") };
        let said = e.to_string();
        assert!(said.contains("/parent (owner") && said.contains("mode 0777") && said.contains("chmod"), "{said}");
        assert!(!parent.join("tier").exists());
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o1777)).unwrap();
        TierDir::open("t", &parent.join("tier"), 64 << 20, 0).unwrap();
    }
}
