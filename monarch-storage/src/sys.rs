//! The few system interfaces that no safe crate offers.

use rustix::fd::{AsRawFd, BorrowedFd};

/// Whether no other descriptor or mapping refers to the file: the kernel grants a write lease only
/// then.
///
/// Where the kernel gives no leases (some file systems, another owner) the answer is `true`:
/// unlinking an open file is safe, only its blocks are counted as free too early.
#[must_use]
pub fn nobody_else_has_it_open(fd: BorrowedFd<'_>) -> bool {
    takes_lease(fd, libc::F_WRLCK)
}

/// Whether no process has a file open for writing, by a descriptor of it that was opened for
/// reading.
#[must_use]
pub fn has_no_writer(fd: BorrowedFd<'_>) -> bool {
    takes_lease(fd, libc::F_RDLCK)
}

/// Whether the kernel grants a lease, or does not know leases of this file.
fn takes_lease(fd: BorrowedFd<'_>, kind: libc::c_int) -> bool {
    // SAFETY: fcntl on a descriptor that we hold; the lease is given up at once.
    unsafe {
        if libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, kind) == 0 {
            libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
            return true;
        }
        std::io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN)
    }
}

/// Makes the kernel begin to write a part of a file to its disk. May wait for the disk's queue,
/// which bounds the bytes that are not written yet.
pub fn begin_to_write_out(fd: BorrowedFd<'_>, off: u64, len: u64) {
    let (Ok(off), Ok(len)) = (i64::try_from(off), i64::try_from(len)) else { return };
    // SAFETY: a plain descriptor call. Its result does not matter: the kernel writes the bytes in
    // any case.
    unsafe { libc::sync_file_range(fd.as_raw_fd(), off, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Number of cachestat(2), on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

/// A range of a file, as cachestat(2) takes it.
#[repr(C)]
struct CacheRange {
    off: u64,
    len: u64,
}

/// What cachestat(2) answers.
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Number of pages of a part of a file that the page cache holds, by cachestat(2) (Linux 6.5).
///
/// # Errors
/// `ENOSYS` before Linux 6.5, `EPERM` for a file that this process neither owns nor may write,
/// `EOPNOTSUPP` where the file system has no page cache.
pub fn cached_pages(fd: BorrowedFd<'_>, off: u64, len: u64) -> std::io::Result<u64> {
    let range = CacheRange { off, len };
    let mut stat = CacheStat::default();
    // SAFETY: the kernel reads one structure and writes the other.
    let done = unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut stat, 0) };
    if done == 0 { Ok(stat.cached) } else { Err(std::io::Error::last_os_error()) }
}

/// Gives freed memory back to the system, after a moment of high use: the C library keeps it.
pub fn give_back_memory() {
    // SAFETY: it touches only free memory.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Milliseconds of the coarse monotonic clock, which dates opens and hints.
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
    if rustix::rand::getrandom(&mut b, rustix::rand::GetRandomFlags::empty()) != Ok(16) {
        // Without getrandom: time and process id. Callers need uniqueness, not secrecy.
        let t = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        return [t as u64, u64::from(std::process::id())];
    }
    let half = |r: std::ops::Range<usize>| b[r].iter().rev().fold(0u64, |v, &x| v << 8 | u64::from(x));
    [half(0..8), half(8..16)]
}

/// A duration as the kernel takes it: seconds and nanoseconds.
#[must_use]
pub fn timespec(time: std::time::Duration) -> [i64; 2] {
    [i64::try_from(time.as_secs()).unwrap_or(i64::MAX), i64::from(time.subsec_nanos())]
}

/// Wall-clock time in nanoseconds since the epoch.
#[must_use]
pub fn now_ns() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}
