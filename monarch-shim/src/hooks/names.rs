//! Calls that create, remove, move or link names: Bypass first, then the kernel.

use super::{before_change, enter_change, hook};
use crate::changes::{file_changes, name_changes, opened_for_writing, root_path_changed};
use crate::descriptor_path::proc_path;
use crate::foreign_changes;
use crate::gone::last_name;
use crate::outputs;
use crate::pfs_fd::{self, Link};
use core::ffi::{c_char, c_int};
use libc::{dev_t, mode_t};
use monarch_abi::resolve::Found;
use monarch_abi::word::State;
use monarch_guest::ctx;
use monarch_guest::errno;

const CWD: c_int = libc::AT_FDCWD;
/// What linkat(2) knows: it refuses other flags before it looks for the names.
pub(super) const LINK_FLAGS: c_int = libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH;

/// A name appears, disappears or is replaced.
pub(super) unsafe fn name(dirfd: c_int, path: *const c_char) {
    // SAFETY: passed on.
    unsafe {
        foreign_changes::name_changes(dirfd, path, false);
        before_change(path, |ctx, p| name_changes(ctx, dirfd, p, false));
    }
}

/// A name moves, perhaps with a whole subtree.
unsafe fn moved(dirfd: c_int, path: *const c_char) {
    // SAFETY: passed on.
    unsafe {
        foreign_changes::name_changes(dirfd, path, true);
        before_change(path, |ctx, p| name_changes(ctx, dirfd, p, true));
    }
}

/// A name appears by `call`.
unsafe fn named(dirfd: c_int, path: *const c_char, call: impl Fn() -> c_int) -> c_int {
    // SAFETY: passed on.
    unsafe { name(dirfd, path) };
    call()
}

/// A name was removed or replaced, if the call succeeded.
pub(super) unsafe fn gone(result: c_int, dirfd: c_int, path: *const c_char) -> c_int {
    if result == 0 {
        // SAFETY: passed on.
        unsafe { before_change(path, |ctx, p| root_path_changed(ctx, dirfd, p)) }
    }
    result
}

/// A file gets another name: its count of links changes, too.
pub(super) unsafe fn linked(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, follow: bool) {
    // SAFETY: passed on.
    unsafe {
        foreign_changes::file_changes(from_fd, from, follow);
        before_change(from, |ctx, p| drop(file_changes(ctx, from_fd, p, follow)));
        name(to_fd, to);
    }
}

/// A file gets another name, with flags of linkat.
pub(super) unsafe fn linked_at(
    (from_fd, from): (c_int, *const c_char),
    (to_fd, to): (c_int, *const c_char),
    flags: c_int,
    next: impl Fn(c_int, *const c_char, c_int) -> c_int,
) -> c_int {
    let before = |linking: &mut outputs::Linking| {
        // SAFETY: passed on.
        unsafe { outputs::link((from_fd, from), (to_fd, to), flags, linking) }
    };
    let call = |linking: &mut outputs::Linking| {
        // SAFETY: passed on.
        unsafe {
            linked(from_fd, from, to_fd, to, flags & libc::AT_SYMLINK_FOLLOW != 0);
            match linking.published.as_mut().and_then(|path| path.c_str()) {
                Some(path) => next(CWD, path.as_ptr(), 0),
                None => link_of(from_fd, from, flags, |fd, path| next(fd, path, flags)),
            }
        }
    };
    // SAFETY: passed on.
    unsafe { made_by((to_fd, to), before, call) }
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

/// A name is removed. If it is the last name of a file, processes that have the file open see that.
pub(super) unsafe fn removed(dirfd: c_int, path: *const c_char, flags: c_int, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        let mut _under_way = None;
        outputs::unlink(dirfd, path, flags, &mut _under_way).unwrap_or_else(|| removed_plainly(dirfd, path, call))
    }
}

unsafe fn removed_plainly(dirfd: c_int, path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
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

/// A directory is removed.
pub(super) unsafe fn removed_dir(path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        if let Some(done) = outputs::unlink(CWD, path, libc::AT_REMOVEDIR, &mut None) {
            return done;
        }
        name(CWD, path);
        gone(call(), CWD, path)
    }
}

/// How often a name is made again after the removal of what had it was published.
const MAX_MADE_AGAIN: usize = 8;

/// Makes a name by `call`, unless `before` has the answer; once more where the name was only that
/// of a file which the job has removed. What `before` knows is kept until the call has ended.
unsafe fn made_by<T: Default>(
    (dirfd, path): (c_int, *const c_char),
    before: impl Fn(&mut T) -> Option<c_int>,
    call: impl Fn(&mut T) -> c_int,
) -> c_int {
    let mut result = -1;
    for _ in 0..MAX_MADE_AGAIN {
        let mut known = T::default();
        if let Some(done) = before(&mut known) {
            return done;
        }
        result = call(&mut known);
        drop(known);
        // SAFETY: passed on.
        if result == 0 || errno::errno() != libc::EEXIST || unsafe { !outputs::was_removed(dirfd, path) } {
            break;
        }
        // (Where another process makes it first, that is the answer.)
        errno::set_errno(libc::EEXIST);
    }
    result
}

/// A name is made: of a directory, a device, a pipe.
pub(super) unsafe fn made(dirfd: c_int, path: *const c_char, call: impl Fn() -> c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        let root = outputs::root_at(dirfd, path);
        let before = |under_way: &mut Option<outputs::UnderWay>| outputs::make(dirfd, path, under_way);
        let result = made_by((dirfd, path), before, |_| named(dirfd, path, &call));
        if let (0, Some(root)) = (result, root) {
            outputs::barrier::wait_for_root(&root);
        }
        result
    }
}

/// Whether mknod(2) knows what such a mode is to make: it refuses others before it looks for the
/// name.
pub(super) const fn is_node(mode: mode_t) -> bool {
    matches!(mode & libc::S_IFMT, 0 | libc::S_IFREG | libc::S_IFCHR | libc::S_IFBLK | libc::S_IFIFO | libc::S_IFSOCK)
}

/// A symbolic link is made.
pub(super) unsafe fn symlinked(
    target: *const c_char,
    dirfd: c_int,
    path: *const c_char,
    call: impl Fn() -> c_int,
) -> c_int {
    let before = |under_way: &mut Option<outputs::UnderWay>| {
        // SAFETY: passed on.
        unsafe { outputs::symlink(target, dirfd, path, under_way) }
    };
    // SAFETY: passed on.
    unsafe { made_by((dirfd, path), before, |_| named(dirfd, path, &call)) }
}

/// A name moves, with flags of renameat2.
pub(super) unsafe fn renamed(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    flags: u32,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe { outputs::rename(from, to, flags, || renamed_plainly(from, to, flags & libc::RENAME_EXCHANGE == 0, call)) }
}

/// A name moves, and another file may lose the one that it gets.
unsafe fn renamed_plainly(
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

/// A file that libc itself created under a name of its choice.
unsafe fn created(fd: c_int) -> c_int {
    foreign_changes::descriptor_changes(fd);
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

hook! { next;
    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        renamed((CWD, from), (CWD, to), 0, || next(from, to))
    }
    fn renameat(a: c_int, from: *const c_char, b: c_int, to: *const c_char) -> c_int {
        renamed((a, from), (b, to), 0, || next(a, from, b, to))
    }
    fn renameat2(a: c_int, from: *const c_char, b: c_int, to: *const c_char, flags: u32) -> c_int {
        renamed((a, from), (b, to), flags, || next(a, from, b, to, flags))
    }
    fn unlink(path: *const c_char) -> c_int { removed(CWD, path, 0, || next(path)) }
    fn unlinkat(fd: c_int, path: *const c_char, flags: c_int) -> c_int { removed(fd, path, flags, || next(fd, path, flags)) }
    fn remove(path: *const c_char) -> c_int {
        let mut _under_way = None;
        match outputs::remove(path, &mut _under_way) {
            Some(done) => done,
            None => removed_plainly(CWD, path, || next(path)),
        }
    }
    fn rmdir(path: *const c_char) -> c_int { removed_dir(path, || next(path)) }
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int { made(CWD, path, || next(path, mode)) }
    fn mkdirat(fd: c_int, path: *const c_char, mode: mode_t) -> c_int { made(fd, path, || next(fd, path, mode)) }
    fn link(from: *const c_char, to: *const c_char) -> c_int {
        let mut _linking = outputs::Linking::default();
        if let Some(done) = outputs::link((CWD, from), (CWD, to), 0, &mut _linking) { return done; }
        linked(CWD, from, CWD, to, false);
        next(from, to)
    }
    fn linkat(a: c_int, from: *const c_char, b: c_int, to: *const c_char, flags: c_int) -> c_int {
        if flags & !LINK_FLAGS != 0 { return next(a, from, b, to, flags); }
        linked_at((a, from), (b, to), flags, |a, from, flags| next(a, from, b, to, flags))
    }
    fn symlink(target: *const c_char, path: *const c_char) -> c_int { symlinked(target, CWD, path, || next(target, path)) }
    fn symlinkat(target: *const c_char, fd: c_int, path: *const c_char) -> c_int { symlinked(target, fd, path, || next(target, fd, path)) }
    fn mknod(path: *const c_char, mode: mode_t, dev: dev_t) -> c_int {
        if is_node(mode) { made(CWD, path, || next(path, mode, dev)) } else { next(path, mode, dev) }
    }
    fn mknodat(fd: c_int, path: *const c_char, mode: mode_t, dev: dev_t) -> c_int {
        if is_node(mode) { made(fd, path, || next(fd, path, mode, dev)) } else { next(fd, path, mode, dev) }
    }
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int { made(CWD, path, || next(path, mode)) }
    fn mkfifoat(fd: c_int, path: *const c_char, mode: mode_t) -> c_int { made(fd, path, || next(fd, path, mode)) }

    fn mkstemp(template: *mut c_char) -> c_int {
        outputs::temporary(template, 0, 0).unwrap_or_else(|| created(next(template)))
    }
    fn mkstemp64(template: *mut c_char) -> c_int {
        outputs::temporary(template, 0, 0).unwrap_or_else(|| created(next(template)))
    }
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int {
        outputs::temporary(template, 0, flags).unwrap_or_else(|| created(next(template, flags)))
    }
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
        outputs::temporary(template, 0, flags).unwrap_or_else(|| created(next(template, flags)))
    }
    fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
        outputs::temporary(template, suffix, 0).unwrap_or_else(|| created(next(template, suffix)))
    }
    fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int {
        outputs::temporary(template, suffix, 0).unwrap_or_else(|| created(next(template, suffix)))
    }
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        outputs::temporary(template, suffix, flags).unwrap_or_else(|| created(next(template, suffix, flags)))
    }
    fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        outputs::temporary(template, suffix, flags).unwrap_or_else(|| created(next(template, suffix, flags)))
    }
    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        // (The name is another one, in the same directory.)
        let mut _under_way = None;
        if outputs::make(CWD, template, &mut _under_way).is_some_and(|_| errno::errno() != libc::EEXIST) {
            return core::ptr::null_mut();
        }
        let made = next(template);
        if !made.is_null() { name(CWD, made); }
        made
    }
}
