//! Finds the control block that the environment of this process names.

use crate::ctx::files;
use crate::process::process;
use monarch_abi::control::ControlMap;

/// The value of an environment variable.
///
/// # Safety
/// `envp` must be the environment as the loader passed it.
#[must_use]
pub unsafe fn variable(envp: *const *const u8, name: &[u8]) -> Option<&'static [u8]> {
    let mut at = envp;
    if at.is_null() {
        return None;
    }
    loop {
        // SAFETY: the environment ends with a null pointer, its strings with a NUL.
        let text = unsafe {
            if (*at).is_null() {
                return None;
            }
            core::ffi::CStr::from_ptr((*at).cast()).to_bytes()
        };
        if let Some(value) = text.strip_prefix(name)
            && let Some((b'=', value)) = value.split_first()
        {
            return Some(value);
        }
        // SAFETY: as above.
        at = unsafe { at.add(1) };
    }
}

/// Whether `MONARCH_DISABLE` has a value that switches Monarch off.
#[must_use]
pub fn is_disabled(value: Option<&[u8]>) -> bool {
    value.is_some_and(|v| !v.is_empty() && v != b"0")
}

/// Maps the control block at this path, and remembers its directory. `None` if it is not this
/// user's, or has another layout.
#[must_use]
pub fn map(path: &[u8]) -> Option<ControlMap<'static>> {
    let slash = path.iter().rposition(|&c| c == b'/')?;
    let dir = path.get(..slash)?;
    if dir.len() > files::MAX_DIR {
        return None;
    }
    files::set_dir(dir);
    let map = files::map_file(path, true)?;
    ControlMap::open_hiding(map, &process().hidden)
}
