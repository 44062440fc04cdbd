//! Directories that another node reads for a scan: [`DirReader`] reads them there, [`encode`] and
//! [`decode`] make a message of them and take it apart.
//!
//! ```text
//! 0   magic "MONDIR01"                             8
//! 8   for each directory: 0 (not read, that is all) or 1   1
//!     its own record                              64
//!     its owner (u32 uid, u32 gid)                 8
//!     inode of its ".."                            8
//!     flags, number of entries                     4, 4
//!     lengths of names, links; number of owners    4, 4, 4
//!     records, birth times, names, links, owners
//! ```
//!
//! Numbers are little endian. A message of a node is believed no further than its bounds go:
//! whatever its bytes are, decoding gives listings whose parts lie within them, or nothing.

use super::read_dir::{DirScan, Reading, SKIP, ScanProgress, wanted};
use crate::engine::Limits;
use monarch_abi::index::{DIR_INCOMPLETE, OWNER_KERNEL, Record};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::{FromBytes, IntoBytes};

const MAGIC: [u8; 8] = *b"MONDIR01";
/// Bytes of an index that one directory may take to be sent: those of larger ones are left to the
/// node that scans.
const MAX_LISTING_BYTES: u64 = 64 << 20;
/// Bytes of an index after which the rest of a batch is left to the node that scans.
const MAX_BATCH_BYTES: usize = 16 << 20;
/// Most directories of a request that are read at a time.
const MAX_THREADS: usize = 2;
/// Most bytes of a message of listings: those after which no directory is begun, and one for each
/// thread.
pub const MAX_LISTINGS_BYTES: u64 = 160 << 20;

/// A directory as another node has read it.
#[derive(Debug)]
pub struct Listed {
    pub(super) own: Record,
    owner: Option<u64>,
    pub(super) dir: DirScan,
    /// (uid, gid) by the positions that the records name.
    pub(super) owners: Vec<u64>,
}

impl Listed {
    /// Whether it is the directory of this record: the same inode, as old, of the same owner. So
    /// the other node sees the same file system, by the same numbers.
    pub(super) fn is_of(&self, record: &Record, owner: Option<u64>) -> bool {
        let what = |r: &Record| (r.ino, r.mode, r.nlink, r.mtime_ns, r.ctime_ns);
        what(&self.own) == what(record) && self.owner == owner
    }

    /// A listing of this number of files, for measurements.
    pub(super) fn synthetic(n: u32, files: u32) -> Self {
        let mut dir = DirScan::default();
        for i in 0..files {
            let name = format!("n{n:08}_{i:08}");
            let (name_lo, name_len) = (dir.names.len() as u32, name.len() as u8);
            let ino = u64::from(n) << 32 | u64::from(i);
            dir.entries.push(Record { ino, name_lo, name_len, mode: 0o100_644, nlink: 1, ..Record::default() });
            dir.names.extend_from_slice(name.as_bytes());
            dir.btimes.push(1);
        }
        dir.shrink();
        let own = Record { ino: u64::from(n), mode: 0o040_755, nlink: 2, ..Record::default() };
        Self { own, owner: Some(0), dir, owners: vec![0] }
    }

    pub(super) fn index_bytes(&self) -> usize {
        self.dir.entries.len() * (size_of::<Record>() + size_of::<i64>()) + self.dir.names.len() + self.dir.links.len()
    }
}

/// Reads directories of a root for the node that scans it.
#[derive(Debug)]
pub struct DirReader {
    path: PathBuf,
    limits: Arc<Limits>,
    /// Directories of a request that are read at a time.
    threads: usize,
    root: Mutex<Option<Arc<OwnedFd>>>,
}

impl DirReader {
    /// Reads directories of the root `path`, within the limit of calls, up to `threads` of a
    /// request at a time. The root is opened when it is first needed.
    #[must_use]
    pub fn new(path: PathBuf, limits: Arc<Limits>, threads: usize) -> Self {
        Self { path, limits, threads: threads.clamp(1, MAX_THREADS), root: Mutex::new(None) }
    }

    /// The root, open.
    fn root(&self) -> std::io::Result<Arc<OwnedFd>> {
        let mut root = self.root.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(root) = &*root {
            return Ok(root.clone());
        }
        self.limits.before_scan_call();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(root.insert(Arc::new(rustix::fs::open(&self.path, flags, Mode::empty())?)).clone())
    }

    /// Reads these directories, named as a scan names them. `None` for those that the other node is
    /// to read itself: they cannot be read here, or are too large for a message.
    ///
    /// # Errors
    /// When the root cannot be opened.
    pub fn read(&self, dirs: &[&[u8]]) -> std::io::Result<Vec<Option<Listed>>> {
        let root = self.root()?;
        self.limits.before_scan_call();
        let st = rustix::fs::statx(&*root, c"", AtFlags::EMPTY_PATH, wanted())?;
        let dev = (st.stx_dev_major, st.stx_dev_minor);
        let (next, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let listings: Vec<Mutex<Option<Listed>>> = dirs.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let (Some(path), Some(to)) = (dirs.get(at), listings.get(at)) else { return };
                if !is_below_root(path) || bytes.load(Ordering::Relaxed) > MAX_BATCH_BYTES {
                    continue;
                }
                let listed = self.read_one(&root, dev, path);
                bytes.fetch_add(listed.as_ref().map_or(0, Listed::index_bytes), Ordering::Relaxed);
                *to.lock().unwrap_or_else(PoisonError::into_inner) = listed;
            }
        };
        std::thread::scope(|s| {
            for _ in 1..self.threads.min(dirs.len()) {
                if std::thread::Builder::new().name("scan-help".to_owned()).spawn_scoped(s, work).is_err() {
                    break;
                }
            }
            work();
        });
        Ok(listings.into_iter().map(|l| l.into_inner().unwrap_or_else(PoisonError::into_inner)).collect())
    }

    fn read_one(&self, root: &OwnedFd, dev: (u32, u32), path: &[u8]) -> Option<Listed> {
        let progress = ScanProgress::default();
        let reading = Reading::new(root.as_fd(), dev, MAX_LISTING_BYTES, &self.limits, &progress);
        let fd = reading.open(path).ok()?;
        let own = reading.own_record(&fd).ok()?;
        let dir = reading.read_open(&fd).ok()?;
        if reading.is_cut() {
            return None;
        }
        let owner = reading.owner_at(own.owner);
        Some(Listed { own, owner, dir, owners: reading.into_owners() })
    }
}

/// Whether a path is one that a scan gives a directory: no component of it leads elsewhere.
fn is_below_root(path: &[u8]) -> bool {
    let mut parts = path.split(|&c| c == b'/');
    parts.next() == Some(b".") && parts.all(is_name) && path.len() < monarch_abi::PATH_MAX
}

fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|c| matches!(c, b'/' | 0))
}

/// Names directories in a message: each behind its length, two bytes.
#[must_use]
pub fn encode_paths(dirs: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for dir in dirs {
        // (Longer paths do not lead to anything: the other node refuses them.)
        let dir = dir.get(..usize::from(u16::MAX)).unwrap_or(dir);
        out.extend_from_slice(&(dir.len() as u16).to_le_bytes());
        out.extend_from_slice(dir);
    }
    out
}

/// The directories that a message names; `None` if it is none.
#[must_use]
pub fn decode_paths(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut dirs = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk::<2>()?;
        let (dir, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        dirs.push(dir);
        bytes = rest;
    }
    Some(dirs)
}

/// Makes a message of listings.
#[must_use]
pub fn encode(listings: &[Option<Listed>]) -> Vec<u8> {
    let listings: Vec<Option<&Listed>> = listings.iter().map(Option::as_ref).collect();
    encode_all(&listings, |_| false)
}

/// [`encode`], where entries for whose names `is_changed` is true are left to the kernel of the
/// receiver.
pub(super) fn encode_all(listings: &[Option<&Listed>], is_changed: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let bytes = listings.iter().flatten().map(|l| l.index_bytes() + 256).sum::<usize>();
    let mut out = Vec::with_capacity(MAGIC.len() + listings.len() + bytes);
    out.extend_from_slice(&MAGIC);
    for listed in listings {
        out.push(u8::from(listed.is_some()));
        let Some(Listed { own, owner, dir, owners }) = listed else { continue };
        // (Of an owner that is not held there is no position in the record, either.)
        let own = Record { owner: if owner.is_some() { 0 } else { OWNER_KERNEL }, ..*own };
        out.extend_from_slice(own.as_bytes());
        out.extend_from_slice(&owner.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&dir.parent_ino.to_le_bytes());
        let counts = [dir.entries.len(), dir.names.len(), dir.links.len(), owners.len()];
        out.extend_from_slice(&dir.flags.to_le_bytes());
        counts.iter().for_each(|&n| out.extend_from_slice(&(n as u32).to_le_bytes()));
        for r in &dir.entries {
            let owner = if is_changed(dir.name(r)) { OWNER_KERNEL } else { r.owner };
            out.extend_from_slice(Record { owner, ..*r }.as_bytes());
        }
        let parts = [dir.btimes.as_bytes(), &dir.names, &dir.links, owners.as_bytes()];
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }
    out
}

/// The listings of a message; `None` if it is none, or does not make sense.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<Option<Listed>>> {
    let mut rest = Rest(bytes.strip_prefix(&MAGIC)?);
    let mut listings = Vec::new();
    while !rest.0.is_empty() {
        listings.push(match rest.take(1)? {
            [0] => None,
            [1] => Some(listing(&mut rest)?),
            _ => return None,
        });
    }
    Some(listings)
}

/// What is left of a message.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(part)
    }

    fn number(&mut self) -> Option<usize> {
        Some(u32::from_le_bytes(*self.take(4)?.first_chunk()?) as usize)
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.take(8)?.first_chunk()?))
    }

    /// As many as there are of something that has a size, aligned or not.
    fn array<T: FromBytes>(&mut self, n: usize) -> Option<Vec<T>> {
        let bytes = self.take(n.checked_mul(size_of::<T>())?)?;
        bytes.chunks_exact(size_of::<T>()).map(|item| T::read_from_bytes(item).ok()).collect()
    }
}

fn listing(rest: &mut Rest<'_>) -> Option<Listed> {
    let own = Record::read_from_bytes(rest.take(size_of::<Record>())?).ok()?;
    let (owner, parent_ino) = (rest.long()?, rest.long()?);
    let flags = rest.number()? as u32;
    let (entries, names, links, owners) = (rest.number()?, rest.number()?, rest.number()?, rest.number()?);
    let dir = DirScan {
        entries: rest.array(entries)?,
        btimes: rest.array(entries)?,
        names: rest.take(names)?.to_vec(),
        links: rest.take(links)?.to_vec(),
        flags: flags & DIR_INCOMPLETE,
        parent_ino,
    };
    let owners = rest.array(owners)?;
    let mut seen = HashSet::with_capacity(entries);
    let makes_sense = |r: &Record| {
        let link = !r.is_link() || link_end(&dir.links, r.aux as usize).is_some();
        let owner = r.owner == OWNER_KERNEL || usize::from(r.owner) < owners.len();
        let name = r.name_hi == 0 && is_name(dir.name(r)) && dir.name(r).len() == usize::from(r.name_len);
        link && owner && name && (!r.is_dir() || matches!(r.aux, 0 | SKIP))
    };
    // (A name that is there twice would be two entries of one path.)
    let is_sound = dir.entries.iter().all(|r| makes_sense(r) && seen.insert(dir.name(r)));
    let owner = (own.owner != OWNER_KERNEL).then_some(owner);
    drop(seen);
    is_sound.then_some(Listed { own, owner, dir, owners })
}

/// Where the link target at `at` ends, if it is there.
fn link_end(links: &[u8], at: usize) -> Option<usize> {
    let len = u32::from_le_bytes(*links.get(at..)?.first_chunk()?) as usize;
    (at + 4).checked_add(len).filter(|&end| end <= links.len())
}

#[cfg(test)]
mod tests;
