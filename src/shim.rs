//! Where the preload library is.

use anyhow::{Result, bail};
use std::path::PathBuf;

const NAME: &str = "libmonarch_shim.so";

/// The preload library: `MONARCH_SHIM`, beside the executable, or in `../lib/monarch` and `../lib`.
pub(crate) fn find() -> Result<PathBuf> {
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
