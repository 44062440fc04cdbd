//! A staging directory: its files, its state, and the lock of its journal.

mod info;
mod locks;

pub use info::{ROOT, RootInfo, boot_id, boot_number, key, read_info};
use locks::FILE_FLAGS;
pub use locks::JournalLock;
pub(crate) use locks::{is_at, lock_journal_of, take_drain_lock};

use crate::admission::DiskSpace;
use crate::errors::OutputsError;
use crate::journal::JournalReader;
use crate::sys::now_ns;
use crate::sys::{self, LeaseAnswer};
use crate::tree::Tree;
use monarch_abi::outputs::names::Staged;
use monarch_abi::outputs::record::{self, Header, Op};
use monarch_abi::outputs::state::{self, MAX_PATTERNS, State, StateMap};
use monarch_abi::outputs::{DATA, JOURNAL, STATE, TREE};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A staging directory that this process drains. Methods: 27, because its files share descriptors.
#[derive(Debug)]
pub struct StagingDir {
    path: PathBuf,
    dir: OwnedFd,
    data: OwnedFd,
    tree: OwnedFd,
    journal: File,
    map: StateMap<'static>,
    info: RootInfo,
    /// Whether processes of this boot may have it mapped, so that its state is right.
    is_of_this_boot: bool,
    _drain_lock: File,
}

const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Makes and opens a directory of mode 0700 that belongs to this user.
fn private_dir(path: &Path) -> Result<OwnedFd, OutputsError> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(OutputsError::io("make", path)(e)),
    }
    let fd = rustix::fs::open(path, DIR_FLAGS, Mode::empty()).map_err(OutputsError::io("open", path))?;
    let st = rustix::fs::fstat(&fd).map_err(OutputsError::io("stat", path))?;
    if st.st_uid != rustix::process::geteuid().as_raw() || st.st_mode & 0o077 != 0 {
        return Err(OutputsError::NotPrivate { path: path.to_owned(), owner: st.st_uid, mode: st.st_mode & 0o777 });
    }
    Ok(fd)
}

impl StagingDir {
    /// Makes or adopts the staging directory of a root in the directory `outputs` of a tier.
    ///
    /// # Errors
    /// [`OutputsError`].
    pub fn attach(outputs: &Path, info: RootInfo) -> Result<Self, OutputsError> {
        private_dir(outputs)?;
        let path = outputs.join(key(&info.path()));
        Self::open(path, Some(info))
    }

    /// Opens a staging directory that an earlier job has left.
    ///
    /// # Errors
    /// [`OutputsError`].
    pub fn adopt(path: &Path) -> Result<Self, OutputsError> {
        Self::open(path.to_owned(), None)
    }

    fn open(path: PathBuf, info: Option<RootInfo>) -> Result<Self, OutputsError> {
        let (dir, drain_lock) = loop {
            let dir = private_dir(&path)?;
            let lock = locks::wait_for_drain_lock(&dir, &path)?;
            // It may have been removed between the two.
            if is_at(dir.as_fd(), &path) {
                break (dir, lock);
            }
        };
        let old = read_info(&path).ok();
        let mut info = match (info, &old) {
            (Some(info), _) => info,
            (None, Some(old)) => RootInfo { pid: std::process::id(), boot: boot_id(), ..old.clone() },
            (None, None) => return Err(read_info(&path).err().unwrap_or(OutputsError::NotStaged { path })),
        };
        let data = private_dir(&path.join(DATA))?;
        let tree = private_dir(&path.join(TREE))?;
        let open = |name: &str| {
            rustix::fs::openat(&dir, name, FILE_FLAGS, Mode::RUSR | Mode::WUSR)
                .map(File::from)
                .map_err(OutputsError::io("open", &path.join(name)))
        };
        let journal = open(JOURNAL)?;
        let (map, is_fresh) = map_state(&open(STATE)?, &path)?;
        let state_instance = map.state.instance.load(Ordering::Acquire);
        let is_of_this_boot = !is_fresh
            && old.as_ref().is_some_and(|old| !old.boot.is_empty() && old.boot == info.boot)
            && state_instance != 0;
        info.instance = match old.as_ref().map_or(0, |old| old.instance) {
            0 if state_instance != 0 => state_instance,
            0 => random().max(1),
            known => known,
        };
        map.state.instance.store(info.instance, Ordering::Release);
        map.state.boot.store(boot_number(), Ordering::Release);
        let staging = Self { path, dir, data, tree, journal, map, info, is_of_this_boot, _drain_lock: drain_lock };
        staging.check_leases()?;
        Ok(staging)
    }

    /// Writes the text file: from now on the state counts as one of this boot.
    ///
    /// # Errors
    /// [`OutputsError`].
    pub fn write_info(&self) -> Result<(), OutputsError> {
        const NEW: &str = "root.new";
        let text = serde_json::to_vec_pretty(&self.info).unwrap_or_default();
        let write = || -> Result<(), Errno> {
            let flags = FILE_FLAGS | OFlags::TRUNC;
            let file = File::from(rustix::fs::openat(&self.dir, NEW, flags, Mode::RUSR | Mode::WUSR)?);
            file.write_all_at(&text, 0).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            rustix::fs::fsync(&file)?;
            rustix::fs::renameat(&self.dir, NEW, &self.dir, ROOT)?;
            rustix::fs::fsync(&self.dir)
        };
        write().map_err(OutputsError::io("write", &self.path.join(ROOT)))
    }

    /// Whether the kernel gives leases here.
    fn check_leases(&self) -> Result<(), OutputsError> {
        const PROBE: &str = "lease.probe";
        let fail = OutputsError::io("make", &self.path.join(PROBE));
        let flags = OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.dir, PROBE, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        let answer = sys::take_lease(fd.as_fd());
        sys::give_lease(fd.as_fd());
        let _ = rustix::fs::unlinkat(&self.dir, PROBE, AtFlags::empty());
        match answer {
            LeaseAnswer::Unsupported(errno) => Err(OutputsError::NoLeases { path: self.path.clone(), errno }),
            LeaseAnswer::Granted | LeaseAnswer::Refused => Ok(()),
        }
    }

    /// Writes the names that are not staged, and the flags. Patterns that do not fit are left out.
    pub fn set_policy(&self, through: &[String], flags: u32) {
        let mut patterns: Vec<u8> = Vec::new();
        for pattern in through.iter().filter(|pattern| !pattern.is_empty()) {
            if patterns.len() + pattern.len() < MAX_PATTERNS {
                patterns.extend_from_slice(pattern.as_bytes());
                patterns.push(0);
            }
        }
        let file = rustix::fs::openat(&self.dir, STATE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        if let Ok(file) = file.map(File::from) {
            let len = patterns.len() as u32;
            if file.write_all_at(&patterns, StateMap::patterns_off() as u64).is_ok() {
                self.state().patterns_len.store(len, Ordering::Release);
            }
        }
        self.state().flags.store(flags, Ordering::Release);
    }

    /// The counters.
    #[must_use]
    pub const fn state(&self) -> &'static State {
        self.map.state
    }

    /// The mapped state file.
    #[must_use]
    pub const fn map(&self) -> &StateMap<'static> {
        &self.map
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// To which root it belongs.
    #[must_use]
    pub const fn info(&self) -> &RootInfo {
        &self.info
    }

    /// Whether its state was written in this boot.
    #[must_use]
    pub const fn is_of_this_boot(&self) -> bool {
        self.is_of_this_boot
    }

    /// The directory itself.
    #[must_use]
    pub const fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// The directory of staged files.
    #[must_use]
    pub const fn data(&self) -> &OwnedFd {
        &self.data
    }

    /// The overlay; the caller holds the lock of the journal.
    #[must_use]
    pub fn tree(&self) -> Tree<'_> {
        Tree::new(&self.dir, &self.tree, self.map.state)
    }

    /// Sleeps until a record is appended or the time is over. `seen`: the counter of records before
    /// the caller looked for work.
    pub fn sleep(&self, seen: u32, time: Duration) {
        let state = self.state();
        state.sleepers.fetch_add(1, Ordering::SeqCst);
        if state.appended.load(Ordering::SeqCst) == seen {
            let timeout = [time.as_secs() as i64, i64::from(time.subsec_nanos())];
            monarch_abi::sys::futex_wait(&state.appended, seen, Some(timeout));
        }
        state.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Takes the lock of the journal.
    ///
    /// # Errors
    /// [`OutputsError`].
    pub fn lock_journal(&self) -> Result<JournalLock, OutputsError> {
        lock_journal_of(self.dir.as_fd(), &self.path)
    }

    /// Appends a record about a staged file, its number and flags, as the agent.
    ///
    /// # Errors
    /// What the kernel said: nothing was appended.
    pub fn append(&self, lock: &JournalLock, op: Op, (id, flags): (u64, u16)) -> rustix::io::Result<()> {
        let state = self.state();
        let (seq, tail) = (state.seq.load(Ordering::Acquire) + 1, state.tail.load(Ordering::Acquire));
        let node_news = state.node_news.load(Ordering::Acquire);
        let header =
            Header { seq, id, flags, node_news, time_ns: now_ns(), pid: std::process::id(), ..Header::default() };
        let mut out = [0; record::MAX_BYTES];
        let record = record::write(&mut out, header, op, b"", b"").ok_or(Errno::NAMETOOLONG)?;
        lock.file.write_all_at(record, tail).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        state.seq.store(seq, Ordering::Release);
        state.appended(op, id, node_news);
        state.tail.store(tail + record.len() as u64, Ordering::Release);
        if op != Op::Open {
            state.last_entry.store(seq, Ordering::Release);
        }
        self.map().notify_agent();
        Ok(())
    }

    /// A reader of the journal.
    ///
    /// # Errors
    /// [`OutputsError`].
    pub fn reader(&self) -> Result<JournalReader, OutputsError> {
        let fail = |source| OutputsError::Io { what: "open", path: self.path.join(JOURNAL), source };
        Ok(JournalReader::new(self.journal.try_clone().map_err(fail)?))
    }

    /// Bytes of the journal file.
    #[must_use]
    pub fn journal_len(&self) -> u64 {
        self.journal.metadata().map_or(0, |meta| meta.len())
    }

    /// Makes the file of the journal longer than the journal, for processes that may not
    /// ([`State::is_limited`]). Where the tier has no space, they do without.
    pub fn lengthen_journal(&self) {
        /// Bytes that processes want behind the end at least, and what they get at once.
        const LOW: u64 = 512 << 10;
        const AHEAD: u64 = 1 << 20;
        if self.state().is_limited.load(Ordering::Acquire) == 0 {
            return;
        }
        // (Where it is cut meanwhile, the bytes before these are read as zeros.)
        let tail = self.state().tail.load(Ordering::Acquire);
        if self.journal_len() < tail + LOW
            && rustix::fs::fallocate(&self.journal, FallocateFlags::empty(), tail, AHEAD).is_ok()
        {
            self.map().notify_processes();
        }
    }

    /// Cuts the journal to nothing. The caller holds its lock, and has logged that all is done.
    ///
    /// # Errors
    /// [`OutputsError`].
    pub fn truncate_journal(&self, _lock: &JournalLock) -> Result<(), OutputsError> {
        let fail = |source| OutputsError::Io { what: "truncate", path: self.path.join(JOURNAL), source };
        self.state().tail.store(0, Ordering::Release);
        self.state().generation.fetch_add(1, Ordering::AcqRel);
        self.journal.set_len(0).map_err(fail)
    }

    /// Opens a staged file for reading.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open_data(&self, file: &Staged) -> rustix::io::Result<OwnedFd> {
        let name = file.name();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let open = |flags| rustix::fs::openat(&self.data, &name[..], flags, Mode::empty());
        // Its access time is the application's, unless the file has another owner.
        let opened = match open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => open(flags),
            opened => opened,
        };
        match opened {
            // A file that its owner may not read: its mode is the application's.
            Err(Errno::ACCESS) => {
                let mode = rustix::fs::statat(&self.data, &name[..], AtFlags::SYMLINK_NOFOLLOW)?.st_mode & 0o7777;
                let set =
                    |mode| rustix::fs::chmodat(&self.data, &name[..], Mode::from_raw_mode(mode), AtFlags::empty());
                set(mode | 0o400)?;
                let fd = open(flags);
                set(mode)?;
                fd
            }
            other => other,
        }
    }

    /// Attributes of a staged file.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn stat_data(&self, file: &Staged) -> rustix::io::Result<rustix::fs::Stat> {
        rustix::fs::statat(&self.data, &file.name()[..], AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Space of the disk that the staged files lie on.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn disk_space(&self) -> rustix::io::Result<DiskSpace> {
        let st = rustix::fs::fstatvfs(&self.data)?;
        let bytes = |blocks: u64| blocks.saturating_mul(st.f_frsize);
        Ok(DiskSpace { free: bytes(st.f_bavail), total: bytes(st.f_blocks) })
    }

    /// Removes a staged file.
    pub fn remove_data(&self, file: &Staged) {
        let _ = rustix::fs::unlinkat(&self.data, &file.name()[..], AtFlags::empty());
    }

    /// Allocates space behind the end of a staged file, without a change of its size. Not of one
    /// whose times the job has set since its last write: allocating sets them to now.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] where the times were set; else what the kernel said.
    pub fn allocate(&self, file: &Staged, from: u64, bytes: u64) -> rustix::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.data, &file.name()[..], flags, Mode::empty())?;
        // Processes set times with the lock held.
        let _lock = self.lock_journal().map_err(|_| Errno::IO)?;
        let st = rustix::fs::fstat(&fd)?;
        // A write sets both to the same time.
        if (st.st_mtime, st.st_mtime_nsec) != (st.st_ctime, st.st_ctime_nsec) {
            return Err(Errno::AGAIN);
        }
        rustix::fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, from, bytes)
    }

    /// Staged files that exist.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn data_files(&self) -> rustix::io::Result<Vec<Staged>> {
        let dir = rustix::fs::Dir::read_from(&self.data)?;
        let names = dir.filter_map(Result::ok);
        Ok(names.filter_map(|entry| Staged::parse(entry.file_name().to_bytes())).collect())
    }
}

/// Maps the state file; whether it was empty, or not one.
fn map_state(file: &File, path: &Path) -> Result<(StateMap<'static>, bool), OutputsError> {
    let path = path.join(STATE);
    let fail = |what: &'static str| {
        let path = path.clone();
        move |source| OutputsError::Io { what, path, source }
    };
    let mut magic = [0; 8];
    let len = file.metadata().map_err(fail("stat"))?.len();
    let is_whole = len == state::LEN as u64
        && file.read_exact_at(&mut magic, 0).is_ok()
        && u64::from_le_bytes(magic) == state::MAGIC;
    if !is_whole {
        file.set_len(0).map_err(fail("truncate"))?;
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, state::LEN as u64)
            .map_err(OutputsError::io("allocate", &path))?;
        file.write_all_at(&state::MAGIC.to_le_bytes(), 0).map_err(fail("write"))?;
    }
    let map = sys::map_forever(file, state::LEN).map_err(fail("map"))?;
    let map = StateMap::open(map).ok_or(OutputsError::Damaged { path, what: "no state file" })?;
    Ok((map, !is_whole))
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
