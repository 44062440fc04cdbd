//! Saved index files: one sequential read instead of a scan.
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
use monarch_abi::state::Bucket;
use std::io::Write;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"MONSAVE1";
const VERSION: u32 = 1;
const HEADER: usize = 64;
/// Where the checksum lies.
const SUM: usize = 32;

/// Of the header but the checksum itself, and what follows it.
fn checksum(header: &[u8; HEADER], rest: &[&[u8]]) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
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
}

/// A saved index, mapped.
#[derive(Debug)]
pub struct SavedIndex {
    map: memmap2::Mmap,
    index: usize,
    buckets: usize,
}

impl SavedIndex {
    /// The bytes of the index file.
    #[must_use]
    pub fn index(&self) -> &[u8] {
        &self.map[HEADER..HEADER + self.index]
    }
    /// The bytes of the buckets.
    #[must_use]
    pub fn buckets(&self) -> &[u8] {
        &self.map[HEADER + self.index..HEADER + self.index + self.buckets]
    }
}

/// Writes an index to `path`, beside it first, synced, then renamed.
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
        let mut f = std::fs::File::create(&tmp)?;
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

/// Maps a saved index and verifies its checksum.
///
/// # Errors
/// [`SavedError::Format`] when it is not what was saved.
pub fn load(path: &Path) -> Result<SavedIndex, SavedError> {
    let io = |source| SavedError::Io { path: path.to_owned(), source };
    let bad = |why| SavedError::Format { path: path.to_owned(), why };
    let file = std::fs::File::open(path).map_err(io)?;
    let map = crate::shm::map_private(&file).map_err(io)?;
    let head: &[u8; HEADER] = map.first_chunk().ok_or_else(|| bad("the file is too short"))?;
    let u64_at = |at: usize| head[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    if head[..8] != MAGIC {
        return Err(bad("this is not a saved index"));
    }
    if u64_at(8) as u32 != VERSION {
        return Err(bad("it was written by another version of Monarch"));
    }
    let (index, buckets) = (u64_at(16) as usize, u64_at(24) as usize);
    if HEADER.checked_add(index).and_then(|n| n.checked_add(buckets)) != Some(map.len()) {
        return Err(bad("the file was cut short"));
    }
    if checksum(head, &[&map[HEADER..]]) != u64_at(SUM) {
        return Err(bad("its checksum does not match"));
    }
    let saved = SavedIndex { map, index, buckets };
    match crate::shm::IndexBytes(saved.index()).open() {
        Some(i) if i.header.buckets.checked_mul(size_of::<Bucket>() as u64) == Some(buckets as u64) && i.is_sound() => {
            Ok(saved)
        }
        _ => Err(bad("its index does not make sense")),
    }
}
