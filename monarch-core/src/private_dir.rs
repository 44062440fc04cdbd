//! Private directories: 0700 and ours, or another name is taken.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};

/// Why there is no private directory.
#[derive(Debug, thiserror::Error)]
pub enum PrivateDirError {
    /// All candidate names belong to others.
    #[error("all candidate names belong to somebody else or are open to others")]
    Squatted,
    /// The kernel said no.
    #[error(transparent)]
    Io(#[from] rustix::io::Errno),
}

/// Name of a user's private directory: the usual one, or the n-th way out when that is taken.
#[must_use]
pub fn name(stem: &str, n: usize) -> String {
    let uid = rustix::process::geteuid().as_raw();
    if n == 0 { format!("{stem}-{uid}") } else { format!("{stem}-{uid}.{n}") }
}

/// Makes or opens `<base>/<stem>-<uid>`; a name that is not a directory of ours with mode 0700 leads to `.1`, `.2` ...
///
/// # Errors
/// [`PrivateDirError`].
pub fn open(base: &Path, stem: &str) -> Result<(PathBuf, OwnedFd), PrivateDirError> {
    let uid = rustix::process::geteuid().as_raw();
    for n in 0..16 {
        let path = base.join(name(stem, n));
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::open(&path, flags, Mode::empty()) else { continue };
        let st = rustix::fs::fstat(&fd)?;
        if st.st_uid == uid && st.st_mode & 0o777 == 0o700 {
            return Ok((path, fd));
        }
    }
    Err(PrivateDirError::Squatted)
}
