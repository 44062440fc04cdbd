//! The boot gate, shared memory, and which roots can be trusted in this process.
//!
//! | module | what it holds |
//! |---|---|
//! | [`gate`] | whether calls are answered in this process |
//! | [`files`] | the files of the runtime directory |
//! | [`segments`] | mapping segments as they appear |
//! | [`rights`] | whether this process may read what the agent may read |
//! | [`ids`] | which numbers users and groups have in this process's namespace |
//! | [`trust`] | what leads in this process where it leads for the agent |
//! | [`stem`] | whether a path leads outside of all roots |
//!
//! Before the constructor of the shim has run, every call goes to the next symbol. The constructor
//! maps the control block if the environment names one that is ours; segments are mapped when they
//! appear, and never unmapped. A root is trusted if this process sees the same mounts as the agent:
//! the same mount namespace and the same `/`, or else, asked once, the same `st_dev` and `st_ino`
//! at the root's path and at the tiers.

use crate::errno;
use crate::process::process;
use core::sync::atomic::Ordering;
use gate::{BOOTED, FOREIGN, MAPPED, ON, OTHER_RIGHTS};
use monarch_abi::control::{ControlMap, Counter};

pub mod files;
pub mod gate;
pub mod ids;
pub mod rights;
mod segments;
mod stem;
mod trust;

pub use files::{agent, hint_file, runtime_file};
pub use gate::leave_alone;
pub use rights::{never_again, rights_changed, threads_rights_changed};
pub use segments::{awaits_index, forked, give_up, knows_large, live, may_have_large, sync};
pub use stem::{Below, Glance, below, enter, enter_or, glance, glance_beside_outputs, is_beside_outputs};
pub use trust::{
    compare_again as places_compared, in_own_namespace, may_have_other_mounts, mounts_changed, place_changed,
    sees_another_mount, tell_mount_event,
};

/// The shared state, when the gate is open.
#[derive(Clone, Copy)]
pub struct Ctx {
    /// The control block.
    pub map: &'static ControlMap<'static>,
    /// Whether segments that are not open yet are seen, too: changes have to be entered there.
    opening: bool,
    /// Bytes of the path at hand that are the only spelling of the only root; 0 if that is not
    /// known.
    below: usize,
}

/// The gate: `None` means pass through.
#[inline]
#[must_use]
pub fn get() -> Option<Ctx> {
    if process().gate.load(Ordering::Acquire) != ON && !look() {
        return None;
    }
    open()
}

/// Whether the gate opens, in a process that has not looked yet: after the constructor, and in a
/// child.
#[cold]
#[inline(never)]
fn look() -> bool {
    if process().gate.load(Ordering::Acquire) != 0 || BOOTED.load(Ordering::Acquire) != MAPPED {
        return false;
    }
    let saved = errno::errno();
    rights_changed();
    errno::set_errno(saved);
    process().gate.load(Ordering::Acquire) == ON
}

/// The gate for what needs no rights: changes, and descriptors that the process has.
#[inline]
#[must_use]
pub fn mapped() -> Option<Ctx> {
    if BOOTED.load(Ordering::Acquire) != MAPPED {
        return None;
    }
    open()
}

/// The gate for calls below output roots; `None` where there are none. Open also where calls about
/// data sets are left to the PFS: what is pending is nowhere else.
#[inline]
#[must_use]
pub fn for_outputs() -> Option<Ctx> {
    for_outputs_or(|| None::<()>).ok()
}

/// [`for_outputs`] that says what `closed` says, where the gate is closed: that the call has
/// failed, or nothing.
///
/// # Errors
/// That, or `None` where there are no output roots.
#[inline]
pub fn for_outputs_or<F>(closed: impl FnOnce() -> Option<F>) -> Result<Ctx, Option<F>> {
    if process().gate.load(Ordering::Acquire) != ON && !look() {
        return Err(closed());
    }
    // SAFETY: the gate opens after the constructor has found that it is mapped.
    let map = unsafe { gate::any_control() };
    if map.ctl.outputs_len.load(Ordering::Acquire) != 0 { Ok(Ctx { map, opening: false, below: 0 }) } else { Err(None) }
}

/// The gate for what concerns output roots in a process that has other rights than the agent, and
/// that [`for_outputs`] is closed for.
#[cold]
#[must_use]
pub fn for_outputs_of_others() -> Option<Ctx> {
    if process().gate.load(Ordering::Acquire) != OTHER_RIGHTS || BOOTED.load(Ordering::Acquire) != MAPPED {
        return None;
    }
    // SAFETY: it is mapped, as was just seen.
    let map = unsafe { gate::any_control() };
    (map.ctl.outputs_len.load(Ordering::Acquire) != 0).then_some(Ctx { map, opening: false, below: 0 })
}

/// The control block, if the gate is seen to be open and there are no output roots.
#[inline]
fn seen_on() -> Option<&'static ControlMap<'static>> {
    if process().gate.load(Ordering::Acquire) != ON {
        return None;
    }
    // SAFETY: the gate opens after the constructor has found that it is mapped.
    let map = unsafe { gate::control()? };
    (map.ctl.outputs_len.load(Ordering::Acquire) == 0).then_some(map)
}

/// The control block, if the gate is seen to be open and there are output roots.
#[inline]
fn seen_with_outputs() -> Option<&'static ControlMap<'static>> {
    if process().gate.load(Ordering::Acquire) != ON {
        return None;
    }
    // SAFETY: the gate opens after the constructor has found that it is mapped.
    let map = unsafe { gate::control()? };
    (map.ctl.outputs_len.load(Ordering::Acquire) != 0).then_some(map)
}

/// Whether the gate may be open, as far as a look at it shows.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    match process().gate.load(Ordering::Relaxed) {
        ON => true,
        0 => BOOTED.load(Ordering::Relaxed) == MAPPED,
        _ => false,
    }
}

/// Whether this process belongs to a job whose control block it cannot open: see
/// `foreign_changes` of the shim.
#[inline]
#[must_use]
pub fn is_foreign() -> bool {
    BOOTED.load(Ordering::Acquire) == FOREIGN
}

#[inline]
fn open() -> Option<Ctx> {
    // SAFETY: the callers have seen that it is mapped.
    let map = unsafe { gate::control()? };
    Some(Ctx { map, opening: false, below: 0 })
}

impl Ctx {
    /// Whether some root lies on this device.
    #[must_use]
    pub fn is_root_device(&self, dev: u64) -> bool {
        self.map.roots().iter().any(|r| r.dev.load(Ordering::Relaxed) == dev)
    }

    /// Adds to a counter.
    #[inline]
    pub fn count(&self, what: Counter, by: u64) {
        self.count_all([(what, by)]);
    }

    /// Adds to several counters.
    #[inline]
    pub fn count_all<const N: usize>(&self, what: [(Counter, u64); N]) {
        // The stack differs between threads, the kernel's randomisation between processes.
        let here = 0u8;
        let hint = &raw const here as usize;
        let group = gate::COUNTER_GROUP.load(Ordering::Relaxed);
        self.map.count_all(group, hint >> 12 ^ hint >> 20 ^ hint >> 28, what);
    }

    /// Whether the call at hand changes nothing: then what is not found is the kernel's to answer.
    #[inline]
    #[must_use]
    pub const fn only_reads(&self) -> bool {
        !self.opening
    }

    /// The same, with segments that are not open yet.
    #[must_use]
    pub const fn for_changes(&self) -> Self {
        Self { opening: true, below: 0, ..*self }
    }
}
