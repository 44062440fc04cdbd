//! Sockets with a path: a name is made by `bind`, and looked for by `connect`.

use super::hook;
use super::names::made;
use crate::outputs;
use core::ffi::{c_char, c_int};
use monarch_guest::{errno, user};

const CWD: c_int = libc::AT_FDCWD;
/// Where the path begins in an address.
const PATH_AT: usize = 2;
/// Most bytes of a path.
const MAX_PATH: usize = 108;

/// A path with its NUL, which an address may lack.
type Path = [c_char; MAX_PATH + 1];

/// The path of an address; `None` for addresses of other families, and for those without a name in
/// a directory.
unsafe fn path_of(address: *const u8, len: u32) -> Option<Path> {
    let len = usize::try_from(len).ok().filter(|&len| len > PATH_AT && len <= PATH_AT + MAX_PATH)?;
    // SAFETY: tested before it is read.
    let (family, text) = unsafe { user::slice(address, len)? }.split_first_chunk::<PATH_AT>()?;
    if c_int::from(u16::from_ne_bytes(*family)) != libc::AF_UNIX || text.first() == Some(&0) {
        return None;
    }
    let mut path = [0; MAX_PATH + 1];
    path.iter_mut().zip(text).for_each(|(to, from)| *to = *from as c_char);
    Some(path)
}

/// Makes a socket by `call`, whose error for a name that is there is another one than that of other
/// calls.
unsafe fn bound(path: *const c_char, call: impl Fn() -> c_int) -> c_int {
    let swap = |result: c_int, from: c_int, to: c_int| {
        if result < 0 && errno::errno() == from {
            errno::set_errno(to);
        }
        result
    };
    // SAFETY: a path of the shim.
    let result = unsafe { made(CWD, path, || swap(call(), libc::EADDRINUSE, libc::EEXIST)) };
    swap(result, libc::EEXIST, libc::EADDRINUSE)
}

/// bind(2), by `call`.
pub(super) unsafe fn bind_any(address: *const u8, len: u32, call: impl Fn() -> c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        match path_of(address, len) {
            Some(path) => bound(path.as_ptr(), call),
            None => call(),
        }
    }
}

/// connect(2), by `call`.
pub(super) unsafe fn connect_any(address: *const u8, len: u32, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        if outputs::has_roots()
            && let Some(path) = path_of(address, len)
            && let Some(done) = outputs::connect(path.as_ptr())
        {
            return done;
        }
    }
    call()
}

hook! { next;
    fn bind(socket: c_int, address: *const u8, len: u32) -> c_int {
        bind_any(address, len, || next(socket, address, len))
    }
    fn connect(socket: c_int, address: *const u8, len: u32) -> c_int {
        connect_any(address, len, || next(socket, address, len))
    }
}
