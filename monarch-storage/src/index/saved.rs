//! Saved index files: one sequential read instead of a scan.
//!
//! An index that is served is read, not mapped: another program could change the file after its
//! checksum was compared. It is trusted only if no user but this one and root can have written it.
//! Every entry is compared with the PFS all the same ([`monarch_abi::guard`]), unless the job says
//! that the index is frozen.
//!
//! ```text
//! 0     magic "MONSAVE1"      8
//! 8     format version        4     zero 4
//! 16    length of the index   8
//! 24    length of the table   8
//! 32    checksum              8
//! 40    zero to 4096
//! 4096  index, zero to a multiple of 4096, table
//! ```
//!
//! The checksum is the XXH3-64 of the first 4096 bytes without the checksum itself, of the sums of
//! all blocks, 8 bytes each, and of the zeros behind the index. The sum of a block is the XXH3-64
//! of its bytes. Blocks are those that threads fill ([`BLOCK_BYTES`]) of the two files into which
//! the index and the table are read; the table begins [`TABLE_OFF`] bytes into its file. Pages of
//! the saved file are thus pages of those files, so that a disk can write to them.

use super::Built;
use super::saved_blocks::{Room, SavedBlocks, Wanted};
use crate::held_dir::HeldDir;
use crate::parts_of::in_parts;
use crate::shm::{BLOCK_BYTES, FilledBytes, TableFile, Unfinished};
use monarch_abi::index::Index;
use monarch_abi::state::{Bucket, TABLE_OFF};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: [u8; 8] = *b"MONSAVE1";
const VERSION: u32 = 2;
/// Bytes before the index: a page, as parts of the file are read into pages.
const HEADER: usize = 4096;
const _: () = assert!(TABLE_OFF.is_multiple_of(HEADER) && BLOCK_BYTES.is_multiple_of(HEADER));
/// Offset of the checksum.
const SUM: usize = 32;
const SENSELESS: &str = "its index does not make sense";

/// The zeros behind an index of this length.
fn padding(index: u64) -> usize {
    (index.next_multiple_of(HEADER as u64) - index) as usize
}

/// The sums of the blocks of bytes that begin `skipped` bytes into their file.
fn block_sums(bytes: &[u8], skipped: usize) -> impl Iterator<Item = u64> {
    let (first, others) = bytes.split_at(bytes.len().min(BLOCK_BYTES - skipped));
    std::iter::once(first).chain(others.chunks(BLOCK_BYTES)).map(xxh3_64)
}

/// The checksum of a file, of the sums of its blocks.
fn checksum(header: &[u8; HEADER], sums: impl IntoIterator<Item = u64>, padding: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&header[..SUM]);
    hash.update(&header[SUM + 8..]);
    sums.into_iter().for_each(|sum| hash.update(&sum.to_le_bytes()));
    hash.update(padding);
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
    /// With the bytes that come before it in its file.
    table: memmap2::MmapMut,
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
        self.table.get(TABLE_OFF..).unwrap_or_default()
    }
}

/// A saved index that was read into the file that processes will map.
#[derive(Debug)]
pub struct Loaded {
    /// The file of the index, which has no name yet.
    pub file: Unfinished,
    /// Its bytes.
    pub index: FilledBytes,
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
    let zeros = &[0; HEADER][..padding(built.index.len() as u64)];
    let sums = block_sums(&built.index, 0).chain(block_sums(&built.buckets, TABLE_OFF));
    let sum = checksum(&header, sums, zeros);
    header[SUM..SUM + 8].copy_from_slice(&sum.to_le_bytes());
    let write = || {
        let mut f = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&tmp)?;
        f.write_all(&header)?;
        f.write_all(&built.index)?;
        f.write_all(zeros)?;
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
    let memory = |len: u64| {
        let len = usize::try_from(len).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        memmap2::MmapMut::map_anon(len)
    };
    let mut index = memory(saved.index).map_err(io)?;
    let mut table = memory(TABLE_OFF as u64 + saved.buckets).map_err(io)?;
    saved.read(index.chunks_mut(BLOCK_BYTES), table.chunks_mut(BLOCK_BYTES))?;
    saved.makes_sense(&index)?;
    Ok(SavedIndex { index, table })
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
    let file = |len: u64| Unfinished::empty(dir).and_then(|file| file.map_to_fill(len)).map_err(io);
    let mut index = file(saved.index)?;
    let mut table = file(TABLE_OFF as u64 + saved.buckets)?;
    saved.read(index.blocks(), table.blocks())?;
    let (file, index) = index.filled().map_err(io)?;
    saved.makes_sense(&index)?;
    Ok(Loaded { file, index, table: TableFile::of(table).map_err(io)? })
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
        let mut read = |part: Range<usize>| {
            (&file).read_exact(&mut head[part]).map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => bad("the file is too short"),
                _ => io(e),
            })
        };
        // (Those of earlier versions were shorter.)
        read(0..16)?;
        let rest = read(16..HEADER);
        if head[..8] != MAGIC {
            return Err(bad("this is not a saved index"));
        }
        let u64_at = |at: usize| head[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        if u64_at(8) as u32 != VERSION {
            return Err(bad("it was written by another version of Monarch"));
        }
        rest?;
        let (index, buckets) = (u64_at(16), u64_at(24));
        let len = index.checked_next_multiple_of(HEADER as u64).and_then(|n| n.checked_add(buckets));
        if len.and_then(|n| n.checked_add(HEADER as u64)) != Some(meta.len()) {
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

    /// Reads index and table into the blocks of their files, and verifies the checksum of the bytes
    /// that were read.
    ///
    /// # Errors
    /// [`SavedError::Format`] if it is another one; what the kernel or a room said.
    fn read<'r, R: Room<'r>>(
        &self,
        index: impl IntoIterator<Item = R>,
        table: impl IntoIterator<Item = R>,
    ) -> Result<(), SavedError> {
        let io = |source| SavedError::Io { path: self.path.to_owned(), source };
        let index_end = HEADER as u64 + self.index;
        let mut zeros = vec![0; padding(self.index)];
        self.file.read_exact_at(&mut zeros, index_end).map_err(io)?;
        let wanted = |(n, room): (usize, R), start: u64, skipped: usize| -> Wanted<R> {
            match n {
                0 => (start, skipped, room),
                _ => (start + (n * BLOCK_BYTES - skipped) as u64, 0, room),
            }
        };
        let of_index = index.into_iter().enumerate().map(|room| wanted(room, HEADER as u64, 0));
        let table_start = index_end + zeros.len() as u64;
        let of_table = table.into_iter().enumerate().map(|room| wanted(room, table_start, TABLE_OFF));
        let blocks = SavedBlocks::of(&self.file, table_start + self.buckets);
        let sums = blocks.read(of_index.chain(of_table).collect()).map_err(io)?;
        let found = checksum(&self.head, sums, &zeros);
        if self.head[SUM..].first_chunk().map(|b| u64::from_le_bytes(*b)) != Some(found) {
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
