//! fopen and freopen: the real ones, on the path of the copy.

use super::{enter_change, enter_open, hook};
use crate::changes::{OpenFile, Target, before_write_open};
use crate::descriptor_names::{change_behind_copy, denied_copy, may_reopen};
use crate::descriptor_path::proc_path;
use crate::outputs;
use crate::paths::find;
use crate::serve::{Served, Use, count_miss, open_copy};
use core::ffi::{CStr, c_char, c_int};
use libc::FILE;
use monarch_guest::absent;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::errno;
use monarch_guest::guard::Asked;
use monarch_guest::user;

const CWD: c_int = libc::AT_FDCWD;

/// Whether a mode string only reads.
unsafe fn reads(mode: *const c_char) -> Option<bool> {
    // SAFETY: tested before it is read.
    let mode = unsafe { user::path(mode)? };
    Some(mode.first() == Some(&b'r') && !mode.contains(&b'+'))
}

/// Flags of open(2) for a mode string.
unsafe fn flags_of(mode: *const c_char) -> Option<c_int> {
    // SAFETY: tested before it is read.
    let mode = unsafe { user::path(mode)? };
    let base = match mode.first()? {
        b'r' => 0,
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    // What follows a comma is the character set.
    let options = mode.split(|&c| c == b',').next().unwrap_or_default();
    let has = |c: u8, flag: c_int| if options.contains(&c) { flag } else { 0 };
    let access = match (options.contains(&b'+'), base) {
        (true, _) => libc::O_RDWR,
        (false, 0) => libc::O_RDONLY,
        (false, _) => libc::O_WRONLY,
    };
    Some(base | access | has(b'x', libc::O_EXCL) | has(b'e', libc::O_CLOEXEC))
}

/// Mode with which the C library creates files.
const NEW_FILE: libc::mode_t = 0o666;

/// The stream of a file below an output root; null, with errno, if it cannot be opened; `None` for
/// all other files.
unsafe fn staged_stream(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    ctx::for_outputs()?;
    // SAFETY: the application's pointers, tested before they are read.
    unsafe {
        let fd = outputs::open(CWD, path, flags_of(mode)?, NEW_FILE)?;
        if fd < 0 {
            return Some(core::ptr::null_mut());
        }
        let stream = libc::fdopen(fd, mode);
        if stream.is_null() {
            let why = errno::errno();
            libc::close(fd);
            errno::set_errno(why);
        }
        Some(stream)
    }
}

/// A stream that was opened, or not: a link may have led to a file that is not what the overlay has
/// there.
unsafe fn found_stream(
    before: outputs::Before,
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    let beyond = if stream.is_null() {
        // SAFETY: passed on.
        unsafe { outputs::beyond_found(before, None, CWD, path, true) }.and_then(outputs::Lead::elsewhere)
    } else if before.has_roots() {
        // SAFETY: an open stream, and the application's path.
        unsafe { outputs::beyond_opened(before, libc::fileno(stream), CWD, path, true) }
    } else {
        None
    };
    let Some(mut beyond) = beyond else { return stream };
    let Some(path) = beyond.c_str() else { return stream };
    // SAFETY: passed on, with a path of the shim.
    let again = match unsafe { staged_stream(path.as_ptr(), mode) } {
        Some(again) => again,
        // SAFETY: an open stream.
        None if !stream.is_null() && outputs::is_at(unsafe { libc::fileno(stream) }, path.to_bytes()) => return stream,
        // SAFETY: passed on. (What was missing, or replaced, may be published by now.)
        None => unsafe { libc::fopen(path.as_ptr(), mode) },
    };
    if !stream.is_null() {
        let saved = errno::errno();
        // SAFETY: nothing was read from it.
        unsafe { libc::fclose(stream) };
        errno::set_errno(saved);
    }
    again
}

/// [`staged_stream`] in the place of another stream, by `next`, which opens a path.
unsafe fn staged_again(
    path: *const c_char,
    mode: *const c_char,
    next: impl Fn(*const c_char) -> *mut FILE,
) -> Option<*mut FILE> {
    ctx::for_outputs()?;
    // SAFETY: as above.
    unsafe {
        let fd = outputs::open_beyond(CWD, path, flags_of(mode)?, NEW_FILE)?;
        if fd < 0 {
            let why = errno::errno();
            // No file has an empty name: the stream is closed, as it is whenever that fails.
            let stream = next(c"".as_ptr());
            errno::set_errno(why);
            return Some(stream);
        }
        let stream = proc_path(fd).map_or(core::ptr::null_mut(), |name| next(name.as_ptr().cast()));
        if !stream.is_null() && flags_of(mode)? & libc::O_ACCMODE != libc::O_RDONLY {
            outputs::descriptors::opened(libc::fileno(stream));
        }
        libc::close(fd);
        Some(stream)
    }
}

unsafe fn open_stream(
    path: *const c_char,
    mode: *const c_char,
    next: impl Fn(*const c_char) -> *mut FILE,
    fileno: unsafe extern "C" fn(*mut FILE) -> c_int,
) -> *mut FILE {
    // SAFETY: the application's pointers, tested before they are read.
    let (Some((ctx, bytes)), Some(only_reads)) = (unsafe { (enter_change(path), reads(mode)) }) else {
        // SAFETY: passed on.
        return unsafe { told(path, mode, next, fileno) };
    };
    if only_reads {
        let served = if ctx::get().is_some() { read_stream(&ctx, bytes, &next) } else { None };
        let opened = || {
            let stream = next(path);
            if !stream.is_null() && may_reopen(bytes) {
                // SAFETY: a stream that was just opened, and has read nothing.
                super::open::reopened(&ctx, unsafe { fileno(stream) }, libc::O_RDONLY);
            }
            stream
        };
        return served.unwrap_or_else(opened);
    }
    let saved = errno::errno();
    // SAFETY: as above.
    let mode = unsafe { user::path(mode) }.unwrap_or(b"r+");
    let flags = match mode.first() {
        Some(b'w') => libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => libc::O_RDWR | libc::O_CREAT | libc::O_APPEND,
        _ => libc::O_RDWR,
    };
    match change_behind_copy(&ctx, CWD, bytes, true) {
        Target::AsNamed => {}
        Target::Pfs(mut p) => {
            errno::set_errno(saved);
            return p.c_str().map_or(core::ptr::null_mut(), |p| next(p.as_ptr()));
        }
        Target::Removed => {
            // SAFETY: a path of the application, which ends with a NUL.
            let copy =
                unsafe { monarch_guest::sys::open_at(CWD, bytes.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
            return removed(copy.as_ref(), flags, &next);
        }
        Target::Gone => return gone(&next),
    }
    let known = before_write_open(&ctx, CWD, bytes, flags);
    errno::set_errno(saved);
    let stream = next(path);
    if !known
        && stream.is_null()
        && errno::errno() == libc::EACCES
        && let Target::Pfs(mut p) = denied_copy(&ctx, CWD, bytes, true)
        && let Some(p) = p.c_str()
    {
        return next(p.as_ptr());
    }
    if !known && !stream.is_null() {
        // SAFETY: a stream that was just opened.
        let moved = super::open::off_copy(&ctx, unsafe { fileno(stream) }, flags);
        if moved < 0 {
            let why = errno::errno();
            // SAFETY: as above; nothing was written to it.
            unsafe { libc::fclose(stream) };
            errno::set_errno(why);
            return core::ptr::null_mut();
        }
    }
    stream
}

/// A stream of a process that has to report its changes to the agent.
unsafe fn told(
    path: *const c_char,
    mode: *const c_char,
    next: impl Fn(*const c_char) -> *mut FILE,
    fileno: unsafe extern "C" fn(*mut FILE) -> c_int,
) -> *mut FILE {
    // SAFETY: the application's pointers, tested before they are read.
    let again = unsafe {
        let flags = if user::path(mode).is_some_and(|m| m.first() != Some(&b'r')) { libc::O_CREAT } else { 0 };
        reads(mode) == Some(false) && crate::foreign_changes::opens(CWD, path, libc::O_RDWR | flags)
    };
    let stream = next(path);
    if again && !stream.is_null() {
        // SAFETY: a stream that was just opened.
        crate::foreign_changes::descriptor_changes(unsafe { fileno(stream) });
    }
    stream
}

/// What the application wants to change is a copy of a file that has gone.
fn gone(next: impl Fn(*const c_char) -> *mut FILE) -> *mut FILE {
    // No file has an empty name: `freopen` closes the stream, as it does whenever it fails.
    let stream = next(c"".as_ptr());
    errno::set_errno(libc::ESTALE);
    stream
}

/// What the application wants to change is a copy of a file that a job has removed.
fn removed(
    copy: Option<&monarch_guest::sys::Fd>,
    flags: c_int,
    next: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    let file = copy.and_then(|copy| super::open::private(copy, libc::O_RDWR | libc::O_CLOEXEC | flags & libc::O_TRUNC));
    let Some(file) = file.map(monarch_guest::sys::Fd) else { return gone(next) };
    proc_path(file.0).map_or(core::ptr::null_mut(), |name| next(name.as_ptr().cast()))
}

/// `freopen` without a path: the file that the stream has open, with another mode. Of a copy, that
/// is the PFS file when the mode writes.
unsafe fn reopen_same(mode: *const c_char, stream: *mut FILE, next: impl Fn(*const c_char) -> *mut FILE) -> *mut FILE {
    let same = || next(core::ptr::null());
    // SAFETY: the application's pointers, tested before they are read; a stream that it has open.
    let (writes, fd) = unsafe { (reads(mode) == Some(false), libc::fileno(stream)) };
    if writes {
        crate::foreign_changes::descriptor_changes(fd);
    }
    let Some(ctx) = ctx::mapped().filter(|_| writes && fd >= 0) else { return same() };
    let saved = errno::errno();
    let found = crate::changes::descriptor_changes(&ctx, fd);
    errno::set_errno(saved);
    match found {
        OpenFile::Other => same(),
        OpenFile::Copy(mut p) => p.c_str().map_or(core::ptr::null_mut(), |p| next(p.as_ptr())),
        OpenFile::Orphan(false) => gone(&next),
        OpenFile::Orphan(true) => {
            let again = || {
                let name = proc_path(fd)?;
                monarch_guest::sys::open(CStr::from_bytes_until_nul(&name).ok()?, libc::O_RDONLY | libc::O_CLOEXEC)
            };
            removed(again().map(monarch_guest::sys::Fd).as_ref(), 0, &next)
        }
    }
}

fn read_stream(ctx: &Ctx, path: &[u8], next: &impl Fn(*const c_char) -> *mut FILE) -> Option<*mut FILE> {
    match find(ctx, CWD, path, true) {
        Ok(f) => {
            let saved = errno::errno();
            let open = |copy: &CStr| {
                let stream = next(copy.as_ptr());
                if stream.is_null() { None } else { Some(stream) }
            };
            match open_copy(ctx, &f, || Asked::new(CWD, path, true), Use::Whole, open) {
                Served::Copy(stream) => Some(stream),
                Served::Pfs | Served::Large(_) => {
                    errno::set_errno(saved);
                    None
                }
            }
        }
        Err(miss) if absent::fails(ctx, CWD, path, miss) => Some(core::ptr::null_mut()),
        Err(miss) => {
            count_miss(ctx, miss);
            None
        }
    }
}

/// freopen closes the old stream even when it fails, so that there is only one try. The copy is
/// opened first, and freopen gets the path of that descriptor, which cannot vanish in between.
unsafe fn reopen_stream(
    path: *const c_char,
    mode: *const c_char,
    next: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the application's pointers, tested before they are read.
    if unsafe { reads(mode) } == Some(false) {
        // SAFETY: as above.
        return unsafe { open_stream(path, mode, next, libc::fileno) };
    }
    let mut names = false;
    // SAFETY: as above.
    let Some((ctx, bytes)) = (unsafe { enter_open(path, &mut names) }) else {
        let stream = next(path);
        if !stream.is_null() && names {
            // SAFETY: as in `open_stream`.
            super::open::reopened_by(path, unsafe { libc::fileno(stream) }, libc::O_RDONLY);
        }
        return stream;
    };
    let Ok(f) = find(&ctx, CWD, bytes, true) else {
        let stream = next(path);
        if !stream.is_null() && may_reopen(bytes) {
            // SAFETY: as in `open_stream`.
            super::open::reopened(&ctx, unsafe { libc::fileno(stream) }, libc::O_RDONLY);
        }
        return stream;
    };
    let open = |copy: &CStr| monarch_guest::copy_open::raw_open(copy, libc::O_RDONLY | libc::O_CLOEXEC);
    match open_copy(&ctx, &f, || Asked::new(CWD, bytes, true), Use::Whole, open) {
        Served::Copy(fd) => {
            // The path of an open descriptor cannot vanish, whatever becomes of the copy's name.
            let stream = proc_path(fd).map_or(core::ptr::null_mut(), |p| next(p.as_ptr().cast()));
            monarch_guest::sys::close(fd);
            stream
        }
        Served::Pfs | Served::Large(_) => next(path),
    }
}

hook! { next;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        if let Some(stream) = staged_stream(path, mode) { return stream; }
        let before = outputs::Before::now();
        found_stream(before, path, mode, open_stream(path, mode, |p| next(p, mode), libc::fileno))
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        if let Some(stream) = staged_stream(path, mode) { return stream; }
        let before = outputs::Before::now();
        found_stream(before, path, mode, open_stream(path, mode, |p| next(p, mode), libc::fileno))
    }
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        // What a stream reads from here on is the kernel's affair.
        if crate::large::could_be(fd) && reads(mode) == Some(true) {
            let saved = errno::errno();
            let _ = crate::whole::replace(fd);
            errno::set_errno(saved);
        }
        next(fd, mode)
    }
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        if path.is_null() {
            return reopen_same(mode, stream, |p| next(p, mode, stream));
        }
        let old = if stream.is_null() { -1 } else { libc::fileno(stream) };
        outputs::descriptors::close(old, || {
            staged_again(path, mode, |p| next(p, mode, stream))
                .unwrap_or_else(|| reopen_stream(path, mode, |p| next(p, mode, stream)))
        })
    }
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        if path.is_null() {
            return reopen_same(mode, stream, |p| next(p, mode, stream));
        }
        let old = if stream.is_null() { -1 } else { libc::fileno(stream) };
        outputs::descriptors::close(old, || {
            staged_again(path, mode, |p| next(p, mode, stream))
                .unwrap_or_else(|| reopen_stream(path, mode, |p| next(p, mode, stream)))
        })
    }
}
