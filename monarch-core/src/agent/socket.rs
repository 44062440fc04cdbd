//! The agent's end of a connection: lines of bounded length, each perhaps with a descriptor beside
//! it.

use super::protocol::Reply;
use crate::held_dir::HeldDir;
use rustix::fd::OwnedFd;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixListener;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// Longest request, in bytes. The longest that are sent name some hundred thousand copies or
/// ranges.
pub(super) const LINE_MAX: usize = 32 << 20;
/// Bytes that are taken at a time.
const READ_BYTES: usize = 64 << 10;

/// The lines of a connection.
#[derive(Debug)]
pub(super) struct Lines {
    from: OwnedReadHalf,
    buffer: Vec<u8>,
    /// How much of the buffer is known to hold no end of a line.
    searched: usize,
    fd: Option<OwnedFd>,
}

/// A request as it came.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) text: Vec<u8>,
    /// The descriptor that came with it, or before it.
    pub(super) fd: Option<OwnedFd>,
}

impl Lines {
    pub(super) const fn new(from: OwnedReadHalf) -> Self {
        Self { from, buffer: Vec::new(), searched: 0, fd: None }
    }

    /// The next line without its end; `None` at the end of the connection. May be dropped and
    /// called again.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for a line longer than [`LINE_MAX`]; what the kernel says.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let new = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(at) = new.iter().position(|&c| c == b'\n') {
                let rest = self.buffer.split_off(self.searched + at + 1);
                let mut text = std::mem::replace(&mut self.buffer, rest);
                text.pop();
                self.searched = 0;
                return Ok(Some(Line { text, fd: self.fd.take() }));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > LINE_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.from.readable().await?;
            match self.receive() {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes what has come; how many bytes.
    fn receive(&mut self) -> io::Result<usize> {
        let old = self.buffer.len();
        self.buffer.resize(old + READ_BYTES, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let (buffer, socket) = (&mut self.buffer, self.from.as_ref());
        let got = socket.try_io(Interest::READABLE, || {
            let room = &mut [IoSliceMut::new(buffer.get_mut(old..).unwrap_or_default())];
            Ok(rustix::net::recvmsg(socket, room, &mut beside, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)?.bytes)
        });
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fd = fds.last().or(self.fd.take());
            }
        }
        self.buffer.truncate(old + *got.as_ref().unwrap_or(&0));
        got
    }
}

/// Binds a socket in the directory that is held; by its path only where there is no `/proc`.
pub(super) fn bind(dir: &HeldDir, name: &str) -> io::Result<UnixListener> {
    let held = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(dir.fd()));
    let dir = if Path::new(&held).exists() { Path::new(&held) } else { dir.path() };
    UnixListener::bind(dir.join(name))
}

/// Sends a reply as one line.
///
/// # Errors
/// Those of writing to the connection.
pub(super) async fn send(to: &mut OwnedWriteHalf, reply: &Reply) -> io::Result<()> {
    let mut text = serde_json::to_vec(reply)?;
    text.push(b'\n');
    to.write_all(&text).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use tokio::net::UnixStream;

    fn on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn lines_come_whole_with_the_descriptor_beside_them() {
        on(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let (read, _write) = ours.into_split();
            let mut lines = Lines::new(read);
            let mut to = theirs.into_std().unwrap();
            to.set_nonblocking(false).unwrap();
            let mut file = tempfile::tempfile().unwrap();
            to.write_all(b"one\ntw").unwrap();
            assert_eq!(lines.next().await.unwrap().unwrap().text, b"one");
            super::super::client::send_with(&to, b"o\nthree\n", file.as_fd()).unwrap();
            let two = lines.next().await.unwrap().unwrap();
            assert_eq!(two.text, b"two");
            std::fs::File::from(two.fd.unwrap()).write_all(b"through it").unwrap();
            let mut text = String::new();
            std::io::Seek::rewind(&mut file).unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "through it");
            let three = lines.next().await.unwrap().unwrap();
            assert!(three.text == b"three" && three.fd.is_none());
            drop(to);
            assert!(lines.next().await.unwrap().is_none());
        });
    }

    #[test]
    fn an_endless_line_is_an_error_and_takes_no_more_memory() {
        on(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let (read, _write) = ours.into_split();
            let mut lines = Lines::new(read);
            let mut to = theirs.into_std().unwrap();
            to.set_nonblocking(false).unwrap();
            let endless = std::thread::spawn(move || while to.write_all(&[b'x'; READ_BYTES]).is_ok() {});
            let e = lines.next().await.unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidData);
            assert!(lines.buffer.len() <= LINE_MAX + READ_BYTES);
            drop((lines, _write));
            endless.join().unwrap();
        });
    }
}
