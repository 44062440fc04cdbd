//! The `errno` of the calling thread.

use core::ffi::c_int;

/// Sets it.
#[inline]
pub fn set_errno(e: c_int) {
    // SAFETY: always a valid pointer in a process with a C library.
    unsafe { *libc::__errno_location() = e };
}

/// Reads it.
#[inline]
#[must_use]
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}
