//! Whether the library is of use in this process. Where it is not, the loader drops it before the
//! program starts.

use crate::state;
use core::sync::atomic::Ordering;
use monarch_guest::control::{self, variable};
use monarch_guest::ctx::{self, gate, rights};

/// The interface that glibc has had since 2.35. Before, each call through a PLT cost five times as
/// much in programs with an audit library.
const LAV: u32 = 2;
/// What tells the loader to drop the library.
const NOT_NEEDED: u32 = 0;

/// The constructor, called before [`version`].
pub extern "C" fn constructor(_argc: i32, _argv: *const *const u8, envp: *const *const u8) {
    begin(envp);
}

/// Looks for a job in the environment that the loader passed.
fn begin(envp: *const *const u8) {
    // SAFETY: from the loader.
    let (control, disabled, group, paths) = unsafe {
        (
            variable(envp, b"MONARCH_CTL"),
            variable(envp, b"MONARCH_DISABLE"),
            variable(envp, b"MONARCH_JOB"),
            variable(envp, b"LD_LIBRARY_PATH"),
        )
    };
    let Some(path) = control.filter(|path| path.first() == Some(&b'/')) else { return };
    if control::is_disabled(disabled) || attach(path).is_none() {
        return;
    }
    if let Some(group) = group {
        gate::set_counter_group(group);
    }
    state::start(paths.is_some_and(|paths| !paths.is_empty()));
}

/// Maps the control block, unless libraries are left alone.
fn attach(path: &[u8]) -> Option<()> {
    let map = control::map(path)?;
    if map.ctl.site_off.load(Ordering::Relaxed) != 0 || map.ctl.libraries_off.load(Ordering::Relaxed) != 0 {
        return None;
    }
    gate::set_control(map);
    monarch_guest::process::boot();
    gate::set_booted(gate::MAPPED);
    rights::rights_changed();
    ctx::get().map(|_| ())
}

/// `la_version`: the interface that this library speaks.
#[must_use]
pub fn version(offered: u32) -> u32 {
    if offered >= LAV && state::is_started() { LAV } else { NOT_NEEDED }
}
