//! Opens paths below a directory of the PFS, without following links.

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};

/// Opens `path` below `root` to read, without following links anywhere.
///
/// # Errors
/// What the kernel said.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &[u8], extra: OFlags) -> rustix::io::Result<OwnedFd> {
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | extra;
    // Opening a pipe could block. With `O_PATH` nothing does, and the flag is refused.
    flags.set(OFlags::NONBLOCK, !extra.contains(OFlags::PATH));
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
        // Kernels before 5.6, and seccomp filters that do not know openat2.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => rustix::fs::openat(root, path, flags, Mode::empty()),
        other => other,
    }
}
