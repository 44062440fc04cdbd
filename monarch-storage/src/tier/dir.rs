//! A tier that is in use: its parts, and whether it accepts copies.

use super::checksum::{Fits, Sum};
use super::error::TierError;
use super::fs::{DIRS, NoTierFs, OLD_TRASH, TRASH, TierFs};
use super::ledger::{Ledger, Reservation};
use super::lock::{self, LOCK};
use super::log::Log;
use super::log_charge::LogCharge;
use super::log_record::{LOG, NEW};
use super::packed_usage::PackedUsage;
use super::seed::read_seed;
use super::stamp::set_stamp;
use super::trash::Trash;
use monarch_abi::hash::{CopyName, Stamp};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A copy found on disk or published.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Its name.
    pub name: CopyName,
    /// Its size in bytes.
    pub size: u64,
    /// The bytes charged for it.
    pub charged: u64,
    /// The stamp that it carries.
    pub stamp: Stamp,
    /// The checksum that its bytes must have, if they have to be read before it is used.
    pub check: Option<Sum>,
    /// Whether it is a packed copy; `size` is that of the file then.
    pub packed: bool,
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
    /// Whether the seed is new: no copy here has a name by it.
    pub seed_is_new: bool,
    /// Whether copies stay here for the next job.
    pub stays: bool,
    /// Least ratio of compression for which copies are packed here; `None`: they are not packed.
    pub min_ratio: Option<f64>,
    /// Bytes reserved for decoded copies of what slower tiers hold packed.
    pub for_decoded: u64,
    /// Its quota.
    pub ledger: Ledger,
    /// Whether its file system is in memory.
    pub(super) in_memory: bool,
    pub(super) packed: Mutex<PackedUsage>,
    pub(super) keep_free: u64,
    pub(super) fs: TierFs,
    lock: OwnedFd,
    pub(super) trash: Trash,
    pub(super) log: Log,
    /// Held while a record is appended.
    pub(super) logging: Mutex<LogCharge>,
    /// Space reserved for the next block of the log.
    pub(super) log_room: Mutex<Option<Reservation>>,
    /// Whether there is none, and the log will soon need it.
    pub(super) log_wants: AtomicBool,
    /// Held while the log is compacted; when that failed last.
    pub(super) compacting: Mutex<Option<Instant>>,
    /// Read-locked from when a copy is logged until it has its name.
    pub(super) naming: RwLock<()>,
    rests_since: Mutex<Option<Instant>>,
    /// Whether the job is short of the memory in which this tier lies.
    squeezed: AtomicBool,
    pub(super) given_up: AtomicBool,
    /// Bytes of copies whose blocks are being allocated, and of partial ones whose blocks are yet
    /// to be.
    pub(super) allocating: AtomicU64,
    pub(super) counter: AtomicU64,
}

/// How long a tier is suspended after an I/O error, and when its disk is full.
const SUSPENSION: Duration = Duration::from_secs(5);
/// How long after a suspension began the tier is doubtful, unless a copy succeeds.
const DOUBT: Duration = Duration::from_secs(60);
/// A disk with fewer bytes than this above `keep_free` counts as full.
const NEARLY_FULL_BYTES: u64 = 16 << 20;
/// Inodes that are left to other programs.
const RESERVED_INODES: u64 = 16;

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
        // The path of the default tier is already that of the private directory.
        let is_private = configured.file_name() == Some(crate::private_dir::name("monarch", 0).as_ref());
        let base = if is_private { configured.parent().unwrap_or(configured) } else { configured };
        let fs = TierFs::make(base).map_err(|e| match e {
            NoTierFs::Squatted => TierError::Squatted {
                name: name.to_owned(),
                path: configured.to_owned(),
                uid: rustix::process::geteuid().as_raw(),
            },
            NoTierFs::Exposed(source) => {
                TierError::Exposed { name: name.to_owned(), path: configured.to_owned(), source }
            }
            NoTierFs::Io(what, e) => fail(what)(e),
        })?;
        let (path, (dev, ino)) = (fs.path().to_owned(), fs.id());
        let lock = lock::take(&fs).map_err(fail("create its lock"))?.map_err(|t| TierError::Locked {
            name: name.to_owned(),
            path: path.clone(),
            holder: t.holder,
            ending: t.ending,
        })?;
        fs.make_dirs().map_err(fail("create its directories"))?;
        let vfs = fs.room().map_err(fail("stat its file system"))?;
        let (seed, seed_is_new) = read_seed(&fs);
        let tier = Self {
            name: name.to_owned(),
            seed,
            seed_is_new,
            stays: true,
            min_ratio: None,
            for_decoded: 0,
            packed: Mutex::default(),
            ledger: Ledger::new(capacity, vfs.f_frsize.max(512)),
            path,
            dev,
            ino,
            in_memory: fs.is_in_memory(),
            keep_free,
            fs,
            lock,
            trash: Trash::default(),
            log: Log::default(),
            logging: Mutex::default(),
            log_room: Mutex::default(),
            log_wants: AtomicBool::new(false),
            compacting: Mutex::default(),
            naming: RwLock::default(),
            rests_since: Mutex::default(),
            squeezed: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            allocating: AtomicU64::new(0),
            // What an earlier agent has left in the trash keeps its names.
            counter: AtomicU64::new(crate::sys::random_u64()),
        };
        tier.charge_directories();
        tier.check_timestamps()?;
        Ok(tier)
    }

    /// Charges the directories and small files of the tier itself.
    fn charge_directories(&self) {
        let mut bytes = 0;
        let mut add = |name: &str| {
            if let Ok(st) = self.fs.stat(name) {
                bytes += st.st_blocks as u64 * 512;
            }
        };
        [".", "copies", "tmp", "part", TRASH, OLD_TRASH, "seed", LOCK].iter().for_each(|n| add(n));
        (0..256).for_each(|i| add(&format!("copies/{i:02x}")));
        self.ledger.charge(bytes, 0);
    }

    /// Writes a stamp and reads it back.
    ///
    /// # Errors
    /// [`TierError::Timestamps`] if it is not the same.
    fn check_timestamps(&self) -> Result<(), TierError> {
        let stamp = Stamp(0x0abc_def0_1234_5678 & ((1 << 60) - 1));
        let ok = set_stamp(&self.lock, stamp).is_ok()
            && rustix::fs::fstat(&self.lock)
                .is_ok_and(|st| Stamp::from_time(st.st_mtime, st.st_mtime_nsec as u32) == Some(stamp));
        if ok { Ok(()) } else { Err(TierError::Timestamps { name: self.name.clone(), path: self.path.clone() }) }
    }

    /// Whether the tier accepts no copies at present: after an I/O error, while its disk is full or
    /// memory is short, or for good.
    #[must_use]
    pub fn suspended(&self) -> bool {
        let since = *self.rests_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|t| t.elapsed() < SUSPENSION)
            || self.squeezed.load(Ordering::Relaxed)
            || self.given_up.load(Ordering::Relaxed)
    }

    /// Whether its copies take memory.
    #[must_use]
    pub const fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// Suspends the tier while memory is short.
    pub fn squeeze(&self, short: bool) {
        self.squeezed.store(short, Ordering::Relaxed);
    }

    /// Whether no copy has succeeded since the tier was suspended, up to [`DOUBT`] ago.
    #[must_use]
    pub fn doubtful(&self) -> bool {
        self.rests_since.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|t| t.elapsed() < DOUBT)
    }

    /// Notes that a copy succeeded: the tier is not doubtful once its suspension is over.
    pub(super) fn worked(&self) {
        let mut since = self.rests_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.take_if(|t| t.elapsed() >= SUSPENSION);
    }

    /// Suspends the tier for [`SUSPENSION`].
    pub fn rest(&self) {
        *self.rests_since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Suspends the tier for good.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }

    /// Whether the path still leads to this tier and its directories exist: a user may have removed
    /// it.
    #[must_use]
    pub fn in_place(&self) -> bool {
        self.fs.is_in_place() && DIRS.into_iter().all(|name| self.fs.has(name))
    }

    /// Whether all that is being allocated fits above `keep_free`. Blocks of it that are allocated
    /// already count twice: for a moment too little is accepted, never too much.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn disk_has_room(&self) -> io::Result<bool> {
        let wanted = self.allocating.load(Ordering::SeqCst);
        let vfs = self.fs.room()?;
        let above = vfs.f_bavail.saturating_mul(vfs.f_frsize).saturating_sub(self.keep_free);
        let inodes = vfs.f_files == 0 || vfs.f_favail >= RESERVED_INODES;
        if above < NEARLY_FULL_BYTES.min(self.ledger.usage().capacity / 64) || !inodes {
            self.rest();
        }
        Ok(above >= wanted && inodes)
    }

    /// Size, charge and stamp of a copy; `None` if it does not exist.
    ///
    /// # Errors
    /// What else the kernel said: the copy may exist, and stays charged.
    pub fn stat(&self, name: CopyName) -> io::Result<Option<Copy>> {
        let st = match self.fs.stat(name.rel_path().as_slice()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let nsec = u32::try_from(st.st_mtime_nsec).unwrap_or(u32::MAX);
        let stamp = Stamp::from_time(st.st_mtime, nsec).unwrap_or(Stamp(0));
        Ok(Some(Copy {
            name,
            size: st.st_size as u64,
            charged: self.charge_of_copy(&st),
            stamp,
            check: None,
            packed: false,
        }))
    }

    /// Whether the bytes of a copy have this checksum; `false` also when it cannot be read.
    #[must_use]
    pub fn verify(&self, name: CopyName, size: u64, sum: Sum) -> bool {
        self.open_copy(name).and_then(|fd| sum.fits(&fd, size)).unwrap_or(false)
    }

    /// Opens a copy.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open_copy(&self, name: CopyName) -> io::Result<OwnedFd> {
        Ok(self.fs.read_file(name.rel_path().as_slice())?)
    }

    /// Bytes that must be freed to restore `keep_free`.
    #[must_use]
    pub fn shortage(&self) -> u64 {
        self.fs.room().map_or(0, |v| self.keep_free.saturating_sub(v.f_bavail.saturating_mul(v.f_frsize)))
    }

    /// Writes into the lock that the tier will be free soon.
    pub fn mark_ending(&self) {
        lock::mark_ending(&self.lock);
    }

    /// Removes everything of the tier: first `tmp`, so that copiers which still run cannot add
    /// files; last the lock, so that the next agent does not begin before.
    pub fn remove_all(&self) {
        self.give_up();
        // A compaction of the log stops, and puts no log back.
        drop(self.compacting.lock().unwrap_or_else(PoisonError::into_inner));
        for _ in 0..100 {
            for (file, _) in self.list("tmp").unwrap_or_default() {
                self.unlink(&format!("tmp/{file}"));
            }
            if self.fs.remove_dir("tmp") != Err(Errno::NOTEMPTY) {
                break;
            }
        }
        // By name: runtime directories of this and of other agents may lie beside them.
        for name in DIRS.into_iter().chain([OLD_TRASH]) {
            let _ = self.fs.remove_tree(name);
        }
        for name in ["seed", NEW, LOG] {
            self.unlink(name);
        }
        self.unlink(LOCK);
        self.fs.remove_self();
    }
}

/// Counts bytes as being allocated until it is dropped.
pub(super) struct Allocating<'a>(&'a AtomicU64, u64);

impl<'a> Allocating<'a> {
    pub(super) fn new(sum: &'a AtomicU64, bytes: u64) -> Self {
        sum.fetch_add(bytes, Ordering::SeqCst);
        Self(sum, bytes)
    }
}

impl Drop for Allocating<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::SeqCst);
    }
}

/// The bytes of a path.
#[must_use]
pub fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
