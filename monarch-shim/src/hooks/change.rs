//! Calls that change names, content or attributes: Bypass first, then the kernel.

use super::{before_change, enter_change, hook};
use crate::absolute::Absolute;
use crate::changes::{
    OpenFile, Target, descriptor_changes, file_changes, hide_below, name_changes, opened_for_writing, way_changed,
};
use crate::ctx;
use crate::descriptor_path::proc_path;
use crate::errno;
use crate::gone::last_name;
use crate::pfs_fd::{self, Link};
use crate::{outside, user};
use core::ffi::{c_char, c_int, c_long, c_void};
use libc::{dev_t, gid_t, mode_t, off_t, size_t, ssize_t, timespec, timeval, uid_t, utimbuf};
use monarch_abi::resolve::Found;
use monarch_abi::word::State;

const CWD: c_int = libc::AT_FDCWD;

/// A name appears, disappears or is replaced.
unsafe fn name(dirfd: c_int, path: *const c_char) {
    // SAFETY: passed on.
    unsafe {
        outside::name_changes(dirfd, path, false);
        before_change(path, |ctx, p| name_changes(ctx, dirfd, p, false));
    }
}

/// The C library is about to open a file for writing: `call` gets the path that it is to open.
unsafe fn content<T>(path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: passed on.
    let Some((ctx, bytes)) = (unsafe { enter_change(path) }) else {
        // SAFETY: passed on.
        unsafe { outside::file_changes(CWD, path, true) };
        return call(path);
    };
    let saved = errno::errno();
    let mut target = file_changes(&ctx, CWD, bytes, true);
    errno::set_errno(saved);
    match &mut target {
        Target::Pfs(p) => call(p.c_str().map_or(path, core::ffi::CStr::as_ptr)),
        Target::AsNamed => call(path),
        // No file has an empty name.
        Target::Removed | Target::Gone => call(c"".as_ptr()),
    }
}

/// A name moves, perhaps with a whole subtree.
unsafe fn moved(dirfd: c_int, path: *const c_char) {
    // SAFETY: passed on.
    unsafe {
        outside::name_changes(dirfd, path, true);
        before_change(path, |ctx, p| name_changes(ctx, dirfd, p, true));
    }
}

/// A name was removed or replaced, if the call succeeded.
unsafe fn gone(result: c_int, dirfd: c_int, path: *const c_char) -> c_int {
    if result == 0 {
        // SAFETY: passed on.
        unsafe { before_change(path, |ctx, p| way_changed(ctx, dirfd, p)) }
    }
    result
}

/// Content or attributes change, `call` does it: on this path, or on the PFS if the path leads to a
/// copy (`/proc/self/fd/N`).
unsafe fn file(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    call: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: passed on.
    let Some((ctx, bytes)) = (unsafe { enter_change(path) }) else {
        // SAFETY: passed on.
        unsafe { outside::file_changes(dirfd, path, follow) };
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
unsafe fn file_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: tested before it is read; passed on.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && user::path(path).is_some_and(<[u8]>::is_empty) {
            return descriptor(dirfd, || call(dirfd, path), |p| call(CWD, p));
        }
        file(dirfd, path, follows(flags), call)
    }
}

/// [`file_at`] for a mode: who may not search a directory any more learns nothing of what lies
/// below.
unsafe fn mode_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    call: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    if mode & libc::S_IXUSR == 0 {
        // SAFETY: passed on.
        unsafe {
            outside::hides_below(dirfd, path);
            before_change(path, |ctx, p| hide_below(ctx, dirfd, p));
        }
    }
    // SAFETY: passed on.
    unsafe { file_at(dirfd, path, flags, call) }
}

const fn follows(flags: c_int) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW == 0
}

/// Attributes of an open file change: of a copy, on the PFS instead.
unsafe fn descriptor(fd: c_int, next: impl FnOnce() -> c_int, on_path: impl FnOnce(*const c_char) -> c_int) -> c_int {
    let Some(ctx) = ctx::mapped() else {
        outside::descriptor_changes(fd);
        return next();
    };
    let saved = errno::errno();
    let target = descriptor_changes(&ctx, fd);
    errno::set_errno(saved);
    match target {
        OpenFile::Other => next(),
        OpenFile::Copy(mut path) => path.c_str().map_or(0, |p| on_path(p.as_ptr())),
        // The file has no such name any more; what happens to it is nobody's business.
        OpenFile::Orphan(_) => 0,
    }
}

unsafe fn hide_below_descriptor(fd: c_int) {
    outside::hides_below_open(fd);
    // SAFETY: a path of ours.
    unsafe { before_change(c"".as_ptr(), |ctx, _| crate::changes::hide_below_open(ctx, fd)) }
}

/// The path on the PFS if `fd` is a copy, for calls that only read attributes of an open file.
pub(super) fn pfs_path_of(fd: c_int) -> Option<Absolute> {
    let ctx = ctx::mapped()?;
    let saved = errno::errno();
    let path = crate::identity::copy_of_fd(&ctx, fd).and_then(|f| crate::changes::path_if_there(&ctx, &f));
    errno::set_errno(saved);
    path
}

/// A file that libc itself created under a name of its choice.
unsafe fn created(fd: c_int) -> c_int {
    outside::descriptor_changes(fd);
    if fd >= 0
        && let Some(ctx) = ctx::mapped()
    {
        let saved = errno::errno();
        // (A file that was just created is no copy.)
        let _ = opened_for_writing(&ctx, fd);
        errno::set_errno(saved);
    }
    fd
}

/// A link gets another name: its count of links changes, too.
unsafe fn linked(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, follow: bool) {
    // SAFETY: passed on.
    unsafe {
        outside::file_changes(from_fd, from, follow);
        before_change(from, |ctx, p| drop(file_changes(ctx, from_fd, p, follow)));
        name(to_fd, to);
    }
}

/// A link to an open file: of a copy, to the file on the PFS.
unsafe fn link_of(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    next: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    if flags & (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_FOLLOW) == 0 {
        return next(dirfd, path);
    }
    // SAFETY: passed on.
    let Some((ctx, bytes)) = (unsafe { enter_change(path) }) else { return next(dirfd, path) };
    let saved = errno::errno();
    let target = pfs_fd::linked(&ctx, dirfd, bytes, flags);
    errno::set_errno(saved);
    match target {
        Link::Other => next(dirfd, path),
        Link::Copy(fd) if bytes.is_empty() => next(fd.0, path),
        Link::Copy(fd) => proc_path(fd.0).map_or_else(|| next(dirfd, path), |name| next(CWD, name.as_ptr().cast())),
        Link::Gone => {
            errno::set_errno(libc::ENOENT);
            -1
        }
    }
}

/// What a name leads to now will have another name, or be covered: see [`pfs_fd::before_move`].
pub(super) unsafe fn leaves(dirfd: c_int, path: *const c_char, is_left: impl FnOnce(&Found<'static>) -> bool) {
    // SAFETY: passed on.
    unsafe {
        before_change(path, |ctx, p| {
            if let Ok(f) = crate::paths::find(&ctx.for_changes(), dirfd, p, false)
                && f.entry.word().state() != State::Bypass
                && is_left(&f)
            {
                pfs_fd::before_move(ctx, &f);
            }
        });
    }
}

/// A name is removed: of a file that has no other, who has it open sees that.
unsafe fn removed(dirfd: c_int, path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        let last = last_name_of(dirfd, path);
        leaves(dirfd, path, |f| last.is_none() && f.entry.record.is_file());
        name(dirfd, path);
        let result = gone(call(), dirfd, path);
        lost(result, last);
        result
    }
}

/// A name moves, and another file may lose the one that it gets.
unsafe fn renamed(
    (from_fd, from): (c_int, *const c_char),
    (to_fd, to): (c_int, *const c_char),
    replaces: bool,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        let source = last_name_of(from_fd, from);
        let is_source =
            |f: &Found<'static>| source.is_some_and(|s| (s.number, s.entry.master.id) == (f.number, f.entry.master.id));
        let last = last_name_of(to_fd, to).filter(|f| replaces && !is_source(f));
        leaves(from_fd, from, |_| true);
        leaves(to_fd, to, |f| !replaces || last.is_none() && f.entry.record.is_file());
        moved(from_fd, from);
        moved(to_fd, to);
        let result = gone(gone(call(), from_fd, from), to_fd, to);
        lost(result, last);
        result
    }
}

unsafe fn last_name_of(dirfd: c_int, path: *const c_char) -> Option<Found<'static>> {
    // SAFETY: passed on.
    let (ctx, bytes) = unsafe { enter_change(path)? };
    let saved = errno::errno();
    let last = last_name(&ctx, dirfd, bytes);
    errno::set_errno(saved);
    last
}

fn lost(result: c_int, last: Option<Found<'static>>) {
    if result == 0
        && let (Some(ctx), Some(f)) = (ctx::mapped(), last)
    {
        crate::gone::removed(&ctx, &f);
    }
}

/// utimensat: by path, or without a path by descriptor.
unsafe fn utimensat_any(
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        if path.is_null() {
            return descriptor(fd, || call(fd, path), |p| call(CWD, p));
        }
        file_at(fd, path, flags, call)
    }
}

/// The kernel's call, as functions give it.
fn kernel(n: c_long, a: [usize; 6]) -> c_int {
    // SAFETY: the arguments of the application, with a path of ours.
    let done = unsafe { crate::sys::call(n, a) };
    if done < 0 {
        errno::set_errno(-done as c_int);
        return -1;
    }
    done as c_int
}

/// Calls that change something, by number; `raw` is the kernel's call of this number. `None` for
/// all others.
#[inline(never)]
pub(super) unsafe fn by_number(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    const SYS_FCHMODAT2: c_long = 452;
    const SYS_SETXATTRAT: c_long = 463;
    const SYS_GETXATTRAT: c_long = 464;
    const SYS_LISTXATTRAT: c_long = 465;
    const SYS_REMOVEXATTRAT: c_long = 466;
    const SYS_FILE_GETATTR: c_long = 468;
    const SYS_FILE_SETATTR: c_long = 469;
    const HERE: usize = CWD as isize as usize;
    let [x, y, z, u, v, w] = a;
    let (fd, third) = (x as c_int, z as c_int);
    let (path, path2, path4) = (x as *const c_char, y as *const c_char, u as *const c_char);
    let call = || raw(a);
    // The same call with another first argument, or with another directory and path.
    let on = |p: *const c_char| raw([p as usize, y, z, u, v, 0]);
    let at = |fd: c_int, p: *const c_char| raw([fd as isize as usize, p as usize, z, u, v, 0]);
    // SAFETY: the contract of the system call is that of the function.
    Some(unsafe {
        match n {
            libc::SYS_renameat => renamed((fd, path2), (third, path4), true, call),
            libc::SYS_renameat2 => {
                let replaces = v as u32 & libc::RENAME_EXCHANGE == 0;
                renamed((fd, path2), (third, path4), replaces, call)
            }
            libc::SYS_unlinkat => removed(fd, path2, call),
            libc::SYS_mkdirat | libc::SYS_mknodat => {
                name(fd, path2);
                call()
            }
            libc::SYS_symlinkat => {
                name(y as c_int, z as *const c_char);
                call()
            }
            libc::SYS_linkat => {
                let flags = v as c_int;
                linked(fd, path2, third, path4, flags & libc::AT_SYMLINK_FOLLOW != 0);
                link_of(fd, path2, flags, at)
            }
            libc::SYS_truncate => file(CWD, path, true, |_, p| on(p)),
            libc::SYS_fchmod => {
                if y as mode_t & libc::S_IXUSR == 0 {
                    hide_below_descriptor(fd);
                }
                descriptor(fd, call, |p| kernel(libc::SYS_fchmodat, [HERE, p as usize, y, 0, 0, 0]))
            }
            libc::SYS_fchmodat => mode_at(fd, path2, 0, z as mode_t, at),
            SYS_FCHMODAT2 => mode_at(fd, path2, u as c_int, z as mode_t, at),
            libc::SYS_fchown => descriptor(fd, call, |p| kernel(libc::SYS_fchownat, [HERE, p as usize, y, z, 0, 0])),
            libc::SYS_fchownat => file_at(fd, path2, v as c_int, at),
            libc::SYS_utimensat => utimensat_any(fd, path2, u as c_int, at),
            libc::SYS_setxattr | libc::SYS_removexattr => file(CWD, path, true, |_, p| on(p)),
            libc::SYS_lsetxattr | libc::SYS_lremovexattr => file(CWD, path, false, |_, p| on(p)),
            libc::SYS_fsetxattr => descriptor(fd, call, |p| kernel(libc::SYS_setxattr, [p as usize, y, z, u, v, 0])),
            SYS_SETXATTRAT => file_at(fd, path2, third, |fd, p| raw([fd as isize as usize, p as usize, z, u, v, w])),
            SYS_REMOVEXATTRAT => file_at(fd, path2, third, at),
            SYS_FILE_SETATTR => file_at(fd, path2, v as c_int, at),
            libc::SYS_fgetxattr => match pfs_path_of(fd).as_mut().and_then(|p| p.c_str()) {
                Some(p) => kernel(libc::SYS_getxattr, [p.as_ptr() as usize, y, z, u, 0, 0]),
                None => call(),
            },
            libc::SYS_flistxattr => match pfs_path_of(fd).as_mut().and_then(|p| p.c_str()) {
                Some(p) => kernel(libc::SYS_listxattr, [p.as_ptr() as usize, y, z, 0, 0, 0]),
                None => call(),
            },
            SYS_GETXATTRAT | SYS_LISTXATTRAT | SYS_FILE_GETATTR => {
                let flags = if n == SYS_FILE_GETATTR { v as c_int } else { third };
                let empty = flags & libc::AT_EMPTY_PATH != 0 && user::path(path2).is_some_and(<[u8]>::is_empty);
                match (if empty { pfs_path_of(fd) } else { None }).as_mut().and_then(|p| p.c_str()) {
                    Some(p) => raw([HERE, p.as_ptr() as usize, z, u, v, w]),
                    None => call(),
                }
            }
            libc::SYS_fremovexattr => {
                descriptor(fd, call, |p| kernel(libc::SYS_removexattr, [p as usize, y, 0, 0, 0, 0]))
            }
            #[cfg(target_arch = "x86_64")]
            _ => return by_older_number(n, a, raw),
            #[cfg(not(target_arch = "x86_64"))]
            _ => return None,
        }
    })
}

/// Calls that newer machines do not have.
#[cfg(target_arch = "x86_64")]
unsafe fn by_older_number(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let [x, y, z, u, v, _] = a;
    let (path, path2) = (x as *const c_char, y as *const c_char);
    let call = || raw(a);
    let on = |p: *const c_char| raw([p as usize, y, z, u, v, 0]);
    // SAFETY: the contract of the system call is that of the function.
    Some(unsafe {
        match n {
            libc::SYS_rename => renamed((CWD, path), (CWD, path2), true, call),
            libc::SYS_unlink => removed(CWD, path, call),
            libc::SYS_rmdir => {
                name(CWD, path);
                gone(call(), CWD, path)
            }
            libc::SYS_mkdir | libc::SYS_mknod => {
                name(CWD, path);
                call()
            }
            libc::SYS_link => {
                linked(CWD, path, CWD, path2, false);
                call()
            }
            libc::SYS_symlink => {
                name(CWD, path2);
                call()
            }
            libc::SYS_chmod => mode_at(CWD, path, 0, y as mode_t, |_, p| on(p)),
            libc::SYS_chown | libc::SYS_utime | libc::SYS_utimes => file(CWD, path, true, |_, p| on(p)),
            libc::SYS_lchown => file(CWD, path, false, |_, p| on(p)),
            libc::SYS_futimesat => {
                let at = |fd: c_int, p: *const c_char| raw([fd as isize as usize, p as usize, z, 0, 0, 0]);
                utimensat_any(x as c_int, path2, 0, at)
            }
            _ => return None,
        }
    })
}

hook! { next;
    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        renamed((CWD, from), (CWD, to), true, || next(from, to))
    }
    fn renameat(a: c_int, from: *const c_char, b: c_int, to: *const c_char) -> c_int {
        renamed((a, from), (b, to), true, || next(a, from, b, to))
    }
    fn renameat2(a: c_int, from: *const c_char, b: c_int, to: *const c_char, flags: u32) -> c_int {
        renamed((a, from), (b, to), flags & libc::RENAME_EXCHANGE == 0, || next(a, from, b, to, flags))
    }
    fn unlink(path: *const c_char) -> c_int { removed(CWD, path, || next(path)) }
    fn unlinkat(fd: c_int, path: *const c_char, flags: c_int) -> c_int { removed(fd, path, || next(fd, path, flags)) }
    fn remove(path: *const c_char) -> c_int { removed(CWD, path, || next(path)) }
    fn rmdir(path: *const c_char) -> c_int { name(CWD, path); gone(next(path), CWD, path) }
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int { name(CWD, path); next(path, mode) }
    fn mkdirat(fd: c_int, path: *const c_char, mode: mode_t) -> c_int { name(fd, path); next(fd, path, mode) }
    fn link(from: *const c_char, to: *const c_char) -> c_int { linked(CWD, from, CWD, to, false); next(from, to) }
    fn linkat(a: c_int, from: *const c_char, b: c_int, to: *const c_char, flags: c_int) -> c_int {
        linked(a, from, b, to, flags & libc::AT_SYMLINK_FOLLOW != 0);
        link_of(a, from, flags, |a, from| next(a, from, b, to, flags))
    }
    fn symlink(target: *const c_char, path: *const c_char) -> c_int { name(CWD, path); next(target, path) }
    fn symlinkat(target: *const c_char, fd: c_int, path: *const c_char) -> c_int { name(fd, path); next(target, fd, path) }
    fn mknod(path: *const c_char, mode: mode_t, dev: dev_t) -> c_int { name(CWD, path); next(path, mode, dev) }
    fn mknodat(fd: c_int, path: *const c_char, mode: mode_t, dev: dev_t) -> c_int { name(fd, path); next(fd, path, mode, dev) }
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int { name(CWD, path); next(path, mode) }
    fn mkfifoat(fd: c_int, path: *const c_char, mode: mode_t) -> c_int { name(fd, path); next(fd, path, mode) }

    fn truncate(path: *const c_char, len: off_t) -> c_int { file(CWD, path, true, |_, p| next(p, len)) }
    fn truncate64(path: *const c_char, len: off_t) -> c_int { file(CWD, path, true, |_, p| next(p, len)) }
    fn chmod(path: *const c_char, mode: mode_t) -> c_int { mode_at(CWD, path, 0, mode, |_, p| next(p, mode)) }
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int { file(CWD, path, false, |_, p| next(p, mode)) }
    fn fchmod(fd: c_int, mode: mode_t) -> c_int {
        if mode & libc::S_IXUSR == 0 { hide_below_descriptor(fd); }
        descriptor(fd, || next(fd, mode), |p| libc::chmod(p, mode))
    }
    fn fchmodat(fd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        mode_at(fd, path, flags, mode, |fd, p| next(fd, p, mode, flags))
    }
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int { file(CWD, path, true, |_, p| next(p, uid, gid)) }
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int { file(CWD, path, false, |_, p| next(p, uid, gid)) }
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        descriptor(fd, || next(fd, uid, gid), |p| libc::chown(p, uid, gid))
    }
    fn fchownat(fd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
        file_at(fd, path, flags, |fd, p| next(fd, p, uid, gid, flags))
    }
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int { file(CWD, path, true, |_, p| next(p, times)) }
    fn utimes(path: *const c_char, times: *const timeval) -> c_int { file(CWD, path, true, |_, p| next(p, times)) }
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int { file(CWD, path, false, |_, p| next(p, times)) }
    fn futimes(fd: c_int, times: *const timeval) -> c_int {
        descriptor(fd, || next(fd, times), |p| libc::utimes(p, times))
    }
    fn futimesat(fd: c_int, path: *const c_char, times: *const timeval) -> c_int {
        if path.is_null() { descriptor(fd, || next(fd, path, times), |p| libc::utimes(p, times)) }
        else { file(fd, path, true, |fd, p| next(fd, p, times)) }
    }
    fn utimensat(fd: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        utimensat_any(fd, path, flags, |fd, p| next(fd, p, times, flags))
    }
    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        descriptor(fd, || next(fd, times), |p| libc::utimensat(CWD, p, times, 0))
    }
    fn setxattr(path: *const c_char, key: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int {
        file(CWD, path, true, |_, p| next(p, key, value, n, flags))
    }
    fn lsetxattr(path: *const c_char, key: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int {
        file(CWD, path, false, |_, p| next(p, key, value, n, flags))
    }
    fn fsetxattr(fd: c_int, key: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int {
        descriptor(fd, || next(fd, key, value, n, flags), |p| libc::setxattr(p, key, value, n, flags))
    }
    fn removexattr(path: *const c_char, key: *const c_char) -> c_int { file(CWD, path, true, |_, p| next(p, key)) }
    fn lremovexattr(path: *const c_char, key: *const c_char) -> c_int { file(CWD, path, false, |_, p| next(p, key)) }
    fn fremovexattr(fd: c_int, key: *const c_char) -> c_int {
        descriptor(fd, || next(fd, key), |p| libc::removexattr(p, key))
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
        match super::behind(CWD, path, true).as_mut().and_then(|p| p.c_str()) {
            Some(p) => next(p.as_ptr(), key, value, n),
            None => next(path, key, value, n),
        }
    }
    fn listxattr(path: *const c_char, list: *mut c_char, n: size_t) -> ssize_t {
        match super::behind(CWD, path, true).as_mut().and_then(|p| p.c_str()) {
            Some(p) => next(p.as_ptr(), list, n),
            None => next(path, list, n),
        }
    }
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
        // A copy is not executable, and a script is opened again by its interpreter.
        match pfs_path_of(fd).as_mut().and_then(|p| p.c_str()) {
            Some(p) => libc::execve(p.as_ptr(), argv.cast(), envp.cast()),
            None => next(fd, argv, envp),
        }
    }

    // What these name is written by the C library itself.
    fn updwtmp(path: *const c_char, entry: *const c_void) { content(path, |path| next(path, entry)) }
    fn updwtmpx(path: *const c_char, entry: *const c_void) { content(path, |path| next(path, entry)) }
    fn utmpname(path: *const c_char) -> c_int { content(path, |path| next(path)) }
    fn utmpxname(path: *const c_char) -> c_int { content(path, |path| next(path)) }

    fn mkstemp(template: *mut c_char) -> c_int { created(next(template)) }
    fn mkstemp64(template: *mut c_char) -> c_int { created(next(template)) }
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int { created(next(template, flags)) }
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int { created(next(template, flags)) }
    fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int { created(next(template, suffix)) }
    fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int { created(next(template, suffix)) }
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int { created(next(template, suffix, flags)) }
    fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int { created(next(template, suffix, flags)) }
    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        let made = next(template);
        if !made.is_null() { name(CWD, made); }
        made
    }
}
