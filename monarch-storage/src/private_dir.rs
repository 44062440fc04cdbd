//! Private directories: 0700 and ours, or another name is taken.

use crate::held_dir::HeldDir;
use rustix::io::Errno;
use std::sync::Arc;

/// Names that are tried.
pub const NAMES: usize = 16;

/// Why there is no private directory.
#[derive(Debug, thiserror::Error)]
pub enum PrivateDirError {
    /// All candidate names belong to others.
    #[error("all candidate names belong to somebody else or are open to others")]
    Squatted,
    /// The kernel said no.
    #[error(transparent)]
    Io(#[from] Errno),
}

/// Name of a user's private directory: the usual one, or the n-th way out when that is taken.
#[must_use]
pub fn name(stem: &str, n: usize) -> String {
    let uid = rustix::process::geteuid().as_raw();
    if n == 0 { format!("{stem}-{uid}") } else { format!("{stem}-{uid}.{n}") }
}

/// The n-th of them in `base`, if it is there and private.
#[must_use]
pub fn existing(base: &Arc<HeldDir>, stem: &str, n: usize) -> Option<HeldDir> {
    base.dir(&name(stem, n)).ok().filter(|dir| is_private(dir).unwrap_or(false))
}

/// Whether a directory is ours alone.
fn is_private(dir: &HeldDir) -> rustix::io::Result<bool> {
    let st = dir.stat_self()?;
    Ok(st.st_uid == rustix::process::geteuid().as_raw() && st.st_mode & 0o777 == 0o700)
}

/// Makes or opens `<base>/<stem>-<uid>`; a name that is not a directory of ours with mode 0700
/// leads to `.1`, `.2` ...
///
/// # Errors
/// [`PrivateDirError`].
pub fn open(base: &Arc<HeldDir>, stem: &str) -> Result<HeldDir, PrivateDirError> {
    for n in 0..NAMES {
        let name = name(stem, n);
        base.make_dir(name.as_str())?;
        let Ok(dir) = base.dir(&name) else { continue };
        if is_private(&dir)? {
            return Ok(dir);
        }
    }
    Err(PrivateDirError::Squatted)
}
