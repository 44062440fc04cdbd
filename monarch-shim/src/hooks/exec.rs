//! Programs that are executed: what was just written is published first, as the kernel looks for it
//! on the PFS. (Those of functions with any number of arguments: see `jump`.)

use super::hook;
use super::spawn::Spawning;
use crate::outputs::{descriptors, own_environment, publish_program, publish_searched};
use core::ffi::{c_char, c_int, c_void};
use monarch_guest::errno;

const CWD: c_int = libc::AT_FDCWD;
type Strings = *const *const c_char;

/// Executes by `call`, unless the job has removed the program.
pub(super) unsafe fn executed(dirfd: c_int, path: *const c_char, envp: Strings, call: impl FnOnce() -> c_int) -> c_int {
    descriptors::executing();
    // SAFETY: passed on.
    unsafe { publish_program(dirfd, path, envp) }.unwrap_or_else(call)
}

/// The same for a program that is looked for.
unsafe fn searched(file: *const c_char, envp: Strings, call: impl FnOnce() -> c_int) -> c_int {
    descriptors::executing();
    // SAFETY: passed on.
    unsafe { publish_searched(file, envp) }.unwrap_or_else(call)
}

/// The same for posix_spawn, whose result is the error: `call` gets the actions of the child.
unsafe fn spawned(
    refused: Option<c_int>,
    actions: *const c_void,
    attributes: *const c_void,
    call: impl FnOnce(*const c_void) -> c_int,
) -> c_int {
    if refused.is_some() {
        return errno::errno();
    }
    // SAFETY: passed on.
    match unsafe { Spawning::begin(actions, attributes) } {
        Ok(spawning) => call(spawning.actions()),
        Err(e) => e,
    }
}

hook! { next;
    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        executed(CWD, path, envp, || next(path, argv, envp))
    }
    fn execv(path: *const c_char, argv: Strings) -> c_int {
        executed(CWD, path, own_environment(), || next(path, argv))
    }
    fn execvp(file: *const c_char, argv: Strings) -> c_int { searched(file, own_environment(), || next(file, argv)) }
    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        searched(file, envp, || next(file, argv, envp))
    }
    fn execveat(dirfd: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
        executed(dirfd, path, envp, || next(dirfd, path, argv, envp, flags))
    }
    fn posix_spawnp(pid: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        let refused = publish_searched(file, envp);
        spawned(refused, actions, attributes, |actions| next(pid, file, actions, attributes, argv, envp))
    }
    fn posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        let refused = publish_program(CWD, path, envp);
        spawned(refused, actions, attributes, |actions| next(pid, path, actions, attributes, argv, envp))
    }
}
