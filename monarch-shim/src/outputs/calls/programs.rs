//! Before programs are executed and libraries are loaded: the kernel and the loader look for them
//! on the PFS.

use super::inside::{Subject, is_pending, publish};
use crate::outputs::answer::Answer;
use crate::outputs::kernel;
use crate::outputs::lookup::{Found, lookup};
use crate::outputs::staged::is_written;
use crate::outputs::tree::Entry;
use core::ffi::{CStr, c_char, c_int};
use monarch_abi::mem::PathBuffer;
use monarch_guest::sys::Fd;
use monarch_guest::{errno, sys, user};

/// Most interpreters of interpreters that the kernel follows.
const MAX_INTERPRETERS: usize = 5;
/// A name in a directory of a search path, whichever library it is.
const SOME_LIBRARY: &[u8] = b"/lib.so";
/// Bytes of a script's first line that the kernel looks at.
const FIRST_LINE: usize = 256;

/// Before a program is executed: that it, the interpreters that its first line names, and the
/// libraries that its environment names, are published. -1 and errno where the job has removed it.
///
/// # Safety
/// As for [`user::path`]; `environment` is one as for execve(2), or null.
#[inline]
pub unsafe fn publish_program(dirfd: c_int, path: *const c_char, environment: *const *const c_char) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        if !is_pending() {
            return None;
        }
        let done = super::settle(dirfd, path, true).or_else(|| being_written(dirfd, path));
        if done.is_none() {
            publish_interpreters(dirfd, path);
            publish_libraries(environment);
        }
        done
    }
}

/// The errno of execve(2) of a file that was not published, as a process has it open for writing.
unsafe fn being_written(dirfd: c_int, path: *const c_char) -> Option<c_int> {
    // SAFETY: by contract of the caller.
    unsafe {
        super::at_path_beyond(dirfd, path, -1, |place| match lookup(place, true)? {
            Found::Entry(Entry::File(file)) => {
                let mut path = place.root.data(&file.name()).ok_or(libc::ENAMETOOLONG)?;
                match kernel::access(path.c_str().ok_or(libc::ENAMETOOLONG)?, libc::X_OK, libc::AT_EACCESS) {
                    // It was published and dropped a moment ago.
                    Err(libc::ENOENT) => return Ok(Answer::Plain),
                    may => may?,
                }
                if is_written(&place.root, &file) { Err(libc::ETXTBSY) } else { Ok(Answer::Plain) }
            }
            _ => Ok(Answer::Plain),
        })
    }
}

/// [`publish_program`] for a program that is looked for in the directories of `PATH`.
///
/// # Safety
/// The same.
#[inline]
pub unsafe fn publish_searched(file: *const c_char, environment: *const *const c_char) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        let name = user::path(file)?;
        if name.contains(&b'/') {
            return publish_program(libc::AT_FDCWD, file, environment);
        }
        if is_pending() {
            // The C library searches by the variable of this process.
            let list = value(own_environment(), b"PATH").unwrap_or_default();
            each_directory(
                list,
                |c| *c == b':',
                |mut path| {
                    path.append(b"/")?;
                    path.append(name)?;
                    let path = path.c_str()?;
                    publish(libc::AT_FDCWD, path.as_ptr(), Subject::File);
                    publish_interpreters(libc::AT_FDCWD, path.as_ptr());
                    Some(())
                },
            );
            publish_libraries(environment);
        }
        None
    }
}

/// Publishes what the first lines of scripts name.
#[cold]
#[inline(never)]
unsafe fn publish_interpreters(mut dirfd: c_int, path: *const c_char) {
    let saved = errno::errno();
    let mut script = PathBuffer::front();
    // SAFETY: by contract of the caller.
    if unsafe { user::path(path) }.is_some_and(|path| script.append(path).is_some()) {
        for _ in 0..MAX_INTERPRETERS {
            let Some(next) = script.c_str().and_then(|path| interpreter(dirfd, path)) else { break };
            (script, dirfd) = (next, libc::AT_FDCWD);
            let Some(path) = script.c_str() else { break };
            // SAFETY: a path of the shim.
            unsafe { publish(dirfd, path.as_ptr(), Subject::File) };
        }
    }
    errno::set_errno(saved);
}

/// The interpreter that a script names.
fn interpreter(dirfd: c_int, script: &CStr) -> Option<PathBuffer> {
    if script.is_empty() {
        return None;
    }
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let fd: Fd = kernel::open_at(dirfd, script, flags, 0).ok()?;
    let mut room = [0; FIRST_LINE];
    let line = sys::read(fd.0, &mut room)?.strip_prefix(b"#!")?;
    let is_blank = |c: &u8| matches!(c, b' ' | b'\t');
    let begin = line.iter().position(|c| !is_blank(c))?;
    let word = line.get(begin..)?.split(|c| is_blank(c) || matches!(c, b'\n' | 0)).next()?;
    let mut path = PathBuffer::front();
    path.append(word)?;
    (!word.is_empty()).then_some(path)
}

/// Publishes the libraries that an environment names for the loader.
#[cold]
#[inline(never)]
unsafe fn publish_libraries(environment: *const *const c_char) {
    // SAFETY: by contract of the caller.
    unsafe {
        if let Some(list) = value(environment, b"LD_PRELOAD") {
            for name in list.split(|c| matches!(c, b' ' | b':')).filter(|name| name.contains(&b'/')) {
                let mut path = PathBuffer::front();
                if path.append(name).is_some()
                    && let Some(path) = path.c_str()
                {
                    publish(libc::AT_FDCWD, path.as_ptr(), Subject::Directory);
                }
            }
        }
        publish_search_path(environment);
    }
}

/// Publishes what lies in the directories of `LD_LIBRARY_PATH`.
unsafe fn publish_search_path(environment: *const *const c_char) {
    // SAFETY: by contract of the caller.
    let Some(list) = (unsafe { value(environment, b"LD_LIBRARY_PATH") }) else { return };
    each_directory(
        list,
        |c| matches!(c, b':' | b';'),
        |mut dir| {
            dir.append(SOME_LIBRARY)?;
            // SAFETY: a path of the shim.
            unsafe { publish(libc::AT_FDCWD, dir.c_str()?.as_ptr(), Subject::Directory) };
            Some(())
        },
    );
}

/// Before the loader opens a library: that and what lies beside it, or, where it searches for it,
/// what lies in the directories of `LD_LIBRARY_PATH`, is published.
///
/// # Safety
/// As for [`user::path`].
#[cold]
#[inline(never)]
pub unsafe fn publish_library(path: *const c_char) {
    let saved = errno::errno();
    // SAFETY: by contract.
    unsafe {
        match user::path(path) {
            Some(name) if name.contains(&b'/') => {
                publish(libc::AT_FDCWD, path, Subject::Directory);
            }
            Some(name) if !name.is_empty() && is_pending() => publish_search_path(own_environment()),
            _ => {}
        }
    }
    errno::set_errno(saved);
}

/// The environment of this process.
pub fn own_environment() -> *const *const c_char {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: a variable of the C library.
    unsafe { environ }
}

/// The value of a variable.
///
/// # Safety
/// `environment` is one as for execve(2), or null.
unsafe fn value<'a>(environment: *const *const c_char, name: &[u8]) -> Option<&'a [u8]> {
    let mut at = environment;
    loop {
        // SAFETY: by contract; a null pointer ends it.
        let text = unsafe { *user::slice(at, 1)?.first()? };
        // SAFETY: by contract.
        let text = if text.is_null() { return None } else { unsafe { user::path(text) } };
        let found = text.and_then(|text| text.strip_prefix(name)).and_then(|rest| rest.strip_prefix(b"="));
        if found.is_some() {
            return found;
        }
        at = at.wrapping_add(1);
    }
}

/// Calls `visit` with each directory of a search path. An empty one is the working directory.
fn each_directory(list: &[u8], ends: impl Fn(&u8) -> bool, visit: impl Fn(PathBuffer) -> Option<()>) {
    for dir in list.split(ends) {
        let mut path = PathBuffer::front();
        if path.append(if dir.is_empty() { b"." } else { dir }).is_some() {
            let _ = visit(path);
        }
    }
}
