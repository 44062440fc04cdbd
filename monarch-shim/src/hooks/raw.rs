//! `syscall(2)`: calls by number do what the functions of the same name do.
//!
//! Programs use it where the C library has no wrapper, or had none once (libuv's `statx`). Calls that
//! change something, that ask a descriptor who it is, and that change who and where the process is,
//! go through the functions of this library; everything else goes on as it is. Reads and opens for
//! reading are the kernel's: what they give is right.

use super::hook;
use super::place::{entered, forked, moved, remounted, thread_became};
use crate::ctx;
use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use libc::{dev_t, gid_t, mode_t, off_t, size_t, stat64 as Stat, timespec, timeval, uid_t, utimbuf};

// The functions of this library, under the names that C knows.
unsafe extern "C" {
    fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn fstat(fd: c_int, buf: *mut Stat) -> c_int;
    fn stat(path: *const c_char, buf: *mut Stat) -> c_int;
    fn lstat(path: *const c_char, buf: *mut Stat) -> c_int;
    fn fstatat(fd: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int;
    fn statx(fd: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut libc::statx) -> c_int;
    fn rename(from: *const c_char, to: *const c_char) -> c_int;
    fn renameat(a: c_int, from: *const c_char, b: c_int, to: *const c_char) -> c_int;
    fn renameat2(a: c_int, from: *const c_char, b: c_int, to: *const c_char, flags: u32) -> c_int;
    fn unlinkat(fd: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn unlink(path: *const c_char) -> c_int;
    fn rmdir(path: *const c_char) -> c_int;
    fn mkdirat(fd: c_int, path: *const c_char, mode: mode_t) -> c_int;
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int;
    fn linkat(a: c_int, from: *const c_char, b: c_int, to: *const c_char, flags: c_int) -> c_int;
    fn link(from: *const c_char, to: *const c_char) -> c_int;
    fn symlinkat(target: *const c_char, fd: c_int, path: *const c_char) -> c_int;
    fn symlink(target: *const c_char, path: *const c_char) -> c_int;
    fn mknodat(fd: c_int, path: *const c_char, mode: mode_t, dev: dev_t) -> c_int;
    fn mknod(path: *const c_char, mode: mode_t, dev: dev_t) -> c_int;
    fn truncate(path: *const c_char, len: off_t) -> c_int;
    fn chmod(path: *const c_char, mode: mode_t) -> c_int;
    fn fchmod(fd: c_int, mode: mode_t) -> c_int;
    fn fchmodat(fd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int;
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int;
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int;
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int;
    fn fchownat(fd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int;
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int;
    fn utimes(path: *const c_char, times: *const timeval) -> c_int;
    fn futimesat(fd: c_int, path: *const c_char, times: *const timeval) -> c_int;
    fn setxattr(path: *const c_char, key: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int;
    fn lsetxattr(path: *const c_char, key: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int;
    fn fsetxattr(fd: c_int, key: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int;
    fn removexattr(path: *const c_char, key: *const c_char) -> c_int;
    fn lremovexattr(path: *const c_char, key: *const c_char) -> c_int;
    fn fremovexattr(fd: c_int, key: *const c_char) -> c_int;
    fn fcntl(fd: c_int, what: c_int, arg: usize) -> c_int;
    fn flock(fd: c_int, how: c_int) -> c_int;
    fn ioctl(fd: c_int, request: libc::c_ulong, arg: usize) -> c_int;
    fn prctl(what: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    fn syncfs(fd: c_int) -> c_int;
    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int;
}

type Call = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

const CWD: c_int = libc::AT_FDCWD;

/// `openat2(2)`: the kernel's own call, told before and looked at afterwards if it writes.
#[inline(never)]
unsafe fn openat2(next: Call, n: c_long, a: [usize; 6]) -> c_long {
    // SAFETY: tested before it is read.
    let how = unsafe { crate::user::slice(a[2] as *const u64, 3) };
    let call = || {
        // SAFETY: the application's arguments.
        unsafe { next(n, a[0], a[1], a[2], a[3], a[4], a[5]) }
    };
    let Some(&[flags, ..]) = how else { return call() };
    // SAFETY: passed on.
    unsafe { super::open::by_other_call(a[0] as c_int, a[1] as *const c_char, flags as c_int, || call() as c_int) }
        .map_or_else(call, c_long::from)
}

/// A system call that is answered by a function of this library, or followed by what concerns us.
#[inline]
unsafe fn answer(next: Call, n: c_long, a: [usize; 6]) -> c_long {
    let call = || {
        // SAFETY: the application's arguments.
        unsafe { next(n, a[0], a[1], a[2], a[3], a[4], a[5]) }
    };
    let [x, y, z, u, v, _] = a;
    let (fd, second, third, fourth) = (x as c_int, y as c_int, z as c_int, u as c_int);
    let (path, path2, path4) = (x as *const c_char, y as *const c_char, u as *const c_char);
    // SAFETY: the contract of the system call is that of the function.
    let done = unsafe {
        match n {
            libc::SYS_openat if !crate::serve::only_reads(third) => openat(fd, path2, third, u as mode_t),
            libc::SYS_openat2 => return openat2(next, n, a),
            libc::SYS_fstat => fstat(fd, y as *mut Stat),
            libc::SYS_newfstatat => fstatat(fd, path2, z as *mut Stat, fourth),
            libc::SYS_statx => statx(fd, path2, third, u as c_uint, v as *mut libc::statx),
            libc::SYS_renameat => renameat(fd, path2, third, path4),
            libc::SYS_renameat2 => renameat2(fd, path2, third, path4, v as u32),
            libc::SYS_unlinkat => unlinkat(fd, path2, third),
            libc::SYS_mkdirat => mkdirat(fd, path2, z as mode_t),
            libc::SYS_linkat => linkat(fd, path2, third, path4, v as c_int),
            libc::SYS_symlinkat => symlinkat(path, second, z as *const c_char),
            libc::SYS_mknodat => mknodat(fd, path2, z as mode_t, u as dev_t),
            libc::SYS_truncate => truncate(path, y as off_t),
            libc::SYS_fchmod => fchmod(fd, y as mode_t),
            libc::SYS_fchmodat => fchmodat(fd, path2, z as mode_t, 0),
            SYS_FCHMODAT2 => super::change::raw_fchmodat2(fd, path2, z as mode_t, fourth),
            libc::SYS_fchown => fchown(fd, y as uid_t, z as gid_t),
            libc::SYS_fchownat => fchownat(fd, path2, z as uid_t, u as gid_t, v as c_int),
            libc::SYS_utimensat => super::change::raw_utimensat(fd, path2, z as *const timespec, fourth),
            libc::SYS_setxattr => setxattr(path, path2, z as *const c_void, u, v as c_int),
            libc::SYS_lsetxattr => lsetxattr(path, path2, z as *const c_void, u, v as c_int),
            libc::SYS_fsetxattr => fsetxattr(fd, path2, z as *const c_void, u, v as c_int),
            libc::SYS_removexattr => removexattr(path, path2),
            libc::SYS_lremovexattr => lremovexattr(path, path2),
            libc::SYS_fremovexattr => fremovexattr(fd, path2),
            libc::SYS_fcntl => fcntl(fd, second, z),
            libc::SYS_flock => flock(fd, second),
            libc::SYS_ioctl => ioctl(fd, y as libc::c_ulong, z),
            libc::SYS_prctl => prctl(fd, y, z, u, v),
            libc::SYS_syncfs => syncfs(fd),
            libc::SYS_open_by_handle_at => open_by_handle_at(fd, y as *mut c_void, third),
            libc::SYS_seccomp => {
                let done = call();
                if done == 0 && x == SECCOMP_SET_MODE_STRICT {
                    ctx::leave_alone();
                }
                return done;
            }
            libc::SYS_chdir | libc::SYS_fchdir => moved(call() as c_int),
            libc::SYS_chroot | libc::SYS_pivot_root => {
                let done = remounted(call() as c_int);
                if n == libc::SYS_pivot_root && done == 0 {
                    super::place::mounts_changed();
                }
                done
            }
            libc::SYS_setns | libc::SYS_unshare => entered(call() as c_int),
            libc::SYS_mount | libc::SYS_move_mount | libc::SYS_umount2 => {
                let (dirfd, at) = match n {
                    libc::SYS_mount => (CWD, path2),
                    libc::SYS_move_mount => (third, path4),
                    _ => (CWD, path),
                };
                super::place::covered(dirfd, at, || call() as c_int)
            }
            // What these change is one thread's, even if the functions of the C library change all.
            libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setgroups
            | libc::SYS_capset => thread_became(call() as c_int),
            libc::SYS_setfsuid | libc::SYS_setfsgid => {
                let before = call();
                ctx::threads_rights_changed();
                return before;
            }
            // From here on the kernel denies what neither users nor modes tell.
            SYS_LANDLOCK_RESTRICT_SELF => {
                let done = call();
                if done == 0 {
                    ctx::never_again();
                }
                return done;
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => {
                let child = call();
                if child == 0 {
                    forked();
                }
                return child;
            }
            #[cfg(target_arch = "x86_64")]
            _ => return older(n, a).map_or_else(call, c_long::from),
            #[cfg(not(target_arch = "x86_64"))]
            _ => return call(),
        }
    };
    c_long::from(done)
}

/// Numbers that are the same on all machines.
const SYS_FCHMODAT2: c_long = 452;
const SECCOMP_SET_MODE_STRICT: usize = 0;
const SYS_LANDLOCK_RESTRICT_SELF: c_long = 446;

/// Calls that newer machines do not have.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn older(n: c_long, a: [usize; 6]) -> Option<c_int> {
    let [x, y, z, ..] = a;
    let (path, path2) = (x as *const c_char, y as *const c_char);
    // SAFETY: the contract of the system call is that of the function.
    Some(unsafe {
        match n {
            libc::SYS_open if !crate::serve::only_reads(y as c_int) => openat(CWD, path, y as c_int, z as mode_t),
            libc::SYS_creat => openat(CWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, y as mode_t),
            libc::SYS_stat => stat(path, y as *mut Stat),
            libc::SYS_lstat => lstat(path, y as *mut Stat),
            libc::SYS_rename => rename(path, path2),
            libc::SYS_unlink => unlink(path),
            libc::SYS_rmdir => rmdir(path),
            libc::SYS_mkdir => mkdir(path, y as mode_t),
            libc::SYS_link => link(path, path2),
            libc::SYS_symlink => symlink(path, path2),
            libc::SYS_mknod => mknod(path, y as mode_t, z as dev_t),
            libc::SYS_chmod => chmod(path, y as mode_t),
            libc::SYS_chown => chown(path, y as uid_t, z as gid_t),
            libc::SYS_lchown => lchown(path, y as uid_t, z as gid_t),
            libc::SYS_utime => utime(path, y as *const utimbuf),
            libc::SYS_utimes => utimes(path, y as *const timeval),
            libc::SYS_futimesat => futimesat(x as c_int, path2, z as *const timeval),
            _ => return None,
        }
    })
}

hook! { next;
    fn syscall(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        answer(next, n, [a, b, c, d, e, f])
    }
}
