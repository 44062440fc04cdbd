//! Programs that are executed: one that was just written is published first, as the kernel looks
//! for it on the PFS.

use super::hook;
use crate::outputs::{descriptors, settle};
use core::ffi::{c_char, c_int, c_void};

const CWD: c_int = libc::AT_FDCWD;
type Strings = *const *const c_char;

/// Executes by `call`, unless the job has removed the program.
unsafe fn executed(dirfd: c_int, path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    descriptors::executing();
    // SAFETY: passed on.
    unsafe { settle(dirfd, path, true) }.unwrap_or_else(call)
}

/// The same for posix_spawn, whose result is the error.
unsafe fn spawned(path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: passed on.
    match unsafe { settle(CWD, path, true) } {
        Some(_) => monarch_guest::errno::errno(),
        None => call(),
    }
}

hook! { next;
    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int { executed(CWD, path, || next(path, argv, envp)) }
    fn execv(path: *const c_char, argv: Strings) -> c_int { executed(CWD, path, || next(path, argv)) }
    fn execvp(file: *const c_char, argv: Strings) -> c_int { executed(CWD, file, || next(file, argv)) }
    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        executed(CWD, file, || next(file, argv, envp))
    }
    fn execveat(dirfd: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
        executed(dirfd, path, || next(dirfd, path, argv, envp, flags))
    }
    fn posix_spawnp(pid: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        spawned(file, || next(pid, file, actions, attributes, argv, envp))
    }
    fn posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        spawned(path, || next(pid, path, actions, attributes, argv, envp))
    }
}
