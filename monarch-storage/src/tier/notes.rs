//! Notes that an agent leaves in a tier: for commands that find no agent the roots of its copies
//! and the end of its log, for the next job the working sets of the last jobs.
//!
//! A tier serves without them. Where they cannot be written or do not fit into the quota, they are
//! left out.

use super::space::Space;
use crate::held_dir::HeldDir;
use crate::working_set::{self, WorkingSet};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the file of roots: for each root the seed in 16 hex digits, the path, and a zero byte.
const ROOTS: &str = "roots";
/// Name of the file that holds the end of the last agent's log.
pub const LAST_LOG: &str = "agent.log";
/// Name of the file of working sets: see [`crate::working_set`].
const WORKING_SETS: &str = "working-sets";
/// Name of a note that is being written.
const NEW: &str = "note.new";
/// The names of all notes.
pub(super) const NOTES: [&str; 4] = [ROOTS, LAST_LOG, WORKING_SETS, NEW];
/// Most roots that are noted; those served last stay.
const MAX_ROOTS: usize = 256;
/// Most bytes of a log that are kept.
pub const MAX_LOG_BYTES: u64 = 256 << 10;
/// Most bytes of a file of roots that are read.
const MAX_ROOTS_BYTES: u64 = 2 << 20;

/// A root whose files may have copies in a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedRoot {
    /// Its real path.
    pub path: PathBuf,
    /// The seed of the path hashes of its index.
    pub seed: u64,
}

/// Reads the roots noted in a tier; the root served last is the last one.
pub(super) fn roots(dir: &HeldDir) -> Vec<ServedRoot> {
    let Ok(file) = dir.read_file(ROOTS) else { return Vec::new() };
    let mut bytes = Vec::new();
    // What can be read of it counts.
    let _ = std::fs::File::from(file).take(MAX_ROOTS_BYTES).read_to_end(&mut bytes);
    bytes.split(|&b| b == 0).filter_map(parse).collect()
}

fn parse(record: &[u8]) -> Option<ServedRoot> {
    let (seed, path) = record.split_at_checked(16)?;
    let seed = u64::from_str_radix(std::str::from_utf8(seed).ok()?, 16).ok()?;
    let path = Path::new(OsStr::from_bytes(path));
    path.is_absolute().then(|| ServedRoot { path: path.to_owned(), seed })
}

/// Notes that files below a root have copies in this tier.
pub(super) fn add_root(space: &Space, root: ServedRoot) {
    let mut all = roots(&space.fs);
    if all.last() == Some(&root) {
        return;
    }
    all.retain(|r| *r != root);
    all.push(root);
    let skip = all.len().saturating_sub(MAX_ROOTS);
    let mut bytes = Vec::new();
    for root in all.iter().skip(skip) {
        bytes.extend_from_slice(format!("{:016x}", root.seed).as_bytes());
        bytes.extend_from_slice(root.path.as_os_str().as_bytes());
        bytes.push(0);
    }
    write(space, ROOTS, &bytes);
}

/// Keeps the last [`MAX_LOG_BYTES`] of a log.
pub(super) fn keep_log(space: &Space, log: &[u8]) {
    let skip = log.len().saturating_sub(usize::try_from(MAX_LOG_BYTES).unwrap_or(usize::MAX));
    let mut end = log.get(skip..).unwrap_or_default();
    if skip > 0 {
        // From the first whole line on.
        let line = end.iter().position(|&b| b == b'\n').map_or(end.len(), |at| at + 1);
        end = end.get(line..).unwrap_or_default();
    }
    write(space, LAST_LOG, end);
}

/// Reads the working sets of a tier. A file that cannot be believed counts as none, and is logged.
pub(super) fn working_sets(dir: &HeldDir) -> Vec<WorkingSet> {
    let fd = match dir.read_file(WORKING_SETS) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Vec::new(),
        Err(e) => return unread(dir, &e.to_string()),
    };
    let me = rustix::process::geteuid().as_raw();
    match rustix::fs::fstat(&fd) {
        Ok(st) if st.st_uid != me => return unread(dir, &format!("it belongs to user {}", st.st_uid)),
        Ok(st) if st.st_mode & 0o022 != 0 => return unread(dir, "others may write to it"),
        Ok(_) => {}
        Err(e) => return unread(dir, &e.to_string()),
    }
    let mut bytes = Vec::new();
    if let Err(e) = std::fs::File::from(fd).take(working_set::MAX_LEN).read_to_end(&mut bytes) {
        return unread(dir, &e.to_string());
    }
    working_set::decode(&bytes).unwrap_or_else(|why| unread(dir, why))
}

/// Reads the working sets that jobs have left in a tier: the directory that holds `copies`.
#[must_use]
pub fn working_sets_in(tier: &Path) -> Vec<WorkingSet> {
    HeldDir::open(tier).map_or_else(|_| Vec::new(), |dir| working_sets(&dir))
}

fn unread(dir: &HeldDir, why: &str) -> Vec<WorkingSet> {
    tracing::warn!(dir = %dir.path().display(), why, "the working sets of earlier jobs are ignored");
    Vec::new()
}

/// Replaces the working sets of a tier. Returns whether they were written.
pub(super) fn keep_working_sets(space: &Space, sets: &[WorkingSet]) -> bool {
    if sets.is_empty() {
        remove(space, WORKING_SETS);
        return true;
    }
    write(space, WORKING_SETS, &working_set::encode(sets))
}

/// Removes a note.
fn remove(space: &Space, name: &str) {
    let before = blocks(space, name);
    if space.fs.unlink(name).is_ok() {
        space.ledger.release(before, 0);
    }
}

/// Replaces a note, within the quota. Returns whether it was written.
fn write(space: &Space, name: &str, bytes: &[u8]) -> bool {
    let Some(reservation) = space.ledger.reserve(bytes.len() as u64) else { return false };
    let before = blocks(space, name);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK;
    let written = space.fs.open_file(NEW, flags, Mode::RUSR | Mode::WUSR).map_err(Into::into).and_then(|fd| {
        let mut file = std::fs::File::from(fd);
        file.write_all(bytes)
    });
    if written.is_err() || space.fs.rename(NEW, name).is_err() {
        let _ = space.fs.unlink(NEW);
        return false;
    }
    drop(reservation);
    // A note is no copy.
    space.ledger.release(before, 0);
    space.ledger.charge(blocks(space, name), 0);
    true
}

/// The bytes that a note takes on disk.
fn blocks(space: &Space, name: &str) -> u64 {
    space.fs.stat(name).map_or(0, |st| st.st_blocks as u64 * 512)
}
