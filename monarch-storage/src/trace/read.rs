//! Reads a trace.

use super::varint::Bytes;
use super::{
    BLOCK, BLOCK_LEN, HEADER_LEN, LAST, LOST_ACCESSES, MAGIC, MAX_BLOCK_BYTES, TICK, TraceError, TraceFile,
    TraceHeader, VERSION,
};
use monarch_policies::{Access, FileKey, Served};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// How a trace ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was not read to its end yet.
    Open,
    /// Completely.
    Whole,
    /// Behind a block: its agent was killed, or still writes.
    Unfinished,
    /// Within a block, which was left out.
    Torn,
    /// With a block that is damaged, or an error of the disk; what follows is left out.
    Damaged,
}

/// An iterator of the accesses of a trace. The file of an access is its position in
/// [`TraceReader::files`].
#[derive(Debug)]
pub struct TraceReader<R = BufReader<File>> {
    from: R,
    header: TraceHeader,
    files: Vec<TraceFile>,
    lost: u64,
    end: End,
    /// The items of the present block that are still to be returned, in reverse.
    ready: Vec<Item>,
}

#[derive(Debug)]
enum Item {
    Access(Access, Option<TraceFile>),
    Lost(u64),
}

impl TraceReader {
    /// Opens a trace.
    ///
    /// # Errors
    /// When it cannot be read, or is no trace of this version.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(TraceError::io(path))?;
        Self::new(BufReader::with_capacity(1 << 20, file), path)
    }
}

impl<R: Read> TraceReader<R> {
    /// Reads a trace from anywhere; the path is for messages.
    ///
    /// # Errors
    /// When it cannot be read, or is no trace of this version.
    pub fn new(mut from: R, path: &Path) -> Result<Self, TraceError> {
        let other = |why| TraceError::Other { path: path.to_owned(), why };
        let head = take(&mut from, HEADER_LEN).map_err(TraceError::io(path))?;
        let not = "its first bytes are not those of a trace";
        let (magic, rest) = head.split_at_checked(MAGIC.len()).ok_or_else(|| other(not))?;
        if magic != MAGIC {
            return Err(other(not));
        }
        let short = "its header was cut short";
        let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(|| other(short))?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(other("it was written by another version of Monarch"));
        }
        let (len, sum) = lengths(rest).ok_or_else(|| other(short))?;
        let fields = take(&mut from, len).map_err(TraceError::io(path))?;
        if fields.len() < len {
            return Err(other(short));
        }
        let header = if xxh3_64(&fields) == sum { header(&fields) } else { None };
        let header = header.ok_or_else(|| other("its header is damaged"))?;
        Ok(Self { from, header, files: Vec::new(), lost: 0, end: End::Open, ready: Vec::new() })
    }

    /// Returns where and when the trace was recorded.
    #[must_use]
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Returns the files of the accesses so far, in the order of their first access.
    #[must_use]
    pub fn files(&self) -> &[TraceFile] {
        &self.files
    }

    /// Returns the file of an access.
    #[must_use]
    pub fn file(&self, key: FileKey) -> Option<&TraceFile> {
        self.files.get(usize::try_from(key.0).ok()?)
    }

    /// Returns the path of a file, with its root where that is known.
    #[must_use]
    pub fn path(&self, file: &TraceFile) -> PathBuf {
        let path = PathBuf::from(OsString::from_vec(file.path.clone()));
        self.header.roots.get(file.root as usize).map_or(path.clone(), |root| root.join(path))
    }

    /// Returns the number of missing accesses so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns how the trace ends.
    #[must_use]
    pub fn end(&self) -> End {
        self.end
    }

    /// Decodes the next block.
    ///
    /// # Errors
    /// How the trace ends, at its end.
    fn block(&mut self) -> Result<(), End> {
        let head = take(&mut self.from, BLOCK_LEN).map_err(|_| End::Damaged)?;
        if head.is_empty() {
            return Err(End::Unfinished);
        }
        let (mark, rest) = head.split_at_checked(BLOCK.len()).ok_or(End::Torn)?;
        let (len, sum) = lengths(rest).ok_or(End::Torn)?;
        if (mark != BLOCK && mark != LAST) || len > MAX_BLOCK_BYTES {
            return Err(End::Damaged);
        }
        let items = take(&mut self.from, len).map_err(|_| End::Damaged)?;
        if items.len() < len {
            return Err(End::Torn);
        }
        if xxh3_64(&items) != sum {
            return Err(End::Damaged);
        }
        if mark == LAST {
            return Err(End::Whole);
        }
        let decoded = Decoder { bytes: Bytes(&items), files: self.files.len() as u64, file: 0, time: 0, path: &[] };
        self.ready = decoded.all().ok_or(End::Damaged)?;
        self.ready.reverse();
        Ok(())
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        loop {
            match self.ready.pop() {
                Some(Item::Lost(count)) => self.lost = self.lost.saturating_add(count),
                Some(Item::Access(access, None)) => {
                    let size = self.files.get(access.file.0 as usize).map_or(0, |f| f.size);
                    return Some(Access { size, ..access });
                }
                Some(Item::Access(access, Some(file))) => {
                    match self.files.get_mut(access.file.0 as usize) {
                        Some(known) => known.size = file.size,
                        None => self.files.push(file),
                    }
                    return Some(access);
                }
                None if self.end != End::Open => return None,
                None => {
                    if let Err(end) = self.block() {
                        self.end = end;
                    }
                }
            }
        }
    }
}

/// The items of a block.
struct Decoder<'a> {
    bytes: Bytes<'a>,
    /// Files known so far.
    files: u64,
    file: u64,
    time: u64,
    path: &'a [u8],
}

impl Decoder<'_> {
    /// Decodes all items; `None` when the block is malformed.
    fn all(mut self) -> Option<Vec<Item>> {
        let mut items = Vec::new();
        let mut path = self.path.to_vec();
        while !self.bytes.0.is_empty() {
            items.push(self.item(&mut path)?);
        }
        Some(items)
    }

    fn item(&mut self, path: &mut Vec<u8>) -> Option<Item> {
        let head = self.bytes.take()?;
        let served = match head & 3 {
            LOST_ACCESSES => return Some(Item::Lost(self.bytes.take()?)),
            0 => Served::Tier,
            1 => Served::Waited,
            _ => Served::Pfs,
        };
        self.file = self.bytes.take_delta(self.file)?;
        self.time = self.bytes.take_delta(self.time)?;
        let is_new = self.file == self.files;
        if self.file > self.files || is_new && head & 4 == 0 {
            return None;
        }
        let file = if head & 4 == 0 { None } else { Some(self.described(is_new, path)?) };
        let access = Access {
            file: FileKey(self.file),
            size: file.as_ref().map_or(0, |f| f.size),
            at: since(self.time),
            stream: u16::try_from(head >> 3).ok()?,
            served,
        };
        Some(Item::Access(access, file))
    }

    fn described(&mut self, is_new: bool, path: &mut Vec<u8>) -> Option<TraceFile> {
        if !is_new {
            return Some(TraceFile { size: self.bytes.take()?, ..TraceFile::default() });
        }
        let root = u32::try_from(self.bytes.take()?).ok()?;
        let size = self.bytes.take()?;
        let same = usize::try_from(self.bytes.take()?).ok()?;
        if same > path.len() {
            return None;
        }
        path.truncate(same);
        path.extend_from_slice(self.bytes.take_text()?);
        // (Common prefixes expand a few bytes to long paths: hence a bound.)
        if path.len() > 4096 {
            return None;
        }
        self.files += 1;
        Some(TraceFile { root, path: path.clone(), size })
    }
}

fn since(ticks: u64) -> Duration {
    let per_second = (1_000_000 / TICK.as_micros()) as u64;
    Duration::from_secs(ticks / per_second) + TICK * (ticks % per_second) as u32
}

fn header(fields: &[u8]) -> Option<TraceHeader> {
    let mut b = Bytes(fields);
    let created_ms = b.take()?;
    let host = String::from_utf8_lossy(b.take_text()?).into_owned();
    let policy = String::from_utf8_lossy(b.take_text()?).into_owned();
    let capacity = b.take()?;
    let mut roots = Vec::new();
    for _ in 0..b.take()? {
        roots.push(OsString::from_vec(b.take_text()?.to_vec()).into());
    }
    Some(TraceHeader { created_ms, host, policy, capacity, roots })
}

/// Reads a length and a checksum.
fn lengths(bytes: &[u8]) -> Option<(usize, u64)> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let sum = rest.first_chunk::<8>()?;
    Some((u32::from_le_bytes(*len) as usize, u64::from_le_bytes(*sum)))
}

/// Reads `len` bytes, or as many as there are.
fn take(from: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(len as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
