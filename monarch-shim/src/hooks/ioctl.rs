//! ioctl: what a file system answers is asked of the PFS, also about a copy.

use super::hook;
use crate::changes::{bypass, opened_for_writing};
use crate::identity::{Facts, copy_of, copy_of_fd};
use crate::pfs_fd::{before_ioctl, open_pfs};
use core::ffi::{c_int, c_ulong};
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::errno;
use monarch_guest::sys::{self, Fd};
use monarch_guest::user;

/// Kinds of requests that no file system answers: terminals, and what the kernel itself does for
/// every descriptor (FIONREAD, FIONBIO, FIOCLEX, FIOQSIZE); sockets; graphics and accelerators.
const NOT_OF_FILES: [u8; 4] = [b'T', 0x89, b'F', b'd'];

/// FICLONE: the argument is the descriptor of the source.
const CLONE: u32 = 0x4004_9409;
/// FICLONERANGE: the argument points to the descriptor of the source, an offset, a length, and an
/// offset.
const CLONE_RANGE: u32 = 0x4020_940d;
/// What changes attributes: `FS_IOC_SETFLAGS` (of 64 and 32 bits), `FS_IOC_SETVERSION`,
/// `FS_IOC_FSSETXATTR`.
const CHANGES: [u32; 4] = [0x4008_6602, 0x4004_6602, 0x4008_7602, 0x401c_5820];

/// The file on the PFS, if a descriptor is a copy of it and it has the same bytes.
fn behind(ctx: &Ctx, fd: c_int) -> Option<Fd> {
    let f = copy_of_fd(ctx, fd)?;
    open_pfs(ctx, &f, 0).filter(|(_, same)| *same).map(|(fd, _)| fd)
}

#[inline(never)]
unsafe fn of_file(fd: c_int, request: u32, arg: usize, next: impl Fn(usize) -> c_int) -> c_int {
    let Some(ctx) = ctx::mapped() else {
        if CHANGES.contains(&request) {
            crate::foreign_changes::descriptor_changes(fd);
        }
        return next(arg);
    };
    let saved = errno::errno();
    match request {
        CLONE => {
            let source = behind(&ctx, arg as c_int);
            errno::set_errno(saved);
            return next(source.as_ref().map_or(arg, |fd| fd.0 as usize));
        }
        CLONE_RANGE => {
            // SAFETY: tested before it is read.
            if let Some(&[from, a, b, c]) = unsafe { user::slice(arg as *const i64, 4) }
                && let Some(source) = c_int::try_from(from).ok().and_then(|fd| behind(&ctx, fd))
            {
                let range = [i64::from(source.0), a, b, c];
                errno::set_errno(saved);
                return next(range.as_ptr() as usize);
            }
            errno::set_errno(saved);
            return next(arg);
        }
        _ => {}
    }
    if let Some(st) = sys::fstat(fd).filter(|st| st.st_mode & libc::S_IFMT == libc::S_IFREG) {
        let copy = copy_of(&ctx, &Facts::of(&st));
        if CHANGES.contains(&request) {
            match &copy {
                Some(f) => bypass(&ctx, f),
                None => drop(opened_for_writing(&ctx, fd)),
            }
        }
        if copy.is_some() {
            before_ioctl(&ctx, fd);
        }
    }
    errno::set_errno(saved);
    next(arg)
}

/// ioctl, by `call`, which is given the argument.
pub(super) unsafe fn ioctl_any(fd: c_int, request: usize, arg: usize, call: impl Fn(usize) -> c_int) -> c_int {
    if NOT_OF_FILES.contains(&((request >> 8) as u8)) {
        return call(arg);
    }
    // SAFETY: passed on.
    unsafe { of_file(fd, request as u32, arg, call) }
}

hook! { next;
    fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
        ioctl_any(fd, request as usize, arg, |arg| next(fd, request, arg))
    }
}
