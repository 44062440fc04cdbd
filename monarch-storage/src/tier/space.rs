//! The space of a tier: its directory, its quota, what is free on its disk, and whether it accepts
//! copies at present.

use super::fs::TierFs;
use super::ledger::{Ledger, NAME_COST};
use rustix::fs::{AtFlags, Stat};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a tier is suspended after an I/O error, and when its disk is full.
const SUSPENSION: Duration = Duration::from_secs(5);
/// How long after a suspension began the tier is doubtful, unless a copy succeeds.
const DOUBT: Duration = Duration::from_secs(60);
/// A disk with fewer bytes than this above `keep_free` counts as full.
const NEARLY_FULL_BYTES: u64 = 16 << 20;
/// Inodes that are left to other programs.
const RESERVED_INODES: u64 = 16;

/// What all components of a tier use. It is shared by them.
#[derive(Debug)]
pub struct Space {
    /// Name of the tier from the configuration, for messages.
    pub(super) name: String,
    pub(super) fs: TierFs,
    /// Its quota.
    pub ledger: Ledger,
    /// Bytes of the file system that are left to other programs.
    keep_free: u64,
    in_memory: bool,
    /// Bytes of copies whose blocks are being allocated, and of partial ones whose blocks are yet
    /// to be.
    pub(super) allocating: AtomicU64,
    /// Names that no other file of this agent has.
    counter: AtomicU64,
    rests_since: Mutex<Option<Instant>>,
    /// Whether the job is short of the memory in which this tier lies.
    squeezed: AtomicBool,
    /// Whether copies that no reader waits for would take memory that the job waits for.
    demands_only: AtomicBool,
    given_up: AtomicBool,
}

impl Space {
    /// The space of a directory with a quota of `capacity` bytes, of which blocks of `block` bytes
    /// are taken.
    pub(super) fn new(name: &str, fs: TierFs, capacity: u64, block: u64, keep_free: u64) -> Self {
        Self {
            name: name.to_owned(),
            in_memory: fs.is_in_memory(),
            fs,
            ledger: Ledger::new(capacity, block),
            keep_free,
            allocating: AtomicU64::new(0),
            // What an earlier agent has left in the trash keeps its names.
            counter: AtomicU64::new(crate::sys::random_u64()),
            rests_since: Mutex::default(),
            squeezed: AtomicBool::new(false),
            demands_only: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        }
    }

    /// A number that no other file of this agent has got.
    pub(super) fn next_number(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the tier was suspended for good.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
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

    /// Has the tier accept only copies that readers wait for, or all again.
    pub fn take_demands_only(&self, only: bool) {
        self.demands_only.store(only, Ordering::Relaxed);
    }

    /// Whether the tier accepts no copies at present that no reader waits for.
    #[must_use]
    pub fn closed_to_prefetch(&self) -> bool {
        self.demands_only.load(Ordering::Relaxed) || self.suspended()
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

    /// Whether the tier accepts copies, and a chunk of `bytes` bytes fits above `keep_free`.
    pub fn has_room_on_disk(&self, bytes: u64) -> bool {
        let _allocating = Allocating::new(&self.allocating, bytes);
        !self.suspended() && self.disk_has_room().unwrap_or(false)
    }

    /// Bytes that must be freed to restore `keep_free`.
    #[must_use]
    pub fn shortage(&self) -> u64 {
        self.fs.room().map_or(0, |v| self.keep_free.saturating_sub(v.f_bavail.saturating_mul(v.f_frsize)))
    }

    /// Names below `sub`, with their attributes. Files that vanish meanwhile are left out.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn list(&self, sub: &str) -> io::Result<Vec<(String, Stat)>> {
        let dir = self.fs.open_dir(sub)?;
        let mut out = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(st) => out.push((name.to_owned(), st)),
                Err(rustix::io::Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(out)
    }

    /// Bytes that a copy takes on disk: at least its size, as some file systems count blocks
    /// seconds after they were written (ZFS), or compress them.
    pub(super) fn blocks_of_copy(&self, st: &Stat) -> u64 {
        (st.st_blocks as u64 * 512).max((st.st_size as u64).next_multiple_of(self.ledger.block()))
    }

    /// The charge of a copy, that of its name included.
    pub(super) fn charge_of_copy(&self, st: &Stat) -> u64 {
        self.blocks_of_copy(st) + NAME_COST
    }

    pub(super) fn unlink(&self, name: &str) -> bool {
        self.fs.unlink(name).is_ok()
    }
}

/// The charge of a file that is no copy, that of its name included.
pub(super) fn charge_of(st: &Stat) -> u64 {
    st.st_blocks as u64 * 512 + NAME_COST
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
