//! A part of a file, read piece by piece to be encrypted.
//!
//! What is in memory, in the page cache or in a file system that has nothing else, is read at once.
//! Whatever else would hold up the thread, which serves other connections as well: it is read on a
//! thread that may block.

use rustix::fd::OwnedFd;
use rustix::io::{Errno, ReadWriteFlags};
use std::io::{self, IoSliceMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes of a piece: as much again is encrypted and not yet sent. Both fit into the cache of a
/// core.
pub(super) const MAX_PIECE_BYTES: usize = 128 << 10;
/// Rooms for a piece that are kept while no answer needs them.
const MAX_IDLE_ROOMS: usize = 16;
/// What the kernel calls tmpfs.
const TMPFS: i64 = 0x0102_1994;

/// Rooms for pieces, of answers that were sent: memory that was used before costs no page faults.
#[derive(Debug, Default)]
pub(super) struct Rooms(Mutex<Vec<Vec<u8>>>);

impl Rooms {
    fn take(&self) -> Vec<u8> {
        let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| vec![0; MAX_PIECE_BYTES])
    }

    fn give_back(&self, room: Vec<u8>) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if room.len() == MAX_PIECE_BYTES && idle.len() < MAX_IDLE_ROOMS {
            idle.push(room);
        }
    }
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// What is in the page cache at once, and the rest on another thread.
    Cached,
    /// At once: it is in memory.
    Memory,
    /// On another thread: the file system does not tell what is in the page cache.
    Blocking,
}

/// Reads a file. It has room for a piece, which is used again for the next one.
pub(super) struct FilePieces<'a> {
    fd: Arc<OwnedFd>,
    rooms: &'a Rooms,
    room: Vec<u8>,
    way: Way,
}

impl<'a> FilePieces<'a> {
    /// Pieces of a file, each in a room of these.
    pub(super) fn new(fd: Arc<OwnedFd>, rooms: &'a Rooms) -> Self {
        Self { fd, room: rooms.take(), rooms, way: Way::Cached }
    }

    /// The bytes from `at` on, at most `most` and at most a piece.
    ///
    /// # Errors
    /// Those of reading; [`io::ErrorKind::UnexpectedEof`] at the end of the file.
    pub(super) async fn read(&mut self, at: u64, most: u64) -> io::Result<&[u8]> {
        let len = usize::try_from(most).unwrap_or(usize::MAX).min(self.room.len());
        let got = match self.read_at_once(at, len) {
            Some(read) => read?,
            None => self.read_blocking(at, len).await?,
        };
        if got == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was"));
        }
        Ok(self.room.get(..got).unwrap_or_default())
    }

    /// Reads without waiting for a disk; `None` if that cannot be done.
    fn read_at_once(&mut self, at: u64, len: usize) -> Option<io::Result<usize>> {
        let room = self.room.get_mut(..len)?;
        if self.way == Way::Cached {
            match rustix::io::preadv2(&self.fd, &mut [IoSliceMut::new(room)], at, ReadWriteFlags::NOWAIT) {
                Err(Errno::AGAIN) => return None,
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    let is_memory = rustix::fs::fstatfs(&self.fd).is_ok_and(|stat| stat.f_type == TMPFS);
                    self.way = if is_memory { Way::Memory } else { Way::Blocking };
                }
                other => return Some(other.map_err(io::Error::from)),
            }
        }
        let is_memory = self.way == Way::Memory;
        is_memory.then(|| rustix::io::pread(&self.fd, room, at).map_err(io::Error::from))
    }

    async fn read_blocking(&mut self, at: u64, len: usize) -> io::Result<usize> {
        let (fd, mut room) = (Arc::clone(&self.fd), std::mem::take(&mut self.room));
        let read = tokio::task::spawn_blocking(move || {
            let got = rustix::io::pread(&fd, room.get_mut(..len).unwrap_or_default(), at);
            (room, got)
        });
        let (room, got) = read.await.map_err(io::Error::other)?;
        self.room = room;
        Ok(got?)
    }
}

impl Drop for FilePieces<'_> {
    fn drop(&mut self) {
        self.rooms.give_back(std::mem::take(&mut self.room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    fn content() -> Vec<u8> {
        (0..3 * MAX_PIECE_BYTES as u32 / 2).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
    }

    async fn all(mut pieces: FilePieces<'_>, len: u64) -> io::Result<Vec<u8>> {
        let mut got = Vec::new();
        while (got.len() as u64) < len {
            let piece = pieces.read(got.len() as u64, len - got.len() as u64).await?;
            got.extend_from_slice(piece);
        }
        Ok(got)
    }

    fn of(mut file: File) -> Arc<OwnedFd> {
        file.write_all(&content()).unwrap();
        Arc::new(file.into())
    }

    #[tokio::test]
    async fn pieces_make_the_file_whatever_way_it_is_read() {
        let (rooms, len) = (Rooms::default(), content().len() as u64);
        let memory = of(tempfile::tempfile_in("/dev/shm").unwrap());
        let disk = of(tempfile::tempfile().unwrap());
        for (fd, way) in [(&memory, Way::Cached), (&disk, Way::Cached), (&disk, Way::Blocking)] {
            let pieces = || {
                let mut pieces = FilePieces::new(fd.clone(), &rooms);
                pieces.way = way;
                pieces
            };
            assert!(all(pieces(), len).await.unwrap() == content(), "{way:?}");
            let end = all(pieces(), len + 1).await.unwrap_err();
            assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof, "{way:?}");
        }
        assert_eq!(rooms.0.lock().unwrap().len(), 1, "one room, used again");
    }

    #[test]
    fn rooms_of_a_burst_are_not_kept() {
        let rooms = Rooms::default();
        let many: Vec<_> = (0..MAX_IDLE_ROOMS + 9).map(|_| rooms.take()).collect();
        many.into_iter().for_each(|room| rooms.give_back(room));
        rooms.give_back(Vec::new());
        assert_eq!(rooms.0.lock().unwrap().len(), MAX_IDLE_ROOMS);
    }
}
