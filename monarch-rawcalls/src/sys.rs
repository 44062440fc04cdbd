//! Bare system calls: seccomp, its notifications, the memory of another process, and the functions
//! of the C library that make a change.

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ffi::CStr;
use std::io;

/// Has a signal during a notified call wait, unless it kills: without it the kernel would make the
/// call again, which the supervisor may have made already. Linux 5.19.
const WAIT_KILLABLE: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;

/// Looks whether the kernel has all that the filter needs, as far as that can be asked without one.
///
/// # Errors
/// It has not: it is too old, or a container's profile refuses it.
pub(crate) fn check() -> io::Result<()> {
    let action = libc::SECCOMP_RET_USER_NOTIF;
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE;
    // SAFETY: asks only: the first call reads a word; the second has no program, which the kernel
    // says after it has looked at the flags.
    let (known, why) = unsafe {
        let known = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) == 0;
        let refused = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, 0usize);
        (known && refused < 0, io::Error::last_os_error().raw_os_error())
    };
    if known && why == Some(libc::EFAULT) { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Installs a filter in this process. Forbids it and its children to gain rights by setuid programs
/// unless it is privileged. Returns the descriptor by which notifications are received. Allocates
/// nothing: the caller may be between fork and exec.
///
/// # Errors
/// `EBUSY` if the process has such a filter already; others as seccomp(2).
pub(crate) fn install(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let Ok(len) = u16::try_from(program.len()) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let all = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE;
    // SAFETY: the program is as long as said; the kernel copies it.
    let set = || unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const all) };
    let mut fd = set();
    if fd < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EACCES) {
        // SAFETY: a plain call on this process.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        fd = set();
    }
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, closed by exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notification {
    /// Its number.
    pub(crate) id: u64,
    /// The calling thread.
    pub(crate) thread: u32,
    /// The call's number.
    pub(crate) call: i64,
    /// Its arguments.
    pub(crate) arguments: [u64; 6],
}

fn ioctl<T>(fd: BorrowedFd<'_>, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: the callers pair each request with the type that it reads and writes.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a notification.
///
/// # Errors
/// `ENOENT` if the caller was killed meanwhile; others as seccomp_unotify(2).
pub(crate) fn receive(listener: BorrowedFd<'_>) -> io::Result<Notification> {
    // SAFETY: plain integers, which the kernel wants to be zero.
    let mut n: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &mut n)?;
    Ok(Notification { id: n.id, thread: n.pid, call: i64::from(n.data.nr), arguments: n.data.args })
}

/// Whether a call still waits for its answer: then its thread is the one that it was.
#[must_use]
pub(crate) fn is_waiting(listener: BorrowedFd<'_>, mut id: u64) -> bool {
    ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id).is_ok()
}

/// Answers a call; `None` lets the kernel make it. A negative result is an errno.
///
/// # Errors
/// `ENOENT` if the call does not wait any more.
pub(crate) fn answer(listener: BorrowedFd<'_>, id: u64, result: Option<i64>) -> io::Result<()> {
    // SAFETY: plain integers.
    let mut response: libc::seccomp_notif_resp = unsafe { std::mem::zeroed() };
    response.id = id;
    match result {
        None => response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        Some(failed @ ..0) => response.error = failed as i32,
        Some(value) => response.val = value,
    }
    ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &mut response)
}

/// Asks the kernel to switch between caller and supervisor without other processors (Linux 6.6).
pub(crate) fn wake_in_turn(listener: BorrowedFd<'_>) {
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    // SAFETY: this request takes its flags by value.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
}

/// Reads the memory of a process at an address, as much as there is in one piece.
///
/// # Errors
/// As process_vm_readv(2).
pub(crate) fn read_memory(thread: u32, address: u64, out: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: out.len() };
    // SAFETY: writes to the buffer only, within its length.
    let n = unsafe { libc::process_vm_readv(thread as i32, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Gives this thread a umask and a working directory of its own.
pub(crate) fn unshare_directories() -> bool {
    // SAFETY: concerns this thread alone.
    unsafe { libc::unshare(libc::CLONE_FS) == 0 }
}

/// Blocks all signals in this thread and those that it starts. What a file size limit would signal
/// is an error of the call then.
pub(crate) fn block_signals() {
    // SAFETY: plain calls with a buffer of ours.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// A change with its arguments, by a function of the C library: a preload library sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Function<'c> {
    Rename((i32, &'c CStr), (i32, &'c CStr), u32),
    Link((i32, &'c CStr), (i32, &'c CStr), i32),
    Unlink((i32, &'c CStr), i32),
    Symlink(&'c CStr, (i32, &'c CStr)),
    Truncate(&'c CStr, i64),
    Mode((i32, &'c CStr), u32, i32),
    Owner((i32, &'c CStr), u32, u32, i32),
    Times((i32, &'c CStr), Option<[(i64, i64); 2]>, i32),
    MakeDir((i32, &'c CStr), u32),
    MakeNode((i32, &'c CStr), u32, u32),
}

/// Makes a change. Returns what the system call would: a negative errno where it fails.
pub(crate) fn change(function: Function<'_>) -> i64 {
    let pair = |(s, ns): (i64, i64)| libc::timespec { tv_sec: s, tv_nsec: ns };
    // SAFETY: C strings, descriptors and buffers that live during the call.
    let done = unsafe {
        match function {
            Function::Rename((a, from), (b, to), 0) => libc::renameat(a, from.as_ptr(), b, to.as_ptr()),
            // By its number, which the shim knows as well: the function is newer than glibc 2.17.
            Function::Rename((a, from), (b, to), flags) => {
                libc::syscall(libc::SYS_renameat2, a, from.as_ptr(), b, to.as_ptr(), flags) as i32
            }
            Function::Link((a, from), (b, to), flags) => libc::linkat(a, from.as_ptr(), b, to.as_ptr(), flags),
            Function::Unlink((a, path), flags) => libc::unlinkat(a, path.as_ptr(), flags),
            Function::Symlink(text, (a, path)) => libc::symlinkat(text.as_ptr(), a, path.as_ptr()),
            Function::Truncate(path, len) => libc::truncate(path.as_ptr(), len),
            Function::Mode((a, path), mode, flags) => libc::fchmodat(a, path.as_ptr(), mode, flags),
            Function::Owner((a, path), user, group, flags) => libc::fchownat(a, path.as_ptr(), user, group, flags),
            Function::Times((a, path), times, flags) => {
                let times = times.map(|both| both.map(pair));
                libc::utimensat(a, path.as_ptr(), times.as_ref().map_or(std::ptr::null(), |t| t.as_ptr()), flags)
            }
            Function::MakeDir((a, path), mode) => libc::mkdirat(a, path.as_ptr(), mode),
            // By its number for the same reason.
            Function::MakeNode((a, path), mode, device) => {
                libc::syscall(libc::SYS_mknodat, a, path.as_ptr(), mode, u64::from(device)) as i32
            }
        }
    };
    if done < 0 { -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { done.into() }
}
