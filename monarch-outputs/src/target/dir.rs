//! [`DirTarget`]: the PFS by a descriptor of the output root.

use super::recent_dirs::RecentDirs;
use super::{Attributes, Extended, Kind, OutputTarget, Owner, TargetFile, TargetStat, extended};
use monarch_abi::outputs::PART_PREFIX;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::{Errno, Result};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// The tree below a directory.
#[derive(Debug)]
pub struct DirTarget {
    path: PathBuf,
    root: RwLock<Arc<OwnedFd>>,
    part_dirs: RecentDirs,
}

/// Nanoseconds since 1970.
const fn nanoseconds(s: i64, ns: i64) -> i64 {
    s.saturating_mul(1_000_000_000).saturating_add(ns)
}

/// Bits of the mode by which a program runs as its owner or group.
const SET_ID: u32 = 0o6000;

const fn timespec(ns: i64) -> Timespec {
    Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) }
}

impl From<&Stat> for TargetStat {
    fn from(st: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(st.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Symlink,
            _ => Kind::Other,
        };
        Self {
            kind,
            dev: st.st_dev,
            ino: st.st_ino,
            size: st.st_size as u64,
            mode: st.st_mode & 0o7777,
            uid: st.st_uid,
            gid: st.st_gid,
            mtime_ns: nanoseconds(st.st_mtime, st.st_mtime_nsec as i64),
            ctime_ns: nanoseconds(st.st_ctime, st.st_ctime_nsec as i64),
        }
    }
}

/// Sets mode and owner, where they are not those of `now`, and times of an open file.
///
/// # Errors
/// What the kernel said.
pub(crate) fn set_attributes(fd: BorrowedFd<'_>, attributes: &Attributes, now: &TargetStat) -> Result<()> {
    if let Some(Owner { uid, gid }) = attributes.owner
        && (uid, gid) != (now.uid, now.gid)
    {
        rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    // A change of the owner, or a write, takes bits out of the mode.
    if attributes.owner.is_some() || now.mode != attributes.mode || now.mode & SET_ID != 0 {
        rustix::fs::fchmod(fd, Mode::from_raw_mode(attributes.mode))?;
    }
    let times =
        Timestamps { last_access: timespec(attributes.atime_ns), last_modification: timespec(attributes.mtime_ns) };
    rustix::fs::futimens(fd, &times)
}

fn open_root(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether the directory of a descriptor was removed. (One that was renamed is used on, as by a
/// process that has it open.)
fn is_removed(dir: BorrowedFd<'_>) -> bool {
    let has_no_link = rustix::fs::fstat(dir).map_or(true, |st| st.st_nlink == 0);
    has_no_link || rustix::fs::readlink(fd_path(dir), Vec::new()).is_ok_and(|to| to.to_bytes().ends_with(b" (deleted)"))
}

fn fd_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

impl DirTarget {
    /// The tree below `root`.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(root: &Path) -> io::Result<Self> {
        Ok(Self {
            path: root.to_owned(),
            root: RwLock::new(Arc::new(open_root(root)?)),
            part_dirs: RecentDirs::default(),
        })
    }

    fn root(&self) -> Arc<OwnedFd> {
        self.root.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Device and inode number of the root.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn id(&self) -> Result<TargetStat> {
        Ok(TargetStat::from(&rustix::fs::fstat(self.root().as_fd())?))
    }

    /// Opens a directory.
    fn beneath(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = flags | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let root = self.root();
        match rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), resolve) {
            // Kernels before 5.6, and seccomp filters that do not know openat2.
            Err(Errno::NOSYS | Errno::PERM) => self.walk(path, flags | OFlags::NOFOLLOW),
            other => other,
        }
    }

    /// The same component by component, without any links.
    fn walk(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let root = self.root();
        let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut dir: Option<OwnedFd> = None;
        let mut components = path.split(|&c| c == b'/').filter(|c| !c.is_empty()).peekable();
        while let Some(component) = components.next() {
            if component == b".." {
                return Err(Errno::XDEV);
            }
            let at = dir.as_ref().map_or(root.as_fd(), AsFd::as_fd);
            let flags = if components.peek().is_some() { through } else { flags };
            dir = Some(rustix::fs::openat(at, component, flags, Mode::empty())?);
        }
        dir.ok_or(Errno::NOENT)
    }

    /// Names in a directory, and whether each may be a directory.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn entries(&self, dir: &[u8]) -> Result<Vec<(Vec<u8>, bool)>> {
        let fd = self.beneath(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let may_be_dir = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
                names.push((name.to_vec(), may_be_dir));
            }
        }
        Ok(names)
    }

    /// A directory to name things in, from what the kernel's client remembers of it.
    fn dir(&self, dir: &[u8]) -> Result<OwnedFd> {
        self.beneath(dir, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Asks about a name that may not be there.
    fn asked<T>(&self, path: &[u8], question: impl Fn(BorrowedFd<'_>, &[u8]) -> Result<T>) -> Result<T> {
        let (dir, name) = split(path)?;
        match question(self.dir(dir)?.as_fd(), name) {
            Err(Errno::STALE) => question(self.asked_for(dir)?.as_fd(), name),
            done => done,
        }
    }

    /// Changes a name that should be there, or be made in a directory that should be there.
    fn changed<T>(&self, path: &[u8], change: impl Fn(BorrowedFd<'_>, &[u8]) -> Result<T>) -> Result<T> {
        let (dir, name) = split(path)?;
        match change(self.dir(dir)?.as_fd(), name) {
            Err(Errno::STALE | Errno::NOENT) => change(self.asked_for(dir)?.as_fd(), name),
            done => done,
        }
    }

    /// A directory that the PFS is asked for: where other nodes have removed or replaced one, the
    /// client finds it by its name until what it remembers is too old, and calls about names in it
    /// fail with `ESTALE` or `ENOENT`. Only a call that opens it makes the kernel look it up again.
    fn asked_for(&self, dir: &[u8]) -> Result<OwnedFd> {
        match self.beneath(dir, OFlags::RDONLY | OFlags::DIRECTORY) {
            // A directory that may be written, but not listed.
            Err(Errno::ACCESS) => self.dir(dir),
            other => other,
        }
    }

    /// [`changed`](Self::changed) for a part file, whose directory may have been opened a moment ago.
    fn changed_part<T>(&self, path: &[u8], change: impl Fn(BorrowedFd<'_>, &[u8]) -> Result<T>) -> Result<T> {
        let (dir, name) = split(path)?;
        if let Some(recent) = self.part_dirs.get(dir) {
            match change(recent.as_fd(), name) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => {}
                done => return done,
            }
        }
        let fd = Arc::new(self.dir(dir)?);
        self.part_dirs.put(dir, &fd);
        match change(fd.as_fd(), name) {
            Err(Errno::STALE | Errno::NOENT) => change(self.asked_for(dir)?.as_fd(), name),
            done => done,
        }
    }
}

/// The directory of a path, and the name in it.
fn split(path: &[u8]) -> Result<(&[u8], &[u8])> {
    let at = path.iter().rposition(|&c| c == b'/');
    let (dir, name) = at.map_or((&b""[..], path), |at| (&path[..at], &path[at + 1..]));
    if name.is_empty() || name == b"." || name == b".." {
        return Err(Errno::INVAL);
    }
    Ok((dir, name))
}

/// Opens a file for writing.
fn open_in(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    match rustix::fs::openat(dir, name, WRITE, Mode::empty()) {
        // A file that its owner may not write, as after `open(..., 0444)`.
        Err(Errno::ACCESS) => {
            let st = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(st.st_mode) != FileType::RegularFile {
                return Err(Errno::ACCESS);
            }
            rustix::fs::chmodat(dir, name, Mode::from_raw_mode(st.st_mode & 0o7777 | 0o600), AtFlags::empty())?;
            rustix::fs::openat(dir, name, WRITE, Mode::empty())
        }
        other => other,
    }
}

const WRITE: OFlags = OFlags::WRONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

impl OutputTarget for DirTarget {
    fn reopen(&self) -> Result<()> {
        if is_removed(self.root().as_fd()) { self.follow() } else { Ok(()) }
    }

    fn follow(&self) -> Result<()> {
        let again = open_root(&self.path)?;
        *self.root.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(again);
        self.part_dirs.clear();
        Ok(())
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn TargetFile>> {
        let is_part = split(path)?.1.starts_with(PART_PREFIX);
        let fd = if is_part { self.changed_part(path, open_in)? } else { self.changed(path, open_in)? };
        Ok(Box::new(OpenFile { fd }))
    }

    fn create(&self, path: &[u8], mode: u32) -> Result<Box<dyn TargetFile>> {
        let (flags, mode) = (WRITE | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(mode));
        let fd = self.changed(path, |dir, name| rustix::fs::openat(dir, name, flags, mode))?;
        Ok(Box::new(OpenFile { fd }))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let ((from_dir, from_name), (to_dir, to_name)) = (split(from)?, split(to)?);
        if from_dir == to_dir && from_name.starts_with(PART_PREFIX) {
            return self.changed_part(from, |dir, name| rustix::fs::renameat(dir, name, dir, to_name));
        }
        self.changed(from, |from_dir, from| {
            self.changed(to, |to_dir, to| rustix::fs::renameat(from_dir, from, to_dir, to))
        })
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.changed(path, |dir, name| rustix::fs::unlinkat(dir, name, AtFlags::empty()))
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.changed(path, |dir, name| rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR))
    }

    fn symlink(&self, path: &[u8], target: &[u8]) -> Result<()> {
        self.changed(path, |dir, name| rustix::fs::symlinkat(target, dir, name))
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.asked(path, |dir, name| Ok(rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes()))
    }

    fn stat(&self, path: &[u8]) -> Result<TargetStat> {
        if path.is_empty() {
            return self.id();
        }
        self.asked(path, |dir, name| Ok(TargetStat::from(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?)))
    }

    fn sync_dir(&self, dir: &[u8]) -> Result<()> {
        let fd = self.beneath(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        match rustix::fs::fsync(&fd) {
            // File systems that cannot sync a directory say so.
            Err(Errno::INVAL) => Ok(()),
            other => other,
        }
    }

    fn names(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(self.entries(dir)?.into_iter().map(|(name, _)| name).collect())
    }
}

/// An open file.
#[derive(Debug)]
struct OpenFile {
    fd: OwnedFd,
}

impl TargetFile for OpenFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.fd, bytes, offset))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        rustix::io::retry_on_intr(|| rustix::fs::ftruncate(&self.fd, len))
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd)
    }

    fn stat(&self) -> Result<TargetStat> {
        Ok(TargetStat::from(&rustix::fs::fstat(&self.fd)?))
    }

    fn set_attributes(&self, attributes: &Attributes, before: &TargetStat) -> Result<()> {
        set_attributes(self.fd.as_fd(), attributes, before)
    }

    fn set_extended(&self, attributes: &[Extended]) -> Result<()> {
        extended::set(self.fd.as_fd(), attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_inside_are_followed_and_links_out_are_not() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("inside")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("out")).unwrap();
        let target = DirTarget::open(dir.path()).unwrap();
        target.create(b"inside/x", 0o644).unwrap();
        assert!(dir.path().join("real/x").exists());
        assert!(target.create(b"out/x", 0o644).is_err());
        assert!(target.create(b"../x", 0o644).is_err());
        assert!(std::fs::read_dir(outside.path()).unwrap().next().is_none());
    }

    #[test]
    fn a_root_that_was_removed_and_made_again_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let target = DirTarget::open(&root).unwrap();
        std::fs::remove_dir(&root).unwrap();
        assert_eq!(target.create(b"x", 0o644).unwrap_err(), Errno::NOENT);
        assert_eq!(target.reopen(), Err(Errno::NOENT));
        std::fs::create_dir(&root).unwrap();
        target.reopen().unwrap();
        target.create(b"x", 0o644).unwrap();
        // Renamed, it is the same directory.
        std::fs::rename(&root, dir.path().join("moved")).unwrap();
        std::fs::create_dir(&root).unwrap();
        target.reopen().unwrap();
        target.create(b"y", 0o644).unwrap();
        assert!(dir.path().join("moved/y").exists());
        // Unless the job says that it has made another one.
        target.follow().unwrap();
        target.create(b"z", 0o644).unwrap();
        assert!(root.join("z").exists());
    }

    #[test]
    fn a_file_that_its_owner_may_not_write_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let target = DirTarget::open(dir.path()).unwrap();
        target.create(b"x", 0o444).unwrap();
        assert_eq!(target.open(b"x").unwrap().write_at(b"abc", 0), Ok(3));
        assert_eq!(target.stat(b"x").unwrap().size, 3);
    }
}
