//! openat2(2), which forbids links, mounts or ways out of a directory: the kernel finds the
//! directory under these rules, and an output root answers for the name in it.

use crate::hooks::{access, open};
use crate::outputs::{self, kernel};
use core::ffi::{c_char, c_int};
use monarch_abi::mem::PathBuffer;
use monarch_guest::{errno, user};

/// No name of a descriptor leads to it.
const NO_MAGIC_LINKS: u64 = 0x02;
/// No link at all is followed.
const NO_SYMLINKS: u64 = 0x04;
/// No other mount is reached, nothing outside of the directory, or the directory is the root.
const STAYS: u64 = 0x01 | 0x08 | IN_ROOT;
/// The directory is the root.
const IN_ROOT: u64 = 0x10;
/// Only what the kernel has at hand is opened.
const CACHED: u64 = 0x20;

/// What the call says of how to open: `struct open_how`.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub(super) flags: c_int,
    pub(super) mode: libc::mode_t,
    pub(super) resolve: u64,
}

/// openat2(2). `is_right`: whether the kernel finds nothing wrong with what is to be done; `call`
/// is the plain call.
///
/// # Safety
/// As for [`user::path`].
pub(super) unsafe fn open(
    dirfd: c_int,
    path: *const c_char,
    how: How,
    is_right: impl FnOnce() -> bool,
    call: impl FnOnce() -> c_int,
) -> Option<c_int> {
    if outputs::has_roots() {
        // SAFETY: by contract.
        if let Some(done) = unsafe { open_below(dirfd, path, how, is_right) } {
            return Some(done);
        }
    }
    let reads_staged = how.resolve & IN_ROOT == 0 && crate::serve::only_reads(how.flags) && outputs::has_roots();
    if reads_staged && how.resolve & !NO_MAGIC_LINKS != 0 {
        // (What links lead to that the kernel does not find may be against its rules.)
        // SAFETY: by contract.
        return Some(unsafe { open::found_by_number(dirfd, path, how.flags, call) });
    }
    if how.resolve & (NO_MAGIC_LINKS | NO_SYMLINKS) != 0 && !reads_staged {
        return Some(open::without_links(how.flags, call));
    }
    if how.resolve & IN_ROOT != 0 && crate::serve::only_reads(how.flags) {
        return None;
    }
    // SAFETY: by contract.
    unsafe { open::by_number_plainly(dirfd, path, how.flags, call) }
}

fn failed(why: c_int) -> Option<c_int> {
    errno::set_errno(why);
    Some(-1)
}

/// Whether a path means the same with the directory as the root: it begins there, and no `..` leads
/// above it.
fn stays_below(path: &[u8]) -> bool {
    let mut parts = path.split(|&c| c == b'/').filter(|part| !part.is_empty() && *part != b".");
    path.first() != Some(&b'/')
        && parts
            .try_fold(0usize, |depth, part| if part == b".." { depth.checked_sub(1) } else { Some(depth + 1) })
            .is_some()
}

/// What an output root answers.
#[cold]
#[inline(never)]
unsafe fn open_below(dirfd: c_int, path: *const c_char, how: How, is_right: impl FnOnce() -> bool) -> Option<c_int> {
    let saved = errno::errno();
    if !is_right() {
        return Some(-1);
    }
    errno::set_errno(saved);
    // SAFETY: by contract.
    unsafe {
        if how.resolve == 0 {
            return outputs::open(dirfd, path, how.flags, how.mode);
        }
        let bytes = user::path(path)?;
        let end = bytes.iter().rposition(|&c| c != b'/')? + 1;
        let at = bytes.get(..end)?.iter().rposition(|&c| c == b'/').map_or(0, |slash| slash + 1);
        let name = bytes.get(at..end)?;
        let is_missing = || access::staged(dirfd, path, libc::F_OK, libc::AT_SYMLINK_NOFOLLOW) == Some(-1);
        // Directories are the kernel's, but where they lie below a file, or in what was removed.
        if matches!(name, b"." | b"..") {
            let is_pending = outputs::is_pending() && (how.resolve & IN_ROOT == 0 || stays_below(bytes));
            let found = is_pending.then(|| kernel::open_directory(dirfd, path, how.resolve & !CACHED));
            return (matches!(found, Some(Ok(_) | Err(libc::ENOENT))) && is_missing()).then_some(-1);
        }
        if how.resolve & CACHED != 0 && outputs::is_pending() {
            return failed(libc::EAGAIN);
        }
        let mut dir = PathBuffer::front();
        dir.append(if at == 0 { b"." } else { bytes.get(..at)? })?;
        let dir = dir.c_str()?.as_ptr();
        let open = || kernel::open_directory(dirfd, dir, how.resolve & !CACHED);
        let found = match open() {
            // What the rules forbid comes before what is there.
            Err(why) if why != libc::ENOENT => return None,
            // (A path that begins at a root of its own means something else to an output root.)
            found if at == 0 || how.resolve & IN_ROOT != 0 && bytes.first() == Some(&b'/') => found,
            found if !outputs::is_pending() => found,
            // Below a file, or below what was removed.
            Err(_) if is_missing() => return Some(-1),
            // Links on the way are published first.
            _ => match outputs::settle(dirfd, dir, true) {
                Some(failed @ ..0) => return Some(failed),
                _ => open(),
            },
        };
        let dir = found.ok()?;
        let mut link = PathBuffer::front();
        link.append(name)?;
        let link = link.c_str()?;
        let name = path.add(at);
        let mut none = [0; 1];
        let forbids_links = how.resolve & NO_SYMLINKS != 0;
        let follows = how.flags & libc::O_NOFOLLOW == 0
            && how.flags & (libc::O_CREAT | libc::O_EXCL) != libc::O_CREAT | libc::O_EXCL
            || end < bytes.len();
        let is_pending_link =
            follows && outputs::read_link(dir.0, link.as_ptr(), none.as_mut_ptr(), 1).is_some_and(|n| n >= 0);
        errno::set_errno(saved);
        if is_pending_link && forbids_links {
            return failed(libc::ELOOP);
        }
        let is_link = || {
            kernel::stat_at(dir.0, link, libc::AT_SYMLINK_NOFOLLOW)
                .is_ok_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFLNK)
        };
        if is_pending_link || follows && how.resolve & STAYS != 0 && outputs::is_pending() && is_link() {
            // What the rules forbid comes before what is there.
            let found = kernel::open_directory(dirfd, path, how.resolve & !CACHED);
            if matches!(found, Err(libc::EXDEV | libc::ELOOP)) {
                return None;
            }
            // Where it may lead, the kernel knows once it is published, and what it leads to.
            return [false, true]
                .into_iter()
                .find_map(|follow| outputs::settle(dir.0, link.as_ptr(), follow).filter(|&done| done < 0));
        }
        let flags = if forbids_links { how.flags | libc::O_NOFOLLOW } else { how.flags };
        outputs::open(dir.0, name, flags, how.mode)
    }
}
