//! Writes a trace.

use super::sink::{Behind, Direct, Sink};
use super::varint::{put, put_delta, put_text};
use super::{BLOCK, LAST, LOST_ACCESSES, MAGIC, MAX_BLOCK_BYTES, TICK, TraceError, TraceHeader, VERSION};
use monarch_policies::{Access, FileKey, PerFile, Served};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// A block is written when it has this number of bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// Longest path that is kept, in bytes: the limit of Linux.
const MAX_PATH_BYTES: usize = 4096;

/// Most blocks that wait for the thread that writes them.
const MAX_QUEUED_BLOCKS: usize = 64;
/// How long a file may take to be made, and to be written to its end. Less than clients wait for an
/// answer of the agent.
const FILE_TIMEOUT: Duration = Duration::from_secs(25);
/// How long the file may take to be written to its end when the writer is dropped.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes a trace. It keeps 4 to 12 bytes a file and a block of 64 KiB. Accesses reach the file
/// when the block is full, at [`TraceWriter::flush`], and when the writer is dropped.
///
/// A writer made by [`TraceWriter::behind`] leaves the writing to a thread and never waits for it:
/// blocks for which there is no space are lost, and counted ([`TraceWriter::dropped`]).
///
/// After an error nothing more is written; the file up to there can be read.
#[derive(Debug)]
pub struct TraceWriter {
    to: Box<dyn Sink>,
    path: PathBuf,
    /// Number in the trace of each file, from 1, and its size.
    numbers: PerFile,
    sizes: Vec<u64>,
    block: Vec<u8>,
    /// Length at which the block is written.
    full: usize,
    before: Before,
    undo: Undo,
    dropped: u64,
    /// Whether nothing more is written: after the end, or after an error.
    over: bool,
}

/// The former item, to which the next item is encoded as a difference.
#[derive(Debug, Default)]
struct Before {
    file: u64,
    time: u64,
    path: Vec<u8>,
}

/// What to undo when the present block is lost: readers will not have it.
#[derive(Debug, Default)]
struct Undo {
    /// Files whose first description is in the block.
    described: Vec<FileKey>,
    /// Positions of other files that are described in the block, with their former sizes.
    resized: Vec<(usize, u64)>,
    /// Accesses in the block.
    accesses: u64,
    /// Lost accesses that the block notes.
    missing: u64,
}

impl TraceWriter {
    /// Begins a trace; a file that is there is replaced.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(path: &Path, header: &TraceHeader) -> Result<Self, TraceError> {
        let to = Direct::create(path, &head(header)).map_err(TraceError::io(path))?;
        Ok(Self::new(path, Box::new(to)))
    }

    /// Begins a trace that a thread writes to `file`, which messages call `path`. When its file
    /// system does not answer, only this call and [`TraceWriter::finish`] wait, for a limited
    /// time.
    ///
    /// # Errors
    /// When it cannot be written, or that takes too long.
    pub fn behind(path: &Path, file: File, header: &TraceHeader) -> Result<Self, TraceError> {
        let open = move || Ok(file);
        let to = Behind::create(open, head(header), MAX_QUEUED_BLOCKS, FILE_TIMEOUT).map_err(TraceError::io(path))?;
        Ok(Self::new(path, Box::new(to)))
    }

    pub(super) fn new(path: &Path, to: Box<dyn Sink>) -> Self {
        Self {
            to,
            path: path.to_owned(),
            numbers: PerFile::default(),
            sizes: Vec::new(),
            block: Vec::with_capacity(BLOCK_BYTES + 2 * MAX_PATH_BYTES),
            full: BLOCK_BYTES,
            before: Before::default(),
            undo: Undo::default(),
            dropped: 0,
            over: false,
        }
    }

    /// Sets another size of blocks.
    #[cfg(test)]
    pub(super) fn with_blocks_of(mut self, full: usize) -> Self {
        self.full = full;
        self
    }

    /// Returns the number of accesses that were lost because the thread did not write in time.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the length of the file in bytes.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.to.written()
    }

    /// Adds an access. Calls `path` for the path relative to the root at the first access to a
    /// file.
    ///
    /// # Errors
    /// When a block cannot be written.
    pub fn add(&mut self, access: &Access, path: impl FnOnce() -> Vec<u8>) -> Result<(), TraceError> {
        let known = self.numbers.get(access.file);
        let number = if known == 0 { self.sizes.len() as u64 } else { u64::from(known) - 1 };
        if number >= u64::from(u32::MAX) {
            return self.lost(1);
        }
        let described = known == 0 || self.sizes[number as usize] != access.size;
        let served = match access.served {
            Served::Tier => 0,
            Served::Waited => 1,
            Served::Pfs => 2,
        };
        let time = u64::try_from(access.at.as_micros() / TICK.as_micros()).unwrap_or(u64::MAX);
        put(&mut self.block, served | u64::from(described) << 2 | u64::from(access.stream) << 3);
        put_delta(&mut self.block, self.before.file, number);
        put_delta(&mut self.block, self.before.time, time);
        self.undo.accesses += 1;
        (self.before.file, self.before.time) = (number, time);
        if known == 0 {
            self.numbers.replace(access.file, number as u32 + 1);
            self.sizes.push(access.size);
            self.undo.described.push(access.file);
            self.describe((access.file.0 >> 32) as u32, access.size, path());
        } else if described {
            let size = std::mem::replace(&mut self.sizes[number as usize], access.size);
            self.undo.resized.push((number as usize, size));
            put(&mut self.block, access.size);
        }
        self.write_when_full()
    }

    /// Forgets the numbers of files: from here on, each file is described again.
    pub fn renumber(&mut self) {
        self.numbers = PerFile::default();
    }

    /// Notes that `count` accesses are missing here.
    ///
    /// # Errors
    /// When a block cannot be written.
    pub fn lost(&mut self, count: u64) -> Result<(), TraceError> {
        self.missing(count);
        self.write_when_full()
    }

    /// Writes the accesses added so far: they survive the end of the process. (Nothing is forced to
    /// the disk.)
    ///
    /// # Errors
    /// When it cannot be written, or a block before could not.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        if self.block.is_empty() {
            let works = self.to.check();
            return self.checked(works);
        }
        // (Where the sink has no space for the block now, a later call writes it.)
        self.write()?;
        Ok(())
    }

    /// Ends the trace, so that readers know that it is complete.
    ///
    /// # Errors
    /// When it cannot be written, or that takes too long.
    pub fn finish(mut self) -> Result<(), TraceError> {
        self.end()
    }

    /// [`TraceWriter::finish`] for a caller that reads the counts afterwards. Nothing may be added
    /// after it.
    ///
    /// # Errors
    /// Those of [`TraceWriter::finish`].
    pub fn end(&mut self) -> Result<(), TraceError> {
        self.end_within(FILE_TIMEOUT, true)
    }

    pub(super) fn end_within(&mut self, limit: Duration, whole: bool) -> Result<(), TraceError> {
        let mut blocks = Vec::new();
        if !self.block.is_empty() {
            blocks.push(block(*BLOCK, &self.block));
        }
        if whole {
            blocks.push(block(*LAST, &[]));
        }
        let done = if self.over { Err(over()) } else { self.to.end(blocks, limit) };
        self.over = true;
        done.map_err(TraceError::io(&self.path))
    }

    fn describe(&mut self, root: u32, size: u64, mut path: Vec<u8>) {
        path.truncate(MAX_PATH_BYTES);
        let same = path.iter().zip(&self.before.path).take_while(|(a, b)| a == b).count();
        put(&mut self.block, u64::from(root));
        put(&mut self.block, size);
        put(&mut self.block, same as u64);
        put_text(&mut self.block, &path[same..]);
        self.before.path = path;
    }

    fn missing(&mut self, count: u64) {
        put(&mut self.block, LOST_ACCESSES);
        put(&mut self.block, count);
        self.undo.missing = self.undo.missing.saturating_add(count);
    }

    fn write_when_full(&mut self) -> Result<(), TraceError> {
        if self.block.len() >= self.full && !self.write()? {
            self.lose_block();
        }
        Ok(())
    }

    /// Writes the block. Returns `false` when the sink has no space for it now.
    fn write(&mut self) -> Result<bool, TraceError> {
        // Readers could read nothing behind half a block.
        let done = if self.over { Err(over()) } else { self.to.put(block(*BLOCK, &self.block)) };
        let taken = self.checked(done)?;
        if taken {
            self.next_block();
        }
        Ok(taken)
    }

    fn checked<T>(&mut self, done: io::Result<T>) -> Result<T, TraceError> {
        self.over |= done.is_err();
        done.map_err(TraceError::io(&self.path))
    }

    fn next_block(&mut self) -> Undo {
        self.block.clear();
        self.before = Before::default();
        std::mem::take(&mut self.undo)
    }

    /// Drops the block, as if its accesses had never been added, and notes their number.
    fn lose_block(&mut self) {
        let undo = self.next_block();
        for (number, size) in undo.resized.into_iter().rev() {
            self.sizes[number] = size;
        }
        self.sizes.truncate(self.sizes.len() - undo.described.len());
        for file in undo.described {
            self.numbers.replace(file, 0);
        }
        self.dropped += undo.accesses;
        self.missing(undo.accesses.saturating_add(undo.missing));
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.end_within(DROP_TIMEOUT, false);
        }
    }
}

fn over() -> io::Error {
    io::Error::other("nothing is written after an error")
}

fn head(header: &TraceHeader) -> Vec<u8> {
    let mut fields = Vec::new();
    put(&mut fields, header.created_ms);
    put_text(&mut fields, header.host.as_bytes());
    put_text(&mut fields, header.policy.as_bytes());
    put(&mut fields, header.capacity);
    put(&mut fields, header.roots.len() as u64);
    for root in &header.roots {
        put_text(&mut fields, root.as_os_str().as_bytes());
    }
    fields.truncate(MAX_BLOCK_BYTES);
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((fields.len() as u32).to_le_bytes());
    out.extend(xxh3_64(&fields).to_le_bytes());
    out.extend(fields);
    out
}

fn block(mark: [u8; 4], items: &[u8]) -> Vec<u8> {
    let mut out = mark.to_vec();
    out.extend((items.len() as u32).to_le_bytes());
    out.extend(xxh3_64(items).to_le_bytes());
    out.extend(items);
    out
}
