//! open, openat, creat and their variants.

use super::{enter_change, enter_open, hook};
use crate::changes::{Opened, Target, before_write_open, opened_for_writing};
use crate::descriptor_names::{change_behind_copy, denied_copy, may_reopen};
use crate::descriptor_path::proc_path;
use crate::next::test_cancel;
use crate::outputs::{self, Before};
use crate::paths::find;
use crate::serve::{Served, Use, count_miss, only_reads, open_copy};
use core::ffi::{CStr, c_char, c_int};
use libc::mode_t;
use monarch_abi::resolve::{Found, Miss};
use monarch_guest::absent;
use monarch_guest::copy_open::raw_open;
use monarch_guest::ctx::{self, Below, Ctx, Glance};
use monarch_guest::errno;
use monarch_guest::guard::Asked;
use monarch_guest::sys::Fd;
use monarch_guest::user;

/// What was done about an open that only reads.
#[derive(Clone, Copy)]
enum ReadOpen {
    /// A descriptor of a copy; -1 if the open fails.
    Done(isize),
    /// The next function is to be called.
    Next,
    /// The same; the path leads outside of all roots.
    Outside,
    /// The same; the path may be the name of a descriptor.
    OutsideByName,
    /// The next function is to be called, with a path that may be the name of a descriptor.
    ByName,
    /// The next function is to be called, and its descriptor remembered as that of a large file.
    Large(u64),
}

/// Opens the copy of what a path leads to, for reading. One function for all symbols.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
unsafe fn open_copy_of(dirfd: c_int, path: *const c_char, flags: c_int) -> ReadOpen {
    // SAFETY: by contract.
    unsafe {
        match ctx::glance(path) {
            // SAFETY: the page was tested.
            Glance::Outside if user::begins_like_descriptor_in_page(path) => ReadOpen::OutsideByName,
            Glance::Outside => ReadOpen::Outside,
            Glance::Below(below) => open_below(below, dirfd, path, flags),
            Glance::Unknown => open_unknown(dirfd, path, flags),
        }
    }
}

/// [`open_copy_of`] for a path that begins with the spelling of a root, with all that a hit needs
/// in its code.
///
/// # Safety
/// That of [`Below::find`].
#[inline(never)]
unsafe fn open_below(below: Below, dirfd: c_int, path: *const c_char, flags: c_int) -> ReadOpen {
    // SAFETY: by contract.
    match unsafe { below.find(path, flags & libc::O_NOFOLLOW == 0) } {
        Some((ctx, bytes, f)) => open_found(&ctx, &f, dirfd, bytes, flags),
        // SAFETY: by contract.
        None => unsafe { open_entered(dirfd, path, flags) },
    }
}

/// [`open_copy_of`] for a path of which nothing is known, but that there may be output roots.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
unsafe fn open_unknown(dirfd: c_int, path: *const c_char, flags: c_int) -> ReadOpen {
    // SAFETY: by contract.
    unsafe {
        match ctx::glance_beside_outputs(path) {
            // SAFETY: the page was tested.
            Glance::Outside if user::begins_like_descriptor_in_page(path) => ReadOpen::OutsideByName,
            Glance::Outside => ReadOpen::Outside,
            Glance::Below(below) => open_below(below, dirfd, path, flags),
            Glance::Unknown => open_entered(dirfd, path, flags),
        }
    }
}

/// [`open_copy_of`] for a path of which nothing is known.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
unsafe fn open_entered(dirfd: c_int, path: *const c_char, flags: c_int) -> ReadOpen {
    // SAFETY: the application's pointer, tested before it is read. (Where nothing is created the
    // mode means nothing.)
    if let Some(fd) = unsafe { outputs::open(dirfd, path, flags, 0) } {
        return ReadOpen::Done(fd as isize);
    }
    let mut names = false;
    // SAFETY: by contract.
    let Some((ctx, bytes)) = (unsafe { enter_open(path, &mut names) }) else {
        return if names { ReadOpen::OutsideByName } else { ReadOpen::Outside };
    };
    match find(&ctx, dirfd, bytes, flags & libc::O_NOFOLLOW == 0) {
        Ok(f) => open_found(&ctx, &f, dirfd, bytes, flags),
        Err(miss) => not_found(&ctx, dirfd, bytes, miss),
    }
}

/// Opens the copy of an entry, which a path leads to.
#[inline(always)]
fn open_found(ctx: &Ctx, f: &Found<'static>, dirfd: c_int, path: &[u8], flags: c_int) -> ReadOpen {
    if flags & libc::O_NOATIME != 0 && !is_of_our_user(ctx, f) {
        return ReadOpen::Next;
    }
    let open = move |copy: &CStr| {
        test_cancel();
        raw_open(copy, flags)
    };
    match open_copy(ctx, f, || Asked::new(dirfd, path, flags & libc::O_NOFOLLOW == 0), Use::Parts, open) {
        Served::Copy(fd) => ReadOpen::Done(fd as isize),
        // A link with O_NOFOLLOW, a directory: the kernel's business.
        Served::Pfs => ReadOpen::Next,
        Served::Large(hint) => ReadOpen::Large(hint),
    }
}

/// An open for reading of what the index does not have.
#[cold]
#[inline(never)]
fn not_found(ctx: &Ctx, dirfd: c_int, path: &[u8], miss: Miss) -> ReadOpen {
    if absent::fails(ctx, dirfd, path, miss) {
        return ReadOpen::Done(-1);
    }
    count_miss(ctx, miss);
    if may_reopen(path) { ReadOpen::ByName } else { ReadOpen::Next }
}

/// What is left to do after the next function was called for an open that only reads.
///
/// # Safety
/// As for [`user::path`].
#[cold]
#[inline(never)]
unsafe fn opened_by_next(
    done: ReadOpen,
    before: Before,
    (dirfd, path): (c_int, *const c_char),
    flags: c_int,
    fd: c_int,
) -> c_int {
    match done {
        ReadOpen::Outside | ReadOpen::OutsideByName | ReadOpen::Next | ReadOpen::ByName if fd < 0 => {
            // SAFETY: by contract.
            return unsafe { missed(before, dirfd, path, flags) };
        }
        // SAFETY: by contract.
        ReadOpen::Outside | ReadOpen::Next if before.has_roots() => {
            // SAFETY: by contract.
            return unsafe { opened(before, fd, dirfd, path, flags) };
        }
        ReadOpen::OutsideByName | ReadOpen::ByName => {
            let fd = reopened_by(path, fd, flags);
            if before.has_roots() {
                // By the name of a directory: `/proc/self/cwd/f`, `/dev/fd/N/f`.
                // SAFETY: by contract.
                return unsafe { opened(before, fd, dirfd, path, flags) };
            }
            return fd;
        }
        ReadOpen::Large(hint) => crate::large::remember(fd, hint),
        ReadOpen::Done(_) | ReadOpen::Next | ReadOpen::Outside => {}
    }
    fd
}

/// An open that reads past the page cache.
#[cold]
#[inline(never)]
fn serve_direct(ctx: &Ctx, dirfd: c_int, path: &[u8], flags: c_int, next: impl FnOnce() -> c_int) -> c_int {
    let follow = flags & libc::O_NOFOLLOW == 0;
    let Ok(f) = find(ctx, dirfd, path, follow) else { return next() };
    if flags & libc::O_NOATIME != 0 && !is_of_our_user(ctx, &f) {
        return next();
    }
    let open = |copy: &CStr, tier: usize| {
        test_cancel();
        crate::direct::open(copy, flags, tier)
    };
    crate::serve::open_direct(ctx, &f, Asked::new(dirfd, path, follow), open).unwrap_or_else(next)
}

/// A descriptor was opened for reading by what may be the name of another one: if it is of a copy
/// whose file has changed meanwhile, a descriptor of the file takes its number.
#[cold]
#[inline(never)]
pub(super) fn reopened(ctx: &Ctx, fd: c_int, flags: c_int) -> c_int {
    let saved = errno::errno();
    if fd >= 0
        && let Some(mut path) = crate::pfs_fd::changed_behind_copy(ctx, fd)
        && let Some(path) = path.c_str()
    {
        let cloexec = monarch_guest::sys::fcntl(fd, libc::F_GETFD, 0).is_none_or(|f| f & libc::FD_CLOEXEC != 0);
        if let Some(new) = monarch_guest::sys::open(path, flags & !libc::O_NOFOLLOW | libc::O_CLOEXEC).map(Fd) {
            let _ = monarch_guest::sys::dup_to(new.0, fd, cloexec);
        }
    }
    errno::set_errno(saved);
    fd
}

/// [`reopened`] by a path that was not looked at yet.
#[cold]
#[inline(never)]
pub(super) fn reopened_by(path: *const c_char, fd: c_int, flags: c_int) -> c_int {
    // SAFETY: the application's pointer, tested before it is read.
    match unsafe { enter_change(path) } {
        Some((ctx, bytes)) if may_reopen(bytes) => reopened(&ctx, fd, flags),
        _ => fd,
    }
}

/// Whether a file belongs to the agent's user: the kernel refuses `O_NOATIME` for files of other
/// users.
#[cold]
fn is_of_our_user(ctx: &Ctx, f: &Found<'static>) -> bool {
    f.segment.index.owner(f.entry.record).is_some_and(|(uid, _)| uid == ctx.map.ctl.uid)
}

/// Whether an open that creates nothing fails, as its path leads nowhere; errno says why.
#[cold]
#[inline(never)]
fn is_absent(ctx: &Ctx, dirfd: c_int, path: &[u8], flags: c_int) -> bool {
    // (What makes a file without a name has flags of its own that may be refused.)
    let makes = libc::O_TMPFILE & !libc::O_DIRECTORY;
    if flags & makes != 0 || ctx::get().is_none() {
        return false;
    }
    let follow = flags & libc::O_NOFOLLOW == 0;
    find(ctx, dirfd, path, follow).is_err_and(|miss| absent::fails(ctx, dirfd, path, miss))
}

/// Opens that write, create or truncate, and those with flags that only the kernel can honour.
#[cold]
#[inline(never)]
fn serve_other(ctx: &Ctx, dirfd: c_int, path: &[u8], flags: c_int, next: impl FnOnce() -> c_int) -> c_int {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_TRUNC | libc::O_CREAT) != 0;
    let only_path = flags & libc::O_PATH != 0;
    if !writes || only_path {
        return if is_absent(ctx, dirfd, path, flags) { -1 } else { next() };
    }
    let saved = errno::errno();
    // With O_EXCL the last component is not followed.
    let exclusive = libc::O_CREAT | libc::O_EXCL;
    let follow = flags & libc::O_NOFOLLOW == 0 && flags & exclusive != exclusive;
    let read = || {
        // SAFETY: a path of the application, which ends with a NUL.
        unsafe { monarch_guest::sys::open_at(dirfd, path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) }
    };
    if let Some(fd) = open_target(change_behind_copy(ctx, dirfd, path, follow), flags, read) {
        return fd;
    }
    let known = before_write_open(ctx, dirfd, path, flags);
    errno::set_errno(saved);
    let fd = next();
    if known {
        return fd;
    }
    if fd < 0 && errno::errno() == libc::EACCES {
        let denied = denied_copy(ctx, dirfd, path, follow);
        errno::set_errno(libc::EACCES);
        return open_target(denied, flags, read).unwrap_or(-1);
    }
    if fd < 0 { fd } else { or_closed(off_copy(ctx, fd, flags), fd) }
}

/// A descriptor that could not be moved off a copy is closed.
pub(super) fn or_closed(moved: c_int, fd: c_int) -> c_int {
    if moved < 0 {
        monarch_guest::sys::close(fd);
    }
    moved
}

/// Opens what a path that leads to a copy stands for, which `copy` opens for reading; `None` when
/// it leads to none.
fn open_target(target: Target, flags: c_int, copy: impl FnOnce() -> Option<Fd>) -> Option<c_int> {
    let opened = match target {
        Target::AsNamed => return None,
        Target::Pfs(mut p) => {
            let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW);
            return Some(p.c_str().map_or(-1, |p| monarch_guest::sys::open_or_errno(p, flags)));
        }
        Target::Removed => copy().and_then(|copy| private(&copy, flags)),
        Target::Gone => None,
    };
    Some(opened.unwrap_or_else(|| {
        errno::set_errno(libc::ESTALE);
        -1
    }))
}

/// Bytes of the largest removed file that is held in memory for a process that writes to it.
const MAX_PRIVATE_BYTES: i64 = 64 << 20;

/// A file in memory with the content of a file that the job has removed, for an open for writing by
/// a descriptor that is still there. On the PFS too, no process that opens the file by its name
/// would see what is written then.
#[cold]
#[inline(never)]
pub(super) fn private(copy: &Fd, flags: c_int) -> Option<c_int> {
    let size = monarch_guest::sys::fstat(copy.0)?.st_size;
    // SAFETY: a C string.
    let made = unsafe {
        monarch_guest::sys::call(
            libc::SYS_memfd_create,
            [c"removed".as_ptr() as usize, libc::MFD_CLOEXEC as usize, 0, 0, 0, 0],
        )
    };
    let file = Fd(c_int::try_from(made).ok().filter(|&fd| fd >= 0)?);
    if flags & libc::O_TRUNC == 0 {
        if size > MAX_PRIVATE_BYTES {
            return None;
        }
        let mut left = usize::try_from(size).ok()?;
        while left > 0 {
            // SAFETY: descriptors of the shim, at their own offsets.
            let n = unsafe {
                monarch_guest::sys::call(libc::SYS_sendfile, [file.0 as usize, copy.0 as usize, 0, left, 0, 0])
            };
            left = left.checked_sub(usize::try_from(n).ok().filter(|&n| n > 0)?)?;
        }
    }
    let name = proc_path(file.0)?;
    let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_TRUNC | libc::O_DIRECT);
    monarch_guest::sys::open(core::ffi::CStr::from_bytes_until_nul(&name).ok()?, flags)
}

/// Looks at a descriptor that was just opened for writing. If it is of a copy, a descriptor of the
/// file that the copy stands for takes its number. -1 if that file cannot be opened: then the
/// caller closes the descriptor.
pub(super) fn off_copy(ctx: &Ctx, fd: c_int, flags: c_int) -> c_int {
    let saved = errno::errno();
    let opened = opened_for_writing(ctx, fd);
    errno::set_errno(saved);
    let Opened::Copy(target) = opened else { return fd };
    let again = || {
        let name = proc_path(fd)?;
        let name = core::ffi::CStr::from_bytes_until_nul(&name).ok()?;
        monarch_guest::sys::open(name, libc::O_RDONLY | libc::O_CLOEXEC).map(Fd)
    };
    let new = open_target(target, flags | libc::O_CLOEXEC, again).filter(|&new| new >= 0).map(Fd);
    if new.is_some_and(|new| monarch_guest::sys::dup_to(new.0, fd, flags & libc::O_CLOEXEC != 0)) {
        return fd;
    }
    errno::set_errno(libc::ESTALE);
    -1
}

/// An open by a process that has to report it to the agent.
unsafe fn told(dirfd: c_int, path: *const c_char, flags: c_int, next: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: passed on.
    let again = unsafe { crate::foreign_changes::opens(dirfd, path, flags) };
    let fd = next();
    if again {
        crate::foreign_changes::descriptor_changes(fd);
    }
    fd
}

#[inline]
unsafe fn open_any(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    next: impl FnOnce() -> c_int,
) -> c_int {
    if !only_reads(flags) {
        // SAFETY: passed on.
        return unsafe { open_other(dirfd, path, flags, mode, next) };
    }
    // SAFETY: the application's pointer, tested before it is read.
    match unsafe { open_copy_of(dirfd, path, flags) } {
        ReadOpen::Done(fd) => fd as c_int,
        // SAFETY: passed on.
        done if outputs::has_roots() => unsafe { open_beside_roots(done, dirfd, path, flags, next) },
        done => match (next(), done) {
            (fd @ 0.., ReadOpen::Outside) => fd,
            // SAFETY: passed on.
            (fd, done) => unsafe { opened_by_next(done, Before::NoRoots, (dirfd, path), flags, fd) },
        },
    }
}

/// An open for reading, of a job with output roots, that only the next function can serve.
#[cold]
#[inline(never)]
unsafe fn open_beside_roots(
    done: ReadOpen,
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let before = Before::now();
    // SAFETY: passed on.
    unsafe { opened_by_next(done, before, (dirfd, path), flags, next()) }
}

/// An open that may change something, or has flags that only the kernel can honour.
#[cold]
#[inline(never)]
unsafe fn open_other(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the application's pointer, tested before it is read.
    if let Some(fd) = unsafe { outputs::open_beyond(dirfd, path, flags, mode) } {
        return fd;
    }
    // SAFETY: the application's pointer, tested before it is read.
    let Some((ctx, bytes)) = (unsafe { enter_change(path) }) else {
        // SAFETY: passed on.
        return unsafe { told(dirfd, path, flags, next) };
    };
    if flags & libc::O_DIRECT != 0 && only_reads(flags & !libc::O_DIRECT) {
        return serve_direct(&ctx, dirfd, bytes, flags, next);
    }
    serve_other(&ctx, dirfd, bytes, flags, next)
}

/// An open for reading that has failed: a link may lead to what is pending.
#[cold]
unsafe fn missed(before: Before, dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: passed on.
    let again = unsafe { outputs::beyond_found(before, None, dirfd, path, flags & libc::O_NOFOLLOW == 0) };
    let again = again.and_then(outputs::Lead::elsewhere).and_then(|mut beyond| {
        let path = beyond.c_str()?;
        // SAFETY: passed on, with a path of the shim.
        let staged = unsafe { outputs::open(CWD, path.as_ptr(), flags, 0) };
        // (It may be published by now.)
        Some(staged.unwrap_or_else(|| open_plainly(path, flags)))
    });
    again.unwrap_or(-1)
}

/// An open for reading of a path of the shim, past the hooks.
#[cold]
fn open_plainly(path: &CStr, flags: c_int) -> c_int {
    match outputs::kernel::open(path, flags, 0) {
        Ok(fd) => core::mem::ManuallyDrop::new(fd).0,
        Err(why) => {
            errno::set_errno(why);
            -1
        }
    }
}

/// An open for reading that has opened a file outside of the output roots, or so it seems: a link
/// may have led to one that is not what the overlay has there, or that was replaced meanwhile.
unsafe fn opened(before: Before, fd: c_int, dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: passed on.
    let beyond = unsafe { outputs::beyond_opened(before, fd, dirfd, path, flags & libc::O_NOFOLLOW == 0) };
    let Some(mut beyond) = beyond else { return fd };
    let Some(path) = beyond.c_str() else { return fd };
    // SAFETY: passed on, with a path of the shim.
    let other = match unsafe { outputs::open(CWD, path.as_ptr(), flags, 0) } {
        Some(other) => other,
        None if outputs::is_at(fd, path.to_bytes()) => return fd,
        None => open_plainly(path, flags),
    };
    let saved = errno::errno();
    monarch_guest::sys::close(fd);
    errno::set_errno(saved);
    other
}

/// An open by the number of the call; `None` when it only reads, in a job without output roots.
pub(super) unsafe fn by_number(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    call: impl FnOnce() -> c_int,
) -> Option<c_int> {
    // SAFETY: the application's pointer, tested before it is read.
    let opened = unsafe {
        match only_reads(flags) {
            true => outputs::open(dirfd, path, flags, mode),
            false => outputs::open_beyond(dirfd, path, flags, mode),
        }
    };
    // SAFETY: passed on.
    opened.or_else(|| unsafe { by_number_plainly(dirfd, path, flags, call) })
}

/// An open by the number of the call, for reading: what the kernel finds by links may not be what
/// the overlay has there.
#[cold]
#[inline(never)]
pub(super) unsafe fn found_by_number(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let before = Before::now();
    match call() {
        // SAFETY: passed on.
        fd @ 0.. => unsafe { opened(before, fd, dirfd, path, flags) },
        failed => failed,
    }
}

/// [`by_number`] of what no output root answers.
pub(super) unsafe fn by_number_plainly(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl FnOnce() -> c_int,
) -> Option<c_int> {
    if only_reads(flags) {
        // SAFETY: passed on.
        return outputs::has_roots().then(|| unsafe { open_beside_roots(ReadOpen::Outside, dirfd, path, flags, call) });
    }
    // SAFETY: the application's pointer, tested before it is read.
    match unsafe { enter_change(path) } {
        Some((ctx, bytes)) => Some(serve_other(&ctx, dirfd, bytes, flags, call)),
        // SAFETY: passed on.
        None => Some(unsafe { told(dirfd, path, flags, call) }),
    }
}

/// An open that follows no names of descriptors: a change is reported when the file is open.
pub(super) fn without_links(flags: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let fd = call();
    if fd < 0 || only_reads(flags) {
        return fd;
    }
    crate::foreign_changes::descriptor_changes(fd);
    ctx::mapped().map_or(fd, |ctx| or_closed(off_copy(&ctx, fd, flags), fd))
}

const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
const CWD: c_int = libc::AT_FDCWD;

hook! { next;
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_any(CWD, path, flags, mode, move || next(path, flags, mode)) }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int { open_any(CWD, path, flags, mode, move || next(path, flags, mode)) }
    fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(dirfd, path, flags, mode, move || next(dirfd, path, flags, mode))
    }
    fn openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(dirfd, path, flags, mode, move || next(dirfd, path, flags, mode))
    }
    fn creat(path: *const c_char, mode: mode_t) -> c_int { open_any(CWD, path, CREAT, mode, move || next(path, mode)) }
    fn creat64(path: *const c_char, mode: mode_t) -> c_int { open_any(CWD, path, CREAT, mode, move || next(path, mode)) }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int { open_any(CWD, path, flags, 0, move || next(path, flags)) }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int { open_any(CWD, path, flags, 0, move || next(path, flags)) }
    fn __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_any(dirfd, path, flags, 0, move || next(dirfd, path, flags))
    }
    fn __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_any(dirfd, path, flags, 0, move || next(dirfd, path, flags))
    }
}
