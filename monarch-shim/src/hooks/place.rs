//! User, working directory and mounts of the process, and memory that is unmapped.

use super::hook;
use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use libc::{gid_t, pid_t, size_t, uid_t};
use monarch_guest::errno;
use monarch_guest::{ctx, cwd, user};

const CWD: c_int = libc::AT_FDCWD;

pub(super) fn moved(result: c_int) -> c_int {
    if result == 0 {
        cwd::invalidate();
    }
    result
}

/// chdir(2): a file that is pending is no directory, and what the job has removed is not there.
pub(super) unsafe fn to_directory(path: *const c_char, next: impl FnOnce(*const c_char) -> c_int) -> c_int {
    // SAFETY: passed on.
    moved(unsafe { in_place_of(path, next) })
}

/// `call` gets what the job has of a name that is pending: no directory, or nothing.
unsafe fn in_place_of<T>(path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: passed on.
    let mut other = unsafe { crate::outputs::data_of(path, true) };
    call(other.as_mut().and_then(|p| p.c_str()).map_or(path, core::ffi::CStr::as_ptr))
}

/// The working directory as the C library gives it, if the job has not removed it. `out` is where
/// it was to be written; null: the C library has allocated it.
unsafe fn still_there(dir: *mut c_char, out: *mut c_char) -> *mut c_char {
    // SAFETY: a path of the C library.
    unsafe {
        if dir.is_null() || !crate::outputs::is_pending() || !crate::outputs::is_removed(dir) {
            return dir;
        }
        if out.is_null() {
            libc::free(dir.cast());
        }
    }
    errno::set_errno(libc::ENOENT);
    core::ptr::null_mut()
}

pub(super) fn remounted(result: c_int) -> c_int {
    if result == 0 {
        ctx::place_changed();
    }
    result
}

/// `call` mounts something at a path, or unmounts it: as if the path were removed, for all
/// processes in this mount namespace.
pub(super) unsafe fn covered(dirfd: c_int, path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        super::names::leaves(dirfd, path, |_| true);
        super::before_change(path, |ctx, p| crate::changes::covered(ctx, dirfd, p));
    }
    let result = call();
    if result == 0 {
        // SAFETY: passed on.
        unsafe { super::before_change(path, |ctx, p| crate::changes::root_path_covered(ctx, dirfd, p)) };
        mounts_changed();
    }
    result
}

/// `call` mounts what lies at a path, which it is given: of a copy, that is the file on the PFS.
pub(super) unsafe fn with_source(
    from: *const c_char,
    flags: c_ulong,
    call: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    let binds = flags & libc::MS_BIND != 0 && flags & libc::MS_REMOUNT == 0;
    // SAFETY: passed on.
    let mut file = if binds { unsafe { super::behind(CWD, from, true) } } else { None };
    call(file.as_mut().and_then(|p| p.c_str()).map_or(from, core::ffi::CStr::as_ptr))
}

/// After the mounts that this process sees have changed.
pub(super) fn mounts_changed() {
    let saved = errno::errno();
    if let Some(ctx) = ctx::mapped()
        && ctx::in_own_namespace(ctx.map)
    {
        ctx::tell_mount_event(ctx.map);
    }
    ctx::mounts_changed();
    errno::set_errno(saved);
}

/// After entering a namespace, of mounts or of users.
pub(super) fn entered(result: c_int) -> c_int {
    thread_became(remounted(result))
}

fn became(result: c_int) -> c_int {
    ctx::rights_changed();
    result
}

/// The same for calls that are one thread's.
pub(super) fn thread_became(result: c_int) -> c_int {
    if result == 0 {
        let saved = errno::errno();
        ctx::threads_rights_changed();
        errno::set_errno(saved);
    }
    result
}

/// In a child of `fork`.
pub(super) fn forked() {
    monarch_guest::process::forked();
    // A library may have started threads in its own handler of fork, which use blocks by now.
    if monarch_guest::process::is_alone() {
        monarch_abi::scratch::forked();
    }
    ctx::forked();
    crate::outputs::forked();
}

/// What must happen before `vfork`; the address of the function that makes the child.
extern "C" fn before_vfork() -> usize {
    unsafe extern "C" fn missing() -> pid_t {
        super::Missing::missing()
    }
    crate::shell::before_child();
    match crate::next::address(crate::symbols::Sym::vfork) {
        0 => missing as *const () as usize,
        next => next,
    }
}

/// `vfork` returns twice, so no frame of this library may lie between it and its caller: it is
/// jumped to.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {before}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "jmp rax",
        ".cfi_endproc",
        before = sym before_vfork,
    )
}

/// `vfork` returns twice, so no frame of this library may lie between it and its caller: it is
/// jumped to.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!(
        "hint #34",
        "stp x29, x30, [sp, #-16]!",
        "bl {before}",
        "mov x16, x0",
        "ldp x29, x30, [sp], #16",
        "br x16",
        before = sym before_vfork,
    )
}

hook! { next;
    fn setuid(user: uid_t) -> c_int { became(next(user)) }
    fn seteuid(user: uid_t) -> c_int { became(next(user)) }
    fn setreuid(real: uid_t, effective: uid_t) -> c_int { became(next(real, effective)) }
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int { became(next(real, effective, saved)) }
    fn setfsuid(user: uid_t) -> c_int {
        let before = next(user);
        if before as uid_t != user { ctx::threads_rights_changed(); }
        before
    }
    fn setgid(group: gid_t) -> c_int { became(next(group)) }
    fn setegid(group: gid_t) -> c_int { became(next(group)) }
    fn setregid(real: gid_t, effective: gid_t) -> c_int { became(next(real, effective)) }
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int { became(next(real, effective, saved)) }
    fn setfsgid(group: gid_t) -> c_int {
        let before = next(group);
        if before as gid_t != group { ctx::threads_rights_changed(); }
        before
    }
    fn setgroups(n: size_t, list: *const gid_t) -> c_int { became(next(n, list)) }
    fn initgroups(user: *const c_char, group: gid_t) -> c_int { became(next(user, group)) }
    fn fork() -> pid_t {
        crate::shell::before_child();
        let child = next();
        if child == 0 {
            forked();
        }
        child
    }
    fn chdir(path: *const c_char) -> c_int { to_directory(path, |path| next(path)) }
    fn fchdir(fd: c_int) -> c_int { moved(next(fd)) }
    fn getcwd(out: *mut c_char, room: size_t) -> *mut c_char { still_there(next(out, room), out) }
    fn __getcwd_chk(out: *mut c_char, room: size_t, len: size_t) -> *mut c_char {
        still_there(next(out, room, len), out)
    }
    fn __getwd_chk(out: *mut c_char, len: size_t) -> *mut c_char { still_there(next(out, len), out) }
    fn getwd(out: *mut c_char) -> *mut c_char { still_there(next(out), out) }
    fn get_current_dir_name() -> *mut c_char { still_there(next(), core::ptr::null_mut()) }
    fn chroot(path: *const c_char) -> c_int { remounted(in_place_of(path, |path| next(path))) }
    fn setns(fd: c_int, kind: c_int) -> c_int { entered(next(fd, kind)) }
    fn capset(header: *mut c_void, data: *const c_void) -> c_int { thread_became(next(header, data)) }
    fn unshare(flags: c_int) -> c_int { entered(next(flags)) }
    fn mount(from: *const c_char, to: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void) -> c_int {
        with_source(from, flags, |from| covered(CWD, to, || next(from, to, kind, flags, data)))
    }
    fn move_mount(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_uint) -> c_int {
        covered(to_fd, to, || next(from_fd, from, to_fd, to, flags))
    }
    fn umount(path: *const c_char) -> c_int { covered(CWD, path, || next(path)) }
    fn umount2(path: *const c_char, flags: c_int) -> c_int { covered(CWD, path, || next(path, flags)) }
    fn munmap(address: *mut c_void, len: size_t) -> c_int {
        user::forget_pages(address as usize, len);
        next(address, len)
    }
    fn mprotect(address: *mut c_void, len: size_t, prot: c_int) -> c_int {
        user::forget_pages(address as usize, len);
        next(address, len, prot)
    }
}
