//! A tier's directory: opening, locking, recovering, writing, evicting.

use super::ledger::{Ledger, NAME_COST, Reservation};
use monarch_abi::hash::{CopyName, Stamp};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Timespec, Timestamps};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Why a tier cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The directory cannot be made or opened.
    #[error("tier {name} ({path}): cannot {what}: {source}")]
    Io {
        /// Name of the tier.
        name: String,
        /// Its path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another agent holds it.
    #[error(
        "tier {name} ({path}) is in use by another Monarch agent; stop it with `monarch stop` or use another directory"
    )]
    Locked {
        /// Name of the tier.
        name: String,
        /// Its path.
        path: PathBuf,
    },
    /// All names are taken by others.
    #[error("tier {name}: {path}/monarch-{uid} and its alternatives belong to somebody else or are not private")]
    Squatted {
        /// Name of the tier.
        name: String,
        /// The configured path.
        path: PathBuf,
        /// Our user id.
        uid: u32,
    },
    /// The file system cannot hold the stamps that copies carry.
    #[error("tier {name} ({path}): its file system keeps no nanosecond timestamps; use tmpfs, ext4, xfs or btrfs")]
    Timestamps {
        /// Name of the tier.
        name: String,
        /// Its path.
        path: PathBuf,
    },
}

/// A copy found on disk or published.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Its name.
    pub name: CopyName,
    /// Its size in bytes.
    pub size: u64,
    /// The bytes charged for it.
    pub charged: u64,
}

/// A tier in use by this agent.
#[derive(Debug)]
pub struct TierDir {
    /// Name from the configuration.
    pub name: String,
    /// Directory of this tier: the one that holds `copies`.
    pub path: PathBuf,
    /// `st_dev` of its file system.
    pub dev: u64,
    /// `st_ino` of its directory.
    pub ino: u64,
    /// Seed of path hashes kept here.
    pub seed: u64,
    /// Its quota.
    pub ledger: Ledger,
    keep_free: u64,
    fd: OwnedFd,
    _lock: OwnedFd,
    dying: Mutex<Vec<Dying>>,
    failing: Mutex<Option<Instant>>,
    counter: std::sync::atomic::AtomicU64,
}

#[derive(Debug)]
struct Dying {
    file: String,
    charged: u64,
}

/// A copy being written.
#[derive(Debug)]
pub struct CopyFile<'a> {
    tier: &'a TierDir,
    fd: OwnedFd,
    tmp: String,
    room: Option<Reservation<'a>>,
}

/// How long a tier rests after an I/O error.
const REST: Duration = Duration::from_secs(5);

impl TierDir {
    /// Opens (and makes) the tier below the configured directory and takes its lock.
    ///
    /// # Errors
    /// See [`TierError`].
    pub fn open(name: &str, configured: &Path, capacity: u64, keep_free: u64) -> Result<Self, TierError> {
        let fail = |what| {
            move |source: rustix::io::Errno| TierError::Io {
                name: name.to_owned(),
                path: configured.to_owned(),
                what,
                source: source.into(),
            }
        };
        std::fs::create_dir_all(configured).map_err(|source| TierError::Io {
            name: name.to_owned(),
            path: configured.to_owned(),
            what: "create it",
            source,
        })?;
        let real = configured.canonicalize().unwrap_or_else(|_| configured.to_owned());
        let (path, fd) = crate::private_dir::open(&real, "monarch").map_err(|e| match e {
            crate::private_dir::PrivateDirError::Squatted => TierError::Squatted {
                name: name.to_owned(),
                path: configured.to_owned(),
                uid: rustix::process::geteuid().as_raw(),
            },
            crate::private_dir::PrivateDirError::Io(e) => fail("create a private directory in it")(e),
        })?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::openat(&fd, "lock", flags, Mode::RUSR | Mode::WUSR).map_err(fail("create its lock"))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| TierError::Locked { name: name.to_owned(), path: path.clone() })?;
        for sub in ["copies", "tmp", "dying"] {
            make_dir(&fd, sub).map_err(fail("create its directories"))?;
        }
        for i in 0..256 {
            make_dir(&fd, &format!("copies/{i:02x}")).map_err(fail("create its directories"))?;
        }
        let st = rustix::fs::fstat(&fd).map_err(fail("stat it"))?;
        let vfs = rustix::fs::fstatvfs(&fd).map_err(fail("stat its file system"))?;
        let tier = Self {
            name: name.to_owned(),
            seed: read_seed(&fd).map_err(fail("keep its seed"))?,
            ledger: Ledger::new(capacity, vfs.f_frsize.max(512)),
            path,
            dev: st.st_dev,
            ino: st.st_ino,
            keep_free,
            fd,
            _lock: lock,
            dying: Mutex::default(),
            failing: Mutex::default(),
            counter: std::sync::atomic::AtomicU64::new(0),
        };
        tier.charge_directories();
        tier.check_timestamps()?;
        Ok(tier)
    }

    /// Charges the directories and small files of the tier itself.
    fn charge_directories(&self) {
        let mut bytes = 0;
        let mut add = |name: &str| {
            if let Ok(st) = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                bytes += st.st_blocks as u64 * 512;
            }
        };
        [".", "copies", "tmp", "dying", "seed", "lock"].iter().for_each(|n| add(n));
        (0..256).for_each(|i| add(&format!("copies/{i:02x}")));
        self.ledger.charge(bytes, 0);
    }

    /// Writes a stamp and reads it back.
    fn check_timestamps(&self) -> Result<(), TierError> {
        let stamp = Stamp(0x0abc_def0_1234_5678 & ((1 << 60) - 1));
        let ok = set_stamp(&self._lock, stamp).is_ok()
            && rustix::fs::fstat(&self._lock)
                .is_ok_and(|st| Stamp::from_time(st.st_mtime, st.st_mtime_nsec as u32) == Some(stamp));
        if ok { Ok(()) } else { Err(TierError::Timestamps { name: self.name.clone(), path: self.path.clone() }) }
    }

    /// Accounts for everything on disk: unfinished files go, evicted ones are tried again, copies are listed and charged.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn recover(&self) -> io::Result<Vec<Copy>> {
        for (file, _) in self.list("tmp")? {
            let _ = rustix::fs::unlinkat(&self.fd, format!("tmp/{file}"), AtFlags::empty());
        }
        for (file, st) in self.list("dying")? {
            let charged = st.st_blocks as u64 * 512 + NAME_COST;
            self.ledger.charge(charged, 0);
            self.dying.lock().unwrap_or_else(PoisonError::into_inner).push(Dying { file, charged });
        }
        let mut found = Vec::new();
        for i in 0..256 {
            let sub = format!("copies/{i:02x}");
            for (file, st) in self.list(&sub)? {
                let charged = st.st_blocks as u64 * 512 + NAME_COST;
                self.ledger.charge(charged, 1);
                match CopyName::parse(file.as_bytes()) {
                    Some(name) => found.push(Copy { name, size: st.st_size as u64, charged }),
                    None => {
                        if rustix::fs::unlinkat(&self.fd, format!("{sub}/{file}"), AtFlags::empty()).is_ok() {
                            self.ledger.release(charged, 1);
                        }
                    }
                }
            }
        }
        self.sweep();
        Ok(found)
    }

    fn list(&self, sub: &str) -> io::Result<Vec<(String, rustix::fs::Stat)>> {
        let dir =
            rustix::fs::openat(&self.fd, sub, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut out = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name != "." && name != ".." {
                out.push((name.to_owned(), rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?));
            }
        }
        Ok(out)
    }

    /// Whether the tier rests after an I/O error.
    #[must_use]
    pub fn resting(&self) -> bool {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if failing.is_some_and(|t| t.elapsed() > REST) {
            *failing = None;
        }
        failing.is_some()
    }

    /// Lets the tier rest for a while.
    pub fn note_failure(&self) {
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Starts a copy of `size` bytes: room in the ledger, above `keep_free` on the disk, blocks allocated. `Ok(None)` when
    /// it does not fit.
    ///
    /// # Errors
    /// What the kernel said, other than that the disk is full.
    pub fn create(&self, size: u64) -> io::Result<Option<CopyFile<'_>>> {
        let Some(room) = self.ledger.reserve(size) else { return Ok(None) };
        let vfs = rustix::fs::fstatvfs(&self.fd)?;
        let free = vfs.f_bavail.saturating_mul(vfs.f_frsize);
        if free < self.keep_free.saturating_add(room.bytes()) || (vfs.f_files > 0 && vfs.f_favail < 16) {
            return Ok(None);
        }
        let n = self.counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let tmp = format!("tmp/{n:x}");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = match rustix::fs::openat(&self.fd, &tmp, flags, Mode::RUSR) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let file = CopyFile { tier: self, fd, tmp, room: Some(room) };
        if size > 0 {
            match rustix::fs::fallocate(&file.fd, rustix::fs::FallocateFlags::empty(), 0, size) {
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Some(file))
    }

    /// Size and charge of a copy, if it is there and complete.
    #[must_use]
    pub fn stat(&self, name: CopyName) -> Option<Copy> {
        let path = name.rel_path();
        let st = rustix::fs::statat(&self.fd, path.as_slice(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Copy { name, size: st.st_size as u64, charged: st.st_blocks as u64 * 512 + NAME_COST })
    }

    /// Takes a copy out of the tier. Somebody may have it open: then it stays charged until [`TierDir::sweep`] finds that
    /// nobody has. The caller has taken it out of the state word before.
    pub fn evict(&self, name: CopyName) {
        let Some(copy) = self.stat(name) else { return };
        let n = self.counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let file = format!("{}.{n:x}", String::from_utf8_lossy(&name.hex()));
        let from = name.rel_path();
        if rustix::fs::renameat(&self.fd, from.as_slice(), &self.fd, format!("dying/{file}")).is_err() {
            return;
        }
        self.ledger.release(0, 1);
        let mut dying = self.dying.lock().unwrap_or_else(PoisonError::into_inner);
        let d = Dying { file, charged: copy.charged };
        if !self.try_remove(&d) {
            dying.push(d);
        }
    }

    /// Removes evicted copies that nobody has open any more; how many are left.
    pub fn sweep(&self) -> usize {
        let mut dying = self.dying.lock().unwrap_or_else(PoisonError::into_inner);
        dying.retain(|d| !self.try_remove(d));
        dying.len()
    }

    /// A write lease is granted only while nobody else has the file open or mapped.
    fn try_remove(&self, d: &Dying) -> bool {
        let path = format!("dying/{}", d.file);
        match rustix::fs::openat(&self.fd, &path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(fd) if !crate::sys::nobody_else_has_it_open(fd.as_fd()) => return false,
            Ok(_) => {}
            Err(rustix::io::Errno::NOENT) => {
                self.ledger.release(d.charged, 0);
                return true;
            }
            Err(_) => return false,
        }
        let gone = rustix::fs::unlinkat(&self.fd, &path, AtFlags::empty()).is_ok();
        if gone {
            self.ledger.release(d.charged, 0);
        }
        gone
    }

    /// Bytes that must be freed to restore `keep_free`.
    #[must_use]
    pub fn shortage(&self) -> u64 {
        rustix::fs::fstatvfs(&self.fd)
            .map_or(0, |v| self.keep_free.saturating_sub(v.f_bavail.saturating_mul(v.f_frsize)))
    }

    /// Removes every copy and, if nothing of ours is still open, the directory itself.
    pub fn remove_all(&self) {
        let Ok(copies) = self.list("copies") else { return };
        for (sub, _) in copies {
            for (file, _) in self.list(&format!("copies/{sub}")).unwrap_or_default() {
                let _ = rustix::fs::unlinkat(&self.fd, format!("copies/{sub}/{file}"), AtFlags::empty());
            }
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl CopyFile<'_> {
    /// The descriptor to write to.
    pub fn fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Stamps the copy, gives it its name and settles its charge. `Ok(None)` when the file system took more than the
    /// quota allows; the file is gone then.
    ///
    /// # Errors
    /// What the kernel said; the file is gone then, too.
    pub fn publish(mut self, name: CopyName, stamp: Stamp) -> io::Result<Option<Copy>> {
        set_stamp(&self.fd, stamp)?;
        let st = rustix::fs::fstat(&self.fd)?;
        let Some(room) = self.room.take() else { return Ok(None) };
        let Ok(charged) = room.settle(st.st_blocks as u64 * 512) else { return Ok(None) };
        let to = name.rel_path();
        if let Err(e) = rustix::fs::renameat(&self.tier.fd, &self.tmp, &self.tier.fd, to.as_slice()) {
            self.tier.ledger.release(charged, 1);
            return Err(e.into());
        }
        self.tmp.clear();
        Ok(Some(Copy { name, size: st.st_size as u64, charged }))
    }
}

impl Drop for CopyFile<'_> {
    fn drop(&mut self) {
        if !self.tmp.is_empty() {
            let _ = rustix::fs::unlinkat(&self.tier.fd, &self.tmp, AtFlags::empty());
        }
    }
}

fn set_stamp(fd: impl AsFd, stamp: Stamp) -> rustix::io::Result<()> {
    let (tv_sec, tv_nsec) = stamp.to_time();
    let t = Timespec { tv_sec, tv_nsec: tv_nsec as _ };
    let atime = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW as _ };
    rustix::fs::futimens(fd, &Timestamps { last_access: atime, last_modification: t })
}

fn make_dir(fd: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(fd, name, Mode::RWXU) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// The seed kept in the tier, made when there is none.
fn read_seed(fd: &OwnedFd) -> rustix::io::Result<u64> {
    let open =
        |flags| rustix::fs::openat(fd, "seed", flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::RUSR | Mode::WUSR);
    let mut bytes = [0u8; 8];
    if let Ok(f) = open(OFlags::RDONLY)
        && rustix::io::read(&f, &mut bytes)? == 8
    {
        return Ok(u64::from_le_bytes(bytes));
    }
    let seed = crate::sys::random_u64();
    let f = open(OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
    rustix::io::write(&f, &seed.to_le_bytes())?;
    Ok(seed)
}

/// The bytes of a path.
#[must_use]
pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
