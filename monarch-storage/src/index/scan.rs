//! Parallel scan of a root.
//!
//! Workers take directories from a shared stack, read them with getdents and call `statx` for every
//! name, relative to the directory's descriptor (with readdirplus the kernel has the answer
//! already). Directories are opened beneath the root without following links. Other devices,
//! unreadable directories, `.snapshot` and what exceeds the memory bound are marked incomplete: the
//! kernel answers there. A directory cut off by the memory bound keeps the names that fitted.
//!
//! Every call waits for the limit of calls, if there is one, and lets demands go first.

use crate::beneath::open_beneath;
use crate::engine::Limits;
use monarch_abi::index::{DIR_INCOMPLETE, Dir, OWNER_KERNEL, Record};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// How to scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions {
    /// Threads; metadata calls on a PFS are latency-bound, so more than cores pays.
    pub threads: usize,
    /// Bytes that the index may take; subtrees beyond pass through.
    pub max_memory: u64,
}

/// Why a scan failed as a whole.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The root cannot be opened.
    #[error("cannot open root {path}: {source}")]
    Root {
        /// Its path.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The scan was cancelled.
    #[error("scan cancelled")]
    Cancelled,
}

/// Live figures of a scan, and the switch that ends it.
#[derive(Debug, Default)]
pub struct ScanProgress {
    /// Entries seen so far.
    pub entries: AtomicU64,
    /// Directories read so far.
    pub dirs: AtomicU64,
    /// Calls to the PFS begun so far: the number changes as long as the scan makes progress.
    pub calls: AtomicU64,
    /// Set to end the scan early.
    pub cancel: AtomicBool,
}

/// One directory as scanned.
#[derive(Debug, Default)]
pub(super) struct DirScan {
    /// Children: `name_lo`/`name_len` point into `names`, `aux` of a directory is its position in
    /// [`Tree::dirs`], of a link the offset of its target in `links`.
    pub(super) entries: Vec<Record>,
    pub(super) names: Vec<u8>,
    pub(super) links: Vec<u8>,
    pub(super) btimes: Vec<i64>,
    pub(super) flags: u32,
    /// The inode number of its `..`.
    pub(super) parent_ino: u64,
}

impl DirScan {
    /// The name of one of its entries.
    pub(super) fn name(&self, r: &Record) -> &[u8] {
        let off = r.name_lo as usize;
        self.names.get(off..off + r.name_len as usize).unwrap_or(&[])
    }
}

/// A scanned tree.
#[derive(Debug)]
pub struct Tree {
    pub(super) root: Record,
    pub(super) root_btime: i64,
    pub(super) dirs: Vec<DirScan>,
    pub(super) owners: Vec<u64>,
    pub(super) root_id: u64,
    pub(super) root_dev: u64,
    /// Wall-clock time at which the scan began, ns.
    pub(super) began_ns: i64,
    /// Whether parts are left to the kernel.
    pub incomplete: bool,
    /// Whether parts may be missing that this user may see: the memory bound was reached, or the
    /// PFS failed.
    pub(super) cut: bool,
}

impl Tree {
    /// A made-up tree of `dirs` directories with `files` regular files each, for benchmarks and
    /// capacity planning: names as in ImageNet (`n01440764/n01440764_10026.JPEG`).
    #[must_use]
    pub fn synthetic(dirs: u32, files: u32) -> Self {
        let file = |ino: u64, mode: u16| Record {
            size: 110_000,
            ino,
            mode,
            nlink: 1,
            blocks: 216,
            mtime_ns: 1_700_000_000_000_000_000,
            ctime_ns: 1_700_000_000_000_000_000,
            ..Record::default()
        };
        let add = |dir: &mut DirScan, name: &str, mut r: Record| {
            r.name_lo = dir.names.len() as u32;
            r.name_len = name.len() as u8;
            dir.names.extend_from_slice(name.as_bytes());
            dir.entries.push(r);
            dir.btimes.push(i64::MIN);
        };
        let mut all = vec![DirScan::default()];
        for d in 0..dirs {
            let mut child = DirScan::default();
            for f in 0..files {
                let ino = u64::from(d) * u64::from(files) + u64::from(f) + 1000;
                add(&mut child, &format!("n{:08}_{f}.JPEG", 1_440_764 + d), file(ino, 0o100_644));
            }
            let mut r = file(u64::from(d) + 2, 0o040_755);
            r.aux = d + 1;
            let mut top = std::mem::take(&mut all[0]);
            add(&mut top, &format!("n{:08}", 1_440_764 + d), r);
            all[0] = top;
            all.push(child);
        }
        Self {
            root: file(1, 0o040_755),
            root_btime: i64::MIN,
            dirs: all,
            owners: vec![0],
            root_id: 1,
            root_dev: 1,
            began_ns: crate::sys::now_ns(),
            incomplete: false,
            cut: false,
        }
    }
}

impl Tree {
    /// The entries of a directory, for tests that make up their attributes.
    ///
    /// # Panics
    /// The tree has no such directory.
    pub fn entries_mut(&mut self, dir: usize) -> &mut [Record] {
        &mut self.dirs[dir].entries
    }
}

/// The id of a root in names of copies: a hash of its real path.
#[must_use]
pub fn root_id(path: &Path) -> u64 {
    xxhash_rust::xxh3::xxh3_64(path.as_os_str().as_bytes())
}

struct Shared<'a> {
    root: BorrowedFd<'a>,
    dev: (u32, u32),
    work: Mutex<Work>,
    ready: Condvar,
    owners: Mutex<Owners>,
    options: ScanOptions,
    memory: AtomicU64,
    cut: AtomicBool,
    limits: &'a Limits,
    progress: &'a ScanProgress,
}

#[derive(Default)]
struct Work {
    todo: Vec<(u32, Vec<u8>)>,
    busy: usize,
    dirs: Vec<DirScan>,
}

#[derive(Default)]
struct Owners {
    ids: HashMap<u64, u16>,
    list: Vec<u64>,
}

impl Shared<'_> {
    /// Counts memory for the index; `false` when none is left. It is `false` from then on, so that
    /// the rest of the scan is skipped.
    fn charge(&self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let fits = self.memory.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.options.max_memory;
        if !fits {
            self.cut.store(true, Ordering::Relaxed);
        }
        fits
    }

    /// The result for a directory that cannot be read, by the error: no permission, gone, or a
    /// failure of the PFS.
    fn unread(&self, e: Errno) -> DirScan {
        if !matches!(e, Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) {
            self.cut.store(true, Ordering::Relaxed);
        }
        unread()
    }

    /// Makes a call to the PFS, within the limits.
    ///
    /// # Errors
    /// What the kernel said, or that the scan was cancelled.
    fn ask<T>(&self, ask: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        self.turn()?;
        ask()
    }

    /// Waits for the limits. A directory may take long with them, so a cancelled scan ends before
    /// the directory does.
    ///
    /// # Errors
    /// The scan was cancelled.
    fn turn(&self) -> rustix::io::Result<()> {
        self.limits.before_scan_call();
        self.progress.calls.fetch_add(1, Ordering::Relaxed);
        if self.progress.cancel.load(Ordering::Relaxed) { Err(rustix::io::Errno::CANCELED) } else { Ok(()) }
    }
}

/// Bytes that an entry takes in addition to its name: record, share of the lookup table, birth
/// time.
const ENTRY_COST: usize = size_of::<Record>() + 23 + 8;

impl Owners {
    /// Position of an owner; [`OWNER_KERNEL`] when the table is full.
    fn position(&mut self, uid: u32, gid: u32) -> u16 {
        let key = u64::from(uid) | u64::from(gid) << 32;
        if let Some(&i) = self.ids.get(&key) {
            return i;
        }
        let Ok(i) = u16::try_from(self.list.len()) else { return OWNER_KERNEL };
        if i != OWNER_KERNEL {
            self.list.push(key);
            self.ids.insert(key, i);
        }
        i
    }
}

/// Scans the directory `path`, as fast as it can.
///
/// # Errors
/// When the root itself cannot be opened, or the scan was cancelled.
pub fn scan(path: &Path, options: ScanOptions, progress: &ScanProgress) -> Result<Tree, ScanError> {
    scan_within(path, options, &Limits::default(), progress)
}

/// Scans the directory `path` within the limit of calls.
///
/// # Errors
/// As [`scan`].
pub fn scan_within(
    path: &Path,
    options: ScanOptions,
    limits: &Limits,
    progress: &ScanProgress,
) -> Result<Tree, ScanError> {
    let fail = |e: rustix::io::Errno| ScanError::Root { path: path.display().to_string(), source: e.into() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let began_ns = crate::sys::now_ns();
    limits.before_scan_call();
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(fail)?;
    limits.before_scan_call();
    let st = rustix::fs::statx(&root, c"", AtFlags::EMPTY_PATH, wanted()).map_err(fail)?;
    let shared = Shared {
        root: root.as_fd(),
        dev: (st.stx_dev_major, st.stx_dev_minor),
        work: Mutex::new(Work { todo: vec![(0, b".".to_vec())], busy: 0, dirs: vec![DirScan::default()] }),
        ready: Condvar::new(),
        owners: Mutex::default(),
        options,
        memory: AtomicU64::new(0),
        cut: AtomicBool::new(false),
        limits,
        progress,
    };
    let (mut root_record, root_btime) = record(&st, &shared.owners);
    root_record.aux = 0;
    std::thread::scope(|s| {
        for n in 1..options.threads.clamp(1, 256) {
            let spawned = std::thread::Builder::new().name(format!("scan-{n}")).spawn_scoped(s, || worker(&shared));
            if let Err(e) = spawned {
                tracing::warn!(threads = n, error = %e, "scanning with fewer threads: the system allows no more");
                break;
            }
        }
        worker(&shared);
    });
    if progress.cancel.load(Ordering::Relaxed) {
        return Err(ScanError::Cancelled);
    }
    let dirs = shared.work.into_inner().unwrap_or_else(PoisonError::into_inner).dirs;
    let incomplete = dirs.iter().any(|d| d.flags & DIR_INCOMPLETE != 0);
    Ok(Tree {
        root: root_record,
        root_btime,
        incomplete,
        cut: shared.cut.into_inner(),
        dirs,
        owners: shared.owners.into_inner().unwrap_or_else(PoisonError::into_inner).list,
        root_id: root_id(path),
        began_ns,
        root_dev: rustix::fs::makedev(st.stx_dev_major, st.stx_dev_minor),
    })
}

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME
}

/// Scans directories until none is left and no worker can add any.
fn worker(shared: &Shared<'_>) {
    loop {
        let mut work = shared.work.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, path) = loop {
            if let Some(job) = work.todo.pop() {
                work.busy += 1;
                break job;
            }
            if work.busy == 0 {
                return;
            }
            work = shared.ready.wait(work).unwrap_or_else(PoisonError::into_inner);
        };
        drop(work);
        let spared = shared.progress.cancel.load(Ordering::Relaxed) || !shared.charge(0);
        let mut dir = if spared { unread() } else { read_dir(shared, &path).unwrap_or_else(|e| shared.unread(e)) };
        shared.progress.entries.fetch_add(dir.entries.len() as u64, Ordering::Relaxed);
        shared.progress.dirs.fetch_add(1, Ordering::Relaxed);
        let mut work = shared.work.lock().unwrap_or_else(PoisonError::into_inner);
        queue_children(&mut work, &mut dir, &path);
        if let Some(slot) = work.dirs.get_mut(at as usize) {
            *slot = dir;
        }
        work.busy -= 1;
        drop(work);
        shared.ready.notify_all();
    }
}

fn unread() -> DirScan {
    DirScan { flags: DIR_INCOMPLETE, ..DirScan::default() }
}

/// Gives every child directory a place in the table, and a place in the queue unless it must not be
/// scanned.
fn queue_children(work: &mut Work, dir: &mut DirScan, path: &[u8]) {
    for e in &mut dir.entries {
        if !e.is_dir() {
            continue;
        }
        let skip = e.aux == SKIP;
        e.aux = u32::try_from(work.dirs.len()).unwrap_or(u32::MAX);
        if skip {
            work.dirs.push(unread());
            continue;
        }
        work.dirs.push(DirScan::default());
        let name = &dir.names[e.name_lo as usize..e.name_lo as usize + e.name_len as usize];
        let mut child = Vec::with_capacity(path.len() + 1 + name.len());
        child.extend_from_slice(path);
        child.push(b'/');
        child.extend_from_slice(name);
        work.todo.push((e.aux, child));
    }
}

/// Mark in `aux` of a directory that must not be scanned.
const SKIP: u32 = u32::MAX;

/// Opens a directory beneath the root and reads all of it.
fn read_dir(shared: &Shared<'_>, path: &[u8]) -> rustix::io::Result<DirScan> {
    let fd = shared.ask(|| open_beneath(shared.root, path, OFlags::DIRECTORY))?;
    let mut dir = DirScan::default();
    let mut buf: Vec<MaybeUninit<u8>> = vec![MaybeUninit::uninit(); 64 * 1024];
    let mut iter = RawDir::new(&fd, &mut buf);
    loop {
        if iter.is_buffer_empty() {
            shared.turn()?;
        }
        let Some(entry) = iter.next() else { break };
        let entry = entry?;
        let name = entry.file_name().to_owned();
        if name.as_bytes() == b".." {
            dir.parent_ino = entry.ino();
        }
        if name.as_bytes() == b"." || name.as_bytes() == b".." {
            continue;
        }
        if !add_entry(shared, &fd, &mut dir, &name)? {
            dir.flags |= DIR_INCOMPLETE;
            break;
        }
    }
    Ok(dir)
}

/// Adds one name to a directory; `false` when there is no memory left for it. A name that vanished
/// meanwhile makes the listing incomplete: it was changing.
fn add_entry(shared: &Shared<'_>, fd: &OwnedFd, dir: &mut DirScan, name: &CStr) -> rustix::io::Result<bool> {
    let bytes = name.to_bytes();
    if !shared.charge(ENTRY_COST + bytes.len()) {
        return Ok(false);
    }
    let st = match shared.ask(|| rustix::fs::statx(fd, name, AtFlags::SYMLINK_NOFOLLOW, wanted())) {
        Ok(st) => st,
        Err(rustix::io::Errno::NOENT) => {
            dir.flags |= DIR_INCOMPLETE;
            return Ok(true);
        }
        Err(e) => return Err(e),
    };
    let (mut r, btime) = record(&st, &shared.owners);
    r.name_lo = u32::try_from(dir.names.len()).map_err(|_| rustix::io::Errno::OVERFLOW)?;
    r.name_len = u8::try_from(bytes.len()).map_err(|_| rustix::io::Errno::NAMETOOLONG)?;
    // Files of an overlay have the device of the layer that they lie in, which only the kernel
    // knows.
    let elsewhere = (st.stx_dev_major, st.stx_dev_minor) != shared.dev;
    if elsewhere {
        r.owner = OWNER_KERNEL;
    }
    if r.is_dir() {
        let skip = elsewhere || bytes == b".snapshot" || !shared.charge(size_of::<Dir>());
        r.aux = if skip { SKIP } else { 0 };
    } else if r.is_link() {
        let target = shared.ask(|| rustix::fs::readlinkat(fd, name, Vec::new()))?;
        if !shared.charge(4 + target.as_bytes().len()) {
            return Ok(false);
        }
        r.aux = u32::try_from(dir.links.len()).map_err(|_| rustix::io::Errno::OVERFLOW)?;
        dir.links.extend_from_slice(&u32::try_from(target.as_bytes().len()).unwrap_or(0).to_le_bytes());
        dir.links.extend_from_slice(target.as_bytes());
    }
    dir.names.extend_from_slice(bytes);
    dir.entries.push(r);
    dir.btimes.push(btime);
    Ok(true)
}

/// Nanoseconds since the epoch, if they fit.
fn nanos(t: rustix::fs::StatxTimestamp) -> Option<i64> {
    t.tv_sec.checked_mul(1_000_000_000)?.checked_add(i64::from(t.tv_nsec))
}

/// The record of a `statx` answer, and the birth time (`i64::MIN` for none). What does not fit is
/// left to the kernel.
fn record(st: &Statx, owners: &Mutex<Owners>) -> (Record, i64) {
    let has_btime = st.stx_mask & StatxFlags::BTIME.bits() != 0;
    let btime = if has_btime { nanos(st.stx_btime).unwrap_or(i64::MIN) } else { i64::MIN };
    let mut owner = owners.lock().unwrap_or_else(PoisonError::into_inner).position(st.stx_uid, st.stx_gid);
    let mut fits = |ok: bool| {
        if !ok {
            owner = OWNER_KERNEL;
        }
    };
    fits(st.stx_mask & StatxFlags::BASIC_STATS.bits() == StatxFlags::BASIC_STATS.bits());
    let times = (nanos(st.stx_mtime), nanos(st.stx_ctime), nanos(st.stx_atime));
    fits(times.0.is_some() && times.1.is_some() && times.2.is_some());
    let blocks = u32::try_from(st.stx_blocks);
    let nlink = u16::try_from(st.stx_nlink);
    fits(blocks.is_ok() && nlink.is_ok());
    // Device numbers of special files are not held.
    fits(st.stx_rdev_major == 0 && st.stx_rdev_minor == 0);
    let r = Record {
        size: st.stx_size,
        mtime_ns: times.0.unwrap_or(0),
        ctime_ns: times.1.unwrap_or(0),
        atime_ns: times.2.unwrap_or(0),
        ino: st.stx_ino,
        // No blocks would look as if the file had been released to tape.
        blocks: blocks.unwrap_or(u32::MAX),
        nlink: nlink.unwrap_or(u16::MAX),
        mode: st.stx_mode,
        owner,
        ..Record::default()
    };
    (r, btime)
}
