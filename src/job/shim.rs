//! Finds the preload library.

use anyhow::{Result, bail};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// File name of the preload library.
pub(crate) const NAME: &str = "libmonarch_shim.so";

/// Returns the path of the preload library: `MONARCH_SHIM`, or a file beside the executable, in
/// `../lib/monarch` or in `../lib`.
///
/// # Errors
/// When it is in none of these places, or the loader cannot preload it from its path.
pub(crate) fn find() -> Result<PathBuf> {
    let path = look()?;
    // LD_PRELOAD is a list with these separators, without quotes.
    if path.as_os_str().as_bytes().iter().any(|c| b" :\t\n".contains(c)) {
        bail!(
            "the loader cannot preload {}: its path has a space or a colon; set MONARCH_SHIM to a copy elsewhere",
            path.display()
        );
    }
    Ok(path)
}

fn look() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MONARCH_SHIM") {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path.canonicalize()?);
        }
        bail!("MONARCH_SHIM names {}, which is not a file", path.display());
    }
    let exe = std::env::current_exe()?;
    let dir = exe.parent().map_or_else(PathBuf::new, PathBuf::from);
    let places = [dir.join(NAME), dir.join("../lib/monarch").join(NAME), dir.join("../lib").join(NAME)];
    match places.iter().find(|p| p.is_file()) {
        Some(p) => Ok(p.canonicalize()?),
        None => bail!("{NAME} is not beside {}; set MONARCH_SHIM to its path", exe.display()),
    }
}
