//! System interfaces that no safe crate offers: leases, and the mapping of the state file.

use monarch_abi::mem::Map;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::fs::File;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64)
}

/// What the kernel says of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// Granted: nothing has the file open for writing.
    Granted,
    /// Something has the file open for writing: a descriptor or a shared mapping.
    Refused,
    /// The file system has no leases, or the file belongs to another user.
    Unsupported(i32),
}

/// Operation of fcntl(2): which signal tells of a lease that is being broken.
const F_SETSIG: i32 = 10;

/// Asks for a read lease. A break of it is told by SIGURG, which processes ignore unless they ask
/// for it: SIGIO would end them.
#[must_use]
pub fn take_lease(fd: BorrowedFd<'_>) -> LeaseAnswer {
    // SAFETY: fcntl on a descriptor that the caller holds.
    let got = unsafe {
        libc::fcntl(fd.as_raw_fd(), F_SETSIG, libc::SIGURG);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK)
    };
    if got == 0 {
        return LeaseAnswer::Granted;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => LeaseAnswer::Refused,
        other => LeaseAnswer::Unsupported(other.unwrap_or(0)),
    }
}

/// Whether a read lease that was granted still holds, and is not being broken.
#[must_use]
pub fn has_lease(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: fcntl on a descriptor that the caller holds.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
}

/// Gives a lease back.
pub fn give_lease(fd: BorrowedFd<'_>) {
    // SAFETY: fcntl on a descriptor that the caller holds.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// Maps a file for the life of the process, for reading and writing.
///
/// # Errors
/// What the kernel said.
pub fn map_forever(file: &File, len: usize) -> io::Result<Map<'static>> {
    // SAFETY: other processes write it too, but only where atomics lie; it is mapped shared, so
    // that the map that is made of it stays valid.
    let map = unsafe { memmap2::MmapOptions::new().len(len).map_mut(file)? };
    let map: &'static mut memmap2::MmapMut = Box::leak(Box::new(map));
    // SAFETY: leaked, so that it stays mapped. Users read and write atomics, and the patterns
    // before any process of the job maps the file.
    Ok(unsafe { Map::new(map.as_ptr(), map.len()) })
}
