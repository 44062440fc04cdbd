//! One file in the ring: which calls it needs next, and what their answers mean.
//!
//! Open, reads, stat of the open file, close. The reads of a large file are several at a time;
//! their bytes are hashed and written in order, so that a piece that arrives early waits in its
//! buffer. A short read is read on from where it ended.

use super::buffer::Buffer;
use super::ring::Op;
use crate::engine::pfs::PfsFile;
use crate::engine::{Copied, CopyError, SourceFile, TRIES, Task};
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

/// A piece that has been read: where it should end, how many bytes there are.
struct Piece {
    end: u64,
    got: usize,
    buffer: Buffer,
}

/// See the module.
pub(super) struct Slot<'w> {
    pub(super) task: Box<dyn Task + 'w>,
    /// When its open began.
    pub(super) opening: Instant,
    /// Whether the page cache is to be left out.
    pub(super) direct: bool,
    pub(super) file: Option<Arc<OwnedFd>>,
    /// Calls wanted or under way.
    pub(super) calls: usize,
    pub(super) failed: Option<CopyError>,
    /// What was copied, when everything was; what is under way then is a stat that was cancelled.
    pub(super) whole: Option<Copied>,
    /// Whether its source answers at once what is in the cache.
    pub(super) may_block: bool,
    /// Next byte to be asked for, and next byte to be written.
    asked: u64,
    written: u64,
    early: BTreeMap<u64, Piece>,
    /// Emptied buffers, for the worker to take back.
    pub(super) emptied: Vec<Buffer>,
    hash: Xxh3,
    tries: u32,
}

impl<'w> Slot<'w> {
    pub(super) fn new(task: Box<dyn Task + 'w>, direct: bool, may_block: bool) -> Self {
        let (start, file) = (task.range().start, task.file().and_then(|f| f.fd()));
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
            hash: Xxh3::new(),
            tries: 0,
        }
    }

    /// Notes a failure, the first of which is the file's.
    pub(super) fn fail(&mut self, e: CopyError) {
        self.failed.get_or_insert(e);
        let early = std::mem::take(&mut self.early);
        self.emptied.extend(early.into_values().map(|piece| piece.buffer));
    }

    /// The file is open.
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

    /// Whether a read that ends at `end` is the last call before the stat, which can be linked to
    /// it then. Unbuffered reads are of whole pages: at the end of a file they are short.
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

    /// The reads to be begun so that `window` pieces of `io_size` are on their way.
    pub(super) fn ahead(&mut self, window: usize, io_size: u64) -> Vec<Want> {
        let (whole, mut wants) = (self.task.range().end, Vec::new());
        while self.asked < whole && self.calls + wants.len() + self.early.len() < window {
            let end = whole.min(self.asked + io_size);
            wants.push(Want::Read(self.asked, end, None));
            self.asked = end;
        }
        wants
    }

    /// A piece has arrived: `got` of the bytes from `off` to `end`. The call that reads on, if it
    /// has to be.
    pub(super) fn arrived(
        &mut self,
        off: u64,
        end: u64,
        got: usize,
        buffer: Buffer,
    ) -> Result<Option<Want>, CopyError> {
        // Whole pages were asked for: the file may have grown.
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
        let Piece { end, got, buffer } = piece;
        if got == 0 {
            self.emptied.push(buffer);
            return Err(CopyError::Changed);
        }
        let bytes = buffer.bytes().get(..got).unwrap_or(&[]);
        let wrote = self.task.sink().write_at(bytes, self.written);
        if let Err(e) = wrote {
            self.emptied.push(buffer);
            return Err(CopyError::Sink(e));
        }
        self.hash.update(bytes);
        self.written += got as u64;
        if self.written == end {
            self.emptied.push(buffer);
            return Ok(None);
        }
        self.buffered();
        Ok(Some(Want::Read(self.written, end, Some(buffer))))
    }

    /// The call that repeats a call that was interrupted, not ready, or refused because it bypassed
    /// the page cache; otherwise the failure.
    pub(super) fn once_more(&mut self, op: Op, errno: i32) -> Result<Want, CopyError> {
        let no_direct = errno == libc::EINVAL && self.direct;
        let passing = matches!(errno, libc::EINTR | libc::EAGAIN | libc::ECANCELED) && self.tries < TRIES;
        if no_direct {
            self.buffered();
        } else if passing {
            self.tries += 1;
            // Also asked not to block, it did not know how.
            self.may_block = true;
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

    /// After a short read there is no telling where a page begins: the rest goes through the page
    /// cache.
    fn buffered(&mut self) {
        if let Some(file) = self.file.as_ref().filter(|_| self.direct) {
            let _ = rustix::fs::fcntl_getfl(file).and_then(|f| rustix::fs::fcntl_setfl(file, f - OFlags::DIRECT));
        }
        self.direct = false;
    }

    /// What was copied, by this identity if it was asked for.
    pub(super) fn copied(&self, st: Option<&libc::statx>) -> Copied {
        let ns = |t: libc::statx_timestamp| t.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(t.tv_nsec));
        let identity = st.map(|st| {
            let (mtime_ns, ctime_ns) = (ns(st.stx_mtime), ns(st.stx_ctime));
            Identity { size: st.stx_size, mtime_ns, ctime_ns, ino: st.stx_ino }
        });
        Copied { bytes: self.written - self.task.range().start, checksum: self.hash.digest(), identity }
    }

    /// Ends the copy: the file, which is to be closed, and the slot once more if the task has
    /// another sink.
    pub(super) fn end(mut self, end: Result<Copied, CopyError>) -> (Option<OwnedFd>, Option<Self>) {
        let file = self.file.take().and_then(Arc::into_inner);
        let (direct, may_block) = (self.direct, self.may_block);
        let again = self.task.done(end);
        (file, again.then(|| Self::new(self.task, direct, may_block)))
    }
}
