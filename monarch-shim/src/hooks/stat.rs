//! The stat family: by path from the index, by descriptor from the kernel and, for copies,
//! translated.

use super::{enter, enter_change, hook};
use crate::identity::{
    COPY_MODE, Facts, attributes, changed_attributes, copy_of, fill_stat, fill_stat_on_demand, fill_statx,
    fill_statx_on_demand, is_current, path_if_there,
};
use crate::on_demand;
use crate::outputs::{self, Before};
use crate::paths::find;
use core::ffi::{c_char, c_int, c_uint};
use libc::stat64 as Stat;
use monarch_abi::control::Counter;
use monarch_abi::resolve::{Found, Miss};
use monarch_guest::absent;
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::{self, Below, Ctx, Glance};
use monarch_guest::errno;
use monarch_guest::guard::{Asked, is_still};
use monarch_guest::user;

const CWD: c_int = libc::AT_FDCWD;

/// In place of the result of a call: the index does not hold the path, and the agent may know.
pub(super) const NOT_HELD: c_int = 1;

/// The entry for a metadata call, counted; or the result of a call about a name that is not there,
/// or [`NOT_HELD`]. `None`: the kernel answers.
#[inline(never)]
pub(super) fn lookup(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Result<Found<'static>, c_int>> {
    match find(ctx, dirfd, path, follow) {
        Ok(f) if is_current(&f) && is_still(ctx, &f, Asked::new(dirfd, path, follow)) => Some(Ok(f)),
        Err(Miss::Outside) => None,
        Err(miss) if absent::fails(ctx, dirfd, path, miss) => Some(Err(-1)),
        Err(Miss::Unknown(_)) if on_demand::is_on(ctx) => Some(Err(NOT_HELD)),
        _ => {
            ctx.count(Counter::MetaKernel, 1);
            None
        }
    }
}

#[inline]
unsafe fn by_path(
    dirfd: c_int,
    path: *const c_char,
    buf: *mut Stat,
    follow: bool,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // A path may lead to an open copy, through `/proc/self/fd` and the like.
    // SAFETY: passed on.
    unsafe {
        stat_indexed(dirfd, path, buf, follow).unwrap_or_else(|| {
            let before = Before::now();
            let result = next();
            if before.has_roots() {
                found_plainly(before, result, (dirfd, path), buf, follow)
            } else {
                translate(result, buf)
            }
        })
    }
}

/// After a plain call of a job with output roots: a link may have led to what is pending there.
///
/// # Safety
/// As for [`user::path`]; a successful call has written to the buffer.
#[cold]
#[inline(never)]
unsafe fn found_plainly(
    before: Before,
    result: c_int,
    (dirfd, path): (c_int, *const c_char),
    buf: *mut Stat,
    follow: bool,
) -> c_int {
    // SAFETY: by contract.
    unsafe {
        // (Before the device may be that of a copy's file.)
        let dev = (result == 0).then(|| (*buf).st_dev);
        let result = translate(result, buf);
        if result == 0 && outputs::stat::may_be_staged_file((*buf).st_mode) {
            outputs::stat::translate_named(dirfd, path, |fd| outputs::stat::translate_open(fd, &mut *buf));
        }
        match outputs::beyond_found(before, dev, dirfd, path, follow) {
            None => result,
            Some(lead) if lead.is_held => {
                if result == 0 {
                    (*buf).st_nlink = 0;
                }
                result
            }
            Some(lead) => stat_beyond(lead.at, buf, follow, result),
        }
    }
}

/// The answer of the index or of an output root. One function for all symbols.
///
/// # Safety
/// As for [`user::path`]; the buffer may be written to.
#[inline(never)]
unsafe fn stat_indexed(dirfd: c_int, path: *const c_char, buf: *mut Stat, follow: bool) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        match ctx::glance(path) {
            Glance::Outside => None,
            Glance::Below(below) => stat_below(below, dirfd, path, buf, follow),
            Glance::Unknown => stat_unknown(dirfd, path, buf, follow),
        }
    }
}

/// [`stat_indexed`] for a path of which nothing is known, but that there may be output roots.
///
/// # Safety
/// As for [`user::path`]; the buffer may be written to.
#[inline(never)]
unsafe fn stat_unknown(dirfd: c_int, path: *const c_char, buf: *mut Stat, follow: bool) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        match ctx::glance_beside_outputs(path) {
            Glance::Outside => None,
            Glance::Below(below) => stat_below(below, dirfd, path, buf, follow),
            Glance::Unknown => stat_entered(dirfd, path, buf, follow),
        }
    }
}

/// [`stat_indexed`] for a path that begins with the spelling of a root, with all that a hit needs
/// in its code.
///
/// # Safety
/// That of [`Below::find`]; the buffer may be written to.
#[inline(never)]
unsafe fn stat_below(below: Below, dirfd: c_int, path: *const c_char, buf: *mut Stat, follow: bool) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        let Some((ctx, bytes, f)) = below.find(path, follow) else { return stat_entered(dirfd, path, buf, follow) };
        if is_current(&f) && is_still(&ctx, &f, Asked::new(dirfd, bytes, follow)) {
            return stat_found(&ctx, &f, buf);
        }
        ctx.count(Counter::MetaKernel, 1);
        None
    }
}

/// [`stat_indexed`] for a path of which nothing is known.
///
/// # Safety
/// As for [`user::path`]; the buffer may be written to.
#[inline(never)]
unsafe fn stat_entered(dirfd: c_int, path: *const c_char, buf: *mut Stat, follow: bool) -> Option<c_int> {
    // SAFETY: the application's pointers, tested before they are used.
    unsafe {
        if let Some(done) = outputs::stat(dirfd, path, buf, follow) {
            return Some(done);
        }
        let (ctx, bytes) = enter(path)?;
        match lookup(&ctx, dirfd, bytes, follow)? {
            Ok(f) => stat_found(&ctx, &f, buf),
            Err(NOT_HELD) => stat_on_demand(&ctx, dirfd, bytes, buf, follow),
            Err(failed) => Some(failed),
        }
    }
}

/// Fills the buffer from an entry.
///
/// # Safety
/// The buffer may be written to.
#[inline(always)]
unsafe fn stat_found(ctx: &Ctx, f: &Found<'static>, buf: *mut Stat) -> Option<c_int> {
    if !user::writable(buf) {
        return None;
    }
    // SAFETY: writable, as just tested.
    fill_stat(ctx, f.root, f.segment, f.entry.record, unsafe { &mut *buf })?;
    ctx.count(Counter::Stats, 1);
    Some(0)
}

/// Fills the buffer from what the agent says of a path that the index does not hold.
///
/// # Safety
/// The buffer may be written to.
#[cold]
#[inline(never)]
unsafe fn stat_on_demand(ctx: &Ctx, dirfd: c_int, path: &[u8], buf: *mut Stat, follow: bool) -> Option<c_int> {
    let saved = errno::errno();
    let filled = || {
        let (root, attributes) = on_demand::attributes(ctx, dirfd, path, follow).filter(|_| user::writable(buf))?;
        // SAFETY: writable, as just tested.
        fill_stat_on_demand(ctx, root, &attributes, unsafe { &mut *buf })
    };
    let filled = filled();
    errno::set_errno(saved);
    ctx.count(if filled.is_some() { Counter::Stats } else { Counter::MetaKernel }, 1);
    filled.map(|()| 0)
}

/// What the overlay says of the place to which links have led, or else the PFS, which has given
/// this result: what it did not have then may be published by now.
#[cold]
unsafe fn stat_beyond(mut beyond: Absolute, buf: *mut Stat, follow: bool, result: c_int) -> c_int {
    let Some(path) = beyond.c_str() else { return result };
    // SAFETY: passed on, with a path of the shim.
    match unsafe { outputs::stat(CWD, path.as_ptr(), buf, follow) } {
        Some(done) => done,
        None => {
            let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW } as usize;
            let args = [CWD as isize as usize, path.as_ptr() as usize, buf as usize, flags, 0, 0];
            // SAFETY: the application's buffer, which the kernel tests.
            done(unsafe { monarch_guest::sys::call(libc::SYS_newfstatat, args) })
        }
    }
}

/// The result of a system call as that of a function of the C library.
fn done(result: isize) -> c_int {
    if result < 0 {
        errno::set_errno(-result as c_int);
        return -1;
    }
    0
}

/// After a successful fstat of a descriptor, which may also be that of a staged file.
#[inline]
unsafe fn translate_open(fd: c_int, result: c_int, buf: *mut Stat) -> c_int {
    // SAFETY: a successful call has written to it.
    if result == 0 && outputs::stat::may_be_staged(unsafe { (*buf).st_mode }) {
        // SAFETY: as above.
        outputs::stat::translate_open(fd, unsafe { &mut *buf });
    }
    // SAFETY: passed on.
    unsafe { translate(result, buf) }
}

/// After a successful fstat: what the kernel says about a copy is replaced by what the PFS says
/// about the file.
#[inline]
unsafe fn translate(result: c_int, buf: *mut Stat) -> c_int {
    // SAFETY: a successful call has written to it.
    if result == 0 && unsafe { (*buf).st_mode } == COPY_MODE {
        // SAFETY: as above.
        translate_copy(unsafe { &mut *buf });
    }
    result
}

#[cold]
#[inline(never)]
fn translate_copy(st: &mut Stat) {
    let Some(ctx) = ctx::mapped() else { return };
    let saved = errno::errno();
    if let Some(f) = copy_of(&ctx, &Facts::of(st)) {
        let now = changed_attributes(&ctx, &f);
        if now.is_none() && fill_stat(&ctx, f.root, f.segment, f.entry.record, st).is_some() {
            if f.entry.word().is_gone() {
                st.st_nlink = 0;
            }
        } else {
            // The index does not have it: the file itself is asked.
            if let Some(now) = now.or_else(|| attributes(&ctx, &f)) {
                *st = now;
            }
        }
    }
    errno::set_errno(saved);
}

/// fstatat: by path, or by descriptor when the path is empty.
#[inline]
unsafe fn at(dirfd: c_int, path: *const c_char, buf: *mut Stat, flags: c_int, next: impl FnOnce() -> c_int) -> c_int {
    const SERVED_FLAGS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    if flags & libc::AT_EMPTY_PATH != 0 {
        // SAFETY: tested before it is read.
        if path.is_null() || unsafe { user::path(path) }.is_some_and(<[u8]>::is_empty) {
            // SAFETY: a successful call has filled the buffer.
            return unsafe { translate_open(dirfd, next(), buf) };
        }
    }
    if flags & !(SERVED_FLAGS | libc::AT_EMPTY_PATH) != 0 {
        return next();
    }
    // SAFETY: passed on.
    unsafe { by_path(dirfd, path, buf, flags & libc::AT_SYMLINK_NOFOLLOW == 0, next) }
}

/// statx of a path that leads nowhere: what is wrong with flags and mask, the kernel says before.
#[cold]
fn refused_first(flags: c_int, mask: c_uint, next: impl FnOnce() -> c_int) -> c_int {
    const KNOWN: c_int =
        libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH | libc::AT_STATX_SYNC_TYPE;
    let is_wrong = flags & !KNOWN != 0
        || flags & libc::AT_STATX_SYNC_TYPE == libc::AT_STATX_SYNC_TYPE
        || mask & libc::STATX__RESERVED as c_uint != 0;
    if is_wrong { next() } else { -1 }
}

const STAT_VER: c_int = if cfg!(target_arch = "x86_64") { 1 } else { 0 };

hook! { next;
    fn stat(path: *const c_char, buf: *mut Stat) -> c_int { by_path(CWD, path, buf, true, || next(path, buf)) }
    fn stat64(path: *const c_char, buf: *mut Stat) -> c_int { by_path(CWD, path, buf, true, || next(path, buf)) }
    fn lstat(path: *const c_char, buf: *mut Stat) -> c_int { by_path(CWD, path, buf, false, || next(path, buf)) }
    fn lstat64(path: *const c_char, buf: *mut Stat) -> c_int { by_path(CWD, path, buf, false, || next(path, buf)) }
    fn fstat(fd: c_int, buf: *mut Stat) -> c_int { translate_open(fd, next(fd, buf), buf) }
    fn fstat64(fd: c_int, buf: *mut Stat) -> c_int { translate_open(fd, next(fd, buf), buf) }
    fn fstatat(fd: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int {
        at(fd, path, buf, flags, || next(fd, path, buf, flags))
    }
    fn fstatat64(fd: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int {
        at(fd, path, buf, flags, || next(fd, path, buf, flags))
    }
    fn __xstat(v: c_int, path: *const c_char, buf: *mut Stat) -> c_int {
        if v == STAT_VER { by_path(CWD, path, buf, true, || next(v, path, buf)) } else { next(v, path, buf) }
    }
    fn __xstat64(v: c_int, path: *const c_char, buf: *mut Stat) -> c_int {
        if v == STAT_VER { by_path(CWD, path, buf, true, || next(v, path, buf)) } else { next(v, path, buf) }
    }
    fn __lxstat(v: c_int, path: *const c_char, buf: *mut Stat) -> c_int {
        if v == STAT_VER { by_path(CWD, path, buf, false, || next(v, path, buf)) } else { next(v, path, buf) }
    }
    fn __lxstat64(v: c_int, path: *const c_char, buf: *mut Stat) -> c_int {
        if v == STAT_VER { by_path(CWD, path, buf, false, || next(v, path, buf)) } else { next(v, path, buf) }
    }
    fn __fxstat(v: c_int, fd: c_int, buf: *mut Stat) -> c_int {
        if v == STAT_VER { translate_open(fd, next(v, fd, buf), buf) } else { next(v, fd, buf) }
    }
    fn __fxstat64(v: c_int, fd: c_int, buf: *mut Stat) -> c_int {
        if v == STAT_VER { translate_open(fd, next(v, fd, buf), buf) } else { next(v, fd, buf) }
    }
    fn __fxstatat(v: c_int, fd: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int {
        if v == STAT_VER { at(fd, path, buf, flags, || next(v, fd, path, buf, flags)) } else { next(v, fd, path, buf, flags) }
    }
    fn __fxstatat64(v: c_int, fd: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int {
        if v == STAT_VER { at(fd, path, buf, flags, || next(v, fd, path, buf, flags)) } else { next(v, fd, path, buf, flags) }
    }
    fn statx(dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut libc::statx) -> c_int {
        statx_any(dirfd, path, flags, mask, buf, |mask| next(dirfd, path, flags, mask, buf))
    }
}

unsafe fn statx_any(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    buf: *mut libc::statx,
    next: impl Fn(c_uint) -> c_int,
) -> c_int {
    const SERVED_FLAGS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_STATX_DONT_SYNC;
    // Newer kernels take no path for an empty one.
    let path = if path.is_null() && flags & libc::AT_EMPTY_PATH != 0 { c"".as_ptr() } else { path };
    // SAFETY: tested before it is read.
    let entered = unsafe { if flags & libc::AT_EMPTY_PATH != 0 { enter_change(path) } else { enter(path) } };
    if flags & libc::AT_EMPTY_PATH != 0 && entered.is_some_and(|(_, bytes)| bytes.is_empty()) {
        // The kernel is asked for everything that identifies a copy.
        // SAFETY: passed on.
        return unsafe {
            let result = translate_x(next(mask | libc::STATX_BASIC_STATS), mask, buf, &next);
            if result == 0 && outputs::stat::may_be_staged(u32::from((*buf).stx_mode)) {
                outputs::stat::translate_open_x(dirfd, &mut *buf);
            }
            result
        };
    }
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let on = |path: *const c_char| {
        let args = [CWD as isize as usize, path as usize, flags as usize, mask as usize, buf as usize, 0];
        // SAFETY: the application's buffer, which the kernel tests.
        done(unsafe { monarch_guest::sys::call(libc::SYS_statx, args) })
    };
    // SAFETY: the application's pointers, tested before they are used.
    if let Some(done) = unsafe { outputs::statx(dirfd, path, follow, buf, on) } {
        return if done < 0 { refused_first(flags, mask, || next(mask)) } else { done };
    }
    let answer = || {
        let (ctx, bytes) = entered?;
        if flags & !SERVED_FLAGS != 0 {
            return None;
        }
        let f = match lookup(&ctx, dirfd, bytes, flags & libc::AT_SYMLINK_NOFOLLOW == 0)? {
            Ok(f) => f,
            // SAFETY: the application's buffer, tested before it is written.
            Err(NOT_HELD) => return unsafe { statx_on_demand(&ctx, (dirfd, bytes, follow), mask, buf) },
            Err(failed) => return Some(failed),
        };
        if !user::writable(buf) {
            return None;
        }
        // SAFETY: writable, as just tested.
        fill_statx(&ctx, &f, mask, unsafe { &mut *buf })?;
        ctx.count(Counter::Stats, 1);
        Some(0)
    };
    // SAFETY: passed on.
    answer().unwrap_or_else(|| unsafe {
        let before = Before::now();
        let result = next(mask);
        let dev = (result == 0).then(|| libc::makedev((*buf).stx_dev_major, (*buf).stx_dev_minor));
        let result = translate_x(result, mask, buf, &next);
        if result == 0 && before.has_roots() && outputs::stat::may_be_staged_file(u32::from((*buf).stx_mode)) {
            outputs::stat::translate_named(dirfd, path, |fd| outputs::stat::translate_open_x(fd, &mut *buf));
        }
        // A link may lead to what is pending.
        let Some(mut lead) = outputs::beyond_found(before, dev, dirfd, path, follow) else { return result };
        if lead.is_held {
            if result == 0 {
                (*buf).stx_nlink = 0;
            }
            return result;
        }
        let Some(path) = lead.at.c_str() else { return result };
        match outputs::statx(CWD, path.as_ptr(), follow, buf, on) {
            Some(done) => done,
            // It may be published by now.
            None => on(path.as_ptr()),
        }
    })
}

/// [`stat_on_demand`] for statx.
///
/// # Safety
/// The buffer may be written to.
#[cold]
#[inline(never)]
unsafe fn statx_on_demand(
    ctx: &Ctx,
    (dirfd, path, follow): (c_int, &[u8], bool),
    mask: c_uint,
    buf: *mut libc::statx,
) -> Option<c_int> {
    let saved = errno::errno();
    let filled = || {
        let (root, attributes) = on_demand::attributes(ctx, dirfd, path, follow).filter(|_| user::writable(buf))?;
        // SAFETY: writable, as just tested.
        fill_statx_on_demand(ctx, root, &attributes, mask, unsafe { &mut *buf })
    };
    let filled = filled();
    errno::set_errno(saved);
    ctx.count(if filled.is_some() { Counter::Stats } else { Counter::MetaKernel }, 1);
    filled.map(|()| 0)
}

/// After a successful statx of a descriptor, or of a path that may lead to one.
#[inline]
unsafe fn translate_x(result: c_int, mask: c_uint, buf: *mut libc::statx, again: &impl Fn(c_uint) -> c_int) -> c_int {
    // SAFETY: a successful call has written to it.
    if result != 0 || u32::from(unsafe { (*buf).stx_mode }) != COPY_MODE {
        return result;
    }
    // What identifies a copy may be missing because it was not asked for.
    // SAFETY: as above.
    if unsafe { (*buf).stx_mask } & COPY_FACTS != COPY_FACTS && again(mask | libc::STATX_BASIC_STATS) != 0 {
        return -1;
    }
    // SAFETY: as above.
    translate_copy_x(mask, unsafe { &mut *buf });
    result
}

/// The fields that identify a copy.
const COPY_FACTS: c_uint = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_SIZE | libc::STATX_MTIME;

#[cold]
#[inline(never)]
fn translate_copy_x(mask: c_uint, st: &mut libc::statx) {
    let Some(ctx) = ctx::mapped() else { return };
    let facts = Facts {
        dev: monarch_guest::sys::makedev(st.stx_dev_major, st.stx_dev_minor),
        mode: u32::from(st.stx_mode),
        size: st.stx_size,
        mtime: (st.stx_mtime.tv_sec, st.stx_mtime.tv_nsec),
    };
    let Some(f) = copy_of(&ctx, &facts) else { return };
    let known = mask & (libc::STATX_BASIC_STATS | libc::STATX_BTIME);
    if is_current(&f) && fill_statx(&ctx, &f, known, st).is_some() {
        return;
    }
    let now = path_if_there(&ctx, &f)
        .and_then(|mut p| monarch_guest::sys::statx(p.c_str()?, libc::AT_SYMLINK_NOFOLLOW, mask))
        .filter(|now| now.stx_size == f.entry.record.size);
    match now {
        Some(now) => *st = now,
        None => {
            let _ = fill_statx(&ctx, &f, mask & libc::STATX_BASIC_STATS, st);
            if f.entry.word().is_gone() {
                st.stx_nlink = 0;
            }
        }
    }
}

/// fstat, fstatat, statx, and on older machines stat and lstat, by number.
#[inline(never)]
pub(super) unsafe fn by_number(n: libc::c_long, a: [usize; 6], raw: impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let [x, y, z, u, v, _] = a;
    let (path, path2) = (x as *const c_char, y as *const c_char);
    // SAFETY: the contract of the system call is that of the function.
    unsafe {
        Some(match n {
            libc::SYS_fstat => translate_open(x as c_int, raw(a), y as *mut Stat),
            libc::SYS_newfstatat => at(x as c_int, path2, z as *mut Stat, u as c_int, || raw(a)),
            libc::SYS_statx => {
                let buf = v as *mut libc::statx;
                let next = |mask: c_uint| raw([x, y, z, mask as usize, v, 0]);
                statx_any(x as c_int, path2, z as c_int, u as c_uint, buf, next)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_stat => by_path(CWD, path, y as *mut Stat, true, || raw(a)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_lstat => by_path(CWD, path, y as *mut Stat, false, || raw(a)),
            _ => return None,
        })
    }
}
