//! The constructor: finds the job's control block.

use crate::ctx::gate::{self, FOREIGN, MAPPED, WITHOUT};
use crate::ctx::{files, rights};
use crate::process::process;
use core::sync::atomic::Ordering;
use monarch_abi::control::ControlMap;
use monarch_abi::foreign_changes::VARIABLE;

/// The constructor.
pub extern "C" fn boot(_argc: i32, argv: *const *const u8, envp: *const *const u8) {
    crate::next::resolve_all();
    let state = if crate::next::is_glibc() { attach(argv, envp) } else { WITHOUT };
    gate::set_booted(state);
}

/// The value of an environment variable.
///
/// # Safety
/// `envp` must be the environment as the loader passed it.
unsafe fn env(envp: *const *const u8, name: &[u8]) -> Option<&'static [u8]> {
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

/// Maps the control block that the environment names, and says how far the gate opens: what a
/// process changes that is not served counts for those that are.
fn attach(argv: *const *const u8, envp: *const *const u8) -> u32 {
    // SAFETY: from the loader.
    let (disabled, path, socket) =
        unsafe { (env(envp, b"MONARCH_DISABLE"), env(envp, b"MONARCH_CTL"), env(envp, VARIABLE.as_bytes())) };
    // SAFETY: from the loader.
    if let Some(group) = unsafe { env(envp, b"MONARCH_JOB") } {
        gate::set_counter_group(group);
    }
    // SAFETY: from the loader.
    if let Some(ranks) = unsafe { env(envp, b"LOCAL_WORLD_SIZE").or_else(|| env(envp, b"WORLD_SIZE")) } {
        crate::weights::set_ranks(ranks);
    }
    let Some(path) = path.filter(|path| path.first() == Some(&b'/')) else { return WITHOUT };
    if map_control(path, disabled).is_some() {
        // SAFETY: from the loader.
        unsafe { crate::shell::boot(argv) };
        return MAPPED;
    }
    if socket.is_some_and(crate::foreign_changes::boot) { FOREIGN } else { WITHOUT }
}

fn map_control(path: &'static [u8], disabled: Option<&[u8]>) -> Option<()> {
    let slash = path.iter().rposition(|&c| c == b'/')?;
    let dir = path.get(..slash)?;
    if dir.len() > files::MAX_DIR {
        return None;
    }
    files::set_dir(dir);
    let map = files::map_file(path, true)?;
    let control = ControlMap::open_hiding(map, &process().hidden)?;
    let by_user = disabled.is_some_and(|v| !v.is_empty() && v != b"0");
    let by_site = control.ctl.site_off.load(Ordering::Relaxed) != 0;
    if by_user || by_site || crate::next::paths_are_translated() {
        rights::switch_off();
    }
    gate::set_control(control);
    crate::process::boot();
    Some(())
}
