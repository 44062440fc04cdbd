//! One file in the ring: the calls that it needs next, and what their answers mean.
//!
//! Open, reads, stat of the open file, close. A large file has several reads at a time. Bytes are
//! hashed and written in order, so a piece that arrives early waits in its buffer; those that the
//! kernel has read into the sink's memory are written. A short read is continued from where it
//! ended.

use super::buffer::{Buffer, PAGE};
use super::ring::Op;
use crate::engine::pfs::PfsFile;
use crate::engine::{Copied, CopyError, MAX_RETRIES, SourceFile, Task};
use monarch_abi::hash::Identity;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use xxhash_rust::xxh3::Xxh3;

/// A call that a slot needs.
pub(super) enum Want {
    Open,
    /// The bytes from here to there, into a buffer if it has one already.
    Read(u64, u64, Option<Buffer>),
    Stat,
}

/// A piece that has been read: the offset where it should end, and the bytes that were read.
struct Piece {
    end: u64,
    got: usize,
    buffer: Buffer,
}

/// A file in the ring. Fields: 14, because the operations of a file in flight share what the ring
/// knows of it.
pub(super) struct Slot<'w> {
    pub(super) task: Box<dyn Task + 'w>,
    /// When its open began.
    pub(super) opening: Instant,
    /// Whether it is read past the page cache.
    pub(super) direct: bool,
    pub(super) file: Option<Arc<OwnedFd>>,
    /// Calls wanted or under way.
    pub(super) calls: usize,
    pub(super) failed: Option<CopyError>,
    /// The result, once all is copied. A call that is still under way then is a stat that was
    /// cancelled.
    pub(super) whole: Option<Copied>,
    /// Whether its calls may block the submitting thread, so that a worker has to make them.
    pub(super) may_block: bool,
    /// Offset up to which reads were asked for.
    asked: u64,
    /// Offset up to which bytes were written.
    written: u64,
    /// Pieces that arrived before those in front of them, by offset.
    early: BTreeMap<u64, Piece>,
    /// Emptied buffers, for the worker to take back.
    pub(super) emptied: Vec<Buffer>,
    /// Of the bytes in front of `written`, if the task is summed.
    hash: Option<Xxh3>,
    tries: u32,
}

impl<'w> Slot<'w> {
    pub(super) fn new(task: Box<dyn Task + 'w>, direct: bool, may_block: bool) -> Self {
        let (start, file) = (task.range().start, task.file().and_then(|f| f.fd()));
        let is_summed = task.is_summed();
        Self {
            task,
            opening: Instant::now(),
            direct,
            file,
            calls: 0,
            failed: None,
            whole: None,
            may_block,
            asked: start,
            written: start,
            early: BTreeMap::new(),
            emptied: Vec::new(),
            hash: is_summed.then(Xxh3::new),
            tries: 0,
        }
    }

    /// Notes a failure; the first one is that of the copy.
    pub(super) fn fail(&mut self, e: CopyError) {
        self.failed.get_or_insert(e);
        let early = std::mem::take(&mut self.early);
        self.emptied.extend(early.into_values().map(|piece| piece.buffer));
    }

    /// Notes that the file is open.
    ///
    /// # Errors
    /// It is not a regular file.
    pub(super) fn opened(&mut self, file: OwnedFd) -> io::Result<()> {
        let regular = crate::engine::pfs::check_regular(&file);
        let file = Arc::new(file);
        self.file = Some(file.clone());
        regular?;
        let took = self.opening.elapsed();
        let file: Arc<dyn SourceFile> = Arc::new(PfsFile(file));
        self.task.opened(&file, took);
        Ok(())
    }

    /// Whether a read that ends at `end` is the last call before the stat, so that the stat can be
    /// linked to it. Unbuffered reads are of whole pages, so they are short at the end of a file.
    pub(super) fn ends_with(&self, off: u64, end: u64) -> bool {
        self.task.is_whole_file()
            && !self.direct
            && self.calls == 1
            && off == self.written
            && end == self.task.range().end
    }

    /// Whether all bytes are written.
    pub(super) fn is_whole(&self) -> bool {
        self.written == self.task.range().end
    }

    /// The reads to begin, so that `window` pieces of `io_size` bytes are under way.
    pub(super) fn ahead(&mut self, window: usize, io_size: u64) -> Vec<Want> {
        let (whole, mut wants) = (self.task.range().end, Vec::new());
        while self.asked < whole && self.calls + wants.len() + self.early.len() < window {
            let end = whole.min(self.asked + io_size);
            wants.push(Want::Read(self.asked, end, None));
            self.asked = end;
        }
        wants
    }

    /// The sink's memory for a piece, if it may be read straight into that.
    pub(super) fn memory(&self, off: u64, end: u64) -> Option<Buffer> {
        let is_last = end == self.task.range().end;
        // Past the page cache the last page is read as a whole.
        let to = if is_last { end.next_multiple_of(PAGE as u64) } else { end };
        if self.hash.is_none() { self.task.sink().memory(off..to).map(Buffer::Sink) } else { None }
    }

    /// Notes a piece that has arrived: `got` of the bytes from `off` to `end`. The call that reads
    /// the rest of a piece, if one was short.
    ///
    /// # Errors
    /// The file ended too early, or the sink failed.
    pub(super) fn arrived(
        &mut self,
        off: u64,
        end: u64,
        got: usize,
        buffer: Buffer,
    ) -> Result<Option<Want>, CopyError> {
        // The read was of whole pages: the file may have grown.
        let got = got.min(usize::try_from(end - off).unwrap_or(usize::MAX));
        self.early.insert(off, Piece { end, got, buffer });
        while let Some(piece) = self.early.remove(&self.written) {
            if let Some(want) = self.write(piece)? {
                return Ok(Some(want));
            }
        }
        Ok(None)
    }

    fn write(&mut self, piece: Piece) -> Result<Option<Want>, CopyError> {
        let Piece { end, got, mut buffer } = piece;
        if got == 0 {
            self.emptied.push(buffer);
            return Err(CopyError::Changed);
        }
        match &mut buffer {
            Buffer::Ring(pages) => {
                let bytes = pages.bytes().get(..got).unwrap_or(&[]);
                let wrote = self.task.sink().write_at(bytes, self.written);
                if let Err(e) = wrote {
                    self.emptied.push(buffer);
                    return Err(CopyError::Sink(e));
                }
                if let Some(hash) = &mut self.hash {
                    hash.update(bytes);
                }
            }
            Buffer::Sink(memory) => memory.skip(got),
        }
        self.written += got as u64;
        if self.written == end {
            self.emptied.push(buffer);
            return Ok(None);
        }
        self.buffered();
        Ok(Some(Want::Read(self.written, end, Some(buffer))))
    }

    /// The call that repeats a failed one: one that was interrupted, was not ready, or was refused
    /// because it bypassed the page cache.
    ///
    /// # Errors
    /// The failure, if it was another one, or there were [`MAX_RETRIES`]. Where the sink's memory
    /// is not there, the copy is to be tried again, through buffers.
    pub(super) fn once_more(&mut self, op: Op, errno: i32) -> Result<Want, CopyError> {
        let no_direct = errno == libc::EINVAL && self.direct;
        let passing = matches!(errno, libc::EINTR | libc::EAGAIN | libc::ECANCELED) && self.tries < MAX_RETRIES;
        if no_direct {
            self.buffered();
        } else if passing {
            self.tries += 1;
            // (EAGAIN: this file cannot be read without blocking, so a worker makes its calls.)
            self.may_block = true;
        }
        if errno == libc::EFAULT && matches!(op, Op::Read { buffer: Buffer::Sink(_), .. }) {
            self.task.sink().forgo_memory();
        }
        let again = no_direct || passing;
        let want = match op {
            Op::Read { buffer, .. } if !again => {
                self.emptied.push(buffer);
                None
            }
            Op::Read { buffer, off, len, .. } => Some(Want::Read(off, off + len as u64, Some(buffer))),
            Op::Open { .. } => Some(Want::Open),
            Op::Stat { .. } | Op::Close(_) => Some(Want::Stat),
        };
        want.filter(|_| again).ok_or_else(|| CopyError::Source(io::Error::from_raw_os_error(errno)))
    }

    /// Reads the rest through the page cache: after a short read the offset is no multiple of a
    /// page.
    fn buffered(&mut self) {
        if let Some(file) = self.file.as_ref().filter(|_| self.direct) {
            let _ = rustix::fs::fcntl_getfl(file).and_then(|f| rustix::fs::fcntl_setfl(file, f - OFlags::DIRECT));
        }
        self.direct = false;
    }

    /// The result of the copy, with the identity from a stat, if there was one.
    pub(super) fn copied(&self, st: Option<&libc::statx>) -> Copied {
        let ns = |t: libc::statx_timestamp| t.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(t.tv_nsec));
        let identity = st.map(|st| {
            let (mtime_ns, ctime_ns) = (ns(st.stx_mtime), ns(st.stx_ctime));
            Identity { size: st.stx_size, mtime_ns, ctime_ns, ino: st.stx_ino }
        });
        Copied {
            bytes: self.written - self.task.range().start,
            checksum: self.hash.as_ref().map(Xxh3::digest),
            identity,
        }
    }

    /// Ends the copy: the file, for the worker to close, and a new slot if the task has another
    /// sink.
    pub(super) fn end(mut self, end: Result<Copied, CopyError>) -> (Option<OwnedFd>, Option<Self>) {
        let file = self.file.take().and_then(Arc::into_inner);
        let (direct, may_block) = (self.direct, self.may_block);
        let again = self.task.done(end);
        (file, again.then(|| Self::new(self.task, direct, may_block)))
    }
}
