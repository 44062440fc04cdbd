//! The constructor: finds the job's control block.

use core::sync::atomic::Ordering;
use monarch_abi::foreign_changes::VARIABLE;
use monarch_abi::outputs::plain_calls::HELPER_VARIABLE;
use monarch_guest::control::{self, variable};
use monarch_guest::ctx::gate::{self, FOREIGN, MAPPED, WITHOUT};
use monarch_guest::ctx::rights;

/// The constructor.
pub extern "C" fn boot(_argc: i32, argv: *const *const u8, envp: *const *const u8) {
    crate::next::resolve_all();
    let state = if crate::next::is_glibc() { attach(argv, envp) } else { WITHOUT };
    gate::set_booted(state);
}

/// Maps the control block that the environment names, and says how far the gate opens: what a
/// process changes that is not served counts for those that are.
fn attach(argv: *const *const u8, envp: *const *const u8) -> u32 {
    // SAFETY: from the loader.
    let (disabled, path, socket) = unsafe {
        (variable(envp, b"MONARCH_DISABLE"), variable(envp, b"MONARCH_CTL"), variable(envp, VARIABLE.as_bytes()))
    };
    // SAFETY: from the loader.
    if let Some(group) = unsafe { variable(envp, b"MONARCH_JOB") } {
        gate::set_counter_group(group);
    }
    // SAFETY: from the loader.
    if let Some(ranks) = unsafe { variable(envp, b"LOCAL_WORLD_SIZE").or_else(|| variable(envp, b"WORLD_SIZE")) } {
        crate::weights::set_ranks(ranks);
    }
    // SAFETY: from the loader.
    if unsafe { variable(envp, HELPER_VARIABLE.as_bytes()) }.is_some() {
        crate::outputs::make_calls_for_others();
    }
    let Some(path) = path.filter(|path| path.first() == Some(&b'/')) else { return WITHOUT };
    if map_control(path, disabled).is_some() {
        // SAFETY: from the loader.
        unsafe { crate::shell::boot(argv) };
        return MAPPED;
    }
    if socket.is_some_and(crate::foreign_changes::boot) { FOREIGN } else { WITHOUT }
}

fn map_control(path: &[u8], disabled: Option<&[u8]>) -> Option<()> {
    let map = control::map(path)?;
    let by_site = map.ctl.site_off.load(Ordering::Relaxed) != 0;
    if control::is_disabled(disabled) || by_site || crate::next::paths_are_translated() {
        rights::switch_off();
    }
    gate::set_control(map);
    monarch_guest::process::boot();
    Some(())
}
