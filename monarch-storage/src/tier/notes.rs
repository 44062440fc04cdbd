//! Notes that an agent leaves in a tier for commands that find no agent: the roots of its copies,
//! and the end of its log.
//!
//! A tier serves without them. Where they cannot be written or do not fit into the quota, they are
//! left out.

use super::space::Space;
use crate::held_dir::HeldDir;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the file of roots: for each root the seed in 16 hex digits, the path, and a zero byte.
const ROOTS: &str = "roots";
/// Name of the file that holds the end of the last agent's log.
pub const LAST_LOG: &str = "agent.log";
/// Name of a note that is being written.
const NEW: &str = "note.new";
/// The names of all notes.
pub(super) const NOTES: [&str; 3] = [ROOTS, LAST_LOG, NEW];
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

/// Replaces a note, within the quota.
fn write(space: &Space, name: &str, bytes: &[u8]) {
    let Some(reservation) = space.ledger.reserve(bytes.len() as u64) else { return };
    let before = blocks(space, name);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK;
    let written = space.fs.open_file(NEW, flags, Mode::RUSR | Mode::WUSR).map_err(Into::into).and_then(|fd| {
        let mut file = std::fs::File::from(fd);
        file.write_all(bytes)
    });
    if written.is_err() || space.fs.rename(NEW, name).is_err() {
        let _ = space.fs.unlink(NEW);
        return;
    }
    drop(reservation);
    // A note is no copy.
    space.ledger.release(before, 0);
    space.ledger.charge(blocks(space, name), 0);
}

/// The bytes that a note takes on disk.
fn blocks(space: &Space, name: &str) -> u64 {
    space.fs.stat(name).map_or(0, |st| st.st_blocks as u64 * 512)
}
