//! Heads and bodies on their way out, in few system calls.
//!
//! A head goes out with the first bytes of its body: in one call for bytes in memory, marked
//! `MSG_MORE` for a file, whose pages `sendfile` hands to the socket without copying them. With TLS
//! head and body are encrypted piece by piece, and a piece is sent before the next one is
//! encrypted. The time limit is on progress: it starts again after each piece that the socket
//! takes.

use super::answer::Body;
use super::file_pieces::{FilePieces, MAX_PIECE_BYTES, Rooms};
use super::pace::Pace;
use super::stream::Stream;
use super::tls_end::TlsEnd;
use rustix::fd::OwnedFd;
use rustix::net::SendFlags;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Most bytes of a file in one call, so that one connection does not keep a thread for long.
const MAX_SENDFILE_BYTES: u64 = 2 << 20;

/// A connection with its time limit.
pub(super) struct Out<'a> {
    pub(super) stream: &'a mut Stream,
    pub(super) timeout: Duration,
    /// Where pieces of files are read to, to be encrypted.
    pub(super) rooms: &'a Rooms,
}

impl Out<'_> {
    /// Sends all of `bytes`; `more` says that something follows at once.
    pub(super) async fn bytes(&mut self, bytes: &[u8], more: bool) -> io::Result<()> {
        match self.stream {
            Stream::Plain(socket) => send(socket, bytes, more, self.timeout).await,
            Stream::Tls(end) => encrypt(end, bytes, more, self.timeout).await,
        }
    }

    /// Sends a head and its body; the first slice of it must have been waited for by
    /// [`Pace::wait`].
    pub(super) async fn answer(&mut self, head: &[u8], body: &Body, pace: &Pace) -> io::Result<()> {
        match body {
            Body::None => self.bytes(head, false).await,
            Body::Bytes(bytes) => self.memory(head, bytes, pace).await,
            Body::Shared(bytes, part) => self.memory(head, bytes.get(part.clone()).unwrap_or_default(), pace).await,
            Body::File { fd, off, len } => {
                self.bytes(head, *len > 0).await?;
                self.file(fd, *off, *len, pace).await
            }
            Body::Files { front, files } => {
                self.bytes(head, true).await?;
                let paid = body.len().min(pace.slice());
                self.files(front, files, pace, paid).await
            }
        }
    }

    /// Sends bytes and whole files in as few packets as they fit into; `paid` bytes of all were
    /// waited for.
    async fn files(&mut self, front: &[u8], files: &[(Arc<OwnedFd>, u64)], pace: &Pace, paid: u64) -> io::Result<()> {
        cork(self.stream, true);
        let all = self.each_file(front, files, pace, paid).await;
        cork(self.stream, false);
        all
    }

    async fn each_file(
        &mut self,
        front: &[u8],
        files: &[(Arc<OwnedFd>, u64)],
        pace: &Pace,
        mut paid: u64,
    ) -> io::Result<()> {
        let mut sent = front.len() as u64;
        self.bytes(front, !files.is_empty()).await?;
        let mut unsent = front.len();
        for (at, (fd, len)) in files.iter().enumerate() {
            sent += len;
            while sent > paid {
                let more = (sent - paid).min(pace.slice());
                pace.wait(more).await;
                paid += more;
            }
            let is_last = at + 1 == files.len();
            match &mut *self.stream {
                Stream::Plain(socket) => send_file(socket, fd, 0..*len, self.timeout).await?,
                Stream::Tls(_) => self.encrypt_whole(fd, *len, is_last, &mut unsent).await?,
            }
        }
        Ok(())
    }

    /// Encrypts a file behind `unsent` bytes that were encrypted and not sent, and sends them once
    /// they are many, or at the end of the last file.
    async fn encrypt_whole(
        &mut self,
        fd: &Arc<OwnedFd>,
        len: u64,
        is_last: bool,
        unsent: &mut usize,
    ) -> io::Result<()> {
        let mut pieces = FilePieces::new(Arc::clone(fd), self.rooms);
        let mut at = 0;
        while at < len {
            let piece = pieces.read(at, len - at).await?;
            at += piece.len() as u64;
            *unsent += piece.len();
            let waits = *unsent < MAX_PIECE_BYTES && !(is_last && at == len);
            self.bytes(piece, waits).await?;
            if !waits {
                *unsent = 0;
            }
        }
        Ok(())
    }

    async fn memory(&mut self, head: &[u8], bytes: &[u8], pace: &Pace) -> io::Result<()> {
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

    async fn file(&mut self, fd: &Arc<OwnedFd>, off: u64, len: u64, pace: &Pace) -> io::Result<()> {
        let end = off.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        let (mut at, slice) = (off, pace.slice());
        let mut pieces = match self.stream {
            Stream::Plain(_) => None,
            Stream::Tls(_) => Some(FilePieces::new(Arc::clone(fd), self.rooms)),
        };
        while at < end {
            let stop = end.min(at.saturating_add(slice));
            if at > off {
                pace.wait(stop - at).await;
            }
            match (&mut *self.stream, &mut pieces) {
                (Stream::Plain(socket), _) => send_file(socket, fd, at..stop, self.timeout).await?,
                (Stream::Tls(_), Some(pieces)) => self.encrypt_file(pieces, at, stop).await?,
                (Stream::Tls(_), None) => return Err(io::ErrorKind::InvalidInput.into()),
            }
            at = stop;
        }
        Ok(())
    }

    async fn encrypt_file(&mut self, pieces: &mut FilePieces<'_>, mut at: u64, stop: u64) -> io::Result<()> {
        while at < stop {
            let piece = pieces.read(at, stop - at).await?;
            at += piece.len() as u64;
            self.bytes(piece, false).await?;
        }
        Ok(())
    }
}

/// Has the kernel put what is sent into full packets, or send the last one: calls that send files
/// cannot say that more follows. A packet waits for 200 ms at most.
fn cork(stream: &Stream, on: bool) {
    // With TLS, records are put together before they are sent.
    if let Stream::Plain(socket) = stream {
        let _ = rustix::net::sockopt::set_tcp_cork(socket, on);
    }
}

/// One attempt at a time, each when the socket has room.
async fn when_ready<R>(socket: &TcpStream, limit: Duration, attempt: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    in_time(limit, socket.async_io(Interest::WRITABLE, attempt)).await
}

async fn in_time<R>(limit: Duration, sent: impl Future<Output = io::Result<R>>) -> io::Result<R> {
    timeout(limit, sent).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Sends all of `bytes` as they are.
async fn send(socket: &TcpStream, mut bytes: &[u8], more: bool, limit: Duration) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    while !bytes.is_empty() {
        let sent = when_ready(socket, limit, || Ok(rustix::net::send(socket, bytes, flags)?)).await?;
        bytes = bytes.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Sends a part of a file without copying it.
async fn send_file(socket: &TcpStream, fd: &OwnedFd, part: std::ops::Range<u64>, limit: Duration) -> io::Result<()> {
    let mut at = part.start;
    while at < part.end {
        let count = (part.end - at).min(MAX_SENDFILE_BYTES) as usize;
        let mut from = at;
        let sent = when_ready(socket, limit, || Ok(rustix::fs::sendfile(socket, fd, Some(&mut from), count)?)).await?;
        if sent == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was"));
        }
        at += sent as u64;
    }
    Ok(())
}

/// Encrypts and sends `bytes`. Those that have `more` to follow wait for it, as they are few.
async fn encrypt(end: &mut TlsEnd, bytes: &[u8], more: bool, limit: Duration) -> io::Result<()> {
    for piece in bytes.chunks(MAX_PIECE_BYTES) {
        end.queue(piece)?;
        while !more && end.has_unsent() {
            in_time(limit, end.send_some()).await?;
        }
    }
    Ok(())
}
