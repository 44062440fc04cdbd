//! Paths that no other user can lead elsewhere, as sshd's `StrictModes` has it.
//!
//! A tier or a runtime directory is only as private as the directories above it: a user who may
//! rename one of them can put another directory, or a link, in its place. So a path is walked from
//! `/` down, each directory held by its descriptor while the next name is looked up, and each must
//!
//! * belong to root or to this user, and
//! * not be writable by group or others, unless it is sticky (`/tmp`, `/dev/shm`).
//!
//! The walk itself follows symbolic links, so that the directories that hold them are checked too;
//! a link must belong to root or to this user. Two exceptions: in a user namespace the owner that
//! stands for all users outside of it passes, and in a Kubernetes pod the top directory of a volume
//! may be writable by all, as `emptyDir` makes it.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Links followed on one path, at most: the kernel's number.
const MAX_LINKS: u32 = 40;

/// A directory or link on a path that another user can exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The directory or link.
    pub path: PathBuf,
    /// Its owner.
    pub uid: u32,
    /// Its permission bits.
    pub mode: u32,
    /// Why it is not trusted.
    pub why: Why,
}

/// Why a directory or link is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It belongs to another user.
    Owner,
    /// It is a link that belongs to another user.
    Link,
    /// Its group or others may write to it, and it is not sticky.
    Writable,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, uid, mode) = (self.path.display(), self.uid, self.mode);
        match self.why {
            Why::Owner => write!(
                f,
                "the directory {path} (owner {uid}, mode {mode:04o}) belongs to another user, who can put another one in its place"
            ),
            Why::Link => {
                write!(f, "the symbolic link {path} (owner {uid}) belongs to another user, who can lead it elsewhere")
            }
            Why::Writable => write!(
                f,
                "the directory {path} (owner {uid}, mode {mode:04o}) can be written to by other users, who can exchange what lies in it"
            ),
        }
    }
}

impl std::error::Error for Exposed {}

impl Exposed {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        let path = self.path.display();
        match self.why {
            Why::Owner | Why::Link => {
                "use a path on which every directory belongs to you or to root, such as one below /tmp or /dev/shm"
                    .to_owned()
            }
            Why::Writable if self.uid == rustix::process::geteuid().as_raw() => {
                format!("take the right away: `chmod go-w {path}`, or protect what lies in it: `chmod +t {path}`")
            }
            Why::Writable => {
                format!("use another path, or have the administrator protect what lies there: `chmod +t {path}`")
            }
        }
    }
}

/// Why a path cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// Another user can lead it elsewhere.
    #[error(transparent)]
    Exposed(#[from] Exposed),
    /// What the kernel said.
    #[error(transparent)]
    Io(#[from] Errno),
}

impl From<WalkError> for io::Error {
    fn from(e: WalkError) -> Self {
        match e {
            WalkError::Exposed(e) => Self::new(io::ErrorKind::PermissionDenied, e.to_string()),
            WalkError::Io(e) => e.into(),
        }
    }
}

/// What is done about directories that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The last one is made, for this user alone. (One further up is missing where a path was
    /// mistyped.)
    MakeLast,
    /// They are an error.
    Fail,
}

/// Walks to a directory; its descriptor (`O_PATH`), and its path without links.
///
/// # Errors
/// [`WalkError`].
pub fn walk(path: &Path, missing: Missing) -> Result<(OwnedFd, PathBuf), WalkError> {
    walk_as(&Trust::here(), path, missing)
}

/// The first thing on a path that another user can exchange, as far as the path exists.
#[must_use]
pub fn exposed(path: &Path) -> Option<Exposed> {
    match walk(path, Missing::Fail) {
        Err(WalkError::Exposed(e)) => Some(e),
        Ok(_) | Err(WalkError::Io(_)) => None,
    }
}

/// The owners that are trusted, and exceptions for pods.
#[derive(Clone, Copy, Debug)]
struct Trust {
    uid: u32,
    /// In a user namespace: the owner that stands for all users who are not in it, the host's root
    /// among them.
    overflow: Option<u32>,
    /// Whether volumes may be writable by all.
    in_pod: bool,
}

impl Trust {
    fn here() -> Self {
        let overflow = in_user_namespace().then(overflow_uid);
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        Self { uid: rustix::process::geteuid().as_raw(), overflow, in_pod }
    }

    fn owner(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid || self.overflow == Some(uid)
    }

    /// Checks a directory that was opened.
    ///
    /// # Errors
    /// [`WalkError::Exposed`], or what the kernel said.
    fn check(&self, fd: &OwnedFd, path: &Path) -> Result<(), WalkError> {
        let st = rustix::fs::fstat(fd)?;
        let why = if !self.owner(st.st_uid) {
            Why::Owner
        } else if st.st_mode & 0o022 != 0 && st.st_mode & 0o1000 == 0 && !(self.in_pod && is_mount(fd)) {
            Why::Writable
        } else {
            return Ok(());
        };
        Err(exposed_at(path, &st, why))
    }
}

fn exposed_at(path: &Path, st: &Stat, why: Why) -> WalkError {
    WalkError::Exposed(Exposed { path: path.to_owned(), uid: st.st_uid, mode: st.st_mode & 0o7777, why })
}

/// Whether a directory is the top of a mount.
fn is_mount(fd: &OwnedFd) -> bool {
    let st = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::empty());
    st.is_ok_and(|st| st.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Whether a user is root: in a user namespace also the owner that stands for all users outside of
/// it.
pub(super) fn is_root(uid: u32) -> bool {
    // A namespace without a map shows all users as that owner.
    let is_inside = || std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !has_all_users(&map));
    uid == 0 || (uid == overflow_uid() && is_inside())
}

fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !(has_all_users(&map) || map.is_empty())
}

/// Whether a map of users is that of the whole machine.
fn has_all_users(map: &str) -> bool {
    map.split_ascii_whitespace().take(3).eq(["0", "0", "4294967295"])
}

fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(65534)
}

/// The names of a path, last first; `None` for `/`.
fn names(path: &Path) -> impl Iterator<Item = Option<OsString>> {
    path.components().rev().filter_map(|part| match part {
        Component::RootDir => Some(None),
        Component::ParentDir => Some(Some("..".into())),
        Component::Normal(name) => Some(Some(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    })
}

fn open(dir: Option<&OwnedFd>, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match dir {
        Some(dir) => rustix::fs::openat(dir, name, flags, Mode::empty()),
        None => rustix::fs::open(name, flags, Mode::empty()),
    }
}

fn walk_as(trust: &Trust, path: &Path, missing: Missing) -> Result<(OwnedFd, PathBuf), WalkError> {
    let path = std::path::absolute(path).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))?;
    let mut ahead: Vec<Option<OsString>> = names(&path).collect();
    let (mut here, mut links) = (None::<OwnedFd>, 0);
    let mut real = PathBuf::from("/");
    while let Some(name) = ahead.pop() {
        let Some(name) = name else {
            let top = open(None, OsStr::new("/"), OFlags::DIRECTORY)?;
            real = PathBuf::from("/");
            trust.check(&top, &real)?;
            here = Some(top);
            continue;
        };
        // As a directory first, since only that triggers an automount.
        let mut opened = open(here.as_ref(), &name, OFlags::DIRECTORY);
        if let (Err(Errno::NOENT), Missing::MakeLast, Some(dir), true) = (&opened, missing, &here, ahead.is_empty()) {
            match rustix::fs::mkdirat(dir, name.as_os_str(), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => opened = open(here.as_ref(), &name, OFlags::DIRECTORY),
                Err(e) => return Err(e.into()),
            }
        }
        let next = real.join(&name);
        match opened {
            Ok(dir) => {
                if name == ".." {
                    real.pop();
                } else {
                    real = next;
                }
                trust.check(&dir, &real)?;
                here = Some(dir);
            }
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let link = open(here.as_ref(), &name, OFlags::empty())?;
                let st = rustix::fs::fstat(&link)?;
                if st.st_mode & 0o170_000 != 0o120_000 {
                    return Err(Errno::NOTDIR.into());
                }
                if !trust.owner(st.st_uid) {
                    return Err(exposed_at(&next, &st, Why::Link));
                }
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = rustix::fs::readlinkat(&link, c"", Vec::new())?;
                ahead.extend(names(Path::new(&OsString::from_vec(target.into_bytes()))));
            }
            Err(e) => return Err(e.into()),
        }
    }
    here.map(|fd| (fd, real)).ok_or(WalkError::Io(Errno::NOENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A directory below one that no test changes.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        fs::create_dir_all(real.join("a/b")).unwrap();
        mode(&real.join("a"), 0o755);
        mode(&real.join("a/b"), 0o755);
        (dir, real)
    }

    fn why(path: &Path) -> Option<(PathBuf, Why)> {
        exposed(path).map(|e| (e.path, e.why))
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_by_name_unless_it_is_sticky() {
        let (_dir, top) = place();
        let (a, b) = (top.join("a"), top.join("a/b"));
        for (bits, refused) in [
            (0o755, false),
            (0o700, false),
            (0o711, false),
            (0o775, true),
            (0o757, true),
            (0o777, true),
            (0o1777, false),
            (0o1775, false),
            (0o2775, true),
        ] {
            mode(&a, bits);
            assert_eq!(why(&b), refused.then(|| (a.clone(), Why::Writable)), "{bits:o}");
        }
        mode(&a, 0o755);
        mode(&b, 0o770);
        let found = exposed(&b.join("not/there")).unwrap();
        assert_eq!((found.path.as_path(), found.mode), (b.as_path(), 0o770));
        assert!(found.to_string().contains("mode 0770") && found.remedy().contains("chmod"), "{found}");
    }

    #[test]
    fn links_are_followed_and_the_directories_that_hold_them_are_checked() {
        let (_dir, top) = place();
        fs::create_dir(top.join("links")).unwrap();
        symlink(top.join("a"), top.join("links/abs")).unwrap();
        symlink("../a/./b/../b", top.join("links/rel")).unwrap();
        symlink("abs/b", top.join("links/two")).unwrap();
        symlink("round", top.join("links/round")).unwrap();
        for (path, real) in [("links/abs/b", "a/b"), ("links/rel", "a/b"), ("links/two", "a/b"), ("a/../a/b", "a/b")] {
            assert_eq!(walk(&top.join(path), Missing::Fail).unwrap().1, top.join(real), "{path}");
        }
        assert!(matches!(walk(&top.join("links/round"), Missing::Fail), Err(WalkError::Io(Errno::LOOP))));
        mode(&top.join("links"), 0o777);
        assert_eq!(why(&top.join("links/two")), Some((top.join("links"), Why::Writable)));
        mode(&top.join("links"), 0o755);
        mode(&top.join("a"), 0o777);
        assert_eq!(why(&top.join("links/two")), Some((top.join("a"), Why::Writable)));
    }

    #[test]
    fn what_is_missing_is_made_for_this_user_alone() {
        let (_dir, top) = place();
        assert!(matches!(walk(&top.join("a/new/er"), Missing::MakeLast), Err(WalkError::Io(Errno::NOENT))));
        assert!(!top.join("a/new").exists(), "a mistyped path leaves nothing");
        let (fd, real) = walk(&top.join("a/new"), Missing::MakeLast).unwrap();
        assert_eq!(real, top.join("a/new"));
        let st = rustix::fs::fstat(&fd).unwrap();
        assert_eq!(st.st_mode & 0o7777, 0o700);
        assert!(matches!(walk(&top.join("a/none"), Missing::Fail), Err(WalkError::Io(Errno::NOENT))));
        fs::write(top.join("a/file"), "").unwrap();
        assert!(matches!(walk(&top.join("a/file/x"), Missing::MakeLast), Err(WalkError::Io(Errno::NOTDIR))));
    }

    #[test]
    fn a_directory_or_a_link_of_another_user_is_refused() {
        if !is_root() {
            return;
        }
        let (_dir, top) = place();
        let a = top.join("a");
        chown(&a, Some(4242), None).unwrap();
        let found = exposed(&a.join("b")).unwrap();
        assert_eq!((found.path.as_path(), found.uid, found.why), (a.as_path(), 4242, Why::Owner));
        assert!(found.to_string().contains("owner 4242"), "{found}");
        // Sticky or not: its owner may rename what lies there.
        mode(&a, 0o1777);
        assert_eq!(why(&a.join("b")), Some((a.clone(), Why::Owner)));
        chown(&a, Some(0), None).unwrap();
        symlink("a", top.join("link")).unwrap();
        lchown(top.join("link"), Some(4242), None).unwrap();
        assert_eq!(why(&top.join("link/b")), Some((top.join("link"), Why::Link)));
    }

    #[test]
    fn the_map_of_the_whole_machine_is_told_from_that_of_a_namespace() {
        assert!(has_all_users("         0          0 4294967295\n"));
        assert!(!has_all_users("         0       1000          1\n") && !has_all_users(""));
        assert!(super::is_root(0) && !super::is_root(4242));
    }

    #[test]
    fn in_a_user_namespace_the_owner_that_stands_for_all_others_passes_and_in_a_pod_the_top_of_a_volume() {
        let trust = |overflow, in_pod| Trust { uid: 1000, overflow, in_pod };
        assert!(!trust(None, false).owner(65534) && trust(Some(65534), false).owner(65534));
        assert!(!trust(Some(65534), false).owner(1001));
        // The top of some mount.
        let root = open(None, OsStr::new("/proc"), OFlags::DIRECTORY).unwrap();
        assert!(is_mount(&root));
        let (_dir, top) = place();
        mode(&top.join("a"), 0o777);
        let here = Trust { in_pod: true, ..Trust::here() };
        assert!(walk_as(&here, &top.join("a"), Missing::Fail).is_err(), "no volume of its own");
    }
}
