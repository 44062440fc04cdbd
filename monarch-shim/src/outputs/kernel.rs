//! System calls about names, with their errors: no wrapper of libc in between, errno untouched.

use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::found;
use monarch_abi::raw_calls;
use monarch_abi::scratch::BLOCK_BYTES;
use monarch_guest::sys::{Fd, call};

/// An errno.
pub type Errno = c_int;

/// The working directory, for calls with absolute paths.
const HERE: usize = libc::AT_FDCWD as isize as usize;
/// Sixth argument of changing calls, which the filter of `run.raw_calls` lets pass. (They may be
/// made with the journal locked: nothing must wait for an answer then.)
const OWN: usize = raw_calls::OWN_CALL as usize;

fn result(done: isize) -> Result<usize, Errno> {
    usize::try_from(done).map_err(|_| -done as c_int)
}

/// The text of the symbolic link at an absolute path.
pub fn read_link(path: &CStr) -> Result<PathBuffer, Errno> {
    let mut text = PathBuffer::front();
    let mut failed = libc::ENOMEM;
    let fill = |out: &mut MaybeUninit<[u8; monarch_abi::PATH_MAX]>| {
        let args = [HERE, path.as_ptr() as usize, out.as_mut_ptr() as usize, monarch_abi::PATH_MAX, 0, 0];
        // SAFETY: a C string, and a buffer as long as said.
        match result(unsafe { call(libc::SYS_readlinkat, args) }) {
            Ok(len) => Some(len),
            Err(e) => {
                failed = e;
                None
            }
        }
    };
    // SAFETY: as many bytes are written as the kernel says.
    match unsafe { text.fill(fill) } {
        Some(()) => Ok(text),
        None => Err(failed),
    }
}

/// What the PFS has at a name, as records tell it.
pub fn found(st: &libc::stat64) -> u64 {
    let mtime_ns = st.st_mtime.wrapping_mul(1_000_000_000).wrapping_add(st.st_mtime_nsec);
    found::thing(st.st_ino, st.st_size as u64, mtime_ns)
}

/// symlinkat(2).
pub fn symlink(text: &CStr, path: &CStr) -> Result<(), Errno> {
    // SAFETY: C strings.
    result(unsafe { call(libc::SYS_symlinkat, [text.as_ptr() as usize, HERE, path.as_ptr() as usize, 0, 0, OWN]) })
        .map(drop)
}

/// renameat(2).
pub fn rename(from: &CStr, to: &CStr) -> Result<(), Errno> {
    // SAFETY: C strings.
    result(unsafe { call(libc::SYS_renameat, [HERE, from.as_ptr() as usize, HERE, to.as_ptr() as usize, 0, OWN]) })
        .map(drop)
}

/// renameat2(2) with `RENAME_EXCHANGE`.
pub fn exchange(a: &CStr, b: &CStr) -> Result<(), Errno> {
    let flags = libc::RENAME_EXCHANGE as usize;
    // SAFETY: C strings.
    result(unsafe { call(libc::SYS_renameat2, [HERE, a.as_ptr() as usize, HERE, b.as_ptr() as usize, flags, OWN]) })
        .map(drop)
}

/// unlinkat(2); `flags` as there.
pub fn unlink(path: &CStr, flags: c_int) -> Result<(), Errno> {
    // SAFETY: a C string.
    result(unsafe { call(libc::SYS_unlinkat, [HERE, path.as_ptr() as usize, flags as usize, 0, 0, OWN]) }).map(drop)
}

/// mkdirat(2), for the user alone.
pub fn mkdir(path: &CStr) -> Result<(), Errno> {
    // SAFETY: a C string.
    result(unsafe { call(libc::SYS_mkdirat, [HERE, path.as_ptr() as usize, 0o700, 0, 0, OWN]) }).map(drop)
}

/// What is wrong with the new name of a link from another file system; EXDEV if nothing is.
///
/// # Safety
/// `path` is what a process passes to a system call.
pub unsafe fn cross_link(dirfd: c_int, path: *const c_char) -> Errno {
    // (Nothing can be linked from /proc.)
    let args = [HERE, c"/proc/self/comm".as_ptr() as usize, dirfd as isize as usize, path as usize, 0, OWN];
    // SAFETY: by contract; the kernel looks at the pointer before it reads.
    result(unsafe { call(libc::SYS_linkat, args) }).err().unwrap_or(libc::EXDEV)
}

/// Whether the kernel lets this process give an open file a name by its descriptor.
pub fn may_link_open(fd: c_int) -> Result<(), Errno> {
    let (none, nowhere) = (c"".as_ptr() as usize, c"/dev/null/none".as_ptr() as usize);
    let args = [fd as isize as usize, none, HERE, nowhere, libc::AT_EMPTY_PATH as usize, OWN];
    // (It looks at the file before it looks for the new name.)
    // SAFETY: C strings.
    match result(unsafe { call(libc::SYS_linkat, args) }) {
        Err(libc::ENOTDIR) => Ok(()),
        done => done.map(drop),
    }
}

/// utimensat(2): the time of the last change of what lies at an absolute path; `None`: now.
pub fn set_modified(path: &CStr, time: Option<(i64, i64)>) -> Result<(), Errno> {
    let omitted = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    let (tv_sec, tv_nsec) = time.unwrap_or((0, libc::UTIME_NOW));
    let times = [omitted, libc::timespec { tv_sec, tv_nsec }];
    let flags = libc::AT_SYMLINK_NOFOLLOW as usize;
    let args = [HERE, path.as_ptr() as usize, times.as_ptr() as usize, flags, 0, OWN];
    // SAFETY: a C string and two times.
    result(unsafe { call(libc::SYS_utimensat, args) }).map(drop)
}

/// openat(2) of an absolute path.
pub fn open(path: &CStr, flags: c_int, mode: u32) -> Result<Fd, Errno> {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

/// openat(2).
pub fn open_at(dirfd: c_int, path: &CStr, flags: c_int, mode: u32) -> Result<Fd, Errno> {
    let args = [dirfd as isize as usize, path.as_ptr() as usize, flags as usize, mode as usize, 0, 0];
    // SAFETY: a C string.
    result(unsafe { call(libc::SYS_openat, args) }).map(|fd| Fd(fd as c_int))
}

/// openat2(2) of a directory by a path of the application, with what that forbids on the way.
///
/// # Safety
/// As for [`cross_link`].
pub unsafe fn open_directory(dirfd: c_int, path: *const c_char, resolve: u64) -> Result<Fd, Errno> {
    let how: [u64; 3] = [(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64, 0, resolve];
    let args = [dirfd as isize as usize, path as usize, how.as_ptr() as usize, size_of_val(&how), 0, 0];
    // SAFETY: by contract.
    result(unsafe { call(libc::SYS_openat2, args) }).map(|fd| Fd(fd as c_int))
}

/// fstatat(2).
pub fn stat_at(dirfd: c_int, path: &CStr, flags: c_int) -> Result<libc::stat64, Errno> {
    let mut st = MaybeUninit::<libc::stat64>::uninit();
    let args =
        [dirfd as isize as usize, path.as_ptr() as usize, st.as_mut_ptr() as usize, flags as isize as usize, 0, 0];
    // SAFETY: a C string and a buffer of the right type; filled when the call says so.
    unsafe { result(call(libc::SYS_newfstatat, args)).map(|_| st.assume_init()) }
}

/// lstat(2).
pub fn lstat(path: &CStr) -> Result<libc::stat64, Errno> {
    stat_at(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)
}

/// faccessat2(2), or what older kernels have of it.
pub fn access(path: &CStr, mode: c_int, flags: c_int) -> Result<(), Errno> {
    access_at(libc::AT_FDCWD, path, mode, flags)
}

/// The same, relative to an open directory.
pub fn access_at(dirfd: c_int, path: &CStr, mode: c_int, flags: c_int) -> Result<(), Errno> {
    const SYS_FACCESSAT2: i64 = 439;
    let dir = dirfd as isize as usize;
    // SAFETY: a C string.
    let done =
        unsafe { call(SYS_FACCESSAT2, [dir, path.as_ptr() as usize, mode as usize, flags as isize as usize, 0, 0]) };
    if done != -(libc::ENOSYS as isize) {
        return result(done).map(drop);
    }
    // SAFETY: as above.
    result(unsafe { call(libc::SYS_faccessat, [dir, path.as_ptr() as usize, mode as usize, 0, 0, 0]) }).map(drop)
}

/// Whether a change of this path by a raw system call of this process would be answered by the
/// supervisor of `run.raw_calls`. Asked by a call that it answers and that the kernel refuses.
pub fn catches_raw_calls(path: &CStr) -> bool {
    let args = [HERE, path.as_ptr() as usize, raw_calls::PROBE_FLAGS as usize, 0, 0, 0];
    // SAFETY: a C string; the kernel refuses these flags.
    unsafe { call(libc::SYS_unlinkat, args) == raw_calls::PROBE_ANSWER }
}

/// Whether something is mounted at an absolute path. Kernels before 5.8 do not tell.
pub fn is_mount_point(path: &CStr) -> bool {
    const MOUNT_ROOT: u64 = 0x2000;
    let mut st = MaybeUninit::<libc::statx>::zeroed();
    let flags = (libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT) as usize;
    // SAFETY: a C string, and a buffer of that type, of which zeros are a value.
    unsafe {
        let done = call(libc::SYS_statx, [HERE, path.as_ptr() as usize, flags, 0, st.as_mut_ptr() as usize, 0]);
        done == 0 && st.assume_init().stx_attributes & MOUNT_ROOT != 0
    }
}

/// fchmod(2).
pub fn fchmod(fd: c_int, mode: u32) -> Result<(), Errno> {
    // SAFETY: a plain descriptor call.
    result(unsafe { call(libc::SYS_fchmod, [fd as usize, mode as usize, 0, 0, 0, 0]) }).map(drop)
}

/// fchown(2).
pub fn set_owner(fd: c_int, uid: u32, gid: u32) -> Result<(), Errno> {
    // SAFETY: a plain descriptor call.
    result(unsafe { call(libc::SYS_fchown, [fd as usize, uid as usize, gid as usize, 0, 0, 0]) }).map(drop)
}

/// ftruncate(2).
pub fn truncate(fd: c_int, len: u64) -> Result<(), Errno> {
    // SAFETY: a plain descriptor call.
    result(unsafe { call(libc::SYS_ftruncate, [fd as usize, len as usize, 0, 0, 0, 0]) }).map(drop)
}

/// fdatasync(2).
pub fn sync(fd: c_int) -> Result<(), Errno> {
    // SAFETY: a plain descriptor call.
    result(unsafe { call(libc::SYS_fdatasync, [fd as usize, 0, 0, 0, 0, 0]) }).map(drop)
}

/// Writes all of it at an offset.
pub fn write_all_at(fd: c_int, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let args = [fd as usize, bytes.as_ptr() as usize, bytes.len(), at as usize, 0, 0];
        // SAFETY: as many bytes are there.
        match result(unsafe { call(libc::SYS_pwrite64, args) }) {
            Ok(0) => return Err(libc::EIO),
            Ok(n) => {
                bytes = bytes.get(n..).unwrap_or_default();
                at += n as u64;
            }
            Err(libc::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The device of the directory of a path.
pub fn device_of_parent(dirfd: c_int, path: &[u8]) -> Option<u64> {
    let end = path.iter().rposition(|&c| c != b'/')? + 1;
    let mut parent = PathBuffer::front();
    match path.get(..end)?.iter().rposition(|&c| c == b'/') {
        Some(slash) => parent.append(path.get(..=slash)?)?,
        None => parent.append(b".")?,
    }
    monarch_guest::sys::identity_at(dirfd, parent.c_str()?).map(|(dev, _)| dev)
}

/// Whether the kernel knows a writer of a file, by a descriptor that only reads it: then it grants
/// no lease for reading. Where it has no leases, a writer is assumed.
pub fn has_writer(fd: c_int) -> bool {
    /// Which signal tells of a lease that is being broken: SIGIO would end the process, SIGURG is
    /// ignored unless it is asked for.
    const F_SETSIG: usize = 10;
    // SAFETY: plain descriptor calls.
    unsafe {
        call(libc::SYS_fcntl, [fd as usize, F_SETSIG, libc::SIGURG as usize, 0, 0, 0]);
        if call(libc::SYS_fcntl, [fd as usize, libc::F_SETLEASE as usize, libc::F_RDLCK as usize, 0, 0, 0]) != 0 {
            return true;
        }
        call(libc::SYS_fcntl, [fd as usize, libc::F_SETLEASE as usize, libc::F_UNLCK as usize, 0, 0, 0]);
    }
    false
}

/// Reads entries of a directory into a buffer; the bytes that were filled, 0 at the end.
pub fn list(fd: c_int, out: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: a buffer as long as said.
    result(unsafe { call(libc::SYS_getdents64, [fd as usize, out.as_mut_ptr() as usize, out.len(), 0, 0, 0]) })
}

/// All signals blocked in this thread until the value is dropped.
pub struct SignalsBlocked(u64);

impl SignalsBlocked {
    /// Blocks them.
    pub fn begin() -> Self {
        let (all, mut before) = (u64::MAX, 0u64);
        let args = [libc::SIG_SETMASK as usize, (&raw const all) as usize, (&raw mut before) as usize, 8, 0, 0];
        // SAFETY: masks as long as said.
        unsafe { call(libc::SYS_rt_sigprocmask, args) };
        Self(before)
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        let args = [libc::SIG_SETMASK as usize, (&raw const self.0) as usize, 0, 8, 0, 0];
        // SAFETY: a mask as long as said.
        unsafe { call(libc::SYS_rt_sigprocmask, args) };
    }
}

/// Takes a blocked signal from those that wait for this thread.
pub fn forget_signal(signal: c_int) {
    let (set, no_time) = (1_u64 << (signal - 1), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let args = [(&raw const set) as usize, 0, (&raw const no_time) as usize, 8, 0, 0];
    // SAFETY: a set as long as said, and a time.
    unsafe { call(libc::SYS_rt_sigtimedwait, args) };
}

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

/// Nanoseconds since 1970 at the last tick of the kernel, of which it takes the times of files.
pub fn tick_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME_COARSE)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the buffer is ours.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

/// A buffer for extended attributes.
type Block = MaybeUninit<[u8; BLOCK_BYTES]>;

/// What a call has written to the front of a buffer.
fn written(done: isize, room: &Block) -> Result<&[u8], Errno> {
    let len = result(done)?;
    if len > BLOCK_BYTES {
        return Err(libc::ERANGE);
    }
    // SAFETY: the kernel has written as many bytes.
    Ok(unsafe { core::slice::from_raw_parts(room.as_ptr().cast::<u8>(), len) })
}

/// The names of the extended attributes at an absolute path, each with a final NUL; a link is not
/// followed.
pub fn list_extended<'b>(path: &CStr, room: &'b mut Block) -> Result<&'b [u8], Errno> {
    let args = [path.as_ptr() as usize, room.as_mut_ptr() as usize, BLOCK_BYTES, 0, 0, 0];
    // SAFETY: a C string, and a buffer as long as said.
    written(unsafe { call(libc::SYS_llistxattr, args) }, room)
}

/// The value of an extended attribute at an absolute path; a link is not followed.
pub fn extended<'b>(path: &CStr, name: &CStr, room: &'b mut Block) -> Result<&'b [u8], Errno> {
    let args = [path.as_ptr() as usize, name.as_ptr() as usize, room.as_mut_ptr() as usize, BLOCK_BYTES, 0, 0];
    // SAFETY: C strings, and a buffer as long as said.
    written(unsafe { call(libc::SYS_lgetxattr, args) }, room)
}

/// Sets an extended attribute at an absolute path; a link is not followed.
pub fn set_extended_at(path: &CStr, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    let args = [path.as_ptr() as usize, name.as_ptr() as usize, value.as_ptr() as usize, value.len(), 0, OWN];
    // SAFETY: C strings, and a value as long as said.
    result(unsafe { call(libc::SYS_lsetxattr, args) }).map(drop)
}

/// fsetxattr(2).
pub fn set_extended(fd: c_int, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    let args = [fd as usize, name.as_ptr() as usize, value.as_ptr() as usize, value.len(), 0, 0];
    // SAFETY: a C string, and a value as long as said.
    result(unsafe { call(libc::SYS_fsetxattr, args) }).map(drop)
}
