//! Heads and bodies on their way out, in few system calls.
//!
//! A head goes out with the first bytes of its body: in one call for bytes in memory, marked
//! `MSG_MORE` for a file, whose pages `sendfile` hands to the socket without copying them. The time
//! limit is on progress: it starts again after each piece that the socket takes.

use super::answer::Body;
use super::pace::Pace;
use rustix::net::SendFlags;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Most bytes of a file in one call, so that one connection does not keep a thread for long.
const MAX_SENDFILE_BYTES: u64 = 2 << 20;

/// A socket with its time limit.
pub(super) struct Out<'a> {
    pub(super) stream: &'a TcpStream,
    pub(super) timeout: Duration,
}

impl Out<'_> {
    /// One attempt at a time, each when the socket has room.
    async fn when_ready<R>(&self, attempt: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        let ready = self.stream.async_io(Interest::WRITABLE, attempt);
        tokio::time::timeout(self.timeout, ready).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Sends all of `bytes`; `more` says that something follows at once.
    pub(super) async fn bytes(&self, mut bytes: &[u8], more: bool) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
        while !bytes.is_empty() {
            let sent = self.when_ready(|| Ok(rustix::net::send(self.stream, bytes, flags)?)).await?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sends a head and its body; the first slice of it must have been waited for by
    /// [`Pace::wait`].
    pub(super) async fn answer(&self, head: &[u8], body: &Body, pace: &Pace) -> io::Result<()> {
        match body {
            Body::None => self.bytes(head, false).await,
            Body::Bytes(bytes) => self.memory(head, bytes, pace).await,
            Body::Shared(bytes, part) => self.memory(head, bytes.get(part.clone()).unwrap_or_default(), pace).await,
            Body::File { fd, off, len } => {
                self.bytes(head, *len > 0).await?;
                self.file(std::os::fd::AsFd::as_fd(fd), *off, *len, pace).await
            }
        }
    }

    async fn memory(&self, head: &[u8], bytes: &[u8], pace: &Pace) -> io::Result<()> {
        self.bytes(head, !bytes.is_empty()).await?;
        let slice = usize::try_from(pace.slice()).unwrap_or(usize::MAX);
        for (turn, part) in bytes.chunks(slice.max(1)).enumerate() {
            if turn > 0 {
                pace.wait(part.len() as u64).await;
            }
            self.bytes(part, false).await?;
        }
        Ok(())
    }

    async fn file(&self, fd: BorrowedFd<'_>, off: u64, len: u64, pace: &Pace) -> io::Result<()> {
        let end = off.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        let (mut at, slice) = (off, pace.slice());
        while at < end {
            let stop = end.min(at.saturating_add(slice));
            if at > off {
                pace.wait(stop - at).await;
            }
            at = self.piece(fd, at, stop).await?;
        }
        Ok(())
    }

    /// Sends a file from `at` to `stop`, which it returns.
    async fn piece(&self, fd: BorrowedFd<'_>, mut at: u64, stop: u64) -> io::Result<u64> {
        while at < stop {
            let count = (stop - at).min(MAX_SENDFILE_BYTES) as usize;
            let mut from = at;
            let sent = self.when_ready(|| Ok(rustix::fs::sendfile(self.stream, fd, Some(&mut from), count)?)).await?;
            if sent == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was"));
            }
            at += sent as u64;
        }
        Ok(stop)
    }
}
