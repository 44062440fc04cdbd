//! Bare system calls: no wrapper of libc in between (that may be a hook), errno untouched, no
//! panics.

use crate::errno;
use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use monarch_abi::PATH_MAX;
use monarch_abi::hash::Identity;
use monarch_abi::mem::{HUGE_PAGE_BYTES, MIN_HUGE_BYTES, PathBuffer};
use monarch_abi::scratch::{BLOCK_BYTES, Scratch};

pub use monarch_abi::sys::call;

/// A descriptor that is closed when it goes out of scope.
#[derive(Debug)]
pub struct Fd(pub c_int);

impl Drop for Fd {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// close(2).
pub fn close(fd: c_int) {
    // SAFETY: closes a descriptor that the caller owns.
    unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// read(2): the part that was filled; empty at the end.
#[must_use]
pub fn read(fd: c_int, out: &mut [u8]) -> Option<&[u8]> {
    // SAFETY: the buffer is as long as said.
    let n = unsafe { call(libc::SYS_read, [fd as usize, out.as_mut_ptr() as usize, out.len(), 0, 0, 0]) };
    out.get(..usize::try_from(n).ok()?)
}

/// openat(2) relative to the working directory.
#[inline]
#[must_use]
pub fn open(path: &CStr, flags: c_int) -> Option<c_int> {
    let cwd = libc::AT_FDCWD as isize as usize;
    // SAFETY: a C string; the call touches nothing else.
    let fd = unsafe { call(libc::SYS_openat, [cwd, path.as_ptr() as usize, flags as usize, 0, 0, 0]) };
    (fd >= 0).then_some(fd as c_int)
}

/// [`open`] as libc does it: -1 and errno when it fails.
#[must_use]
pub fn open_or_errno(path: &CStr, flags: c_int) -> c_int {
    let cwd = libc::AT_FDCWD as isize as usize;
    // SAFETY: a C string; the call touches nothing else.
    let fd = unsafe { call(libc::SYS_openat, [cwd, path.as_ptr() as usize, flags as usize, 0, 0, 0]) };
    if fd < 0 {
        errno::set_errno(-fd as c_int);
        return -1;
    }
    fd as c_int
}

/// [`open`] for a path without a final NUL.
#[must_use]
pub fn open_bytes(path: &[u8], flags: c_int) -> Option<Fd> {
    let mut path = copied(path)?;
    open(path.c_str()?, flags).map(Fd)
}

/// A copy of `path`, behind which a NUL can be put.
fn copied(path: &[u8]) -> Option<PathBuffer> {
    let mut copy = PathBuffer::front();
    copy.append(path)?;
    Some(copy)
}

/// openat(2) of a path of the application.
///
/// # Safety
/// That of the system call: the kernel checks the pointer.
#[must_use]
pub unsafe fn open_at(dirfd: c_int, path: *const c_char, flags: c_int) -> Option<Fd> {
    let args = [dirfd as isize as usize, path as usize, flags as usize, 0, 0, 0];
    // SAFETY: by contract.
    let fd = unsafe { call(libc::SYS_openat, args) };
    (fd >= 0).then_some(Fd(fd as c_int))
}

/// [`read`] into scratch memory.
#[must_use]
pub fn read_into(fd: c_int, room: &mut Scratch) -> Option<&[u8]> {
    let base = room.bytes()?.as_mut_ptr().cast::<u8>();
    // SAFETY: the buffer is as long as said.
    let n = unsafe { call(libc::SYS_read, [fd as usize, base as usize, BLOCK_BYTES, 0, 0, 0]) };
    // SAFETY: so many bytes were filled.
    Some(unsafe { core::slice::from_raw_parts(base, usize::try_from(n).ok()?.min(BLOCK_BYTES)) })
}

/// The kind of the file system of a descriptor: `f_type` of statfs.
#[must_use]
pub fn file_system(fd: c_int) -> Option<i64> {
    let mut out = MaybeUninit::<libc::statfs64>::uninit();
    // SAFETY: a buffer of that type, which is filled when the call succeeds.
    unsafe {
        let done = call(libc::SYS_fstatfs, [fd as usize, out.as_mut_ptr() as usize, 0, 0, 0, 0]);
        (done == 0).then(|| out.assume_init().f_type)
    }
}

/// fstat(2).
#[inline]
#[must_use]
pub fn fstat(fd: c_int) -> Option<libc::stat64> {
    stat_at(fd, c"", libc::AT_EMPTY_PATH)
}

/// fstat(2) of what this machine knows: the PFS is not asked. Right for all local file systems.
#[inline]
#[must_use]
pub fn fstat_local(fd: c_int) -> Option<libc::stat64> {
    stat_at(fd, c"", libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC)
}

/// fstatat(2).
#[inline]
#[must_use]
pub fn stat_at(fd: c_int, path: &CStr, flags: c_int) -> Option<libc::stat64> {
    let mut st = MaybeUninit::<libc::stat64>::uninit();
    let args = [fd as isize as usize, path.as_ptr() as usize, st.as_mut_ptr() as usize, flags as usize, 0, 0];
    // SAFETY: a C string and a buffer of the right type; filled when the call says so.
    unsafe { (call(libc::SYS_newfstatat, args) == 0).then(|| st.assume_init()) }
}

/// fstatat(2) for the device and the inode only, which this machine knows: the PFS is asked for no
/// attributes. (Before Linux 4.11 it is.)
#[must_use]
pub fn identity_at(dirfd: c_int, path: &CStr) -> Option<(u64, u64)> {
    let local = stat_at(dirfd, path, libc::AT_STATX_DONT_SYNC);
    local.or_else(|| stat_at(dirfd, path, 0)).map(|st| (st.st_dev, st.st_ino))
}

/// statx(2) of an absolute path.
#[must_use]
pub fn statx(path: &CStr, flags: c_int, mask: u32) -> Option<libc::statx> {
    let mut st = core::mem::MaybeUninit::<libc::statx>::uninit();
    let cwd = libc::AT_FDCWD as isize as usize;
    let args = [cwd, path.as_ptr() as usize, flags as usize, mask as usize, st.as_mut_ptr() as usize, 0];
    // SAFETY: a C string and a buffer of the right type; filled when the call says so.
    unsafe { (call(libc::SYS_statx, args) == 0).then(|| st.assume_init()) }
}

/// The identity of what a path leads to now, past the caches of this machine: statx(2). Or errno.
///
/// # Errors
/// The errno of the call.
///
/// # Safety
/// That of the system call: the kernel checks the pointer.
pub unsafe fn identity(dirfd: c_int, path: *const c_char, flags: c_int) -> Result<Identity, c_int> {
    let mut st = core::mem::MaybeUninit::<libc::statx>::uninit();
    let mask = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_SIZE | libc::STATX_MTIME | libc::STATX_CTIME;
    let flags = (flags | libc::AT_STATX_FORCE_SYNC) as usize;
    let args = [dirfd as isize as usize, path as usize, flags, mask as usize, st.as_mut_ptr() as usize, 0];
    // SAFETY: by contract; a buffer of the right type.
    let result = unsafe { call(libc::SYS_statx, args) };
    if result != 0 {
        return Err(-result as c_int);
    }
    // SAFETY: filled, as the call says.
    let st = unsafe { st.assume_init_ref() };
    let ns = |t: &libc::statx_timestamp| t.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(t.tv_nsec));
    Ok(Identity { size: st.stx_size, mtime_ns: ns(&st.stx_mtime), ctime_ns: ns(&st.stx_ctime), ino: st.stx_ino })
}

/// statx(2) of a descriptor: its file, as far as this machine knows. The PFS is not asked.
#[inline]
#[must_use]
pub fn statx_fd(fd: c_int) -> Option<libc::statx> {
    statx_of(fd, libc::AT_STATX_DONT_SYNC)
}

/// [`statx_fd`] as stat(2) does it: a client of a network file system may ask, if what it knows is
/// old or a lock was taken since.
#[must_use]
pub fn statx_fd_now(fd: c_int) -> Option<libc::statx> {
    statx_of(fd, 0)
}

#[inline]
fn statx_of(fd: c_int, sync: c_int) -> Option<libc::statx> {
    let mut st = core::mem::MaybeUninit::<libc::statx>::uninit();
    let flags = (libc::AT_EMPTY_PATH | sync) as usize;
    let mask = (libc::STATX_TYPE | libc::STATX_INO | libc::STATX_SIZE | libc::STATX_MTIME) as usize;
    let args = [fd as isize as usize, c"".as_ptr() as usize, flags, mask, st.as_mut_ptr() as usize, 0];
    // SAFETY: a C string and a buffer of the right type; filled when the call says so.
    unsafe { (call(libc::SYS_statx, args) == 0).then(|| st.assume_init()) }
}

/// lseek(2) relative to the present offset: the new one.
#[must_use]
pub fn seek(fd: c_int, by: i64) -> Option<u64> {
    // SAFETY: a plain descriptor call.
    let at = unsafe { call(libc::SYS_lseek, [fd as isize as usize, by as usize, libc::SEEK_CUR as usize, 0, 0, 0]) };
    u64::try_from(at).ok()
}

/// lseek(2) to an offset.
pub fn seek_to(fd: c_int, at: u64) -> Option<u64> {
    // SAFETY: a plain descriptor call.
    let at = unsafe { call(libc::SYS_lseek, [fd as isize as usize, at as usize, libc::SEEK_SET as usize, 0, 0, 0]) };
    u64::try_from(at).ok()
}

/// fcntl(2) with a number.
pub fn fcntl(fd: c_int, what: c_int, arg: c_int) -> Option<c_int> {
    // SAFETY: a plain descriptor call.
    let r = unsafe { call(libc::SYS_fcntl, [fd as isize as usize, what as usize, arg as usize, 0, 0, 0]) };
    c_int::try_from(r).ok().filter(|&r| r >= 0)
}

/// dup3(2): `from` in the place of `to`; whether it worked.
#[must_use]
pub fn dup_to(from: c_int, to: c_int, cloexec: bool) -> bool {
    let flags = if cloexec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: a plain descriptor call.
    unsafe { call(libc::SYS_dup3, [from as isize as usize, to as isize as usize, flags as usize, 0, 0, 0]) >= 0 }
}

/// pread(2), negative errno on failure.
///
/// # Safety
/// `n` bytes from `buf` on are the caller's (the kernel checks that they can be written).
#[must_use]
pub unsafe fn pread(fd: c_int, buf: *mut u8, n: usize, off: u64) -> isize {
    // SAFETY: by contract.
    unsafe { call(libc::SYS_pread64, [fd as isize as usize, buf as usize, n, off as usize, 0, 0]) }
}

/// fstatat(2) of an absolute path without a final NUL.
#[must_use]
#[inline(never)]
pub fn stat_bytes(path: &[u8], flags: c_int) -> Option<libc::stat64> {
    stat_at(libc::AT_FDCWD, copied(path)?.c_str()?, flags)
}

/// [`identity_at`] of an absolute path.
#[must_use]
pub fn identity_of(path: &[u8]) -> Option<(u64, u64)> {
    identity_at(libc::AT_FDCWD, copied(path)?.c_str()?)
}

/// flock(2); whether it worked.
#[must_use]
pub fn lock(fd: c_int, how: c_int) -> bool {
    // SAFETY: a plain descriptor call.
    unsafe { call(libc::SYS_flock, [fd as usize, how as usize, 0, 0, 0, 0]) == 0 }
}

/// sched_yield(2).
pub fn pause() {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// nanosleep(2); a signal ends it early.
pub fn sleep_ms(ms: i64) {
    sleep_us(ms.saturating_mul(1000));
}

/// [`sleep_ms`] for microseconds.
pub fn sleep_us(us: i64) {
    let t = libc::timespec { tv_sec: us / 1_000_000, tv_nsec: us % 1_000_000 * 1000 };
    // SAFETY: reads the time.
    unsafe { call(libc::SYS_nanosleep, [core::ptr::from_ref(&t) as usize, 0, 0, 0, 0, 0]) };
}

/// mmap(2); `fd` -1 for fresh memory.
#[must_use]
pub fn map(len: usize, prot: c_int, flags: c_int, fd: c_int) -> Option<*mut u8> {
    // SAFETY: at an address that the kernel picks.
    let p = unsafe { call(libc::SYS_mmap, [0, len, prot as usize, flags as usize, fd as isize as usize, 0]) };
    (!(-4095..0).contains(&p)).then_some(p as *mut u8)
}

/// Maps all of a file, shared; a large one at an address at which it can have huge pages.
#[must_use]
pub fn map_for_huge_pages(len: usize, prot: c_int, fd: c_int) -> Option<*mut u8> {
    if len < MIN_HUGE_BYTES {
        return map(len, prot, libc::MAP_SHARED, fd);
    }
    let reserved = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let start = map(len.checked_add(HUGE_PAGE_BYTES)?, libc::PROT_NONE, reserved, -1)?;
    let at = (start as usize).checked_next_multiple_of(HUGE_PAGE_BYTES)?;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: within a mapping that was just made, and that nothing refers to.
    let p = unsafe { call(libc::SYS_mmap, [at, len, prot as usize, flags as usize, fd as isize as usize, 0]) };
    (!(-4095..0).contains(&p)).then_some(p as *mut u8)
}

/// munmap(2) of a mapping of [`map`].
pub fn unmap(p: *mut u8, len: usize) {
    // SAFETY: memory of this library, which it uses no more.
    unsafe { call(libc::SYS_munmap, [p as usize, len, 0, 0, 0, 0]) };
}

/// madvise(2); whether it worked.
pub fn advise(p: *mut u8, len: usize, advice: c_int) -> bool {
    // SAFETY: advice that frees nothing, on memory of the shim.
    unsafe { call(libc::SYS_madvise, [p as usize, len, advice as usize, 0, 0, 0]) == 0 }
}

/// munlock(2) of memory that a process maps under `mlockall(MCL_FUTURE)`.
pub fn unlock(p: *mut u8, len: usize) {
    // SAFETY: changes what may leave memory, not what is there.
    unsafe { call(libc::SYS_munlock, [p as usize, len, 0, 0, 0, 0]) };
}

/// mprotect(2) of a mapping of [`map`]: whether it can be read now.
pub fn make_readable(p: *mut u8, len: usize) -> bool {
    // SAFETY: memory of this library.
    unsafe { call(libc::SYS_mprotect, [p as usize, len, libc::PROT_READ as usize, 0, 0, 0]) == 0 }
}

/// process_vm_readv(2): has the kernel copy `n` bytes from an address of a process, which may be
/// this one, to `buf`. Returns the number of bytes, or negative errno: EFAULT where a load would
/// end in a signal.
///
/// # Safety
/// `n` bytes from `buf` on are the caller's (the kernel checks that they can be written).
#[inline]
#[must_use]
pub unsafe fn read_memory(pid: u32, from: usize, buf: *mut u8, n: usize) -> isize {
    let to = libc::iovec { iov_base: buf.cast(), iov_len: n };
    let from = libc::iovec { iov_base: from as *mut _, iov_len: n };
    let (to, from) = (core::ptr::from_ref(&to) as usize, core::ptr::from_ref(&from) as usize);
    // SAFETY: by contract; the kernel checks the other address.
    unsafe { call(libc::SYS_process_vm_readv, [pid as usize, to, 1, from, 1, 0]) }
}

/// Whether calls of this process go through a seccomp filter, as far as the kernel says.
#[must_use]
pub fn has_seccomp_filter() -> bool {
    // SAFETY: asks only.
    unsafe { call(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) != 0 }
}

/// Whether the addresses of this process are limited (`RLIMIT_AS`).
#[must_use]
pub fn has_address_limit() -> bool {
    limit(libc::RLIMIT_AS as usize) != Some(libc::RLIM64_INFINITY)
}

/// prlimit64(2): a limit of this process.
fn limit(what: usize) -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: of this process; nothing is set; the buffer is of the right type.
    let got = unsafe { call(libc::SYS_prlimit64, [0, what, 0, (&raw mut limit) as usize, 0, 0]) };
    (got == 0).then_some(limit.rlim_cur)
}

/// Creates a file for writing; or errno.
///
/// # Errors
/// The errno of the call.
pub fn create(path: &CStr) -> Result<Fd, c_int> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let args = [libc::AT_FDCWD as isize as usize, path.as_ptr() as usize, flags as usize, 0o600, 0, 0];
    // SAFETY: a C string.
    let fd = unsafe { call(libc::SYS_openat, args) };
    if fd < 0 { Err(-fd as c_int) } else { Ok(Fd(fd as c_int)) }
}

/// How long files may be that this process writes (`RLIMIT_FSIZE`). A process that writes behind
/// that gets a signal that ends the process.
#[must_use]
pub fn longest_file() -> u64 {
    // Forbidden here: then nothing is known, and nothing risked.
    limit(libc::RLIMIT_FSIZE as usize).unwrap_or(0)
}

/// Four random bytes, or what comes close to it.
#[must_use]
pub fn random() -> u32 {
    let mut bytes = [0u8; 4];
    let args = [bytes.as_mut_ptr() as usize, bytes.len(), libc::GRND_NONBLOCK as usize, 0, 0, 0];
    // SAFETY: a buffer as long as said.
    if unsafe { call(libc::SYS_getrandom, args) } == 4 {
        return u32::from_ne_bytes(bytes);
    }
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the buffer is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    // Where the stack lies is random, too.
    let mixed = (t.tv_sec as u64) << 30 ^ t.tv_nsec as u64 ^ (&raw const t) as u64 ^ u64::from(pid()) << 40;
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Writes all of it; or errno.
///
/// # Errors
/// The errno of the call.
pub fn write_all(fd: c_int, mut bytes: &[u8]) -> Result<(), c_int> {
    while !bytes.is_empty() {
        // SAFETY: so many bytes are there.
        let n = unsafe { call(libc::SYS_write, [fd as isize as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) };
        if n == -(libc::EINTR as isize) {
            continue;
        }
        if n < 0 {
            return Err(-n as c_int);
        }
        match usize::try_from(n).ok().filter(|&n| n > 0).and_then(|n| bytes.get(n..)) {
            Some(rest) => bytes = rest,
            None => return Err(libc::EIO),
        }
    }
    Ok(())
}

/// rename(2); whether it worked.
#[must_use]
pub fn rename(from: &CStr, to: &CStr) -> bool {
    let cwd = libc::AT_FDCWD as isize as usize;
    // SAFETY: C strings.
    unsafe { call(libc::SYS_renameat, [cwd, from.as_ptr() as usize, cwd, to.as_ptr() as usize, 0, 0]) == 0 }
}

/// unlink(2).
pub fn remove(path: &CStr) {
    // SAFETY: a C string.
    unsafe { call(libc::SYS_unlinkat, [libc::AT_FDCWD as isize as usize, path.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Milliseconds of the coarse monotonic clock, which costs no system call.
#[inline]
#[must_use]
pub fn coarse_ms() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the buffer is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut t) };
    (t.tv_sec as u64).wrapping_mul(1000).wrapping_add(t.tv_nsec as u64 / 1_000_000)
}

/// getpid(2), from the kernel: libc may have cached it before a vfork.
#[must_use]
pub fn pid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getpid, [0; 6]) as u32 }
}

/// getgid(2).
#[must_use]
pub fn gid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getgid, [0; 6]) as u32 }
}

/// getegid(2).
#[must_use]
pub fn egid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getegid, [0; 6]) as u32 }
}

/// getgroups(2); `None` when there are more than fit.
pub fn groups(room: &mut Scratch) -> Option<&[u32]> {
    let base = room.bytes()?.as_mut_ptr().cast::<u32>();
    // SAFETY: a buffer for as many groups as said.
    let n = unsafe { call(libc::SYS_getgroups, [BLOCK_BYTES / 4, base as usize, 0, 0, 0, 0]) };
    // SAFETY: the kernel has filled `n` groups; blocks are aligned to pages.
    Some(unsafe { core::slice::from_raw_parts(base, usize::try_from(n).ok()?.min(BLOCK_BYTES / 4)) })
}

/// The effective capabilities of this thread, 0 if the kernel does not say.
#[must_use]
pub fn capabilities() -> u64 {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    // Effective, permitted, inheritable; lower halves first.
    let mut sets = [[0u32; 3]; 2];
    let args = [header.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: buffers of the layout that this version has.
    let got = unsafe { call(libc::SYS_capget, args) };
    let [[low, ..], [high, ..]] = sets;
    if got == 0 { u64::from(low) | u64::from(high) << 32 } else { 0 }
}

/// The group for file access (setfsgid(2)).
#[must_use]
pub fn fsgid() -> u32 {
    // SAFETY: an invalid group changes nothing and gives the present one.
    unsafe { call(libc::SYS_setfsgid, [u32::MAX as usize, 0, 0, 0, 0, 0]) as u32 }
}

/// geteuid(2).
#[must_use]
pub fn euid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_geteuid, [0; 6]) as u32 }
}

/// getuid(2).
#[must_use]
pub fn uid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getuid, [0; 6]) as u32 }
}

/// The user for file access (setfsuid(2)).
#[must_use]
pub fn fsuid() -> u32 {
    // SAFETY: an invalid user changes nothing and gives the present one.
    unsafe { call(libc::SYS_setfsuid, [u32::MAX as usize, 0, 0, 0, 0, 0]) as u32 }
}

/// getcwd(2): length without the NUL.
#[must_use]
pub fn getcwd(out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
    // SAFETY: the buffer is as long as said.
    let n = unsafe { call(libc::SYS_getcwd, [out.as_mut_ptr() as usize, PATH_MAX, 0, 0, 0, 0]) };
    usize::try_from(n).ok()?.checked_sub(1)
}

/// readlinkat(2): length.
#[must_use]
pub fn readlink(path: &CStr, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
    let cwd = libc::AT_FDCWD as isize as usize;
    let args = [cwd, path.as_ptr() as usize, out.as_mut_ptr() as usize, PATH_MAX, 0, 0];
    // SAFETY: a C string and a buffer as long as said.
    usize::try_from(unsafe { call(libc::SYS_readlinkat, args) }).ok()
}

/// The number of the mount that holds an open file (statx(2), Linux 5.8).
#[cold]
#[inline(never)]
#[must_use]
pub fn mount_of(fd: c_int) -> Option<u64> {
    const STATX_MNT_ID: u32 = 0x1000;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let args =
        [fd as usize, c"".as_ptr() as usize, flags as usize, STATX_MNT_ID as usize, found.as_mut_ptr() as usize, 0];
    // SAFETY: a C string, and a buffer of the layout that the kernel fills.
    let got = unsafe { call(libc::SYS_statx, args) };
    // SAFETY: integers, of which zero is a valid value.
    let found = unsafe { found.assume_init() };
    (got == 0 && found.stx_mask & STATX_MNT_ID != 0).then_some(found.stx_mnt_id)
}

/// `makedev(3)`.
#[must_use]
pub const fn makedev(major: u32, minor: u32) -> u64 {
    let (ma, mi) = (major as u64, minor as u64);
    (ma & 0xffff_f000) << 32 | (ma & 0xfff) << 8 | (mi & 0xffff_ff00) << 12 | mi & 0xff
}

/// `major(3)`.
#[must_use]
pub const fn major(dev: u64) -> u32 {
    ((dev >> 32 & 0xffff_f000) | (dev >> 8 & 0xfff)) as u32
}

/// `minor(3)`.
#[must_use]
pub const fn minor(dev: u64) -> u32 {
    ((dev >> 12 & 0xffff_ff00) | (dev & 0xff)) as u32
}
