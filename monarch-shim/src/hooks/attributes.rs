//! Calls that change content or attributes: Bypass first, then the kernel. And those that ask for
//! extended attributes, which of a copy are the PFS file's.

use super::{before_change, behind, enter_change, hook, pfs_path_of};
use crate::changes::{OpenFile, Target, descriptor_changes, file_changes, hide_below, hide_below_open};
use crate::foreign_changes;
use crate::outputs::{self, Subject};
use core::ffi::{CStr, c_char, c_int, c_void};
use libc::{gid_t, mode_t, off_t, size_t, ssize_t, timespec, timeval, uid_t, utimbuf};
use monarch_abi::outputs::record::flag;
use monarch_guest::ctx;
use monarch_guest::errno;
use monarch_guest::user;

const CWD: c_int = libc::AT_FDCWD;

/// Whether the file that another process cuts with `O_TRUNC` keeps what is set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    /// It does: modes and owners.
    Kept,
    /// It does not: times.
    Lost,
}

/// Attributes change, `call` does it: on this path, or on the PFS if the path leads to a copy
/// (`/proc/self/fd/N`).
pub(super) unsafe fn file(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    set: Set,
    call: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // (Until the plain call has ended.)
    let mut _under_way = None;
    let under_way = (set == Set::Kept).then_some(&mut _under_way);
    // SAFETY: passed on.
    let staged = unsafe { outputs::set_attributes(dirfd, path, follow, under_way, |p| call(CWD, p), |p| call(CWD, p)) };
    // SAFETY: passed on.
    staged.unwrap_or_else(|| unsafe { published_file(dirfd, path, follow, call) })
}

/// [`file()`] that no output root has answered. None is asked again: it may have a pending file
/// there by now, of which this would tell the agent too little.
pub(super) unsafe fn published_file(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    call: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: passed on.
    let Some((ctx, bytes)) = (unsafe { enter_change(path) }) else {
        // SAFETY: passed on.
        unsafe { foreign_changes::file_changes(dirfd, path, follow) };
        return call(dirfd, path);
    };
    let saved = errno::errno();
    let target = file_changes(&ctx, dirfd, bytes, follow);
    errno::set_errno(saved);
    match target {
        Target::AsNamed => call(dirfd, path),
        Target::Pfs(mut p) => p.c_str().map_or(0, |p| call(CWD, p.as_ptr())),
        // It goes with its last descriptor, and its attributes with it.
        Target::Removed => 0,
        Target::Gone => {
            errno::set_errno(libc::ESTALE);
            -1
        }
    }
}

/// [`file()`], or [`descriptor`] for an empty path with `AT_EMPTY_PATH`.
pub(super) unsafe fn file_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    set: Set,
    call: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: tested before it is read; passed on.
    unsafe {
        if has_wrong(flags) {
            return call(dirfd, path);
        }
        if is_descriptor(path, flags) {
            return descriptor(dirfd, flag::OWNER, || call(dirfd, path), |p| call(CWD, p));
        }
        file(dirfd, path, follows(flags), set, call)
    }
}

/// Whether a call is about the descriptor that it names as a directory.
unsafe fn is_descriptor(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: tested before it is read.
    flags & libc::AT_EMPTY_PATH != 0 && unsafe { user::path(path).is_some_and(<[u8]>::is_empty) }
}

/// [`file_at`] for a mode: a process that may not search a directory any more learns nothing about
/// what lies below.
pub(super) unsafe fn mode_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    call: impl Fn(c_int, *const c_char, mode_t) -> c_int,
) -> c_int {
    if has_wrong(flags) {
        return call(dirfd, path, mode);
    }
    if mode & outputs::STAGED_MODE != 0 {
        // SAFETY: passed on.
        unsafe { outputs::settle(dirfd, path, follows(flags)) };
    }
    // (Until the plain call has ended.)
    let mut _under_way = None;
    // SAFETY: passed on.
    let staged = unsafe {
        outputs::set_attributes(
            dirfd,
            path,
            follows(flags),
            Some(&mut _under_way),
            |p| call(CWD, p, mode | outputs::STAGED_MODE),
            |p| call(CWD, p, mode),
        )
    };
    if let Some(done) = staged {
        return done;
    }
    if mode & libc::S_IXUSR == 0 {
        // SAFETY: passed on.
        unsafe {
            foreign_changes::hides_below(dirfd, path);
            before_change(path, |ctx, p| hide_below(ctx, dirfd, p));
        }
    }
    let call = |fd, p| call(fd, p, mode);
    // SAFETY: passed on.
    unsafe {
        if is_descriptor(path, flags) {
            return descriptor(dirfd, flag::OWNER, || call(dirfd, path), |p| call(CWD, p));
        }
        published_file(dirfd, path, follows(flags), call)
    }
}

/// The mode that an open file gets: a staged one keeps its mark.
pub(super) fn mode_of(fd: c_int, mode: mode_t) -> mode_t {
    if outputs::is_staged(fd) { mode | outputs::STAGED_MODE } else { mode }
}

/// Whether there are flags that the kernel refuses before it looks for the file.
const fn has_wrong(flags: c_int) -> bool {
    flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0
}

const fn follows(flags: c_int) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW == 0
}

/// Attributes of an open file change: of a copy, on the PFS instead. Of a clean copy, on the PFS
/// and here. Of a pending file the agent has to know: `flags` are those of the record.
pub(super) unsafe fn descriptor(
    fd: c_int,
    flags: u16,
    next: impl FnOnce() -> c_int,
    on_path: impl Fn(*const c_char) -> c_int,
) -> c_int {
    let owner = || if flags & flag::OWNER != 0 { outputs::descriptors::owner(fd) } else { None };
    let before = owner();
    // SAFETY: passed on.
    let result = unsafe {
        match flags {
            0 => set_on_descriptor(fd, || outputs::descriptors::without_agent(fd, next), &on_path),
            _ => set_on_descriptor(fd, next, &on_path),
        }
    };
    // (One that stays as it is may be that of the staged file alone.)
    let flags = if owner() == before { flags & !flag::OWNER } else { flags };
    outputs::descriptors::attributes_changed(fd, result, flags);
    // The agent may have published it before it read that.
    if result == 0
        && let Some(mut path) = outputs::descriptors::published(fd)
    {
        let saved = errno::errno();
        let _ = path.c_str().map(|p| on_path(p.as_ptr()));
        errno::set_errno(saved);
    }
    result
}

unsafe fn set_on_descriptor(
    fd: c_int,
    next: impl FnOnce() -> c_int,
    on_path: &impl Fn(*const c_char) -> c_int,
) -> c_int {
    outputs::settle_open_directory(fd);
    if let Some(mut path) = outputs::descriptors::published(fd) {
        let result = path.c_str().map_or(0, |p| on_path(p.as_ptr()));
        if result == 0 {
            let saved = errno::errno();
            let _ = next();
            errno::set_errno(saved);
        }
        return result;
    }
    let Some(ctx) = ctx::mapped() else {
        foreign_changes::descriptor_changes(fd);
        return next();
    };
    let saved = errno::errno();
    let target = descriptor_changes(&ctx, fd);
    errno::set_errno(saved);
    match target {
        OpenFile::Other => next(),
        OpenFile::Copy(mut path) => path.c_str().map_or(0, |p| on_path(p.as_ptr())),
        // The file has no such name any more: no call could reach it.
        OpenFile::Orphan(_) => 0,
    }
}

pub(super) unsafe fn hide_below_descriptor(fd: c_int) {
    foreign_changes::hides_below_open(fd);
    // SAFETY: a path of the shim.
    unsafe { before_change(c"".as_ptr(), |ctx, _| hide_below_open(ctx, fd)) }
}

/// utimensat: by path, or without a path by descriptor.
pub(super) unsafe fn utimensat_any(
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        if path.is_null() {
            return descriptor(fd, 0, || call(fd, path), |p| call(CWD, p));
        }
        file_at(fd, path, flags, Set::Lost, call)
    }
}

/// The C library is about to open a file for writing: `call` gets the path that it is to open.
unsafe fn content<T>(path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: passed on.
    unsafe { outputs::publish(CWD, path, Subject::File) };
    // SAFETY: passed on.
    let Some((ctx, bytes)) = (unsafe { enter_change(path) }) else {
        // SAFETY: passed on.
        unsafe { foreign_changes::file_changes(CWD, path, true) };
        return call(path);
    };
    let saved = errno::errno();
    let mut target = file_changes(&ctx, CWD, bytes, true);
    errno::set_errno(saved);
    match &mut target {
        Target::Pfs(p) => call(p.c_str().map_or(path, CStr::as_ptr)),
        Target::AsNamed => call(path),
        // No file has an empty name.
        Target::Removed | Target::Gone => call(c"".as_ptr()),
    }
}

/// The path that a question about extended attributes is made on, if it is another one: that of a
/// staged file, or of the file of a copy.
unsafe fn asked(path: *const c_char, follow: bool) -> Option<monarch_guest::absolute::Absolute> {
    // SAFETY: passed on.
    unsafe { outputs::data_of(path, follow).or_else(|| behind(CWD, path, follow)) }
}

/// Asks by `call` on another path, if there is one; once more where that leads nowhere: a staged
/// file was published and dropped a moment ago. Also whether there was another path.
fn asked_on(
    path: *const c_char,
    other: impl Fn() -> Option<monarch_guest::absolute::Absolute>,
    call: impl Fn(*const c_char) -> ssize_t,
) -> (ssize_t, bool) {
    let ask = || {
        let mut other = other();
        let other = other.as_mut().and_then(|p| p.c_str());
        (call(other.map_or(path, CStr::as_ptr)), other.is_some())
    };
    let asked = ask();
    if asked.1 && asked.0 < 0 && errno::errno() == libc::ENOENT { ask() } else { asked }
}

/// Asks for an extended attribute by `call`, on another path if there is one. What the PFS knows of
/// a pending file, and the tier does not, the part file has; the staged file has its own access
/// list where the tier has such lists.
unsafe fn attribute(
    path: *const c_char,
    follow: bool,
    key: *const c_char,
    other: impl Fn() -> Option<monarch_guest::absolute::Absolute>,
    call: impl Fn(*const c_char) -> ssize_t,
) -> ssize_t {
    let (got, is_on_other) = asked_on(path, &other, &call);
    // SAFETY: the C library has just read both.
    unsafe {
        if got < 0
            && is_on_other
            && matches!(errno::errno(), libc::ENODATA | libc::EOPNOTSUPP)
            && libc::strncmp(key, c"system.".as_ptr(), 7) == 0
            && (errno::errno() == libc::EOPNOTSUPP || CStr::from_ptr(key) != c"system.posix_acl_access")
            && let Some(p) = outputs::part_of(path, follow).as_mut().and_then(|p| p.c_str())
        {
            let got = call(p.as_ptr());
            // It was published a moment ago.
            return if got < 0 && errno::errno() == libc::ENOENT { call(path) } else { got };
        }
    }
    got
}

/// A file is cut or grows to `len` bytes, `call` does it.
pub(super) unsafe fn cut(path: *const c_char, len: off_t, call: impl Fn(*const c_char) -> c_int) -> c_int {
    // (Until the plain call has ended.)
    let mut _under_way = None;
    // SAFETY: passed on.
    unsafe {
        outputs::truncate(path, len, &mut _under_way).unwrap_or_else(|| published_file(CWD, path, true, |_, p| call(p)))
    }
}

/// An extended attribute is set or removed, `call` does it: on this path, on that of a staged file,
/// or as for [`file()`].
pub(super) unsafe fn extended(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    call: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // (Until the plain call has ended.)
    let mut _under_way = None;
    // SAFETY: passed on.
    unsafe {
        let staged = outputs::set_extended(dirfd, path, follow, &mut _under_way, |p| call(CWD, p));
        staged.unwrap_or_else(|| published_file(dirfd, path, follow, call))
    }
}

/// [`extended`] by flags, or by a descriptor for an empty path with `AT_EMPTY_PATH`.
pub(super) unsafe fn extended_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: tested before it is read; passed on.
    unsafe {
        if has_wrong(flags) {
            return call(dirfd, path);
        }
        if is_descriptor(path, flags) {
            return extended_open(dirfd, || call(dirfd, path), |p| call(CWD, p));
        }
        extended(dirfd, path, follows(flags), call)
    }
}

/// An extended attribute of an open file is set or removed: by `next`, or by `on_path`, which gets
/// the path of the part file or of the published one.
pub(super) unsafe fn extended_open(
    fd: c_int,
    next: impl FnOnce() -> c_int,
    on_path: impl Fn(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: passed on.
    let set = || unsafe { descriptor(fd, flag::EXTENDED, next, &on_path) };
    if outputs::is_staged(fd) { outputs::set_extended_open(fd, &on_path, set) } else { set() }
}

/// After a call that sets an extended attribute.
pub(super) unsafe fn was_set(key: *const c_char, result: c_int) -> c_int {
    if result == 0 && outputs::has_roots() {
        // SAFETY: a successful call has read the name.
        outputs::default_acl::extended_set(unsafe { CStr::from_ptr(key) });
    }
    result
}

hook! { next;
    fn truncate(path: *const c_char, len: off_t) -> c_int { cut(path, len, |p| next(p, len)) }
    fn truncate64(path: *const c_char, len: off_t) -> c_int { cut(path, len, |p| next(p, len)) }
    fn chmod(path: *const c_char, mode: mode_t) -> c_int { mode_at(CWD, path, 0, mode, |_, p, mode| next(p, mode)) }
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int { file(CWD, path, false, Set::Kept, |_, p| next(p, mode)) }
    fn fchmod(fd: c_int, mode: mode_t) -> c_int {
        if mode & libc::S_IXUSR == 0 { hide_below_descriptor(fd); }
        let set = mode_of(fd, mode);
        descriptor(fd, 0, || next(fd, set), |p| libc::chmod(p, mode))
    }
    fn fchmodat(fd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        mode_at(fd, path, flags, mode, |fd, p, mode| next(fd, p, mode, flags))
    }
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int { file(CWD, path, true, Set::Kept, |_, p| next(p, uid, gid)) }
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int { file(CWD, path, false, Set::Kept, |_, p| next(p, uid, gid)) }
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        descriptor(fd, flag::OWNER, || next(fd, uid, gid), |p| libc::chown(p, uid, gid))
    }
    fn fchownat(fd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
        file_at(fd, path, flags, Set::Kept, |fd, p| next(fd, p, uid, gid, flags))
    }
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int { file(CWD, path, true, Set::Lost, |_, p| next(p, times)) }
    fn utimes(path: *const c_char, times: *const timeval) -> c_int { file(CWD, path, true, Set::Lost, |_, p| next(p, times)) }
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int { file(CWD, path, false, Set::Lost, |_, p| next(p, times)) }
    fn futimes(fd: c_int, times: *const timeval) -> c_int {
        descriptor(fd, 0, || next(fd, times), |p| libc::utimes(p, times))
    }
    fn futimesat(fd: c_int, path: *const c_char, times: *const timeval) -> c_int {
        if path.is_null() { descriptor(fd, 0, || next(fd, path, times), |p| libc::utimes(p, times)) }
        else { file(fd, path, true, Set::Lost, |fd, p| next(fd, p, times)) }
    }
    fn utimensat(fd: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        utimensat_any(fd, path, flags, |fd, p| next(fd, p, times, flags))
    }
    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        descriptor(fd, 0, || next(fd, times), |p| libc::utimensat(CWD, p, times, 0))
    }
    fn setxattr(path: *const c_char, key: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int {
        let set = |p| next(p, key, value, n, flags);
        if flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 { return set(path); }
        was_set(key, extended(CWD, path, true, |_, p| set(p)))
    }
    fn lsetxattr(path: *const c_char, key: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int {
        let set = |p| next(p, key, value, n, flags);
        if flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 { return set(path); }
        was_set(key, extended(CWD, path, false, |_, p| set(p)))
    }
    fn fsetxattr(fd: c_int, key: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int {
        let on_path = |p| libc::setxattr(p, key, value, n, flags);
        was_set(key, extended_open(fd, || next(fd, key, value, n, flags), on_path))
    }
    fn removexattr(path: *const c_char, key: *const c_char) -> c_int {
        extended(CWD, path, true, |_, p| next(p, key))
    }
    fn lremovexattr(path: *const c_char, key: *const c_char) -> c_int {
        extended(CWD, path, false, |_, p| next(p, key))
    }
    fn fremovexattr(fd: c_int, key: *const c_char) -> c_int {
        extended_open(fd, || next(fd, key), |p| libc::removexattr(p, key))
    }
    fn fgetxattr(fd: c_int, key: *const c_char, value: *mut c_void, n: size_t) -> ssize_t {
        match pfs_path_of(fd).as_mut().and_then(|p| p.c_str()) {
            Some(p) => libc::getxattr(p.as_ptr(), key, value, n),
            None => next(fd, key, value, n),
        }
    }
    fn flistxattr(fd: c_int, list: *mut c_char, n: size_t) -> ssize_t {
        match pfs_path_of(fd).as_mut().and_then(|p| p.c_str()) {
            Some(p) => libc::listxattr(p.as_ptr(), list, n),
            None => next(fd, list, n),
        }
    }
    fn getxattr(path: *const c_char, key: *const c_char, value: *mut c_void, n: size_t) -> ssize_t {
        attribute(path, true, key, || asked(path, true), |p| next(p, key, value, n))
    }
    fn lgetxattr(path: *const c_char, key: *const c_char, value: *mut c_void, n: size_t) -> ssize_t {
        attribute(path, false, key, || outputs::data_of(path, false), |p| next(p, key, value, n))
    }
    fn llistxattr(path: *const c_char, list: *mut c_char, n: size_t) -> ssize_t {
        asked_on(path, || outputs::data_of(path, false), |p| next(p, list, n)).0
    }
    fn listxattr(path: *const c_char, list: *mut c_char, n: size_t) -> ssize_t {
        asked_on(path, || asked(path, true), |p| next(p, list, n)).0
    }

    // What these name is written by the C library itself.
    fn updwtmp(path: *const c_char, entry: *const c_void) { content(path, |path| next(path, entry)) }
    fn updwtmpx(path: *const c_char, entry: *const c_void) { content(path, |path| next(path, entry)) }
    fn utmpname(path: *const c_char) -> c_int { content(path, |path| next(path)) }
    fn utmpxname(path: *const c_char) -> c_int { content(path, |path| next(path)) }
}
