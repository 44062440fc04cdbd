//! A tier that is in use: its components, and how it begins and ends.

use super::codec::Codec;
use super::copy::Copies;
use super::error::TierError;
use super::found_copy::Copy;
use super::fs::{DIRS, NoTierFs, OLD_TRASH, TRASH, TierFs};
use super::kept_open::KeptOpen;
use super::ledger::Usage;
use super::lock::{self, LOCK};
use super::log_compactor::LogCompactor;
use super::log_reader;
use super::log_record::{self, LOG, NEW};
use super::notes::{self, NOTES, ServedRoot};
use super::packed_copies::PackedCopies;
use super::part::PartCopies;
use super::recover::Recovery;
use super::seed::{Seed, read_seed, write_seed};
use super::space::Space;
use super::stamp::set_stamp;
use super::tier_log::TierLog;
use super::trash::Trash;
use crate::held_dir::Removed;
use crate::working_set::WorkingSet;
use monarch_abi::hash::Stamp;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a configuration says of the copies in a tier.
#[derive(Clone, Copy, Debug)]
pub struct TierOptions {
    /// Whether copies stay here for the next job.
    pub stays: bool,
    /// How copies are packed here; `None`: they are not packed.
    pub packing: Option<PackingOptions>,
    /// Bytes reserved for decoded copies of what slower tiers hold packed.
    pub for_decoded: u64,
}

/// How the copies of a tier are packed.
#[derive(Clone, Copy, Debug)]
pub struct PackingOptions {
    /// The codec of new copies; `None`: chosen by suffix. Copies of other codecs are read and kept.
    pub codec: Option<Codec>,
    /// Least ratio of compression for which a copy is packed.
    pub min_ratio: f64,
}

/// A tier in use by this agent: it holds the lock, and its components do the work.
#[derive(Debug)]
pub struct TierDir {
    /// Name from the configuration.
    pub name: String,
    /// Directory of this tier: the one that holds `copies`.
    pub path: PathBuf,
    /// Seed of path hashes kept here.
    pub seed: Seed,
    /// Set by the agent before the tier is used.
    pub options: TierOptions,
    /// Quota, free space, and whether it accepts copies.
    pub space: Arc<Space>,
    /// What leaves the tier.
    pub trash: Arc<Trash>,
    /// Its log.
    pub log: Arc<TierLog>,
    /// Compacts its log.
    pub compactor: LogCompactor,
    /// Complete copies.
    pub copies: Arc<Copies>,
    /// Packed copies.
    pub packed: Arc<PackedCopies>,
    /// Partial copies of large files.
    pub parts: PartCopies,
    lock: OwnedFd,
}

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
            NoTierFs::NoParent(missing) => {
                TierError::NoParent { name: name.to_owned(), path: configured.to_owned(), missing }
            }
            NoTierFs::Io(what, e) => fail(what)(e),
        })?;
        let path = fs.path().to_owned();
        let lock = lock::take(&fs).map_err(fail("create its lock"))?.map_err(|t| TierError::Locked {
            name: name.to_owned(),
            path: path.clone(),
            holder: t.holder,
            ending: t.ending,
        })?;
        fs.make_dirs().map_err(fail("create its directories"))?;
        let vfs = fs.room().map_err(fail("stat its file system"))?;
        let seed = read_seed(&fs);
        let space = Arc::new(Space::new(name, fs, capacity, vfs.f_frsize.max(512), keep_free));
        let kept_open = Arc::new(KeptOpen::new());
        let trash = Arc::new(Trash::new(space.clone(), kept_open.clone()));
        let log = Arc::new(TierLog::new(space.clone()));
        let packed = Arc::new(PackedCopies::new(space.clone(), trash.clone()));
        let copies = Arc::new(Copies::new(space.clone(), (trash.clone(), kept_open), log.clone(), packed.clone()));
        let tier = Self {
            name: name.to_owned(),
            path,
            seed,
            options: TierOptions { stays: true, packing: None, for_decoded: 0 },
            compactor: LogCompactor::new(space.clone(), trash.clone(), log.clone()),
            parts: PartCopies::new(space.clone(), trash.clone(), copies.clone()),
            space,
            trash,
            log,
            copies,
            packed,
            lock,
        };
        tier.charge_directories();
        tier.check_timestamps()?;
        Ok(tier)
    }

    /// Charges the directories and small files of the tier itself.
    fn charge_directories(&self) {
        let mut bytes = 0;
        let mut add = |name: &str| {
            if let Ok(st) = self.space.fs.stat(name) {
                bytes += st.st_blocks as u64 * 512;
            }
        };
        let own = [".", "copies", "tmp", "part", TRASH, OLD_TRASH, "seed", LOCK];
        own.iter().chain(&NOTES).for_each(|n| add(n));
        (0..256).for_each(|i| add(&format!("copies/{i:02x}")));
        self.space.ledger.charge(bytes, 0);
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

    /// Looks whether the copies here are of a format that this program knows.
    ///
    /// # Errors
    /// [`TierError::Format`] if not.
    pub fn check_format(&self) -> Result<(), TierError> {
        match log_reader::version(&self.space.fs) {
            Some(found) if found != log_record::VERSION => {
                Err(TierError::Format { name: self.name.clone(), path: self.path.clone(), found })
            }
            _ => Ok(()),
        }
    }

    /// Keeps the seed of another tier of this node. If it cannot be kept, the copies here serve
    /// this agent only.
    pub fn keep_seed(&self, seed: u64) {
        let _ = write_seed(&self.space.fs, seed);
    }

    /// Notes for commands without an agent that files below a root have copies here.
    pub fn note_root(&self, root: ServedRoot) {
        notes::add_root(&self.space, root);
    }

    /// Keeps the end of the agent's log here, for commands without an agent.
    pub fn keep_log(&self, log: &[u8]) {
        notes::keep_log(&self.space, log);
    }

    /// The working sets that earlier jobs have left here.
    #[must_use]
    pub fn working_sets(&self) -> Vec<WorkingSet> {
        notes::working_sets(&self.space.fs)
    }

    /// Keeps working sets here, in place of those before; within the quota. Returns whether they
    /// were written.
    pub fn keep_working_sets(&self, sets: &[WorkingSet]) -> bool {
        notes::keep_working_sets(&self.space, sets)
    }

    /// Accounts for everything on disk: removes unfinished files, tries again to remove evicted
    /// ones, charges copies and gives them to `found`.
    ///
    /// # Errors
    /// What the kernel said. The tier must not be used then: not all that lies there is charged.
    pub fn recover(&self, found: impl FnMut(Copy)) -> io::Result<()> {
        Recovery { space: &self.space, trash: &self.trash, log: &self.log, packed: &self.packed }.run(found)
    }

    /// The usage of the tier, for reports; see [`TierLog::usage`].
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.log.usage()
    }

    /// The device and inode number of its directory.
    #[must_use]
    pub fn id(&self) -> (u64, u64) {
        self.space.fs.id()
    }

    /// Whether the path still leads to this tier and its directories exist: a user may have removed
    /// it.
    #[must_use]
    pub fn in_place(&self) -> bool {
        self.space.fs.is_in_place() && DIRS.into_iter().all(|name| self.space.fs.has(name))
    }

    /// Writes into the lock that the tier will be free soon.
    pub fn mark_ending(&self) {
        lock::mark_ending(&self.lock);
    }

    /// Lets another agent have the tier, though this process may not have ended: a thread of it may
    /// wait for a file system that does not answer, and keep its descriptors open.
    pub fn release(&self) {
        self.copies.close_kept();
        let _ = rustix::fs::flock(&self.lock, rustix::fs::FlockOperation::Unlock);
    }

    /// Removes everything of the tier: first `tmp`, so that copiers which still run cannot add
    /// files; last the lock, so that the next agent does not begin before. Returns what it removed,
    /// and what the kernel said of the first directory that it could not remove.
    pub fn remove_all(&self) -> (Removed, rustix::io::Result<()>) {
        let (mut removed, mut failed) = (Removed::default(), Ok(()));
        let fs = &self.space.fs;
        self.space.give_up();
        self.copies.close_kept();
        // A compaction of the log stops, and puts no log back.
        self.compactor.wait();
        for _ in 0..100 {
            for (file, _) in self.space.list("tmp").unwrap_or_default() {
                fs.unlink_counted(format!("tmp/{file}").as_str(), &mut removed);
            }
            match fs.remove_dir("tmp") {
                Err(Errno::NOTEMPTY) => {}
                done => {
                    removed.directories += u64::from(done.is_ok());
                    break;
                }
            }
        }
        // By name: runtime directories of this and of other agents may lie beside them.
        for name in DIRS.into_iter().chain([OLD_TRASH]) {
            failed = failed.and(fs.remove_tree_counted(name, &mut removed));
        }
        for name in ["seed", NEW, LOG].into_iter().chain(NOTES).chain([LOCK]) {
            fs.unlink_counted(name, &mut removed);
        }
        removed.directories += u64::from(fs.remove_self());
        (removed, failed)
    }
}

/// The bytes of a path.
#[must_use]
pub fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
