//! What the C library or the kernel does with a name on their own account: watching it, making a
//! key of its inode, opening it as a table of mounts.

use super::hook;
use crate::outputs::{self, Subject};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::MaybeUninit;

const CWD: c_int = libc::AT_FDCWD;

/// Watches or opens a name by `call`, which gets its path: of a file that stays pending, as a
/// process has it open, that of the staged file. `refused`, and errno, where the PFS refuses what
/// is pending.
pub(super) unsafe fn watched<T>(path: *const c_char, refused: T, call: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: passed on.
    unsafe {
        if outputs::publish(CWD, path, Subject::File).is_some() {
            return refused;
        }
        let mut staged = outputs::data_of(path, true);
        call(staged.as_mut().and_then(|p| p.c_str()).map_or(path, CStr::as_ptr))
    }
}

/// The key that ftok(3) makes of a file.
unsafe fn key(path: *const c_char, project: c_int) -> Option<c_int> {
    outputs::is_pending().then_some(())?;
    let mut st = MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: passed on; filled when the call says so.
    let st = unsafe {
        if libc::stat64(path, st.as_mut_ptr()) < 0 {
            return Some(-1);
        }
        st.assume_init()
    };
    Some((st.st_ino & 0xffff | (st.st_dev & 0xff) << 16 | (project as u64 & 0xff) << 24) as c_int)
}

hook! { next;
    fn inotify_add_watch(queue: c_int, path: *const c_char, mask: u32) -> c_int {
        watched(path, -1, |path| next(queue, path, mask))
    }
    fn fanotify_mark(queue: c_int, flags: c_uint, mask: u64, dirfd: c_int, path: *const c_char) -> c_int {
        outputs::publish(dirfd, path, Subject::File).unwrap_or_else(|| next(queue, flags, mask, dirfd, path))
    }
    fn ftok(path: *const c_char, project: c_int) -> c_int {
        key(path, project).unwrap_or_else(|| next(path, project))
    }
    fn setmntent(path: *const c_char, mode: *const c_char) -> *mut c_void {
        watched(path, core::ptr::null_mut(), |path| next(path, mode))
    }
}
