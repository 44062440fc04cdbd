//! Helpers for system calls.

use fuser::Errno;
use std::os::fd::{AsFd, AsRawFd};

/// The errno of a failed system call.
pub(super) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

/// The magic link through which an `O_PATH` descriptor is opened, changed or measured.
pub(super) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}
