//! Saved index files: one sequential read instead of a scan.
//!
//! An index that is served is read, not mapped: another program could change the file after its
//! checksum was compared. It is trusted only if no user but this one and root can have written it.
//! Every entry is compared with the PFS all the same ([`monarch_abi::guard`]), unless the job says
//! that the index is frozen.
//!
//! ```text
//! 0   magic "MONSAVE1"      8
//! 8   format version        4     zero 4
//! 16  length of the index   8
//! 24  length of the buckets 8
//! 32  XXH3-64 of all other bytes   8
//! 40  zero to 64
//! 64  index, buckets
//! ```

use super::Built;
use super::saved_pieces::SavedPieces;
use crate::held_dir::HeldDir;
use crate::parts_of::in_parts;
use crate::shm::{TableFile, Unfinished};
use monarch_abi::index::Index;
use monarch_abi::state::Bucket;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

const MAGIC: [u8; 8] = *b"MONSAVE1";
const VERSION: u32 = 1;
const HEADER: usize = 64;
/// Offset of the checksum.
const SUM: usize = 32;
const SENSELESS: &str = "its index does not make sense";

/// The checksum of the header, except for the checksum itself, and of what follows.
fn checksum(header: &[u8; HEADER], rest: &[&[u8]]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&header[..SUM]);
    hash.update(&header[SUM + 8..]);
    rest.iter().for_each(|part| hash.update(part));
    hash.digest()
}

/// Why a saved index cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// Reading or writing failed.
    #[error("saved index {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Not a saved index, of another version, cut short or damaged.
    #[error("saved index {path}: {why}; build it again with `monarch index build`")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// Another user could have written it.
    #[error(
        "saved index {path}: {why}; use one that you or root own and that no other user can write to (chmod go-w), or a copy of it"
    )]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// Which user, and why.
        why: String,
    },
}

/// A saved index in memory.
#[derive(Debug)]
pub struct SavedIndex {
    index: memmap2::MmapMut,
    buckets: Vec<u8>,
}

impl SavedIndex {
    /// The bytes of the index file.
    #[must_use]
    pub fn index(&self) -> &[u8] {
        &self.index
    }
    /// The bytes of the buckets.
    #[must_use]
    pub fn buckets(&self) -> &[u8] {
        &self.buckets
    }
}

/// A saved index that was read into the file that processes will map.
#[derive(Debug)]
pub struct Loaded {
    /// The file of the index, which has no name yet.
    pub file: Unfinished,
    /// Its bytes.
    pub index: memmap2::Mmap,
    /// The lookup table, in the file that processes will map.
    pub table: TableFile,
}

/// Writes an index to `path`: first beside it, synced, then renamed. Its mode lets no other user
/// write to it, whatever the umask is, since such an index would not be trusted.
///
/// # Errors
/// What the kernel said.
pub fn save(built: &Built, path: &Path) -> Result<(), SavedError> {
    let io = |source| SavedError::Io { path: path.to_owned(), source };
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let tmp = PathBuf::from(name);
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&(built.index.len() as u64).to_le_bytes());
    header[24..SUM].copy_from_slice(&(built.buckets.len() as u64).to_le_bytes());
    let sum = checksum(&header, &[&built.index, &built.buckets]);
    header[SUM..SUM + 8].copy_from_slice(&sum.to_le_bytes());
    let write = || {
        let mut f = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&tmp)?;
        f.write_all(&header)?;
        f.write_all(&built.index)?;
        f.write_all(&built.buckets)?;
        f.sync_all()?;
        std::fs::rename(&tmp, path)
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&tmp);
        io(e)
    })
}

/// Reads a saved index and verifies its checksum. Its owner does not matter: it is for inspection,
/// not for serving.
///
/// # Errors
/// [`SavedError::Format`] when it is not what was saved.
pub fn load(path: &Path) -> Result<SavedIndex, SavedError> {
    let io = |source| SavedError::Io { path: path.to_owned(), source };
    let saved = Saved::open(path)?;
    let mut index = memmap2::MmapMut::map_anon(saved.index as usize).map_err(io)?;
    let mut buckets = Vec::new();
    buckets.try_reserve_exact(saved.buckets as usize).map_err(|e| io(std::io::Error::other(e)))?;
    let of_index = saved.index;
    saved.read(|bytes, at| {
        match index.get_mut(at as usize..).and_then(|rest| rest.get_mut(..bytes.len())) {
            Some(to) if at < of_index => to.copy_from_slice(bytes),
            _ => buckets.extend_from_slice(bytes),
        }
        Ok(())
    })?;
    saved.makes_sense(&index)?;
    Ok(SavedIndex { index, buckets })
}

/// Reads a saved index into files of a private directory, and verifies the checksum of the bytes
/// that were read, which no other user can change.
///
/// # Errors
/// [`SavedError::Format`] when it is not what was saved, [`SavedError::Untrusted`] when a user
/// other than this one and root could have written it.
pub fn load_within(path: &Path, dir: &Arc<HeldDir>) -> Result<Loaded, SavedError> {
    let io = |source| SavedError::Io { path: path.to_owned(), source };
    let saved = Saved::open(path)?;
    saved.is_ours()?;
    let file = Unfinished::empty(dir).map_err(io)?;
    let table = TableFile::within(dir, saved.buckets).map_err(io)?;
    let of_index = saved.index;
    saved.read(|bytes, at| match at.checked_sub(of_index) {
        None => file.write(bytes, at),
        Some(at) => table.write(bytes, at),
    })?;
    file.allocate(saved.index).map_err(io)?;
    let index = file.map().map_err(io)?;
    saved.makes_sense(&index)?;
    Ok(Loaded { file, index, table })
}

/// An open saved index whose header was read.
struct Saved<'a> {
    path: &'a Path,
    file: File,
    head: [u8; HEADER],
    /// Length of the index.
    index: u64,
    /// Length of the buckets.
    buckets: u64,
}

impl<'a> Saved<'a> {
    fn open(path: &'a Path) -> Result<Self, SavedError> {
        let io = |source| SavedError::Io { path: path.to_owned(), source };
        let bad = |why| SavedError::Format { path: path.to_owned(), why };
        // (Without blocking, should it be a pipe; the type is checked below.)
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(bad("this is not a saved index"));
        }
        let mut head = [0; HEADER];
        (&file).read_exact(&mut head).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => bad("the file is too short"),
            _ => io(e),
        })?;
        let u64_at = |at: usize| head[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        if head[..8] != MAGIC {
            return Err(bad("this is not a saved index"));
        }
        if u64_at(8) as u32 != VERSION {
            return Err(bad("it was written by another version of Monarch"));
        }
        let (index, buckets) = (u64_at(16), u64_at(24));
        if index.checked_add(buckets).and_then(|n| n.checked_add(HEADER as u64)) != Some(meta.len()) {
            return Err(bad("the file was cut short"));
        }
        if index == 0 {
            return Err(bad(SENSELESS));
        }
        Ok(Self { path, file, head, index, buckets })
    }

    /// Looks whether only this user and root can have written it, and made the link that leads to
    /// it.
    ///
    /// # Errors
    /// [`SavedError::Untrusted`] if not.
    fn is_ours(&self) -> Result<(), SavedError> {
        let io = |source| SavedError::Io { path: self.path.to_owned(), source };
        let untrusted = |why| Err(SavedError::Untrusted { path: self.path.to_owned(), why });
        let me = rustix::process::geteuid().as_raw();
        let stranger = |m: &Metadata| Some(m.uid()).filter(|&uid| uid != me && uid != 0);
        let meta = self.file.metadata().map_err(io)?;
        if let Some(uid) = stranger(&meta) {
            return untrusted(format!("it belongs to user {uid}"));
        }
        if meta.mode() & 0o022 != 0 {
            return untrusted(format!("others may write to it (mode {:04o})", meta.mode() & 0o7777));
        }
        let link = std::fs::symlink_metadata(self.path).map_err(io)?;
        match stranger(&link) {
            Some(uid) if link.is_symlink() => untrusted(format!("it is a link that belongs to user {uid}")),
            _ => Ok(()),
        }
    }

    /// Calls `put` with the bytes of index and buckets, piece by piece and in order, and with their
    /// offset among both; no piece has bytes of both. The checksum covers the bytes that were read.
    ///
    /// # Errors
    /// [`SavedError::Format`] if it is another one; what the kernel or `put` said.
    fn read(&self, mut put: impl FnMut(&[u8], u64) -> std::io::Result<()>) -> Result<(), SavedError> {
        let io = |source| SavedError::Io { path: self.path.to_owned(), source };
        let mut hash = Xxh3::new();
        hash.update(&self.head[..SUM]);
        hash.update(&self.head[SUM + 8..]);
        let of_index = self.index;
        let pieces = SavedPieces::new(&self.file, HEADER as u64, HEADER as u64 + self.index + self.buckets);
        let hash = pieces.read(hash, |bytes, at| {
            let (first, second) = bytes.split_at(of_index.saturating_sub(at).min(bytes.len() as u64) as usize);
            if !first.is_empty() {
                put(first, at)?;
            }
            if second.is_empty() { Ok(()) } else { put(second, at + first.len() as u64) }
        });
        if self.head[SUM..].first_chunk().map(|b| u64::from_le_bytes(*b)) != Some(hash.map_err(io)?.digest()) {
            return Err(SavedError::Format { path: self.path.to_owned(), why: "its checksum does not match" });
        }
        Ok(())
    }

    /// Whether the index is sound, and the buckets are as many as it has.
    fn makes_sense(&self, index: &[u8]) -> Result<(), SavedError> {
        match crate::shm::IndexBytes(index).open() {
            Some(i)
                if i.header.buckets.checked_mul(size_of::<Bucket>() as u64) == Some(self.buckets) && is_sound(&i) =>
            {
                Ok(())
            }
            _ => Err(SavedError::Format { path: self.path.to_owned(), why: SENSELESS }),
        }
    }
}

/// [`Index::is_sound`], on several threads.
fn is_sound(index: &Index<'_>) -> bool {
    let entries = u32::try_from(index.len()).unwrap_or(u32::MAX);
    in_parts(entries, |part| index.is_sound_between(part.start, part.end)).into_iter().all(|is| is)
}
