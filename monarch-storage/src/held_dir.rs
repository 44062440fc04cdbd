//! Directories held by a descriptor.
//!
//! The agent names all that it makes, renames, opens, lists and removes below a tier or a runtime
//! directory relative to a descriptor of that directory. Whatever takes the place of the path
//! later, links included, the agent's files stay those of the directory that it opened. The path is
//! used once, to find the directory ([`monarch_config::trusted`]), and to tell it to other
//! processes.

use monarch_config::trusted::{self, Missing, WalkError};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::{Errno, Result};
use rustix::path::Arg;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Levels of a tree that is removed, at most: those of the agent have two.
const MAX_DEPTH: u32 = 64;

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files, and whatever else is no directory.
    pub files: u64,
    /// Bytes that they had on the disk, without files that have another name as well.
    pub bytes: u64,
    /// Directories.
    pub directories: u64,
}

impl Removed {
    const fn add_file(&mut self, st: &Stat) {
        self.files += 1;
        if st.st_nlink == 1 {
            self.bytes += st.st_blocks as u64 * 512;
        }
    }
}

/// A directory held by its descriptor.
///
/// Methods: 28, one for each call that names something below it.
#[derive(Debug)]
pub struct HeldDir {
    fd: OwnedFd,
    path: PathBuf,
    /// `st_dev` and `st_ino`.
    id: (u64, u64),
    /// The directory in which it lies, and its name there, where both are known.
    parent: Option<(Arc<Self>, OsString)>,
}

impl HeldDir {
    fn new(fd: OwnedFd, path: PathBuf, parent: Option<(Arc<Self>, OsString)>) -> Result<Self> {
        let st = rustix::fs::fstat(&fd)?;
        Ok(Self { fd, path, id: (st.st_dev, st.st_ino), parent })
    }

    /// Opens a directory by a path that no other user can lead elsewhere. Keeps the path without
    /// links.
    ///
    /// # Errors
    /// [`WalkError`].
    pub fn open(path: &Path) -> std::result::Result<Self, WalkError> {
        let (fd, real) = trusted::walk(path, Missing::Fail)?;
        Ok(Self::new(fd, real, None)?)
    }

    /// Opens a directory as [`HeldDir::open`] does, and makes it if it is missing, for this user
    /// alone. The directories above it must exist.
    ///
    /// # Errors
    /// [`WalkError`].
    pub fn make(path: &Path) -> std::result::Result<Self, WalkError> {
        let (fd, real) = trusted::walk(path, Missing::MakeLast)?;
        Ok(Self::new(fd, real, None)?)
    }

    /// Opens a directory without checks of the directories above it, to read what another process
    /// holds.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn at(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::new(rustix::fs::open(path, flags, Mode::empty())?, path.to_owned(), None)
    }

    /// Opens a directory that lies in this one; links are refused.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn dir(self: &Arc<Self>, name: &str) -> Result<Self> {
        let fd = self.open_dir(name)?;
        Self::new(fd, self.path.join(name), Some((self.clone(), name.into())))
    }

    /// The descriptor.
    #[must_use]
    pub const fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Where it was when it was opened: for messages, and for other processes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `st_dev` and `st_ino`.
    #[must_use]
    pub const fn id(&self) -> (u64, u64) {
        self.id
    }

    /// The directory in which it lies, and its name there.
    #[must_use]
    pub fn parent(&self) -> Option<(&Arc<Self>, &OsStr)> {
        self.parent.as_ref().map(|(dir, name)| (dir, name.as_os_str()))
    }

    /// The attributes of the directory itself.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn stat_self(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.fd)
    }

    /// Whether the path still leads to this directory.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        match rustix::fs::stat(&self.path) {
            Ok(st) => (st.st_dev, st.st_ino) == self.id,
            Err(e) => !matches!(e, Errno::NOENT | Errno::NOTDIR | Errno::LOOP),
        }
    }

    /// Opens a file below it, without following links.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open_file(&self, rel: impl Arg + Copy, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&self.fd, rel, flags, mode, resolve) {
            // Kernels before 5.6, and seccomp filters that do not know openat2.
            Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(&self.fd, rel, flags, mode),
            other => other,
        }
    }

    /// Opens a regular file below it to read it, without blocking should it be a pipe.
    ///
    /// # Errors
    /// What the kernel said; `EINVAL` when it is no regular file.
    pub fn read_file(&self, rel: impl Arg + Copy) -> Result<OwnedFd> {
        Ok(self.read_file_and_stat(rel)?.0)
    }

    /// The same, with the attributes of the file.
    ///
    /// # Errors
    /// As [`HeldDir::read_file`].
    pub fn read_file_and_stat(&self, rel: impl Arg + Copy) -> Result<(OwnedFd, Stat)> {
        let fd = self.open_file(rel, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let st = rustix::fs::fstat(&fd)?;
        if st.st_mode & 0o170_000 == 0o100_000 { Ok((fd, st)) } else { Err(Errno::INVAL) }
    }

    /// Opens a directory below it, to list it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open_dir(&self, rel: impl Arg + Copy) -> Result<OwnedFd> {
        self.open_file(rel, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// The attributes of what has a name below it; links are not followed.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn stat(&self, rel: impl Arg) -> Result<Stat> {
        rustix::fs::statat(&self.fd, rel, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Whether a name below it exists, or may exist.
    #[must_use]
    pub fn has(&self, rel: impl Arg) -> bool {
        !matches!(self.stat(rel), Err(Errno::NOENT | Errno::NOTDIR))
    }

    /// Makes a directory below it, unless the name exists.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn make_dir(&self, rel: impl Arg) -> Result<()> {
        match rustix::fs::mkdirat(&self.fd, rel, Mode::RWXU) {
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    /// Gives a file below it another name there.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn rename(&self, from: impl Arg, to: impl Arg) -> Result<()> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
    }

    /// Gives a file below it another name there, with flags.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn rename_with(&self, from: impl Arg, to: impl Arg, flags: RenameFlags) -> Result<()> {
        rustix::fs::renameat_with(&self.fd, from, &self.fd, to, flags)
    }

    /// Removes a file below it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn unlink(&self, rel: impl Arg) -> Result<()> {
        rustix::fs::unlinkat(&self.fd, rel, AtFlags::empty())
    }

    /// Removes a file below it, and counts it if it was there.
    pub fn unlink_counted(&self, rel: impl Arg + Copy, removed: &mut Removed) {
        let st = self.stat(rel);
        if let (Ok(st), Ok(())) = (st, self.unlink(rel)) {
            removed.add_file(&st);
        }
    }

    /// Removes an empty directory below it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn remove_dir(&self, rel: impl Arg) -> Result<()> {
        rustix::fs::unlinkat(&self.fd, rel, AtFlags::REMOVEDIR)
    }

    /// The names in it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn names(&self) -> Result<Vec<CString>> {
        // Another open file description: several threads may list at a time.
        names_in(&self.open_dir(c".")?)
    }

    /// Removes what has this name, with everything below it; links are removed, not followed.
    ///
    /// # Errors
    /// What the kernel said of the first entry that cannot be removed.
    pub fn remove_tree(&self, name: &str) -> Result<()> {
        self.remove_tree_counted(name, &mut Removed::default())
    }

    /// [`HeldDir::remove_tree`], and counts what it removes.
    ///
    /// # Errors
    /// As [`HeldDir::remove_tree`].
    pub fn remove_tree_counted(&self, name: &str, removed: &mut Removed) -> Result<()> {
        remove_below(&self.fd, name.as_bytes(), MAX_DEPTH, removed)
    }

    /// Removes everything in it, and the directory itself if it still has its name. What cannot be
    /// removed stays.
    pub fn wipe(&self) {
        for name in self.names().unwrap_or_default() {
            let _ = remove_below(&self.fd, name.to_bytes(), MAX_DEPTH, &mut Removed::default());
        }
        self.remove_self();
    }

    /// Removes the directory, if it is empty and still has its name. Returns whether it did.
    pub fn remove_self(&self) -> bool {
        let Some((parent, name)) = &self.parent else { return false };
        let named = parent.stat(name.as_os_str());
        named.is_ok_and(|st| (st.st_dev, st.st_ino) == self.id) && parent.remove_dir(name.as_os_str()).is_ok()
    }
}

fn names_in(dir: &OwnedFd) -> Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes what has this name in `dir`, with everything below it, and counts it.
///
/// # Errors
/// What the kernel said; `ELOOP` for a tree with more than `depth` levels.
fn remove_below(dir: &OwnedFd, name: &[u8], depth: u32, removed: &mut Removed) -> Result<()> {
    let name = OsStr::from_bytes(name);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let st = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    let below = match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => rustix::fs::openat(dir, name, flags, Mode::empty())?,
        Ok(()) => {
            st.iter().for_each(|st| removed.add_file(st));
            return Ok(());
        }
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(e),
    };
    let deeper = depth.checked_sub(1).ok_or(Errno::LOOP)?;
    let mut failed = Ok(());
    for name in names_in(&below)? {
        failed = failed.and(remove_below(&below, name.to_bytes(), deeper, removed));
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) => {
            removed.directories += 1;
            Ok(())
        }
        Err(Errno::NOENT) => Ok(()),
        Err(e) => failed.and(Err(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn tree(at: &Path) {
        fs::create_dir_all(at.join("copies/ab/deep")).unwrap();
        fs::write(at.join("copies/ab/file"), "x").unwrap();
        fs::write(at.join("copies/ab/deep/file"), "x").unwrap();
        fs::write(at.join("file"), "x").unwrap();
    }

    fn count(at: &Path) -> usize {
        fs::read_dir(at).map_or(0, |entries| entries.map(|e| 1 + count(&e.unwrap().path())).sum())
    }

    #[test]
    fn a_tree_is_removed_and_links_in_it_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, victim) = (dir.path().join("ours"), dir.path().join("victim"));
        tree(&ours);
        tree(&victim);
        symlink(&victim, ours.join("copies/link")).unwrap();
        symlink(victim.join("copies"), ours.join("part")).unwrap();
        let held = HeldDir::open(&ours).unwrap();
        let before = count(&victim);
        let mut removed = Removed::default();
        // (`tree` makes directories `copies`, `ab` and `deep`, and two files of a block below
        // them.)
        let block = fs::metadata(ours.join("file")).unwrap();
        let block = std::os::unix::fs::MetadataExt::blocks(&block) * 512;
        held.remove_tree_counted("copies", &mut removed).unwrap();
        assert_eq!((removed.files, removed.directories), (3, 3));
        assert!((2 * block..=3 * block.max(4096)).contains(&removed.bytes), "{removed:?}");
        held.remove_tree("part").unwrap();
        held.remove_tree("none").unwrap();
        assert_eq!((count(&ours), count(&victim)), (1, before));
    }

    #[test]
    fn what_takes_the_place_of_a_held_directory_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, victim, away) = (dir.path().join("ours"), dir.path().join("victim"), dir.path().join("away"));
        tree(&ours);
        tree(&victim);
        let held = Arc::new(HeldDir::open(dir.path()).unwrap()).dir("ours").unwrap();
        assert!(held.is_in_place());
        fs::rename(&ours, &away).unwrap();
        symlink(&victim, &ours).unwrap();
        let before = count(&victim);
        assert!(!held.is_in_place() && held.has("file"));
        held.open_file("made", OFlags::WRONLY | OFlags::CREATE, Mode::RUSR).unwrap();
        held.rename("made", "copies/made").unwrap();
        assert!(away.join("copies/made").is_file());
        held.wipe();
        assert_eq!((count(&victim), count(&away)), (before, 0));
        assert!(away.is_dir() && ours.is_symlink(), "only what it held is its own to remove");
    }

    #[test]
    fn files_are_not_opened_by_links_or_outside() {
        let dir = tempfile::tempdir().unwrap();
        let ours = dir.path().join("ours");
        tree(&ours);
        fs::write(dir.path().join("outside"), "x").unwrap();
        symlink("copies", ours.join("link")).unwrap();
        symlink("file", ours.join("alias")).unwrap();
        let held = HeldDir::open(&ours).unwrap();
        assert!(held.read_file("copies/ab/file").is_ok());
        for name in ["alias", "copies", "none"] {
            assert!(held.read_file(name).is_err(), "{name}");
        }
        let beneath = rustix::fs::openat2(held.fd(), "file", OFlags::RDONLY, Mode::empty(), ResolveFlags::BENEATH);
        if beneath.is_ok() {
            assert!(held.read_file("link/ab/file").is_err() && held.read_file("../outside").is_err());
        }
    }
}
