//! Private directories of this user: mode 0700, under another name where the usual one is taken.

use crate::held_dir::HeldDir;
use rustix::io::Errno;
use std::sync::Arc;

/// Names that are tried, at most.
pub const MAX_NAMES: usize = 16;

/// Why there is no private directory.
#[derive(Debug, thiserror::Error)]
pub enum PrivateDirError {
    /// Other users have all candidate names.
    #[error("all candidate names belong to another user or are open to others")]
    Squatted,
    /// What the kernel said.
    #[error(transparent)]
    Io(#[from] Errno),
}

/// Name of this user's private directory: the usual one, or the n-th alternative.
#[must_use]
pub fn name(stem: &str, n: usize) -> String {
    let uid = rustix::process::geteuid().as_raw();
    if n == 0 { format!("{stem}-{uid}") } else { format!("{stem}-{uid}.{n}") }
}

/// Opens the directory with the n-th name in `base`, if it exists and is private.
#[must_use]
pub fn existing(base: &Arc<HeldDir>, stem: &str, n: usize) -> Option<HeldDir> {
    base.dir(&name(stem, n)).ok().filter(|dir| is_private(dir).unwrap_or(false))
}

/// Whether a directory belongs to this user, with mode 0700.
fn is_private(dir: &HeldDir) -> rustix::io::Result<bool> {
    let st = dir.stat_self()?;
    Ok(st.st_uid == rustix::process::geteuid().as_raw() && st.st_mode & 0o777 == 0o700)
}

/// Makes or opens `<base>/<stem>-<uid>`. Where that is not a private directory of this user, `.1`,
/// `.2` and so on are tried.
///
/// # Errors
/// [`PrivateDirError`].
pub fn open(base: &Arc<HeldDir>, stem: &str) -> Result<HeldDir, PrivateDirError> {
    for n in 0..MAX_NAMES {
        let name = name(stem, n);
        base.make_dir(name.as_str())?;
        let Ok(dir) = base.dir(&name) else { continue };
        if is_private(&dir)? {
            return Ok(dir);
        }
    }
    Err(PrivateDirError::Squatted)
}
