//! What is asked about the file system of an open file, and files that are opened or made in other
//! ways than by their path: of a copy, the PFS is meant.

use super::close::synced;
use super::{before_change, enter_change, hook};
use crate::changes::name_changes;
use crate::identity::{copy_of_fd, is_current, path_if_there};
use crate::outputs::{self, Subject};
use core::ffi::{c_char, c_int, c_long, c_void};
use libc::{dev_t, mode_t};
use monarch_guest::ctx;
use monarch_guest::errno;
use monarch_guest::sys::{self, Fd};
use monarch_guest::user;

const CWD: c_int = libc::AT_FDCWD;

/// The directory of the root that a copy's file lies below: a root is one file system.
fn root_of(fd: c_int, flags: c_int) -> Option<Fd> {
    if let Some(dir) = crate::outputs::root_of(fd, flags) {
        return Some(dir);
    }
    let ctx = ctx::mapped()?;
    let saved = errno::errno();
    let open = || {
        let f = copy_of_fd(&ctx, fd)?;
        let root = ctx.map.roots().get(f.root)?;
        let dir = sys::open_bytes(ctx.map.str(&root.path), flags | libc::O_DIRECTORY | libc::O_CLOEXEC)?;
        let dev = root.dev.load(core::sync::atomic::Ordering::Relaxed);
        sys::fstat(dir.0).is_some_and(|st| st.st_dev == dev).then_some(dir)
    };
    let dir = open();
    errno::set_errno(saved);
    dir
}

/// Asks about the root in place of a copy.
pub(super) fn of_root<T>(fd: c_int, flags: c_int, next: impl FnOnce(c_int) -> T) -> T {
    match root_of(fd, flags) {
        Some(root) => next(root.0),
        None => next(fd),
    }
}

/// Whether a name can be asked about by a directory: whether reads can be asynchronous is a matter
/// of the file.
const fn is_of_file_system(name: c_int) -> bool {
    name != libc::_PC_ASYNC_IO
}

/// What this job has written into a file goes to the disk by any descriptor of it, also by one that
/// was opened before and is a copy.
fn sync(fd: c_int, next: impl Fn(c_int) -> c_int) -> c_int {
    let written = || {
        let ctx = ctx::mapped()?;
        let f = copy_of_fd(&ctx, fd).filter(|f| !is_current(f) && !crate::pfs_fd::is_locked(&ctx, f))?;
        crate::pfs_fd::open_pfs(&ctx, &f, 0)
    };
    let saved = errno::errno();
    let file = written();
    errno::set_errno(saved);
    next(file.as_ref().map_or(fd, |(file, _)| file.0))
}

/// The file on the PFS of which an empty path, or the name of a descriptor, names the copy.
pub(super) unsafe fn named_copy(fd: c_int, path: *const c_char, flags: c_int) -> Option<Fd> {
    // SAFETY: tested before it is read.
    let (ctx, bytes) = unsafe { enter_change(path)? };
    let saved = errno::errno();
    let open = || {
        let f = if bytes.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            copy_of_fd(&ctx, fd)
        } else if flags & libc::AT_SYMLINK_FOLLOW != 0 {
            crate::descriptor_names::behind_copy(&ctx, fd, bytes, true)
        } else {
            None
        };
        let mut path = path_if_there(&ctx, &f?)?;
        sys::open(path.c_str()?, libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW).map(Fd)
    };
    let file = open();
    errno::set_errno(saved);
    file
}

/// Makes a handle by `call`. Of a file that is pending, as a process has it open, there is none.
pub(super) unsafe fn handled(fd: c_int, path: *const c_char, flags: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let result = call();
    let flags = if flags & libc::AT_SYMLINK_FOLLOW == 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    // SAFETY: passed on.
    let is_pending = || unsafe { outputs::access(fd, path, libc::F_OK, flags) } == Some(0);
    if result < 0 && errno::errno() == libc::ENOENT && is_pending() {
        errno::set_errno(libc::EOPNOTSUPP);
    }
    result
}

unsafe fn makes(dirfd: c_int, path: *const c_char) {
    // SAFETY: passed on.
    unsafe {
        crate::foreign_changes::name_changes(dirfd, path, false);
        before_change(path, |ctx, p| name_changes(ctx, dirfd, p, false));
    }
}

/// A rule of Landlock that is made with a descriptor of a copy is about the file on the PFS. `call`
/// is given the address of the rule.
pub(super) unsafe fn landlock_rule(rule: usize, call: impl FnOnce(usize) -> c_int) -> c_int {
    /// `struct landlock_path_beneath_attr`, which is packed: the rights, and a descriptor.
    type PathBeneath = [u8; 12];
    // SAFETY: tested before it is read.
    let Some(&[mut own]) = (unsafe { user::slice(rule as *const PathBeneath, 1) }) else { return call(rule) };
    let Some((_, number)) = own.split_last_chunk_mut::<4>() else { return call(rule) };
    let saved = errno::errno();
    let open = || {
        let ctx = ctx::mapped()?;
        let mut path = path_if_there(&ctx, &copy_of_fd(&ctx, c_int::from_ne_bytes(*number))?)?;
        sys::open(path.c_str()?, libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW).map(Fd)
    };
    let file = open();
    errno::set_errno(saved);
    let Some(file) = file else { return call(rule) };
    *number = file.0.to_ne_bytes();
    call(&raw const own as usize)
}

/// syncfs, by `call`, which is given a descriptor.
pub(super) fn syncfs_any(fd: c_int, call: impl FnOnce(c_int) -> c_int) -> c_int {
    of_root(fd, libc::O_RDONLY, call)
}

/// After open_by_handle_at: an open for writing is reported as a change.
pub(super) fn opened_by_handle(fd: c_int, flags: c_int) -> c_int {
    if flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY {
        crate::foreign_changes::descriptor_changes(fd);
    }
    if fd >= 0
        && flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY
        && let Some(ctx) = ctx::mapped()
    {
        return super::open::or_closed(super::open::off_copy(&ctx, fd, flags), fd);
    }
    fd
}

/// Asks about the file system of a path; that of a pending file is its output root's.
pub(super) unsafe fn of_path<T>(path: *const c_char, next: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: passed on.
    let mut root = unsafe { crate::outputs::file_system(path) };
    next(root.as_mut().and_then(|root| root.c_str()).map_or(path, core::ffi::CStr::as_ptr))
}

hook! { next;
    fn statfs(path: *const c_char, out: *mut c_void) -> c_int { of_path(path, |path| next(path, out)) }
    fn statfs64(path: *const c_char, out: *mut c_void) -> c_int { of_path(path, |path| next(path, out)) }
    fn statvfs(path: *const c_char, out: *mut c_void) -> c_int { of_path(path, |path| next(path, out)) }
    fn statvfs64(path: *const c_char, out: *mut c_void) -> c_int { of_path(path, |path| next(path, out)) }
    fn pathconf(path: *const c_char, name: c_int) -> c_long { of_path(path, |path| next(path, name)) }
    fn fstatfs(fd: c_int, out: *mut c_void) -> c_int { of_root(fd, libc::O_PATH, |fd| next(fd, out)) }
    fn fstatfs64(fd: c_int, out: *mut c_void) -> c_int { of_root(fd, libc::O_PATH, |fd| next(fd, out)) }
    fn fstatvfs(fd: c_int, out: *mut c_void) -> c_int { of_root(fd, libc::O_PATH, |fd| next(fd, out)) }
    fn fstatvfs64(fd: c_int, out: *mut c_void) -> c_int { of_root(fd, libc::O_PATH, |fd| next(fd, out)) }
    fn fpathconf(fd: c_int, name: c_int) -> c_long {
        if is_of_file_system(name) { of_root(fd, libc::O_PATH, |fd| next(fd, name)) } else { next(fd, name) }
    }
    fn syncfs(fd: c_int) -> c_int { syncfs_any(fd, |fd| next(fd)) }
    fn fsync(fd: c_int) -> c_int { synced(fd, sync(fd, |fd| next(fd))) }
    fn fdatasync(fd: c_int) -> c_int { synced(fd, sync(fd, |fd| next(fd))) }
    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int {
        opened_by_handle(next(mount, handle, flags), flags)
    }
    fn name_to_handle_at(fd: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int {
        if let Some(refused) = outputs::publish(fd, path, Subject::File) { return refused; }
        match named_copy(fd, path, flags) {
            Some(file) => next(file.0, c"".as_ptr(), handle, mount, flags & !libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH),
            None => handled(fd, path, flags, || next(fd, path, handle, mount, flags)),
        }
    }
    fn __xmknod(version: c_int, path: *const c_char, mode: mode_t, dev: *mut dev_t) -> c_int {
        makes(CWD, path);
        next(version, path, mode, dev)
    }
    fn __xmknodat(version: c_int, dirfd: c_int, path: *const c_char, mode: mode_t, dev: *mut dev_t) -> c_int {
        makes(dirfd, path);
        next(version, dirfd, path, mode, dev)
    }
}
