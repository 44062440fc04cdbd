//! Calls that change something, by number.

use super::super::attributes::{
    Set, cut, descriptor, extended, extended_at, extended_open, file, file_at, hide_below_descriptor, mode_at,
    utimensat_any, was_set,
};
use super::super::names::{LINK_FLAGS, is_node, linked, linked_at, made, removed, removed_dir, renamed, symlinked};
use super::super::pfs_path_of;
use crate::outputs;
use core::ffi::{c_char, c_int, c_long};
use libc::mode_t;
use monarch_abi::outputs::record::flag;
use monarch_guest::{errno, user};

const CWD: c_int = libc::AT_FDCWD;

/// Calls that change something, by number; `raw` is the kernel's call of this number. `None` for
/// all others.
#[inline(never)]
pub(super) unsafe fn answer(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let [x, y, z, u, v, _] = a;
    let (fd, third) = (x as c_int, z as c_int);
    let (path, path2, path4) = (x as *const c_char, y as *const c_char, u as *const c_char);
    let call = || raw(a);
    // SAFETY: the contract of the system call is that of the function.
    Some(unsafe {
        match n {
            libc::SYS_renameat => renamed((fd, path2), (third, path4), 0, call),
            libc::SYS_renameat2 => renamed((fd, path2), (third, path4), v as u32, call),
            libc::SYS_mknodat if !is_node(z as mode_t) => call(),
            libc::SYS_mkdirat | libc::SYS_mknodat => made(fd, path2, call),
            libc::SYS_symlinkat => symlinked(path, y as c_int, z as *const c_char, call),
            libc::SYS_linkat if v as c_int & !LINK_FLAGS != 0 => call(),
            libc::SYS_linkat => linked_at((fd, path2), (third, path4), v as c_int, |fd, p, flags| {
                raw([fd as isize as usize, p as usize, z, u, flags as usize, 0])
            }),
            _ => return attributes(n, a, raw),
        }
    })
}

/// Calls that change or say attributes, by number.
unsafe fn attributes(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
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
    let (path, path2) = (x as *const c_char, y as *const c_char);
    let call = || raw(a);
    // The same call with another first argument, or with another directory and path.
    let on = |p: *const c_char| raw([p as usize, y, z, u, v, 0]);
    let at = |fd: c_int, p: *const c_char| raw([fd as isize as usize, p as usize, z, u, v, 0]);
    // SAFETY: the contract of the system call is that of the function.
    Some(unsafe {
        match n {
            libc::SYS_truncate => cut(path, y as i64, on),
            libc::SYS_fchmod => {
                if y as mode_t & libc::S_IXUSR == 0 {
                    hide_below_descriptor(fd);
                }
                let marked = super::super::attributes::mode_of(fd, y as mode_t) as usize;
                descriptor(
                    fd,
                    0,
                    || raw([x, marked, 0, 0, 0, 0]),
                    |p| kernel(libc::SYS_fchmodat, [HERE, p as usize, y, 0, 0, 0]),
                )
            }
            libc::SYS_fchmodat => mode_at(fd, path2, 0, z as mode_t, |fd, p, mode| {
                raw([fd as isize as usize, p as usize, mode as usize, u, v, 0])
            }),
            SYS_FCHMODAT2 => mode_at(fd, path2, u as c_int, z as mode_t, |fd, p, mode| {
                raw([fd as isize as usize, p as usize, mode as usize, u, v, 0])
            }),
            libc::SYS_fchown => {
                descriptor(fd, flag::OWNER, call, |p| kernel(libc::SYS_fchownat, [HERE, p as usize, y, z, 0, 0]))
            }
            libc::SYS_fchownat => file_at(fd, path2, v as c_int, Set::Kept, at),
            libc::SYS_utimensat => utimensat_any(fd, path2, u as c_int, at),
            libc::SYS_setxattr => was_set(path2, extended(CWD, path, true, |_, p| on(p))),
            libc::SYS_lsetxattr => was_set(path2, extended(CWD, path, false, |_, p| on(p))),
            libc::SYS_removexattr => extended(CWD, path, true, |_, p| on(p)),
            libc::SYS_lremovexattr => extended(CWD, path, false, |_, p| on(p)),
            libc::SYS_fsetxattr => {
                let on_path = |p: *const c_char| kernel(libc::SYS_setxattr, [p as usize, y, z, u, v, 0]);
                was_set(path2, extended_open(fd, call, on_path))
            }
            SYS_SETXATTRAT => {
                let at = |fd: c_int, p: *const c_char| raw([fd as isize as usize, p as usize, z, u, v, w]);
                was_set(u as *const c_char, extended_at(fd, path2, third, at))
            }
            SYS_REMOVEXATTRAT => extended_at(fd, path2, third, at),
            SYS_FILE_SETATTR => file_at(fd, path2, v as c_int, Set::Lost, at),
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
                extended_open(fd, call, |p| kernel(libc::SYS_removexattr, [p as usize, y, 0, 0, 0, 0]))
            }
            #[cfg(target_arch = "x86_64")]
            _ => return older(n, a, raw),
            #[cfg(not(target_arch = "x86_64"))]
            _ => return None,
        }
    })
}

/// Calls that newer machines do not have.
#[cfg(target_arch = "x86_64")]
unsafe fn older(n: c_long, a: [usize; 6], raw: &impl Fn([usize; 6]) -> c_int) -> Option<c_int> {
    let [x, y, z, u, v, _] = a;
    let (path, path2) = (x as *const c_char, y as *const c_char);
    let call = || raw(a);
    let on = |p: *const c_char| raw([p as usize, y, z, u, v, 0]);
    // SAFETY: the contract of the system call is that of the function.
    Some(unsafe {
        match n {
            libc::SYS_rename => renamed((CWD, path), (CWD, path2), 0, call),
            libc::SYS_unlink => removed(CWD, path, 0, call),
            libc::SYS_rmdir => removed_dir(path, call),
            libc::SYS_mknod if !is_node(y as mode_t) => call(),
            libc::SYS_mkdir | libc::SYS_mknod => made(CWD, path, call),
            libc::SYS_link => {
                let mut _linking = outputs::Linking::default();
                if let Some(done) = outputs::link((CWD, path), (CWD, path2), 0, &mut _linking) {
                    return Some(done);
                }
                linked(CWD, path, CWD, path2, false);
                call()
            }
            libc::SYS_symlink => symlinked(path, CWD, path2, call),
            libc::SYS_chmod => {
                mode_at(CWD, path, 0, y as mode_t, |_, p, mode| raw([p as usize, mode as usize, z, u, v, 0]))
            }
            libc::SYS_chown => file(CWD, path, true, Set::Kept, |_, p| on(p)),
            libc::SYS_utime | libc::SYS_utimes => file(CWD, path, true, Set::Lost, |_, p| on(p)),
            libc::SYS_lchown => file(CWD, path, false, Set::Kept, |_, p| on(p)),
            libc::SYS_futimesat => {
                let at = |fd: c_int, p: *const c_char| raw([fd as isize as usize, p as usize, z, 0, 0, 0]);
                utimensat_any(x as c_int, path2, 0, at)
            }
            _ => return None,
        }
    })
}

/// The kernel's call, as functions give it.
fn kernel(n: c_long, a: [usize; 6]) -> c_int {
    // SAFETY: the arguments of the application, with a path of the shim.
    let done = unsafe { monarch_guest::sys::call(n, a) };
    if done < 0 {
        errno::set_errno(-done as c_int);
        return -1;
    }
    done as c_int
}
