//! Calls by number that ask about a name, or do something with what has it, where it is pending
//! below an output root. About data sets the kernel is asked.

use crate::hooks::{access, exec, fs, links, sockets, watch};
use crate::outputs;
use core::ffi::{c_char, c_int, c_long};
use monarch_guest::errno;

const CWD: c_int = libc::AT_FDCWD;
const SYS_FACCESSAT2: c_long = 439;

/// Answers a question about something that is pending; `raw` is the kernel's call of this number.
/// `None` for all other calls.
#[inline(never)]
pub(super) unsafe fn answer(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let [x, y, z, u, ..] = a;
    let (fd, path, path2) = (x as c_int, x as *const c_char, y as *const c_char);
    let on = |p: *const c_char| raw([p as usize, y, z, u, 0, 0]);
    // SAFETY: the contract of the system call.
    unsafe {
        match n {
            libc::SYS_faccessat => access::staged(fd, path2, z as c_int, 0),
            SYS_FACCESSAT2 => access::staged(fd, path2, z as c_int, u as c_int),
            libc::SYS_readlinkat => read_link(fd, path2, z, u),
            libc::SYS_statfs => Some(fs::of_path(path, on)),
            libc::SYS_getxattr | libc::SYS_listxattr => of_data(path, true, on),
            libc::SYS_lgetxattr | libc::SYS_llistxattr => of_data(path, false, on),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_access => access::staged(CWD, path, y as c_int, 0),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_readlink => read_link(CWD, path, y, z),
            _ => used(n, a, raw),
        }
    }
}

/// What the kernel does with names: executing programs, watching, sockets.
#[inline(never)]
unsafe fn used(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let [x, y, z, u, ..] = a;
    let (path, path2, call) = (x as *const c_char, y as *const c_char, || raw(a));
    // SAFETY: the contract of the system call.
    Some(unsafe {
        match n {
            libc::SYS_execve => exec::executed(CWD, path, z as *const _, call),
            libc::SYS_execveat => exec::executed(x as c_int, path2, u as *const _, call),
            libc::SYS_bind => sockets::bind_any(y as *const u8, z as u32, call),
            libc::SYS_connect => sockets::connect_any(y as *const u8, z as u32, call),
            libc::SYS_inotify_add_watch => watch::watched(path2, -1, |p| raw([x, p as usize, z, 0, 0, 0])),
            _ => return None,
        }
    })
}

unsafe fn read_link(dirfd: c_int, path: *const c_char, buf: usize, room: usize) -> Option<c_int> {
    // SAFETY: passed on.
    unsafe { links::staged(dirfd, path, buf as *mut c_char, room) }.map(|len| len as c_int)
}

/// Asks about the staged file of a pending name.
unsafe fn of_data(path: *const c_char, follow: bool, on: impl Fn(*const c_char) -> c_int) -> Option<c_int> {
    // SAFETY: passed on.
    let data = || unsafe { outputs::data_of(path, follow) };
    let done = on(data()?.c_str()?.as_ptr());
    if done < 0 && errno::errno() == libc::ENOENT {
        // It was published and dropped a moment ago.
        return Some(on(data()?.c_str()?.as_ptr()));
    }
    Some(done)
}
