//! Rules that hold for every path of the configuration.

use std::path::{Component, Path, PathBuf};

use super::context::Context;
use super::error::{ConfigError, ErrorKind};
use super::key::Key;

/// The path without `.`, double and trailing slashes; refuses what does not name one place from
/// everywhere.
pub(super) fn clean(cx: &Context<'_>, kind: ErrorKind, key: &Key, path: &Path) -> Result<PathBuf, ConfigError> {
    let shown = path.display();
    if path.to_string_lossy().starts_with(['$', '~']) {
        let remedy = "write the path out; or give it on the command line, where the shell fills it in";
        return Err(cx.error(kind, key, format!("{shown}: variables and ~ are not filled in here"), remedy));
    }
    if path.as_os_str().is_empty() {
        return Err(cx.error(kind, key, "the path is empty", "write the path from the top, beginning with /"));
    }
    if !path.is_absolute() {
        let message = format!("`{shown}` is a relative path, and processes have different working directories");
        return Err(cx.error(kind, key, message, "write the path from the top, beginning with /"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        let message = format!("{shown} goes up with `..`, which depends on symbolic links on the way");
        return Err(cx.error(kind, key, message, "write the path without `..` (`realpath` prints it)"));
    }
    Ok(path.components().collect())
}

/// Whether one of two paths is the other or lies inside it.
pub(super) fn nested(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}
