//! Extended attributes and access list of a file that is truncated: the staged file gets them.

use super::kernel::{self, Errno};
use core::ffi::{CStr, c_int};
use monarch_abi::scratch::Scratch;

/// The access list.
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// Before a process changes extended attributes of a pending file: the staged file at an absolute
/// path gets the access list of its part file, if it has none. From then on it tells what the
/// published file has.
#[cold]
#[inline(never)]
pub fn take_list(part: &CStr, data: &CStr) {
    let mut room = Scratch::take();
    let Some(room) = room.bytes() else { return };
    if matches!(kernel::extended(data, ACCESS_LIST, room), Err(libc::ENODATA))
        && let Ok(list) = kernel::extended(part, ACCESS_LIST, room)
    {
        let _ = kernel::set_extended_at(data, ACCESS_LIST, list);
    }
}

/// Whether a file keeps an attribute when it is truncated, and the job may have set it.
fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == ACCESS_LIST.to_bytes()
}

/// Whether two files at absolute paths have the same of what is kept.
pub fn are_same(one: &CStr, other: &CStr) -> bool {
    has_all_of(one, other) && has_all_of(other, one)
}

/// Whether a file has what another one has.
fn has_all_of(from: &CStr, to: &CStr) -> bool {
    let (mut names, mut value, mut own) = (Scratch::take(), Scratch::take(), Scratch::take());
    let (Some(names), Some(value), Some(own)) = (names.bytes(), value.bytes(), own.bytes()) else { return false };
    let list = match kernel::list_extended(from, names) {
        Err(e) => return matches!(e, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOENT),
        Ok(list) => list,
    };
    let names = list.split_inclusive(|&c| c == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    names.filter(|name| is_kept(name.to_bytes())).all(|name| {
        // (An attribute that a process has just removed is none.)
        kernel::extended(from, name, value)
            .map_or_else(|e| e == libc::ENODATA, |value| kernel::extended(to, name, own).is_ok_and(|own| own == value))
    })
}

/// Gives an open staged file what the file at an absolute path has. An error: something of it does
/// not fit, or is not taken.
pub fn keep(from: &CStr, to: c_int) -> Result<(), Errno> {
    let (mut names, mut value) = (Scratch::take(), Scratch::take());
    let names = names.bytes().ok_or(libc::ENOMEM)?;
    let value = value.bytes().ok_or(libc::ENOMEM)?;
    let list = match kernel::list_extended(from, names) {
        // The file system has none, or the file is gone.
        Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOENT) => return Ok(()),
        list => list?,
    };
    for name in list.split_inclusive(|&c| c == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
        if is_kept(name.to_bytes()) {
            match kernel::extended(from, name, value) {
                Ok(value) => kernel::set_extended(to, name, value)?,
                // Removed meanwhile.
                Err(libc::ENODATA) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}
