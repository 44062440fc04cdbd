//! Parallel scan of a root.
//!
//! Workers take directories from a queue and read them ([`super::read_dir`]). Where other nodes
//! help ([`super::shared_scan`]), workers also take in the listings that these send, and read the
//! directories of which none came, or that of another directory. So the index is the same as
//! without help.

use super::listed::Listed;
use super::read_dir::{DirScan, Reading, SKIP, ScanProgress, unread, wanted};
use super::scan_queue::{ScanQueue, Task, Todo};
use super::shared_scan::{ScanHelpers, recruit};
use crate::engine::Limits;
use monarch_abi::index::{DIR_INCOMPLETE, Dir, OWNER_KERNEL, Record};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
            child.entries.reserve_exact(files as usize);
            child.btimes.reserve_exact(files as usize);
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
    /// Makes it the tree of another root, for benchmarks.
    #[must_use]
    pub fn of_root(mut self, path: &Path) -> Self {
        self.root_id = root_id(path);
        self
    }

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
    reading: Reading<'a>,
    queue: Arc<ScanQueue>,
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
    scan_with(path, options, limits, progress, None)
}

/// [`scan_within`] with the help of other nodes, if there are any.
///
/// # Errors
/// As [`scan`].
pub fn scan_with(
    path: &Path,
    options: ScanOptions,
    limits: &Limits,
    progress: &ScanProgress,
    helpers: Option<&Arc<dyn ScanHelpers>>,
) -> Result<Tree, ScanError> {
    let fail = |e: rustix::io::Errno| ScanError::Root { path: path.display().to_string(), source: e.into() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let began_ns = crate::sys::now_ns();
    limits.before_scan_call();
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(fail)?;
    limits.before_scan_call();
    let st = rustix::fs::statx(&root, c"", AtFlags::EMPTY_PATH, wanted()).map_err(fail)?;
    let dev = (st.stx_dev_major, st.stx_dev_minor);
    let reading = Reading::new(root.as_fd(), dev, options.max_memory, limits, progress);
    let (mut root_record, root_btime) = reading.record(&st);
    root_record.aux = 0;
    let threads = options.threads.clamp(1, 256);
    let first = Todo { at: 0, path: b".".to_vec(), record: root_record, owner: reading.owner_at(root_record.owner) };
    let shared = Shared { reading, queue: Arc::new(ScanQueue::new(first, threads)) };
    if let Some(helpers) = helpers {
        recruit(&shared.queue, helpers, threads);
    }
    std::thread::scope(|s| {
        for n in 1..threads {
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
    if let Some(bound) = shared.reading.full() {
        tracing::warn!(root = %path.display(), %bound, "the index is full: what it lacks is read from the PFS");
    }
    let dirs = shared.queue.take_dirs();
    let incomplete = dirs.iter().any(|d| d.flags & DIR_INCOMPLETE != 0);
    Ok(Tree {
        root: root_record,
        root_btime,
        incomplete,
        cut: shared.reading.is_cut(),
        dirs,
        owners: shared.reading.into_owners(),
        root_id: root_id(path),
        began_ns,
        root_dev: rustix::fs::makedev(st.stx_dev_major, st.stx_dev_minor),
    })
}

/// Scans directories until none is left and no worker can add any.
fn worker(shared: &Shared<'_>) {
    let Shared { reading, queue } = shared;
    let is_cancelled = || reading.progress.cancel.load(Ordering::Relaxed);
    while let Some(task) = queue.next(is_cancelled) {
        let spared = is_cancelled() || !reading.charge(0);
        let (todo, dir) = match task {
            Task::Read(todo) | Task::TakeIn(todo, ..) if spared => (todo, unread()),
            Task::Read(todo) => {
                let dir = reading.read(&todo.path).unwrap_or_else(|e| reading.unread(&todo.path, e));
                (todo, dir)
            }
            Task::TakeIn(todo, listed) => (todo, take_in(reading, *listed)),
        };
        reading.progress.entries.fetch_add(dir.entries.len() as u64, Ordering::Relaxed);
        reading.progress.dirs.fetch_add(1, Ordering::Relaxed);
        queue.done(todo.at, dir, |dir, dirs| children(reading, dir, dirs, &todo.path));
    }
}

/// Takes in what another node has read: its entries get the owners of this scan, and count as
/// memory of the index.
fn take_in(reading: &Reading<'_>, listed: Listed) -> DirScan {
    let Listed { mut dir, owners, .. } = listed;
    let positions: Vec<u16> = owners.iter().map(|&owner| reading.owner_position(owner)).collect();
    let mut held = 0;
    for r in &mut dir.entries {
        let link = if r.is_link() { 4 + link_len(&dir.links, r.aux) } else { 0 };
        if !reading.charge_entry(usize::from(r.name_len) + link) {
            dir.flags |= DIR_INCOMPLETE;
            break;
        }
        r.owner = positions.get(usize::from(r.owner)).copied().unwrap_or(OWNER_KERNEL);
        if r.is_dir() && r.aux != SKIP && !reading.charge(size_of::<Dir>()) {
            r.aux = SKIP;
        }
        held += 1;
    }
    dir.entries.truncate(held);
    dir.btimes.truncate(held);
    reading.progress.helped.fetch_add(1, Ordering::Relaxed);
    // So that other nodes see that the scan makes progress.
    reading.progress.calls.fetch_add(held as u64 + 2, Ordering::Relaxed);
    dir
}

fn link_len(links: &[u8], at: u32) -> usize {
    links.get(at as usize..).and_then(|l| l.first_chunk()).map_or(0, |len| u32::from_le_bytes(*len) as usize)
}

/// Gives every child directory a place in the tree; those that are to be read.
fn children(reading: &Reading<'_>, dir: &mut DirScan, dirs: &mut Vec<DirScan>, path: &[u8]) -> Vec<Todo> {
    let mut found = Vec::new();
    for e in dir.entries.iter_mut().filter(|e| e.is_dir()) {
        let skip = e.aux == SKIP;
        e.aux = u32::try_from(dirs.len()).unwrap_or(u32::MAX);
        if skip {
            dirs.push(unread());
            continue;
        }
        dirs.push(DirScan::default());
        let name = &dir.names[e.name_lo as usize..e.name_lo as usize + e.name_len as usize];
        let mut child = Vec::with_capacity(path.len() + 1 + name.len());
        child.extend_from_slice(path);
        child.push(b'/');
        child.extend_from_slice(name);
        found.push(Todo { at: e.aux, path: child, record: *e, owner: reading.owner_at(e.owner) });
    }
    found
}
