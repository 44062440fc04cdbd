//! `syscall(2)`: calls by number do what the functions of the same name do.
//!
//! Programs use it where the C library has no wrapper, or had none once (libuv's `statx`);
//! libraries define functions of the C library with it (libattr). So whatever is done here ends in
//! the kernel's call of that number, and never in a function of that name, which may be such a
//! definition. Reads, and opens for reading outside of output roots, are the kernel's: what they
//! give is right.

use super::hook;
use super::place::{entered, forked, moved, remounted, thread_became};
use super::{open, place, stat};
use core::ffi::{c_char, c_int, c_long};
use monarch_guest::{ctx, errno};

mod changes;
mod openat2;
mod questions;

type Call = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

const CWD: c_int = libc::AT_FDCWD;

/// Numbers that are the same on all machines.
const SYS_LANDLOCK_RESTRICT_SELF: c_long = 446;
const SECCOMP_SET_MODE_STRICT: usize = 0;
const SYS_LANDLOCK_ADD_RULE: c_long = 445;

/// Answers a call, or enters the change that it makes; `None` for all other calls.
#[inline(never)]
unsafe fn answer(next: Call, n: c_long, a: [usize; 6]) -> Option<c_long> {
    let raw = |a: [usize; 6]| {
        // SAFETY: the application's arguments, or others of the same kind.
        unsafe { next(n, a[0], a[1], a[2], a[3], a[4], a[5]) as c_int }
    };
    // (Each in a function of its own: the frames of all would be large together.)
    // SAFETY: the contract of the system call.
    let done = unsafe {
        match n {
            libc::SYS_openat | libc::SYS_openat2 => of_open(n, a, &raw)?,
            libc::SYS_fstat | libc::SYS_newfstatat | libc::SYS_statx => stat::by_number(n, a, raw)?,
            libc::SYS_unlinkat => super::names::removed(a[0] as c_int, a[1] as *const c_char, a[2] as c_int, || raw(a)),
            libc::SYS_close | libc::SYS_dup | libc::SYS_dup3 | libc::SYS_fsync | libc::SYS_fdatasync => {
                super::close::by_number(n, a, &raw)?
            }
            libc::SYS_exit_group => {
                crate::outputs::descriptors::ending();
                return None;
            }
            libc::SYS_msync => {
                let result = raw(a);
                let syncs = result == 0 && a[2] as c_int & libc::MS_SYNC != 0;
                if syncs { crate::outputs::synced_memory() } else { result }
            }
            libc::SYS_fcntl | libc::SYS_flock | libc::SYS_ioctl | libc::SYS_syncfs | libc::SYS_fstatfs => {
                of_descriptor(n, a, &raw)?
            }
            libc::SYS_name_to_handle_at | SYS_LANDLOCK_ADD_RULE | libc::SYS_open_by_handle_at => of_handle(n, a, &raw)?,
            _ => return of_process(n, a, &raw),
        }
    };
    Some(c_long::from(done))
}

/// Opens.
#[inline(never)]
unsafe fn of_open(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let [x, y, z, u, ..] = a;
    let (fd, path, call) = (x as c_int, y as *const c_char, || raw(a));
    // SAFETY: the contract of the system call.
    unsafe {
        if n == libc::SYS_openat {
            return open::by_number(fd, path, z as c_int, u as _, call);
        }
        let &[flags, mode, resolve] = monarch_guest::user::slice(z as *const u64, 3)? else { return None };
        let how = openat2::How { flags: flags as c_int, mode: mode as _, resolve };
        // What is wrong with these, the kernel says before it looks for the name.
        let is_right = || raw([x, c"".as_ptr() as usize, z, u, 0, 0]) >= 0 || errno::errno() == libc::ENOENT;
        openat2::open(fd, path, how, is_right, call)
    }
}

/// Calls about an open file.
#[inline(never)]
unsafe fn of_descriptor(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let [x, y, z, ..] = a;
    let (fd, call) = (x as c_int, || raw(a));
    // SAFETY: the contract of the system call.
    unsafe {
        Some(match n {
            libc::SYS_fcntl => super::read::fcntl_any(fd, y as c_int, z, call),
            libc::SYS_flock => super::lock::flock_any(fd, y as c_int, call),
            libc::SYS_ioctl => super::ioctl::ioctl_any(fd, y, z, |arg| raw([x, y, arg, 0, 0, 0])),
            libc::SYS_syncfs => super::fs::syncfs_any(fd, |fd| raw([fd as usize, 0, 0, 0, 0, 0])),
            libc::SYS_fstatfs => super::fs::of_root(fd, libc::O_PATH, |fd| raw([fd as usize, y, 0, 0, 0, 0])),
            _ => return None,
        })
    }
}

/// Calls about handles of files, and rules that keep a process from files.
#[inline(never)]
unsafe fn of_handle(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let [x, y, z, u, v, _] = a;
    // SAFETY: the contract of the system call.
    unsafe {
        Some(match n {
            libc::SYS_name_to_handle_at => {
                let Some(file) = super::fs::named_copy(x as c_int, y as *const c_char, v as c_int) else {
                    return Some(raw(a));
                };
                let flags = v & !(libc::AT_SYMLINK_FOLLOW as usize) | libc::AT_EMPTY_PATH as usize;
                raw([file.0 as usize, c"".as_ptr() as usize, z, u, flags, 0])
            }
            SYS_LANDLOCK_ADD_RULE => super::fs::landlock_rule(z, |rule| raw([x, y, rule, u, 0, 0])),
            libc::SYS_open_by_handle_at => super::fs::opened_by_handle(raw(a), z as c_int),
            _ => return None,
        })
    }
}

/// Calls about the user and the place of the process, and those that change something.
unsafe fn of_process(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_long> {
    let call = || raw(a);
    let [x, y, z, u, ..] = a;
    let (fd, third) = (x as c_int, z as c_int);
    let (path, path2, path4) = (x as *const c_char, y as *const c_char, u as *const c_char);
    // SAFETY: the contract of the system call.
    let done = unsafe {
        match n {
            libc::SYS_prctl => super::memory::prctl_any(fd, y, call),
            libc::SYS_seccomp => {
                crate::own_maps::forbid();
                let done = call();
                if done == 0 && x == SECCOMP_SET_MODE_STRICT {
                    ctx::leave_alone();
                }
                done
            }
            libc::SYS_chdir => place::to_directory(path, |path| raw([path as usize, 0, 0, 0, 0, 0])),
            libc::SYS_fchdir => moved(call()),
            libc::SYS_chroot => remounted(call()),
            libc::SYS_pivot_root => {
                let done = remounted(call());
                if done == 0 {
                    place::mounts_changed();
                }
                done
            }
            libc::SYS_setns | libc::SYS_unshare => entered(call()),
            libc::SYS_mount => place::with_source(path, u as _, |from| {
                place::covered(CWD, path2, || raw([from as usize, y, z, u, a[4], 0]))
            }),
            libc::SYS_move_mount => place::covered(third, path4, call),
            libc::SYS_umount2 => place::covered(CWD, path, call),
            // What these change is one thread's, even if the functions of the C library change all.
            libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setgroups
            | libc::SYS_capset => thread_became(call()),
            libc::SYS_setfsuid | libc::SYS_setfsgid => {
                let before = call();
                ctx::threads_rights_changed();
                before
            }
            // From here on the kernel denies accesses by rules that the shim does not know.
            SYS_LANDLOCK_RESTRICT_SELF => {
                let done = call();
                if done == 0 {
                    ctx::never_again();
                }
                done
            }
            _ => {
                let asked = older(n, a, raw).or_else(|| questions::answer(n, a, raw));
                return asked.or_else(|| changes::answer(n, a, raw)).map(c_long::from);
            }
        }
    };
    Some(c_long::from(done))
}

/// Calls that newer machines do not have.
#[cfg(target_arch = "x86_64")]
unsafe fn older(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let path = a[0] as *const c_char;
    let call = || raw(a);
    // SAFETY: the contract of the system call.
    unsafe {
        match n {
            libc::SYS_open => open::by_number(CWD, path, a[1] as c_int, a[2] as _, call),
            libc::SYS_creat => {
                open::by_number(CWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, a[1] as _, call)
            }
            libc::SYS_stat | libc::SYS_lstat => stat::by_number(n, a, raw),
            libc::SYS_fork => {
                let child = call();
                if child == 0 {
                    forked();
                }
                Some(child)
            }
            _ => None,
        }
    }
}

/// Calls that newer machines do not have.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn older(_: c_long, _: [usize; 6], _: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    None
}

hook! { next;
    fn syscall(n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        match answer(next, n, [a, b, c, d, e, f]) {
            Some(done) => done,
            None => next(n, a, b, c, d, e, f),
        }
    }
}
