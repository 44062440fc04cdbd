//! The few system interfaces that no safe crate offers.

use rustix::fd::{AsRawFd, BorrowedFd};

/// Whether no other descriptor or mapping refers to the file: the kernel grants a write lease only
/// then.
///
/// Where leases are not to be had (some file systems, foreign owner) the answer is yes: unlinking
/// an open file is safe, only its blocks are counted as free a little early.
#[must_use]
pub fn nobody_else_has_it_open(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: fcntl on a descriptor that we hold; the lease is given up at once.
    unsafe {
        if libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0 {
            libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
            return true;
        }
        std::io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN)
    }
}

/// Has the kernel begin to write a part of a file to its disk. That may wait for the disk's queue,
/// which bounds what is unwritten.
pub fn begin_to_write_out(fd: BorrowedFd<'_>, off: u64, len: u64) {
    let (Ok(off), Ok(len)) = (i64::try_from(off), i64::try_from(len)) else { return };
    // SAFETY: a plain descriptor call. What it says does not matter: the kernel writes sooner or
    // later.
    unsafe { libc::sync_file_range(fd.as_raw_fd(), off, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Gives memory back to the system that was needed for a moment: the C library keeps what was freed
/// in pieces.
pub fn give_back_memory() {
    // SAFETY: it touches nothing but what is free.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Milliseconds of the coarse monotonic clock, by which opens and hints are dated.
#[must_use]
pub fn coarse_ms() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    t.tv_sec.unsigned_abs() * 1000 + t.tv_nsec.unsigned_abs() / 1_000_000
}

/// Eight random bytes from the kernel.
#[must_use]
pub fn random_u64() -> u64 {
    let [a, b] = random_u128_halves();
    a ^ b.rotate_left(17)
}

/// A random UUID-sized value.
#[must_use]
pub fn random_uuid() -> [u8; 16] {
    let [a, b] = random_u128_halves();
    let mut out = [0; 16];
    out[..8].copy_from_slice(&a.to_le_bytes());
    out[8..].copy_from_slice(&b.to_le_bytes());
    out
}

fn random_u128_halves() -> [u64; 2] {
    let mut b = [0u8; 16];
    // SAFETY: the buffer is ours and as long as said.
    let n = unsafe { libc::getrandom(b.as_mut_ptr().cast(), b.len(), 0) };
    if n != 16 {
        // Without getrandom: time and process id; uniqueness matters here, secrecy does not.
        let t = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        return [t as u64, u64::from(std::process::id())];
    }
    let half = |r: std::ops::Range<usize>| b[r].iter().rev().fold(0u64, |v, &x| v << 8 | u64::from(x));
    [half(0..8), half(8..16)]
}

/// A duration as the kernel wants it: seconds and nanoseconds.
#[must_use]
pub fn timespec(time: std::time::Duration) -> [i64; 2] {
    [i64::try_from(time.as_secs()).unwrap_or(i64::MAX), i64::from(time.subsec_nanos())]
}
