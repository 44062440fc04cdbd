//! Calls that set modes, owners, times and extended attributes.

use super::{at_changed_path, plainly};
use crate::outputs::beside::UnderWay;
use crate::outputs::place::Place;
use crate::outputs::{attributes, descriptors, peers, subtree};
use core::ffi::{c_char, c_int};
use monarch_guest::{ctx, errno, sys};

/// Attributes that are set by path; `call` gets the path of the staged file, `on_pfs` that of the
/// published one, where the path was the number of a descriptor. `under_way`: as for
/// [`attributes::set`].
///
/// # Safety
/// As for [`monarch_guest::user::path`].
#[inline(never)]
pub unsafe fn set_attributes(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    under_way: Option<&mut Option<UnderWay>>,
    call: impl FnOnce(*const c_char) -> c_int,
    on_pfs: impl Fn(*const c_char) -> c_int,
) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_changed_path(dirfd, path, follow, -1, |place| {
            peers::settle(place, follow);
            peers::settle_tree(place);
            let answer = attributes::set(place, follow, under_way, |p| call(p.as_ptr()), |p| on_pfs(p.as_ptr()))?;
            plainly(place, answer, on_pfs)
        })
    }
}

/// Extended attributes that are set or removed by path; `call` gets the path of the staged file.
/// `under_way`: to be kept until the plain call has ended.
///
/// # Safety
/// As for [`monarch_guest::user::path`].
#[inline(never)]
pub unsafe fn set_extended(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    under_way: &mut Option<UnderWay>,
    call: impl Fn(*const c_char) -> c_int,
) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_changed_path(dirfd, path, follow, -1, |place| {
            peers::settle(place, follow);
            peers::settle_tree(place);
            let answer = attributes::set_extended(place, follow, under_way, |p| call(p.as_ptr()))?;
            plainly(place, answer, &call)
        })
    }
}

/// Sets an extended attribute of an open staged file by `call`, which gets the path of the part
/// file: what the PFS does not take is not set. Then `set` sets it on the descriptor.
#[cold]
#[inline(never)]
pub fn set_extended_open(fd: c_int, call: impl Fn(*const c_char) -> c_int, set: impl FnOnce() -> c_int) -> c_int {
    let saved = errno::errno();
    let on_part = || {
        if sys::fcntl(fd, libc::F_GETFL, 0)? & libc::O_PATH != 0 {
            return None;
        }
        let (root, file) = descriptors::staged(&ctx::for_outputs()?, fd)?;
        let (rel, _) = subtree::find_file(&root, b"", file.id)?;
        Some(attributes::set_on_part(&Place::at(root, rel.get())?, &file, |p| call(p.as_ptr())))
    };
    let is_set = match on_part() {
        Some(Err(e)) => {
            errno::set_errno(e);
            return -1;
        }
        done => matches!(done, Some(Ok(true))),
    };
    errno::set_errno(saved);
    let result = set();
    // It was published meanwhile, with what was just set.
    if result < 0 && is_set && matches!(errno::errno(), libc::EEXIST | libc::ENODATA) {
        errno::set_errno(saved);
        return 0;
    }
    result
}
